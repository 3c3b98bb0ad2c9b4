//! Server-sent events.

use std::sync::Arc;

use baton_proto::v1::{FinishReason, Logprob, TokenLogprobs, Tokens, decode_event::Event};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::{
    fleet::{Fleet, chat_body, events, ids, says, script},
    worker::{FakeWorker, Step, finished, tokens},
};

async fn stream(fleet: &Fleet, path: &str, body: &Value) -> (Vec<Value>, usize) {
    let response = fleet.post(path, body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let text = response.text().await.expect("the stream ends");
    let (mut data, comments) = events(&text);
    assert_eq!(data.pop().as_deref(), Some("[DONE]"), "{text}");
    (
        data.iter()
            .map(|event| serde_json::from_str(event).expect("JSON"))
            .collect(),
        comments,
    )
}

fn joined(chunks: &[Value], pointer: &str) -> String {
    chunks
        .iter()
        .filter_map(|chunk| chunk.pointer(pointer)?.as_str())
        .collect()
}

#[tokio::test]
async fn a_chat_stream_has_role_text_reason_usage_and_done() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says("Hello 😀 world")).await;
    let body = chat_body(&json!({ "stream": true, "stream_options": { "include_usage": true }, "seed": -7 }));
    let response = fleet
        .http
        .post(fleet.url("/v1/chat/completions"))
        .header("x-request-id", "mine-1")
        .json(&body);
    let response = response.send().await.expect("answers");
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    assert_eq!(response.headers()["x-baton-decode"], "d0");
    assert_eq!(response.headers()["x-baton-prefill"], "p0");
    let (data, _) = events(&response.text().await.expect("ends"));
    assert_eq!(data.last().map(String::as_str), Some("[DONE]"));
    let chunks: Vec<Value> = data[..data.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect();
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({ "role": "assistant", "content": "" })
    );
    assert_eq!(joined(&chunks, "/choices/0/delta/content"), "Hello 😀 world");
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == "chatcmpl-mine-1")
    );
    let (usage, rest) = chunks.split_last().expect("chunks");
    assert_eq!(
        rest.last().expect("finish")["choices"][0]["finish_reason"],
        "stop"
    );
    assert!(rest.iter().all(|chunk| chunk["usage"].is_null()));
    assert_eq!(usage["choices"], json!([]));
    let request = worker.seen.request(0).await;
    let (prompt, answer) = (request.prompt_ids.len(), ids("Hello 😀 world").len());
    assert_eq!(usage["usage"]["prompt_tokens"], prompt);
    assert_eq!(usage["usage"]["completion_tokens"], answer);
    assert_eq!(usage["usage"]["total_tokens"], prompt + answer);
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert_eq!(request.sampling.expect("sent").seed, (-7i64).cast_unsigned());
    fleet.stop().await;
}

#[tokio::test]
async fn stop_strings_over_tokens_never_leak() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let ids = ids("one two three four");
        script(move |_| {
            ids.iter()
                .map(|id| tokens(0, &[*id]))
                .chain([Step::Hang])
                .collect()
        })
    })
    .await;
    let body = json!({ "model": "tiny", "prompt": "x", "stream": true, "stop": ["o three", "zzz"] });
    let (chunks, _) = stream(&fleet, "/v1/completions", &body).await;
    assert_eq!(joined(&chunks, "/choices/0/text"), "one tw");
    assert!(
        chunks[..chunks.len() - 1]
            .iter()
            .all(|chunk| chunk["choices"][0]["text"] != ""),
        "{chunks:?}"
    );
    let last = chunks.last().expect("chunks");
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["choices"][0]["stop_reason"], "o three");
    // The worker would have gone on.
    worker.seen.cancelled(1).await;
    fleet.stop().await;
}

#[tokio::test]
async fn several_answers_are_told_apart() {
    let fleet = Fleet::start().await;
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says("same")).await;
    let (chunks, _) = stream(
        &fleet,
        "/v1/chat/completions",
        &chat_body(&json!({ "stream": true, "n": 3 })),
    )
    .await;
    for index in 0..3 {
        let own: Vec<Value> = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index)
            .cloned()
            .collect();
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(joined(&own, "/choices/0/delta/content"), "same");
        assert_eq!(own.last().expect("chunks")["choices"][0]["finish_reason"], "stop");
    }
    fleet.stop().await;
}

