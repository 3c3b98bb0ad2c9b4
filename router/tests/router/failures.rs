//! Workers that refuse, fail and die, and a router that is full or stops.

use std::{sync::Arc, time::Duration};

use baton_proto::{TraceContext, v1::FinishReason};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tonic::Status;

use crate::{
    fleet::{Fleet, chat_body, events, ids, says, script},
    worker::{FakeWorker, Script, Step, finished, tokens},
};

fn fails(status: Status) -> Script {
    script(move |_| vec![Step::Fail(status.clone())])
}

/// Says `words`, then what `then` says.
fn begins(words: &str, then: Step) -> Script {
    let ids = ids(words);
    script(move |_| vec![tokens(0, &ids), then.clone()])
}

async fn error_event(response: reqwest::Response) -> (String, Value) {
    assert_eq!(response.status(), 200);
    let text = response.text().await.expect("the stream ends");
    let (data, _) = events(&text);
    assert!(!text.contains("[DONE]"), "{text}");
    let error = serde_json::from_str(data.last().expect("events")).expect("JSON");
    (text, error)
}

#[tokio::test]
async fn a_worker_that_refuses_is_passed_over() {
    let fleet = Fleet::with(|config| config.max_attempts = 1).await;
    let busy = FakeWorker::join(
        fleet.router.grpc_addr,
        "busy",
        fails(Status::resource_exhausted("full")),
    )
    .await;
    let response = fleet.post("/v1/chat/completions", &chat_body(&json!({}))).await;
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["retry-after"].to_str().ok()
        ),
        (503, Some("1"))
    );
    let drains = FakeWorker::join(
        fleet.router.grpc_addr,
        "drains",
        fails(Status::unavailable("draining")),
    )
    .await;
    let good = FakeWorker::join(fleet.router.grpc_addr, "good", says("ok")).await;
    // Whatever the order is, a refusal is no attempt.
    for _ in 0..16 {
        let (status, answer) = fleet.chat(&json!({})).await;
        assert_eq!(
            (status, &answer["choices"][0]["message"]["content"]),
            (200, &json!("ok")),
            "{answer}"
        );
    }
    assert_eq!(good.seen.count(), 16);
    assert!(busy.seen.count() > 1 && drains.seen.count() > 0);
    fleet.stop().await;
}

#[tokio::test]
async fn a_worker_that_dies_before_the_first_byte_is_replaced() {
    let fleet = Fleet::start().await;
    let dying = FakeWorker::join(fleet.router.grpc_addr, "dying", script(|_| vec![Step::Hang])).await;
    let request = tokio::spawn({
        let request = fleet
            .http
            .post(fleet.url("/v1/chat/completions"))
            .json(&chat_body(&json!({ "stream": true })));
        async move { request.send().await.expect("answers").text().await.expect("ends") }
    });
    dying.seen.request(0).await;
    // The plan was made before the other joined: the first candidate list holds only the dying one.
    let _late = FakeWorker::join(fleet.router.grpc_addr, "late", says("unused")).await;
    dying.kill();
    let text = request.await.expect("no panic");
    assert!(text.contains("upstream_worker_lost"), "{text}");

    // With both in the plan, whichever comes first, the answer is whole.
    let cut = FakeWorker::join(fleet.router.grpc_addr, "cut", script(|_| vec![Step::Stop])).await;
    for _ in 0..16 {
        let (status, answer) = fleet.chat(&json!({})).await;
        assert_eq!(
            (status, &answer["choices"][0]["message"]["content"]),
            (200, &json!("unused")),
            "{answer}"
        );
    }
    assert!(cut.seen.count() > 0);
    assert!(
        fleet
            .metric(&format!(
                "baton_router_retries_total{{reason=\"lost\"}} {}",
                cut.seen.count()
            ))
            .await
    );
    fleet.stop().await;
}

#[tokio::test]
async fn every_attempt_sends_the_same_seed_and_nothing_emitted() {
    let fleet = Fleet::start().await;
    let a = FakeWorker::join(fleet.router.grpc_addr, "a", fails(Status::internal("broken"))).await;
    let b = FakeWorker::join(fleet.router.grpc_addr, "b", fails(Status::internal("broken"))).await;
    let (status, answer) = fleet.chat(&json!({})).await;
    assert_eq!(
        (status, answer["error"]["code"].as_str()),
        (502, Some("upstream_worker_failed"))
    );
    let (first, second) = (a.seen.request(0).await, b.seen.request(0).await);
    assert_eq!(first.sampling, second.sampling);
    assert_eq!(first.choices, second.choices);
    assert!(first.choices[0].emitted_ids.is_empty());
    fleet.stop().await;
}

#[tokio::test]
async fn a_worker_lost_after_the_first_byte_is_an_error_event() {
    let fleet = Fleet::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", begins("half an", Step::Wait(gate))).await;
    let response = fleet
        .post("/v1/chat/completions", &chat_body(&json!({ "stream": true })))
        .await;
    worker.kill();
    let (text, error) = error_event(response).await;
    assert!(text.contains("half an"), "{text}");
    assert_eq!(error["error"]["code"], "upstream_worker_lost");
    assert!(
        error["error"]["message"]
            .as_str()
            .expect("a message")
            .contains("d0")
    );
    assert!(
        fleet
            .metric("baton_router_errors_total{kind=\"upstream_worker_lost\"} 1")
            .await
    );

    let _failing = FakeWorker::join(
        fleet.router.grpc_addr,
        "d1",
        begins("half an", Step::Fail(Status::internal("executor stopped"))),
    )
    .await;
    let response = fleet
        .post("/v1/chat/completions", &chat_body(&json!({ "stream": true })))
        .await;
    let (_, error) = error_event(response).await;
    assert_eq!(error["error"]["code"], "upstream_worker_failed");
    // Without a stream nothing has been sent, so that the status can tell.
    let (status, answer) = fleet.chat(&json!({})).await;
    assert_eq!(
        (status, answer["error"]["code"].as_str()),
        (502, Some("upstream_worker_failed"))
    );
    fleet.stop().await;
}

