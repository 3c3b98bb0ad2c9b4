//! `Prefill.Run` by itself: what it refuses, and what it says when the hand-off cannot be.

use baton_proto::v1::{
    Choice, DecodeRequest, KvTarget, PrefillEvent, PrefillRequest, prefill_client::PrefillClient,
    prefill_event::Event,
};
use baton_worker::{RunningWorker, status::ERROR_DETAIL};
use tonic::{Code, Status, Streaming};

use crate::fleet::*;

fn prefill_request(request: DecodeRequest, kv_link_addr: &str) -> PrefillRequest {
    PrefillRequest {
        request_id: request.request_id,
        model: request.model,
        prompt_ids: request.prompt_ids,
        choices: request.choices,
        sampling: request.sampling,
        stop: request.stop,
        transfer_id: vec![7; 16],
        target: Some(KvTarget {
            worker_id: "d".into(),
            kv_link_addr: kv_link_addr.into(),
        }),
        ..PrefillRequest::default()
    }
}

async fn run(worker: &RunningWorker, request: PrefillRequest) -> Result<Streaming<PrefillEvent>, Status> {
    let mut client = PrefillClient::connect(worker.identity().url.clone())
        .await
        .expect("it listens");
    Ok(client.run(request).await?.into_inner())
}

async fn fails(mut stream: Streaming<PrefillEvent>) -> (Vec<Event>, Status) {
    let mut events = Vec::new();
    within(async {
        loop {
            match stream.message().await {
                Ok(Some(event)) => events.extend(event.event),
                Ok(None) => panic!("no error after {events:?}"),
                Err(status) => return (events, status),
            }
        }
    })
    .await
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_name() {
    let worker = Shape::default().prefill().await;
    type Change = fn(&mut PrefillRequest);
    let bad: [(&str, Change); 4] = [
        ("transfer_id", |request| request.transfer_id.clear()),
        ("target", |request| request.target = None),
        ("held_pages", |request| request.held_pages = 4),
        ("choices", |request| {
            request.choices = (0..2)
                .map(|index| Choice {
                    index,
                    emitted_ids: vec![1],
                })
                .collect();
        }),
    ];
    for (field, change) in bad {
        let mut request = prefill_request(request(1, 64, 8), "127.0.0.1:1");
        change(&mut request);
        let status = run(&worker, request).await.expect_err(field);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let detail = status
            .metadata()
            .get(ERROR_DETAIL)
            .expect("a detail")
            .to_str()
            .expect("ascii");
        assert!(detail.contains(&format!("\"field\":\"{field}\"")), "{detail}");
    }
    let mut other = prefill_request(request(1, 64, 8), "127.0.0.1:1");
    other.model = "other".into();
    assert_eq!(
        run(&worker, other).await.expect_err("no such model").code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn a_receiver_that_cannot_be_reached_aborts_the_run() {
    let worker = Shape::default().prefill().await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("bound");
    let request = prefill_request(request(2, 64, 8), &format!("http://{nobody}"));
    let (_, status) = fails(run(&worker, request).await.expect("accepted")).await;
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert_eq!(metric(&worker, "baton_prefill_runs_total", "handoff_failed"), 1.0);
    all_pages_back(&worker).await;
}

#[tokio::test]
async fn a_prompt_whose_time_is_up_is_given_up() {
    let gate = Gate::closed();
    let shape = Shape {
        gate: gate.clone(),
        ..Shape::default()
    };
    let (worker, decode) = (shape.prefill().await, Shape::default().decode().await);
    let mut request = prefill_request(request(3, 64, 8), &decode.identity().url);
    request.target.as_mut().expect("set").worker_id = decode.identity().worker_id.clone();
    request.deadline_ms = Some(100);
    let (events, status) = fails(run(&worker, request).await.expect("accepted")).await;
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(
        !events.iter().any(|event| matches!(event, Event::FirstTokens(_))),
        "{events:?}"
    );
    gate.release();
    all_pages_back(&worker).await;
}
