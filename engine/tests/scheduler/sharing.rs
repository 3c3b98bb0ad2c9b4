//! Prefix cache and forks, by example.

use baton_engine::request::{ChoiceStart, StopRules, Work};

use crate::{
    relay::{Relay, request},
    worker::Shape,
};

pub(crate) fn roomy() -> Shape {
    Shape {
        pages: 64,
        slots: 8,
        page_tokens: 4,
        context: 128,
        drafts: 0,
        layers: 2,
        batch: 16,
        prefills: 3,
        max_waiting: 64,
        inbound_share: 0.5,
        vocab: 1000,
        seed: 1,
    }
}

pub(crate) fn choices(count: u32) -> Vec<ChoiceStart> {
    (0..count)
        .map(|index| ChoiceStart {
            index,
            emitted: Vec::new(),
        })
        .collect()
}

pub(crate) fn stop(max_tokens: u32) -> StopRules {
    StopRules {
        max_tokens,
        stop_tokens: Vec::new(),
    }
}

#[test]
fn a_prompt_runs_once_for_all_its_choices() {
    let mut relay = Relay::new(&roomy(), &roomy());
    relay
        .submit(request((0..10).collect(), choices(3), stop(5), Work::Generate))
        .expect("room");
    relay.now += std::time::Duration::from_millis(1);
    // Ten prompt tokens are one chunk of the budget of 16; four more steps give the rest, one of them late for the forks.
    relay.run_out();
    assert!(relay.decode.steps <= 7, "{} steps", relay.decode.steps);
    relay.check_end();
    let pages = relay.decode.scheduler.page_load();
    // Two shared pages of the prompt, and for each choice the one that position 11 falls into (13 positions are written).
    assert_eq!(pages.sealed, 2 + 3);
}

#[test]
fn equal_prompts_that_arrive_together_are_computed_once() {
    let mut relay = Relay::new(&roomy(), &roomy());
    for _ in 0..4 {
        relay
            .submit(request((0..41).collect(), choices(1), stop(2), Work::Generate))
            .expect("room");
    }
    relay.run_out();
    relay.check_end();
    // 41 tokens once, in chunks of at most 16, then one token for each of the others.
    assert!(relay.decode.steps <= 9, "{} steps", relay.decode.steps);
    assert_eq!(relay.decode.scheduler.page_load().sealed, 10);
}

#[test]
fn a_hand_off_sends_only_what_the_receiver_lacks() {
    let mut relay = Relay::new(&roomy(), &roomy());
    let hand_off = Work::GenerateFromHandoff {
        min_missing_tokens: 1,
    };
    let first = relay
        .submit(request((0..21).collect(), choices(2), stop(4), hand_off.clone()))
        .expect("room");
    relay.run_out();
    assert!(
        !relay.decode.logs[&first].started,
        "the prompt ran on the prefill worker"
    );
    let second = relay
        .submit(request((0..30).collect(), choices(1), stop(4), hand_off))
        .expect("room");
    assert_eq!(
        relay.decode.logs[&second].needs_handoff,
        Some(5),
        "five full pages are cached"
    );
    relay.run_out();
    relay.check_end();
}

#[test]
fn little_that_is_missing_is_run_here() {
    let mut relay = Relay::new(&roomy(), &roomy());
    relay
        .submit(request((0..20).collect(), choices(1), stop(2), Work::Generate))
        .expect("room");
    relay.run_out();
    let hand_off = Work::GenerateFromHandoff {
        min_missing_tokens: 3,
    };
    let key = relay
        .submit(request((0..22).collect(), choices(1), stop(4), hand_off))
        .expect("room");
    assert_eq!(relay.decode.logs[&key].needs_handoff, None);
    relay.run_out();
    relay.check_end();
    assert!(relay.prefill.logs.is_empty());
}
