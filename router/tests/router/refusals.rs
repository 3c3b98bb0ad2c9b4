//! Bad requests: each with its status, its code, and the field at fault. None reaches a worker.

use serde_json::{Value, json};

use crate::{
    fleet::{Fleet, chat_body, says},
    worker::FakeWorker,
};

#[tokio::test]
async fn every_bad_field_is_named() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says("x")).await;
    let message = |fields: Value| json!({ "messages": [fields] });
    let table = [
        (json!({ "model": "gpt" }), 404, "model"),
        (json!({ "model": null }), 400, "model"),
        (json!({ "messages": null }), 400, "messages"),
        (json!({ "messages": [] }), 400, "messages"),
        (json!({ "messages": "hi" }), 400, "messages"),
        (json!({ "messages": [7] }), 400, "messages[0]"),
        (message(json!({ "content": "x" })), 400, "messages[0].role"),
        (
            message(json!({ "role": "wizard", "content": "x" })),
            400,
            "messages[0].role",
        ),
        (message(json!({ "role": "user" })), 400, "messages[0].content"),
        (
            message(json!({ "role": "user", "content": 1 })),
            400,
            "messages[0].content",
        ),
        (
            message(json!({ "role": "user", "content": [{ "type": "image_url" }] })),
            400,
            "messages[0].content[0].type",
        ),
        (
            message(json!({ "role": "user", "content": [{ "type": "text" }] })),
            400,
            "messages[0].content[0].text",
        ),
        (
            message(json!({ "role": "assistant", "content": "", "tool_calls": [{}] })),
            400,
            "messages[0].tool_calls",
        ),
        (json!({ "temperature": -0.1 }), 400, "temperature"),
        (json!({ "temperature": 2.1 }), 400, "temperature"),
        (json!({ "temperature": "hot" }), 400, "temperature"),
        (json!({ "top_p": 0 }), 400, "top_p"),
        (json!({ "top_p": 1e-60 }), 400, "top_p"),
        (json!({ "top_p": 1.5 }), 400, "top_p"),
        (json!({ "top_k": -2 }), 400, "top_k"),
        (json!({ "top_k": 1.5 }), 400, "top_k"),
        (json!({ "min_p": 1.01 }), 400, "min_p"),
        (json!({ "max_tokens": 0 }), 400, "max_tokens"),
        (json!({ "max_tokens": -1 }), 400, "max_tokens"),
        (
            json!({ "max_completion_tokens": 1e30 }),
            400,
            "max_completion_tokens",
        ),
        (json!({ "min_tokens": 5, "max_tokens": 4 }), 400, "min_tokens"),
        (json!({ "n": 0 }), 400, "n"),
        (json!({ "n": 17 }), 400, "n"),
        (json!({ "seed": 0.5 }), 400, "seed"),
        (json!({ "stop": "" }), 400, "stop"),
        (json!({ "stop": ["a", 2] }), 400, "stop[1]"),
        (json!({ "stop": vec!["a"; 17] }), 400, "stop"),
        (json!({ "stop": "a".repeat(2000) }), 400, "stop"),
        (json!({ "stop_token_ids": [-1] }), 400, "stop_token_ids[0]"),
        (json!({ "stop_token_ids": [99_999] }), 400, "stop_token_ids"),
        (json!({ "presence_penalty": 3 }), 400, "presence_penalty"),
        (json!({ "frequency_penalty": -3 }), 400, "frequency_penalty"),
        (json!({ "repetition_penalty": 0 }), 400, "repetition_penalty"),
        (json!({ "logit_bias": { "x": 1 } }), 400, "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), 400, "logit_bias"),
        (json!({ "logit_bias": { "1": "much" } }), 400, "logit_bias.1"),
        (
            json!({ "allowed_token_ids": [4_000_000] }),
            400,
            "allowed_token_ids",
        ),
        (json!({ "stream": "yes" }), 400, "stream"),
        (
            json!({ "stream_options": { "include_usage": true } }),
            400,
            "stream_options",
        ),
        (
            json!({ "stream": true, "stream_options": { "include_usage": 1 } }),
            400,
            "stream_options.include_usage",
        ),
        (json!({ "logprobs": 1 }), 400, "logprobs"),
        (json!({ "top_logprobs": 1 }), 400, "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), 400, "logprobs"),
        (json!({ "tools": [{ "type": "function" }] }), 400, "tools"),
        (
            json!({ "response_format": { "type": "json_object" } }),
            400,
            "response_format",
        ),
        (json!({ "guided_json": {} }), 400, "guided_json"),
        (json!({ "best_of": 2 }), 400, "best_of"),
        (json!({ "echo": true }), 400, "echo"),
        (json!({ "prompt_logprobs": 1 }), 400, "prompt_logprobs"),
        (json!({ "chat_template_kwargs": 1 }), 400, "chat_template_kwargs"),
        (json!({ "priority": "high" }), 400, "priority"),
    ];
    for (fields, status, param) in table {
        let (found, answer) = fleet.chat(&fields).await;
        let error = &answer["error"];
        assert_eq!(
            (found, error["param"].as_str()),
            (status, Some(param)),
            "{fields}: {answer}"
        );
        assert_eq!(error["type"], "invalid_request_error", "{fields}");
        let named = error["message"].as_str().expect("a message");
        assert!(
            !named.is_empty() && error["code"].is_string(),
            "{fields}: {answer}"
        );
    }
    let completions = [
        (json!({ "model": "tiny" }), "prompt"),
        (json!({ "model": "tiny", "prompt": [] }), "prompt"),
        (json!({ "model": "tiny", "prompt": [[]] }), "prompt"),
        (json!({ "model": "tiny", "prompt": 5 }), "prompt"),
        (json!({ "model": "tiny", "prompt": ["a", 1] }), "prompt[1]"),
        (json!({ "model": "tiny", "prompt": [1, "a"] }), "prompt[1]"),
        (
            json!({ "model": "tiny", "prompt": [[1], [2, -1]] }),
            "prompt[1][1]",
        ),
        (json!({ "model": "tiny", "prompt": [99_999] }), "prompt"),
        (json!({ "model": "tiny", "prompt": "x", "suffix": "y" }), "suffix"),
        (json!({ "model": "tiny", "prompt": vec!["x"; 129] }), "prompt"),
        (
            json!({ "model": "tiny", "prompt": "x", "logprobs": true }),
            "logprobs",
        ),
    ];
    for (body, param) in completions {
        let (found, answer) = fleet.json("/v1/completions", &body).await;
        assert_eq!(
            (found, answer["error"]["param"].as_str()),
            (400, Some(param)),
            "{body}: {answer}"
        );
    }
    assert_eq!(worker.seen.count(), 0);
    fleet.stop().await;
}

#[tokio::test]
async fn a_prompt_over_the_context_is_told_the_numbers() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says("x")).await;
    let prompt = |tokens: usize| json!({ "model": "tiny", "prompt": vec![7; tokens], "max_tokens": 1000 });
    let (status, answer) = fleet.json("/v1/completions", &prompt(512)).await;
    assert_eq!(
        (status, answer["error"]["code"].as_str()),
        (400, Some("context_length_exceeded"))
    );
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("maximum context length is 512 tokens") && message.contains("has 512 tokens"),
        "{message}"
    );
    assert_eq!(fleet.json("/v1/completions", &prompt(511)).await.0, 200);
    assert_eq!(worker.seen.request(0).await.stop.expect("sent").max_tokens, 1);
    fleet.stop().await;
}

