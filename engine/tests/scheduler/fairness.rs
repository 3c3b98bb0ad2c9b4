//! Who waits for whom, and for how long.

use std::time::Duration;

use baton_engine::{request::Work, scheduler::RequestKey};
use proptest::prelude::*;

use crate::{
    relay::{Relay, request},
    sharing::{choices, roomy, stop},
    worker::Shape,
};

/// Steps until the request has its first token.
fn steps_to_first_token(relay: &mut Relay, key: RequestKey) -> u64 {
    let before = relay.decode.steps;
    while relay.decode.logs[&key].outputs[&0].is_empty() {
        relay.now += Duration::from_millis(1);
        relay.decode.plan(relay.now);
        relay.decode.poll(relay.now);
        assert!(relay.decode.steps < before + 10_000, "starved");
    }
    relay.decode.steps - before
}

fn submit(relay: &mut Relay, prompt: std::ops::Range<u32>, max_tokens: u32, priority: i32) -> RequestKey {
    let mut request = request(prompt.collect(), choices(1), stop(max_tokens), Work::Generate);
    request.priority = priority;
    relay.submit(request).expect("room")
}

#[test]
fn a_short_prompt_does_not_stand_behind_long_ones() {
    let shape = Shape {
        pages: 400,
        context: 1024,
        ..roomy()
    };
    let mut relay = Relay::new(&shape, &shape);
    for long in 0..5 {
        submit(&mut relay, long..long + 300, 1, 0);
    }
    for _ in 0..4 {
        relay.decode.plan(relay.now);
        relay.decode.poll(relay.now);
    }
    let short = submit(&mut relay, 900..908, 1, 0);
    // 1,500 tokens are ahead of it, which is some 94 steps of 16.
    let steps = steps_to_first_token(&mut relay, short);
    assert!(steps <= 6, "{steps} steps");
    relay.run_out();
    relay.check_end();
}

#[test]
fn decoding_goes_on_while_prompts_run() {
    let shape = Shape {
        pages: 400,
        context: 1024,
        ..roomy()
    };
    let mut relay = Relay::new(&shape, &shape);
    let decoding = submit(&mut relay, 0..4, 50, 0);
    steps_to_first_token(&mut relay, decoding);
    submit(&mut relay, 100..700, 1, 0);
    let tokens = relay.decode.logs[&decoding].outputs[&0].len();
    let steps = relay.decode.steps;
    while relay.decode.steps < steps + 20 {
        relay.decode.plan(relay.now);
        relay.decode.plan(relay.now);
        relay.decode.poll(relay.now);
    }
    let gained = relay.decode.logs[&decoding].outputs[&0].len() - tokens;
    assert!(gained >= 19, "{gained} tokens in 20 steps");
    relay.run_out();
    relay.check_end();
}

#[test]
fn a_lower_number_goes_first_and_waiting_makes_up_for_a_higher_one() {
    let shape = Shape { slots: 1, ..roomy() };
    let mut relay = Relay::new(&shape, &shape);
    submit(&mut relay, 0..8, 8, 0);
    relay.decode.plan(relay.now);
    let late = submit(&mut relay, 10..18, 1, 2);
    let urgent = submit(&mut relay, 20..28, 1, -1);
    steps_to_first_token(&mut relay, urgent);
    assert!(relay.decode.logs[&late].outputs[&0].is_empty());
    // A steady stream of priority 0. A level is worth 50 ms in these tests, so it holds the other up by 100 ms at most.
    let mut served = 0;
    while relay.decode.logs[&late].outputs[&0].is_empty() {
        let stream = submit(&mut relay, 30 + served % 7..40 + served % 7, 1, 0);
        steps_to_first_token(&mut relay, stream);
        served += 1;
        assert!(relay.now < Duration::from_millis(200), "starved");
    }
    assert!(served > 5, "priority 0 goes first for a while: {served}");
    relay.run_out();
    relay.check_end();
}