#[tokio::test]
async fn a_long_wait_is_filled_with_comments() {
    let fleet = Fleet::with(|config| config.keep_alive_seconds = 0.02).await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let ids = ids("late");
        script(move |_| {
            vec![
                Step::Wait(Arc::clone(&held)),
                tokens(0, &ids),
                finished(0, FinishReason::Length),
            ]
        })
    })
    .await;
    let response = fleet
        .post("/v1/chat/completions", &chat_body(&json!({ "stream": true })))
        .await;
    let mut body = response.bytes_stream();
    let mut text = String::new();
    while text.matches(": keep-alive\n\n").count() < 3 {
        let bytes = body.next().await.expect("goes on").expect("bytes");
        text.push_str(std::str::from_utf8(&bytes).expect("text"));
    }
    gate.add_permits(1);
    while let Some(bytes) = body.next().await {
        text.push_str(std::str::from_utf8(&bytes.expect("bytes")).expect("text"));
    }
    let (data, comments) = events(&text);
    assert!(comments >= 3);
    assert_eq!(data.last().map(String::as_str), Some("[DONE]"));
    assert!(
        text.contains("\"content\":\"late\"") && text.contains("\"finish_reason\":\"length\""),
        "{text}"
    );
    fleet.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_worker() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let ids = ids("first");
        script(move |_| vec![tokens(0, &ids), Step::Hang])
    })
    .await;
    let response = fleet
        .post("/v1/chat/completions", &chat_body(&json!({ "stream": true })))
        .await;
    let mut body = response.bytes_stream();
    body.next().await.expect("begins").expect("bytes");
    drop(body);
    worker.seen.cancelled(1).await;

    // The same before the first token and without a stream.
    let whole = tokio::spawn({
        let request = fleet
            .http
            .post(fleet.url("/v1/chat/completions"))
            .json(&chat_body(&json!({})));
        async move { request.send().await.map(|response| response.status()) }
    });
    worker.seen.request(1).await;
    whole.abort();
    worker.seen.cancelled(2).await;
    assert!(whole.await.expect_err("aborted").is_cancelled());
    assert!(
        fleet
            .metric(r#"baton_router_requests_total{code="499",endpoint="chat_completions"} 2"#)
            .await
    );
    fleet.stop().await;
}

#[tokio::test]
async fn logprobs_come_in_both_forms() {
    let fleet = Fleet::start().await;
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let ids = ids(" b c");
        script(move |request| {
            assert_eq!(request.sampling.as_ref().expect("sent").logprobs, Some(2));
            let one = |id: u32, logprob| Logprob { id, logprob };
            let said = ids.iter().map(|id| {
                Step::Say(Event::Tokens(Tokens {
                    choice: 0,
                    ids: vec![*id],
                    logprobs: vec![TokenLogprobs {
                        chosen: Some(one(*id, -0.5)),
                        top: vec![one(ids[0], -0.25), one(ids[1], f32::NEG_INFINITY)],
                    }],
                    prompt_logprobs: Vec::new(),
                }))
            });
            said.chain([finished(0, FinishReason::Stop)]).collect()
        })
    })
    .await;
    let (status, chat) = fleet.chat(&json!({ "logprobs": true, "top_logprobs": 2 })).await;
    assert_eq!(status, 200);
    let first = &chat["choices"][0]["logprobs"]["content"][0];
    assert_eq!(
        (first["token"].as_str(), first["logprob"].as_f64()),
        (Some(" b"), Some(-0.5))
    );
    assert_eq!(first["top_logprobs"][1]["logprob"], -9999.0);
    assert_eq!(first["bytes"], json!(b" b".to_vec()));

    let body = json!({ "model": "tiny", "prompt": "x", "logprobs": 2, "stream": true });
    let (chunks, _) = stream(&fleet, "/v1/completions", &body).await;
    let second = &chunks[1]["choices"][0]["logprobs"];
    assert_eq!(second["tokens"], json!([" c"]));
    assert_eq!(second["text_offset"], json!([2]));
    assert_eq!(second["top_logprobs"][0][" b"], -0.25);
    fleet.stop().await;
}
