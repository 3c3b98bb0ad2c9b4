//! A prefill worker that fails costs time, never a token.

use baton_decode_worker::DecodeConfig;
use baton_kvcache::transfer::TransferConfig;
use baton_proto::v1::{DecodeRequest, PrefillCandidate, decode_event::Event};
use baton_worker::RunningWorker;
use tonic::{Code, Status};

use crate::fleet::*;

async fn served_here_after(decode: &RunningWorker, request: DecodeRequest, outcome: &str) {
    let answer = generate(decode, request.clone()).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&request, 0));
    assert_eq!(
        answer.prefilled.expect("said").worker_id,
        decode.identity().worker_id
    );
    assert_eq!(
        metric(decode, "baton_decode_handoffs_total", outcome),
        1.0,
        "{outcome}"
    );
    assert_eq!(metric(decode, "baton_decode_fallbacks_total", "local"), 1.0);
    assert_eq!(
        metric(decode, "baton_decode_first_token_contradictions_total", ""),
        0.0
    );
    all_pages_back(decode).await;
}

async fn scripted(salt: u32, script: Vec<Line>) -> (ScriptedPrefill, DecodeRequest) {
    let prefill = ScriptedPrefill::start(script).await;
    let mut request = request(salt, 70, 12);
    request.prefill = vec![prefill.candidate()];
    (prefill, request)
}

#[tokio::test]
async fn a_refusal_is_followed_by_a_local_prefill() {
    let decode = Shape::default().decode().await;
    let (_prefill, request) = scripted(1, vec![Line::Fail(Status::resource_exhausted("full"))]).await;
    served_here_after(&decode, request, "refused").await;
}

#[tokio::test]
async fn a_worker_that_is_not_there_is_followed_by_the_next_candidate() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let mut request = with_prefill(request(2, 70, 12), &[&prefill]);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("bound");
    request.prefill.insert(
        0,
        PrefillCandidate {
            worker_id: "nobody".into(),
            addr: format!("http://{nobody}"),
        },
    );
    let answer = generate(&decode, request.clone()).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&request, 0));
    assert_eq!(
        answer.prefilled.expect("said").worker_id,
        prefill.identity().worker_id
    );
    assert_eq!(metric(&decode, "baton_decode_handoffs_total", "unreachable"), 1.0);
    assert_eq!(metric(&decode, "baton_decode_fallbacks_total", "candidate"), 1.0);
}

#[tokio::test]
async fn a_worker_that_dies_in_the_middle_is_followed_by_the_next_candidate() {
    let dying = Shape {
        // One chunk of the prompt is done, and its KV sent, when it stands still.
        gate: Gate::after(1),
        ..Shape::default()
    };
    let dying = dying.prefill().await;
    let (next, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let request = with_prefill(request(3, 200, 12), &[&dying, &next]);
    let stream = open(&decode, request.clone()).await.expect("served");
    let answer = tokio::spawn(within(collect(stream)));
    eventually("KV arrives", || {
        metric(&decode, "baton_kv_transfer_bytes_total", "in") > 0.0
    })
    .await;
    drop(dying);
    let answer = answer.await.expect("no panic").expect("served");
    assert_eq!(answer.tokens[&0], expected(&request, 0));
    assert_eq!(
        answer.prefilled.expect("said").worker_id,
        next.identity().worker_id
    );
    all_pages_back(&decode).await;
    all_pages_back(&next).await;
}

#[tokio::test]
async fn first_tokens_are_forwarded_at_once_and_once() {
    let decode = Shape {
        transfer: TransferConfig {
            lease_timeout_ms: 300,
            ..Shape::default().transfer
        },
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let probe = request(4, 70, 12);
    let first = expected(&probe, 0)[0];
    // Its KV never comes, so the lease expires and the prompt runs here.
    let (_prefill, request) = scripted(4, vec![Line::Started, Line::First(first), Line::Hang]).await;
    let mut stream = open(&decode, request.clone()).await.expect("served");
    let event = heard(&mut stream, |event| !matches!(event, Event::Accepted(_))).await;
    let Event::Tokens(tokens) = event else {
        panic!("{event:?} before the first token")
    };
    assert_eq!(tokens.ids, [first], "before its KV is here");
    let rest = within(collect(stream)).await.expect("served");
    assert_eq!(rest.tokens[&0], expected(&request, 0)[1..], "no token twice");
    assert_eq!(metric(&decode, "baton_decode_handoffs_total", "transfer"), 1.0);
    assert_eq!(
        metric(&decode, "baton_decode_first_token_contradictions_total", ""),
        0.0
    );
    all_pages_back(&decode).await;
}

#[tokio::test]
async fn first_tokens_stand_when_the_next_candidate_takes_over() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let first = expected(&request(5, 70, 12), 0)[0];
    let script = vec![
        Line::Started,
        Line::First(first),
        Line::Fail(Status::aborted("lost")),
    ];
    let (_scripted, mut request) = scripted(5, script).await;
    request
        .prefill
        .extend(with_prefill(request.clone(), &[&prefill]).prefill);
    let answer = generate(&decode, request.clone()).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&request, 0));
    assert_eq!(
        answer.prefilled.expect("said").worker_id,
        prefill.identity().worker_id
    );
    assert_eq!(
        metric(&decode, "baton_decode_first_token_contradictions_total", ""),
        0.0
    );
}

