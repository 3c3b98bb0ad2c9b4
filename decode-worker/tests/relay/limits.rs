//! What a worker refuses, how it drains, and what its port says about it.

use std::time::Duration;

use baton_engine::EngineConfig;
use baton_proto::v1::{FinishReason, decode_event::Event};
use baton_worker::{RunningWorker, WorkerConfig, status::ERROR_DETAIL};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::fleet::*;

async fn get(worker: &RunningWorker, path: &str) -> String {
    let mut stream = TcpStream::connect(worker.addr()).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer))
        .await
        .expect("answered");
    answer
}

async fn grpc_health(worker: &RunningWorker) -> ServingStatus {
    let url = worker.identity().url.clone();
    let channel = Channel::from_shared(url)
        .expect("a URL")
        .connect()
        .await
        .expect("it listens");
    let mut client = HealthClient::new(channel);
    let request = HealthCheckRequest {
        service: String::new(),
    };
    client
        .check(request)
        .await
        .expect("answered")
        .into_inner()
        .status()
}

#[tokio::test]
async fn a_full_queue_is_resource_exhausted() {
    let gate = Gate::closed();
    let decode = Shape {
        gate: gate.clone(),
        engine: EngineConfig {
            max_running: 1,
            max_waiting: 1,
            ..Shape::default().engine
        },
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let running = open(&decode, request(1, 30, 5)).await.expect("accepted");
    eventually("it runs", || decode.engine().load().running == 1).await;
    let waiting = open(&decode, request(2, 30, 5)).await.expect("accepted");
    let refused = open(&decode, request(3, 30, 5)).await.expect_err("full");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(metric(&decode, "baton_worker_errors_total", "queue_full"), 1.0);
    gate.release();
    for (stream, salt) in [(running, 1), (waiting, 2)] {
        let answer = within(collect(stream)).await.expect("served");
        assert_eq!(answer.tokens[&0], expected(&request(salt, 30, 5), 0));
    }
}

#[tokio::test]
async fn one_request_more_than_allowed_is_resource_exhausted() {
    let gate = Gate::closed();
    let decode = Shape {
        gate: gate.clone(),
        worker: WorkerConfig {
            max_requests: 1,
            ..Shape::default().worker
        },
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let first = open(&decode, request(1, 30, 5)).await.expect("accepted");
    let refused = open(&decode, request(2, 30, 5)).await.expect_err("full");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    gate.release();
    within(collect(first)).await.expect("served");
    eventually("the place is free", || {
        metric(&decode, "baton_worker_open_requests", "") == 0.0
    })
    .await;
    generate(&decode, request(2, 30, 5))
        .await
        .expect("there is room again");
}

#[tokio::test]
async fn a_draining_worker_refuses_and_finishes() {
    let gate = Gate::closed();
    let decode = Shape {
        gate: gate.clone(),
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let running = open(&decode, request(1, 30, 5)).await.expect("accepted");
    assert!(get(&decode, "/ready").await.starts_with("HTTP/1.1 200"));
    decode.drain();
    let refused = open(&decode, request(2, 30, 5)).await.expect_err("draining");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let mut ready = get(&decode, "/ready").await;
    while ready.starts_with("HTTP/1.1 200") {
        ready = get(&decode, "/ready").await;
    }
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("draining"),
        "{ready}"
    );
    assert_eq!(grpc_health(&decode).await, ServingStatus::NotServing);
    assert!(
        get(&decode, "/health").await.starts_with("HTTP/1.1 200"),
        "it is alive all the same"
    );
    let answer = tokio::spawn(within(collect(running)));
    let shutdown = tokio::spawn(decode.shutdown(PATIENCE));
    gate.release();
    let answer = answer.await.expect("no panic").expect("served to the end");
    assert_eq!(answer.tokens[&0], expected(&request(1, 30, 5), 0));
    assert!(
        within(shutdown).await.expect("no panic"),
        "everything had finished"
    );
}

#[tokio::test]
async fn a_shutdown_does_not_wait_longer_than_its_grace() {
    let decode = Shape {
        gate: Gate::closed(),
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let stuck = open(&decode, request(1, 30, 5)).await.expect("accepted");
    assert!(!within(decode.shutdown(Duration::from_millis(50))).await);
    let status = within(collect(stuck)).await.expect_err("it was cut off");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test]
async fn bad_requests_are_refused_before_any_work() {
    let decode = Shape::default().decode().await;
    let mut other = request(1, 30, 5);
    other.model = "other".into();
    assert_eq!(
        open(&decode, other).await.expect_err("no such model").code(),
        Code::NotFound
    );
    let mut hot = request(1, 30, 5);
    hot.sampling.as_mut().expect("set").temperature = -1.0;
    let status = open(&decode, hot).await.expect_err("below 0");
    assert_eq!(status.code(), Code::InvalidArgument);
    let detail = status
        .metadata()
        .get(ERROR_DETAIL)
        .expect("a detail")
        .to_str()
        .expect("ascii");
    assert!(detail.contains("\"field\":\"sampling.temperature\""), "{detail}");
    let long = open(&decode, request(1, 5000, 5))
        .await
        .expect_err("longer than the context");
    assert_eq!(long.code(), Code::InvalidArgument, "{long}");
    assert_eq!(decode.engine().load().steps, 0);
}

#[tokio::test]
async fn a_deadline_ends_every_choice() {
    let gate = Gate::after(3);
    let decode = Shape {
        gate: gate.clone(),
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let mut request = request(1, 30, 500);
    request.deadline_ms = Some(200);
    let answer = generate(&decode, request.clone())
        .await
        .expect("served as far as time allowed");
    assert_eq!(answer.finished[&0], FinishReason::Deadline);
    let tokens = answer.tokens.get(&0).cloned().unwrap_or_default();
    assert_eq!(tokens, expected(&request, 0)[..tokens.len()]);
    gate.release();
    all_pages_back(&decode).await;
}

#[tokio::test]
async fn a_slow_reader_gets_every_token_and_holds_up_nobody() {
    let decode = Shape::default().decode().await;
    let slow_request = request(1, 30, 1500);
    let mut slow = open(&decode, slow_request.clone()).await.expect("accepted");
    heard(&mut slow, |event| matches!(event, Event::Accepted(_))).await;
    let quick = generate(&decode, request(2, 30, 50)).await.expect("served");
    assert_eq!(quick.tokens[&0], expected(&request(2, 30, 50), 0));
    eventually("the engine is done with both", || {
        decode.engine().load().running == 0
    })
    .await;
    let answer = within(collect(slow)).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&slow_request, 0));
    all_pages_back(&decode).await;
}

#[tokio::test]
async fn a_worker_whose_steps_stand_still_is_not_alive() {
    let gate = Gate::closed();
    let decode = Shape {
        gate: gate.clone(),
        worker: WorkerConfig {
            stall_seconds: 0.2,
            ..Shape::default().worker
        },
        ..Shape::default()
    };
    let decode = decode.decode().await;
    assert_eq!(grpc_health(&decode).await, ServingStatus::Serving);
    let stream = open(&decode, request(1, 30, 5)).await.expect("accepted");
    within(async {
        while grpc_health(&decode).await == ServingStatus::Serving {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let health = get(&decode, "/health").await;
    assert!(
        health.starts_with("HTTP/1.1 503") && health.contains("no engine step"),
        "{health}"
    );
    gate.release();
    within(collect(stream)).await.expect("served");
    within(async {
        while grpc_health(&decode).await != ServingStatus::Serving {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn waiting_for_a_prefill_worker_is_not_standing_still() {
    let decode = Shape {
        worker: WorkerConfig {
            stall_seconds: 0.1,
            ..Shape::default().worker
        },
        ..Shape::default()
    };
    let decode = decode.decode().await;
    let mut prefill = ScriptedPrefill::start(vec![Line::Hang]).await;
    let mut waits = request(1, 64, 5);
    waits.prefill = vec![prefill.candidate()];
    let stream = open(&decode, waits).await.expect("accepted");
    within(prefill.requests.recv()).await.expect("asked");
    // Several times the limit, and the checks that fall into it.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(grpc_health(&decode).await, ServingStatus::Serving);
    drop(stream);
}

#[tokio::test]
async fn one_port_serves_metrics_beside_grpc() {
    let decode = Shape::default().decode().await;
    generate(&decode, request(1, 30, 5)).await.expect("served");
    let metrics = get(&decode, "/metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    for name in [
        "baton_engine_step_seconds",
        "baton_decode_prefills_total",
        "baton_kv_transfers_live",
        "baton_worker_open_requests",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
}
