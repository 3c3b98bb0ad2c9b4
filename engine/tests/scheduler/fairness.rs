//! Who waits for whom, and for how long.

use std::time::Duration;

use baton_engine::{request::Work, scheduler::RequestKey};

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