#[tokio::test]
async fn a_contradiction_is_counted_and_what_was_sent_stands() {
    let decode = Shape::default().decode().await;
    let wrong = (expected(&request(6, 70, 12), 0)[0] + 1) % VOCAB;
    let script = vec![
        Line::Started,
        Line::First(wrong),
        Line::Fail(Status::aborted("lost")),
    ];
    let (_prefill, request) = scripted(6, script).await;
    let answer = generate(&decode, request.clone()).await.expect("served");
    let mut tokens = expected(&request, 0);
    tokens[0] = wrong;
    assert_eq!(answer.tokens[&0], tokens, "no token is lost or repeated");
    assert_eq!(
        metric(&decode, "baton_decode_first_token_contradictions_total", ""),
        1.0
    );
}

#[tokio::test]
async fn a_queue_that_does_not_move_is_left() {
    let decode = Shape {
        decode: DecodeConfig {
            start_seconds: 0.1,
            ..DecodeConfig::default()
        },
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let (mut prefill, request) = scripted(7, vec![Line::Hang]).await;
    served_here_after(&decode, request, "timed_out").await;
    within(prefill.dropped.recv()).await.expect("the call was let go");
}

#[tokio::test]
async fn nonsense_from_a_prefill_worker_is_not_believed() {
    for script in [
        vec![Line::First(1)],
        vec![Line::Started, Line::Started],
        vec![Line::Started, Line::First(VOCAB)],
        vec![Line::Started],
    ] {
        let decode = Shape::default().decode().await;
        let (_prefill, request) = scripted(8, script).await;
        served_here_after(&decode, request, "protocol").await;
    }
}

#[tokio::test]
async fn kv_of_another_model_is_refused() {
    let other = Shape {
        revision: "r2".into(),
        ..Shape::default()
    };
    let (other, decode) = (other.prefill().await, Shape::default().decode().await);
    let request = with_prefill(request(9, 70, 12), &[&other]);
    served_here_after(&decode, request, "gave_up").await;
    all_pages_back(&other).await;
}

#[tokio::test]
async fn a_decode_worker_whose_engine_stops_says_so_and_is_to_be_restarted() {
    let gate = Gate::closed();
    let decode = Shape {
        gate: gate.clone(),
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let stream = open(&decode, request(10, 30, 5)).await.expect("accepted");
    gate.break_down();
    let status = within(collect(stream)).await.expect_err("the engine is gone");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let reason = within(decode.failed()).await;
    assert!(reason.contains("the test broke it"), "{reason}");
    let refused = generate(&decode, request(11, 30, 5))
        .await
        .expect_err("no engine");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

#[tokio::test]
async fn a_prefill_worker_whose_engine_stops_is_left_for_the_next() {
    let gate = Gate::after(1);
    let breaking = Shape {
        gate: gate.clone(),
        ..Shape::default()
    };
    let breaking = breaking.prefill().await;
    let (next, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let request = with_prefill(request(12, 200, 12), &[&breaking, &next]);
    let stream = open(&decode, request.clone()).await.expect("served");
    let answer = tokio::spawn(within(collect(stream)));
    eventually("KV arrives", || {
        metric(&decode, "baton_kv_transfer_bytes_total", "in") > 0.0
    })
    .await;
    gate.break_down();
    let answer = answer.await.expect("no panic").expect("served");
    assert_eq!(answer.tokens[&0], expected(&request, 0));
    assert_eq!(
        answer.prefilled.expect("said").worker_id,
        next.identity().worker_id
    );
    within(breaking.failed()).await;
}