#[tokio::test]
async fn what_only_a_worker_can_know_is_a_bad_request() {
    let fleet = Fleet::start().await;
    let refusal = fails(Status::invalid_argument("stop_token_ids: 5 is reserved"));
    let a = FakeWorker::join(fleet.router.grpc_addr, "a", refusal.clone()).await;
    let b = FakeWorker::join(fleet.router.grpc_addr, "b", refusal).await;
    let (status, answer) = fleet.chat(&json!({})).await;
    assert_eq!(status, 400);
    assert_eq!(answer["error"]["message"], "stop_token_ids: 5 is reserved");
    assert_eq!(a.seen.count() + b.seen.count(), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn deadlines_are_named_before_and_after_the_first_byte() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", begins("slow", Step::Hang)).await;
    let send = async |body: Value| {
        let request = fleet
            .http
            .post(fleet.url("/v1/chat/completions"))
            .header("x-baton-deadline-ms", "80");
        request.json(&body).send().await.expect("answers")
    };
    let whole = send(chat_body(&json!({}))).await;
    assert_eq!(whole.status(), 504);
    let answer: Value = whole.json().await.expect("JSON");
    assert_eq!(answer["error"]["code"], "deadline_exceeded");
    assert!(
        answer["error"]["message"]
            .as_str()
            .expect("a message")
            .contains("80ms")
    );
    let (text, error) = error_event(send(chat_body(&json!({ "stream": true }))).await).await;
    assert!(text.contains("slow"));
    assert_eq!(error["error"]["code"], "deadline_exceeded");
    worker.seen.cancelled(2).await;
    assert!((1..=80).contains(&worker.seen.request(0).await.deadline_ms.expect("sent")));

    drop(worker);
    let late = script(|_| vec![finished(0, FinishReason::Deadline)]);
    let _late = FakeWorker::join(fleet.router.grpc_addr, "d1", late).await;
    assert_eq!(fleet.chat(&json!({})).await.0, 504);
    fleet.stop().await;
}

#[tokio::test]
async fn no_workers_and_too_many_requests() {
    let fleet = Fleet::with(|config| {
        config.max_concurrent_requests = 2;
        config.max_prompts = 2;
    })
    .await;
    let response = fleet.post("/v1/chat/completions", &chat_body(&json!({}))).await;
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["retry-after"].to_str().ok()
        ),
        (503, Some("1"))
    );
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", script(|_| vec![Step::Hang])).await;
    let body = json!({ "model": "tiny", "prompt": ["a", "b"] });
    let both = tokio::spawn({
        let request = fleet.http.post(fleet.url("/v1/completions")).json(&body);
        async move { request.send().await.map(|response| response.status()) }
    });
    worker.seen.request(1).await;
    let response = fleet.post("/v1/chat/completions", &chat_body(&json!({}))).await;
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["retry-after"].to_str().ok()
        ),
        (429, Some("1"))
    );
    assert!(
        fleet
            .metric("baton_router_refusals_total{reason=\"too_many_requests\"} 1")
            .await
    );
    both.abort();
    worker.seen.cancelled(2).await;
    fleet.stop().await;
}

#[tokio::test]
async fn the_trace_goes_on_at_the_worker() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says("x")).await;
    let caller = TraceContext::root(77, 88);
    let request = fleet
        .http
        .post(fleet.url("/v1/chat/completions"))
        .header("traceparent", caller.to_string());
    let request = request
        .header("x-request-id", "traced")
        .json(&chat_body(&json!({})));
    assert_eq!(request.send().await.expect("answers").status(), 200);
    let (sent, metadata) = worker.seen.requests.lock()[0].clone();
    let passed_on = metadata
        .get("traceparent")
        .expect("is passed on")
        .to_str()
        .expect("text");
    let hop = TraceContext::parse(passed_on).expect("well formed");
    assert_eq!((hop.trace_id, sent.request_id.as_str()), (77, "traced"));
    assert_ne!(hop.span_id, 88);
    fleet.stop().await;
}

#[tokio::test]
async fn a_drain_lets_streams_finish_and_ends_those_that_do_not() {
    let fleet = Fleet::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let (ids, gate) = (ids("kept"), Arc::clone(&gate));
        script(move |_| {
            vec![
                tokens(0, &ids),
                Step::Wait(Arc::clone(&gate)),
                tokens(0, &ids),
                finished(0, FinishReason::Stop),
            ]
        })
    })
    .await;
    let response = fleet
        .post("/v1/chat/completions", &chat_body(&json!({ "stream": true })))
        .await;
    let stopping = tokio::spawn(fleet.router.shutdown(Duration::from_secs(20)));
    let mut body = response.bytes_stream();
    let first = body.next().await.expect("goes on").expect("bytes");
    gate.add_permits(1);
    let mut text = String::from_utf8(first.to_vec()).expect("text");
    while let Some(bytes) = body.next().await {
        text.push_str(std::str::from_utf8(&bytes.expect("bytes")).expect("text"));
    }
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    stopping.await.expect("no panic");

    let fleet = Fleet::start().await;
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", begins("never", Step::Hang)).await;
    let response = fleet
        .post("/v1/chat/completions", &chat_body(&json!({ "stream": true })))
        .await;
    let stopping = tokio::spawn(fleet.router.shutdown(Duration::from_millis(20)));
    let (_, error) = error_event(response).await;
    assert_eq!(error["error"]["code"], "shutting_down");
    stopping.await.expect("no panic");
}
