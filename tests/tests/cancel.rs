//! A client that leaves frees what its request held.

use std::time::{Duration, Instant};

use baton_tests::{System, SystemOptions, Topology};
use futures::StreamExt as _;

/// Streams, leaves after the first bytes, and measures how long pages stay in use on any worker.
async fn leave_mid_stream(system: &System, prompt_words: usize) -> Duration {
    let body = serde_json::json!({
        "model": "baton-tiny",
        "prompt": "the little fox went home ".repeat(prompt_words / 5),
        "max_tokens": 3000,
        "ignore_eos": true,
        "stream": true,
    });
    let response = system
        .http
        .post(system.url("/v1/completions"))
        .body(body.to_string())
        .header("content-type", "application/json");
    let response = response
        .send()
        .await
        .expect("sent")
        .error_for_status()
        .expect("accepted");
    let mut stream = response.bytes_stream();
    for _ in 0..5 {
        stream.next().await.expect("streams").expect("no failure");
    }
    assert!(system.pages_in_use() > 0, "the request runs");
    let left = Instant::now();
    drop(stream);
    system.until_pages_are_back(Duration::from_secs(5)).await;
    left.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_back_within_100_ms_of_a_disconnect() {
    for topology in [Topology::Aggregated, Topology::Tcp, Topology::Local] {
        let system = System::start(&SystemOptions {
            topology,
            ..SystemOptions::default()
        })
        .await;
        let mut took = Vec::new();
        for words in [10, 200, 500] {
            took.push(leave_mid_stream(&system, words).await);
        }
        took.sort();
        // The median, because the machine that runs this may stall for longer than that.
        assert!(took[1] < Duration::from_millis(100), "{topology:?}: {took:?}");
    }
}
