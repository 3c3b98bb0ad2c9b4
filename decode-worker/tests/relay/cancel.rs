//! A caller that goes away takes everything with it, in whatever phase the request is.

use baton_engine::EngineConfig;
use baton_proto::v1::decode_event::Event;
use baton_worker::RunningWorker;

use crate::fleet::*;

/// Nothing of the request is left on either worker.
async fn all_is_gone(workers: &[&RunningWorker]) {
    for worker in workers {
        all_pages_back(worker).await;
        eventually("the place is free", || {
            metric(worker, "baton_worker_open_requests", "") == 0.0
        })
        .await;
        eventually("no transfer lives", || {
            metric(worker, "baton_kv_transfers_live", "") == 0.0
        })
        .await;
        eventually("no hand-off lives", || {
            metric(worker, "baton_decode_handoffs_live", "") == 0.0
        })
        .await;
    }
}

#[tokio::test]
async fn while_the_prompt_runs_here() {
    let gate = Gate::closed();
    let decode = Shape {
        gate: gate.clone(),
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let stream = open(&decode, request(1, 100, 10)).await.expect("accepted");
    eventually("the prompt has pages", || {
        decode.engine().load().pages.mutable > 0
    })
    .await;
    drop(stream);
    eventually("the place is free", || {
        metric(&decode, "baton_worker_open_requests", "") == 0.0
    })
    .await;
    gate.release();
    all_is_gone(&[&decode]).await;
}

#[tokio::test]
async fn while_decoding() {
    let decode = Shape::default().decode().await;
    let mut stream = open(&decode, request(2, 100, 1900)).await.expect("accepted");
    heard(&mut stream, |event| matches!(event, Event::Tokens(_))).await;
    drop(stream);
    all_is_gone(&[&decode]).await;
}

#[tokio::test]
async fn while_it_waits_in_a_prefill_workers_queue() {
    let gate = Gate::closed();
    let prefill = Shape {
        gate: gate.clone(),
        engine: EngineConfig {
            max_running: 1,
            ..Shape::default().engine
        },
        ..Shape::default()
    };
    let (prefill, decode) = (prefill.prefill().await, Shape::default().decode().await);
    let first = open(&decode, with_prefill(request(3, 100, 10), &[&prefill]))
        .await
        .expect("accepted");
    eventually("the first runs", || prefill.engine().load().running == 1).await;
    let second = open(&decode, with_prefill(request(4, 100, 10), &[&prefill]))
        .await
        .expect("accepted");
    eventually("the second waits", || prefill.engine().load().waiting == 1).await;
    drop(second);
    eventually("it waits no more", || prefill.engine().load().waiting == 0).await;
    drop(first);
    eventually("the places are free", || {
        metric(&prefill, "baton_worker_open_requests", "") == 0.0
    })
    .await;
    gate.release();
    all_is_gone(&[&decode, &prefill]).await;
}

#[tokio::test]
async fn while_kv_is_on_its_way() {
    let gate = Gate::after(1);
    let prefill = Shape {
        gate: gate.clone(),
        ..Shape::default()
    };
    let (prefill, decode) = (prefill.prefill().await, Shape::default().decode().await);
    let stream = open(&decode, with_prefill(request(5, 200, 10), &[&prefill]))
        .await
        .expect("accepted");
    eventually("KV arrives", || {
        metric(&decode, "baton_kv_transfer_bytes_total", "in") > 0.0
    })
    .await;
    drop(stream);
    all_pages_back(&decode).await;
    eventually("the prefill worker let go", || {
        metric(&prefill, "baton_worker_open_requests", "") == 0.0
    })
    .await;
    gate.release();
    all_is_gone(&[&decode, &prefill]).await;
    assert_eq!(metric(&prefill, "baton_prefill_runs_total", "cancelled"), 1.0);
    assert_eq!(metric(&decode, "baton_decode_handoffs_total", "cancelled"), 1.0);
}

#[tokio::test]
async fn after_the_first_tokens_and_before_the_kv() {
    let decode = Shape::default().decode().await;
    let mut prefill = ScriptedPrefill::start(vec![Line::Started, Line::First(1), Line::Hang]).await;
    let mut request = request(6, 100, 10);
    request.prefill = vec![prefill.candidate()];
    let mut stream = open(&decode, request).await.expect("accepted");
    heard(&mut stream, |event| matches!(event, Event::Tokens(_))).await;
    drop(stream);
    within(prefill.dropped.recv()).await.expect("the call was let go");
    all_is_gone(&[&decode]).await;
    let asked = prefill.requests.recv().await.expect("it was asked");
    assert_eq!((asked.held_pages, asked.transfer_id.len()), (0, 16));
}

#[tokio::test]
async fn a_storm_of_cancels_leaves_nothing() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let calls = (0..60).map(|salt| {
        let request = with_prefill(request(200 + salt, 30 + salt * 5, 200), &[&prefill]);
        let decode = &decode;
        async move {
            let mut stream = open(decode, request).await.expect("accepted");
            // Each gives up a little later than the one before.
            for _ in 0..salt % 12 {
                within(stream.message())
                    .await
                    .expect("no error")
                    .expect("not the end");
            }
        }
    });
    futures::future::join_all(calls).await;
    all_is_gone(&[&decode, &prefill]).await;
    // And both still work.
    let request = with_prefill(request(7, 100, 10), &[&prefill]);
    let answer = generate(&decode, request.clone()).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&request, 0));
}