#[test]
fn small_requests_do_not_starve_a_large_one_of_pages() {
    let shape = Shape { pages: 24, ..roomy() };
    let mut relay = Relay::new(&shape, &shape);
    let small = |relay: &mut Relay, turn: u32| submit(relay, turn % 50..turn % 50 + 9, 12, 0);
    for turn in 0..6 {
        small(&mut relay, turn);
    }
    let large = submit(&mut relay, 200..280, 4, 0);
    for turn in 6..400 {
        if turn % 4 == 0 && relay.decode.scheduler.load().waiting < 8 {
            small(&mut relay, turn);
        }
        relay.now += Duration::from_millis(1);
        relay.decode.plan(relay.now);
        relay.decode.poll(relay.now);
        relay.decode.poll(relay.now);
    }
    assert!(relay.decode.logs[&large].ended, "starved");
    relay.run_out();
    relay.check_end();
}

#[test]
fn who_came_last_is_preempted_and_its_output_is_unchanged() {
    let shape = Shape {
        pages: 8,
        batch: 32,
        ..roomy()
    };
    let mut relay = Relay::new(&shape, &shape);
    let first = submit(&mut relay, 0..8, 18, 0);
    let second = submit(&mut relay, 100..108, 18, 0);
    let mut preempted = false;
    while !relay.decode.logs[&first].ended {
        relay.decode.plan(relay.now);
        relay.decode.poll(relay.now);
        preempted |= relay.decode.scheduler.load().running == 1;
    }
    assert!(preempted, "26 positions each do not fit 32");
    assert!(!relay.decode.logs[&second].ended);
    relay.run_out();
    relay.check_end();
}

/// One of an endless stream of requests: prompt, output, choices, priority, and whether it is handed off.
type Newcomer = (u32, u32, u32, i32, bool);

fn newcomer() -> impl Strategy<Value = Newcomer> {
    (1_u32..30, 1_u32..12, 1_u32..3, -2_i32..3, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whatever a request is like, and however many keep coming, of whatever priority: it ends, because from some moment
    /// on all that come rank behind it.
    #[test]
    fn nobody_starves_under_an_endless_stream(
        (pages, slots, batch, prefills) in (14_u32..40, 1_u32..5, 2_u32..20, 1_usize..4),
        inbound_share in 0.2_f64..1.0,
        drafts in 0_u32..3,
        (prompt, max_tokens, fan, priority, hand_off) in newcomer(),
        stream in prop::collection::vec(newcomer(), 8..40),
    ) {
        let shape = Shape {
            pages, slots, batch, prefills, inbound_share, drafts, context: 48, vocab: 60, max_waiting: 16, ..roomy()
        };
        let mut relay = Relay::new(&shape, &shape);
        let mut number = 0;
        let mut arrive = |relay: &mut Relay, (prompt, max_tokens, fan, priority, hand_off): Newcomer| {
            number += 1;
            let work = match hand_off {
                true => Work::GenerateFromHandoff { min_missing_tokens: 4 },
                false => Work::Generate,
            };
            let tokens = (0..prompt).map(|position| (position * 7 + number % 5) % 60).collect();
            let mut request = request(tokens, choices(fan), stop(max_tokens), work);
            request.priority = priority;
            relay.submit(request)
        };
        // The stream is there already, and the queue is half full.
        for newcomer in stream.iter().take(8) {
            arrive(&mut relay, *newcomer);
        }
        let Some(target) = arrive(&mut relay, (prompt, max_tokens, fan, priority, hand_off)) else {
            return Ok(());
        };
        // A turn is a millisecond: after 200 of them four levels of priority are made up for. What was accepted until then
        // has bounded work, of which every few turns do some.
        let mut newcomers = stream.iter().cycle();
        for turn in 0..30_000 {
            if relay.decode.logs[&target].ended {
                return Ok(());
            }
            if relay.decode.scheduler.load().waiting < 12 {
                arrive(&mut relay, *newcomers.next().expect("endless"));
            }
            relay.now += Duration::from_millis(1);
            relay.turn(turn);
        }
        let log = &relay.decode.logs[&target];
        let loads = (relay.decode.scheduler.load(), relay.prefill.scheduler.load());
        prop_assert!(false, "starved with {:?} and {:?}: {loads:?}", log.outputs, log.leased);
    }
}
