//! What is refused at once, and why.

use baton_engine::request::{ChoiceStart, EngineRequest, RequestError, Work};

use crate::{
    relay::{Relay, request},
    sharing::{choices, roomy, stop},
    worker::Shape,
};

fn refused(shape: &Shape, request: EngineRequest) -> RequestError {
    let mut relay = Relay::new(shape, shape);
    relay
        .decode
        .submit(request, relay.now)
        .expect_err("it cannot run")
}

#[test]
fn what_can_never_run_is_refused() {
    let plain = |prompt: u32, max_tokens| {
        request(
            (0..prompt).collect(),
            choices(1),
            stop(max_tokens),
            Work::Generate,
        )
    };
    let shape = roomy();
    assert_eq!(
        refused(&shape, plain(128, 1)),
        RequestError::TooLong {
            prompt: 128,
            context: 128
        }
    );
    let small = Shape { pages: 10, ..roomy() };
    let error = refused(&small, plain(30, 40));
    assert_eq!(
        error,
        RequestError::NeverFits {
            needed: 18,
            total: 10
        }
    );
    // Four choices share seven full pages and need (39 - 28) / 4 more each.
    let fan = EngineRequest {
        choices: choices(4),
        ..plain(30, 10)
    };
    assert_eq!(
        refused(&small, fan),
        RequestError::NeverFits {
            needed: 19,
            total: 10
        }
    );
    assert_eq!(
        refused(&Shape { vocab: 20, ..roomy() }, plain(30, 1)),
        RequestError::TokenOutOfRange { token: 20, vocab: 20 }
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let base = request(vec![1, 2, 3], choices(1), stop(4), Work::Generate);
    let resumed = |emitted: Vec<u32>, index| ChoiceStart { index, emitted };
    let hand_off = Work::GenerateFromHandoff {
        min_missing_tokens: 1,
    };
    let bad = [
        EngineRequest {
            prompt: Vec::new().into(),
            ..base.clone()
        },
        EngineRequest {
            choices: Vec::new(),
            ..base.clone()
        },
        EngineRequest {
            choices: choices(9),
            ..base.clone()
        },
        EngineRequest {
            choices: vec![resumed(vec![], 1), resumed(vec![], 1)],
            ..base.clone()
        },
        EngineRequest {
            choices: vec![resumed(vec![1, 2, 3, 4], 0)],
            ..base.clone()
        },
        EngineRequest {
            choices: vec![resumed(vec![1], 0), resumed(vec![], 1)],
            work: hand_off,
            ..base
        },
    ];
    for request in bad {
        let error = refused(&roomy(), request);
        assert!(matches!(error, RequestError::Invalid(_)), "{error}");
    }
}

#[test]
fn one_more_than_may_wait_is_refused() {
    let shape = Shape {
        max_waiting: 3,
        ..roomy()
    };
    let mut relay = Relay::new(&shape, &shape);
    let one = || request(vec![1, 2, 3], choices(1), stop(4), Work::Generate);
    for _ in 0..3 {
        assert!(relay.submit(one()).is_some());
    }
    let error = relay.decode.submit(one(), relay.now).expect_err("full");
    assert_eq!(error, RequestError::QueueFull { waiting: 3 });
    relay.decode.plan(relay.now);
    assert!(relay.submit(one()).is_some(), "those that run do not wait");
    relay.run_out();
    relay.check_end();
}
