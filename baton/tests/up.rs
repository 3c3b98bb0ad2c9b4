//! `baton up` as people meet it: a process, its children, a terminal's signals.

mod support;

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use support::{ChatStream, Up, alive};

#[tokio::test(flavor = "multi_thread")]
async fn streams_an_answer_within_seconds_of_its_start_and_leaves_nothing_behind() {
    let begun = Instant::now();
    let mut up = Up::start(&[]).await;
    let ready = begun.elapsed();
    // The promise is 3 s for the release binary, which the smoke test checks; this one is not optimized.
    assert!(ready < Duration::from_secs(10), "ready after {ready:?}");
    assert_eq!(
        up.pids().len(),
        3,
        "router, prefill worker, decode worker: {}",
        up.banner
    );
    assert!(up.banner.contains("curl -N http://127.0.0.1:"), "{}", up.banner);

    let answer = up
        .chat("What is 21 + 34?", 40)
        .await
        .text()
        .await
        .expect("a clean end");
    assert!(answer.contains("55"), "{answer}");

    let pids = up.pids();
    up.interrupt();
    assert!(
        up.ended(Duration::from_secs(10)).await.success(),
        "an interrupt is a clean end"
    );
    assert!(
        pids.iter().all(|pid| !alive(*pid)),
        "a child outlived its parent: {pids:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_lets_running_streams_finish() {
    let mut up = Up::start(&["--decode", "1"]).await;
    let mut stream = up.chat("Tell me a story about a fox.", 200).await;
    stream
        .next_delta()
        .await
        .expect("it streams")
        .expect("not at its end");
    up.interrupt();
    let rest = stream
        .text()
        .await
        .expect("the stream ends cleanly while the system drains");
    assert!(!rest.is_empty());
    assert!(up.ended(Duration::from_secs(10)).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_a_killed_parent_end_by_themselves() {
    let up = Up::start(&[]).await;
    let pids = up.pids();
    up.kill_parent();
    let gone = async {
        while pids.iter().any(|pid| alive(*pid)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone)
        .await
        .expect("children end when their parent is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_decode_worker_fails_its_own_streams_only_and_comes_back() {
    let up = Up::start(&["--decode", "2"]).await;
    // Long streams on both decode workers, so that one kill hits some and spares others.
    let mut streams: Vec<ChatStream> = Vec::new();
    for _ in 0..8 {
        let mut stream = up.long().await;
        stream
            .next_delta()
            .await
            .expect("it streams")
            .expect("not at its end");
        streams.push(stream);
    }
    let victim = streams[0].decode_worker.clone();
    assert!(
        streams.iter().any(|stream| stream.decode_worker != victim),
        "both workers are used"
    );
    up.kill_member(&victim);
    up.until_logged(&victim, "serves again", Duration::from_secs(5))
        .await;

    let outcomes = futures::future::join_all(streams.into_iter().map(|stream| async {
        let worker = stream.decode_worker.clone();
        (worker, stream.text().await)
    }))
    .await;
    for (worker, outcome) in outcomes {
        if worker == victim {
            let error = outcome.expect_err("its worker is dead").to_string();
            assert!(
                error.contains("worker"),
                "a clean error that says what happened: {error}"
            );
        } else {
            outcome.expect("streams on the other worker are untouched");
        }
    }

    let used_again = async {
        loop {
            let stream = up.chat("Hello!", 4).await;
            let worker = stream.decode_worker.clone();
            stream.text().await.expect("served");
            if worker == victim {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), used_again)
        .await
        .expect("the restarted worker is used again");
    up.until_pages_are_back(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_prefill_worker_costs_no_stream() {
    let up = Up::start(&[]).await;
    up.kill_member("prefill-worker-0");
    let long = "The fox met a bear and they talked about the river. ".repeat(40);
    let outcomes = futures::stream::iter(0..4)
        .then(|_| up.chat(&long, 16))
        .then(ChatStream::text)
        .collect::<Vec<_>>()
        .await;
    for outcome in outcomes {
        outcome.expect("the decode worker prefills for itself");
    }
    up.until_logged("prefill-worker-0", "serves again", Duration::from_secs(5))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_cannot_work_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    for (args, part) in [
        (vec!["up", "--port", &port], port.as_str()),
        (
            vec!["up", "--port", "0", "--model", "/no/such/model"],
            "/no/such/model",
        ),
        (vec!["up", "--decode", "0"], "up.decode"),
        (vec!["decode-worker", "--listen", "nonsense"], "nonsense"),
        (vec!["--config", "/no/such.toml", "up"], "/no/such.toml"),
    ] {
        let (status, output) = support::run_to_end(&args).await;
        assert!(!status.success(), "{args:?} succeeded");
        assert!(output.contains(part), "{args:?} does not name {part}: {output}");
        assert!(!output.contains("backtrace"), "{args:?}: {output}");
    }
}