#[tokio::test]
async fn bodies_that_are_not_requests() {
    let fleet = Fleet::with(|config| config.max_body_bytes = 4096).await;
    let url = fleet.url("/v1/chat/completions");
    let send = async |body: String, media_type: &str| {
        let request = fleet
            .http
            .post(&url)
            .header("content-type", media_type)
            .body(body);
        let response = request.send().await.expect("answers");
        let status = response.status().as_u16();
        let id = response.headers().contains_key("x-request-id");
        let answer: Value = response.json().await.expect("an error object");
        assert!(id && answer["error"]["message"].is_string(), "{answer}");
        (
            status,
            answer["error"]["code"].as_str().expect("a code").to_owned(),
            answer["error"]["message"].to_string(),
        )
    };
    let json_type = "application/json; charset=utf-8";
    let (status, code, message) = send("{\"model\": ".into(), json_type).await;
    assert_eq!((status, code.as_str()), (400, "invalid_json"));
    assert!(message.contains("line 1 column"), "{message}");
    assert_eq!(send(String::new(), json_type).await.0, 400);
    assert_eq!(send("[1]".into(), json_type).await.1, "invalid_json");
    assert_eq!(
        send("{\"temperature\": NaN}".into(), json_type).await.1,
        "invalid_json"
    );
    assert_eq!(
        send("{\"temperature\": 1e999}".into(), json_type).await.1,
        "invalid_json"
    );
    let nested = format!("{{\"x\": {}{}}}", "[".repeat(500), "]".repeat(500));
    let (status, _, message) = send(nested, json_type).await;
    assert!(status == 400 && message.contains("recursion limit"), "{message}");
    assert_eq!(send("x".repeat(5000), json_type).await.0, 413);
    assert_eq!(
        send("model=tiny".into(), "application/x-www-form-urlencoded")
            .await
            .0,
        415
    );

    let chunked = reqwest::Body::wrap_stream(futures::stream::iter(
        (0..8).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1000])),
    ));
    let response = fleet
        .http
        .post(&url)
        .header("content-type", json_type)
        .body(chunked)
        .send()
        .await;
    assert_eq!(response.expect("answers").status(), 413);
    fleet.stop().await;
}

#[tokio::test]
async fn wrong_paths_and_methods_have_error_objects() {
    let fleet = Fleet::start().await;
    for (response, status, code) in [
        (fleet.get("/v1/embeddings").await, 404, "not_found"),
        (fleet.get("/v1/chat/completions").await, 405, "method_not_allowed"),
        (fleet.post("/health", &json!({})).await, 405, "method_not_allowed"),
    ] {
        assert_eq!(response.status(), status);
        assert!(response.headers().contains_key("x-request-id"));
        let answer: Value = response.json().await.expect("JSON");
        assert_eq!(answer["error"]["code"], code);
    }
    let deadline = fleet
        .http
        .post(fleet.url("/v1/chat/completions"))
        .header("x-baton-deadline-ms", "soon");
    let refused = deadline
        .json(&chat_body(&json!({})))
        .send()
        .await
        .expect("answers");
    let answer: Value = refused.json().await.expect("JSON");
    assert_eq!(answer["error"]["param"], "x-baton-deadline-ms");
    // An id that could break logs or headers is replaced.
    let odd = fleet
        .http
        .get(fleet.url("/health"))
        .header("x-request-id", "a b\"c")
        .send()
        .await
        .expect("answers");
    assert_ne!(odd.headers()["x-request-id"], "a b\"c");
    fleet.stop().await;
}
