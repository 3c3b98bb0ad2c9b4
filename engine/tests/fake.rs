//! The fake device notices what a scheduler could do wrong: without that, the scheduler's tests would show nothing.

use std::sync::Arc;

use baton_engine::{
    executor::{Executor, ExecutorLimits},
    fake::{FakeConfig, FakeExecutor},
    step::{PageCopy, Row, RowStart, RowTokens, SlotId, SlotOpen, StepId, StepOutcome, StepPlan},
};
use baton_kernels::kv::PageId;

fn fake(drafts: u32) -> FakeExecutor {
    let limits = ExecutorLimits {
        pages: 8,
        slots: 4,
        context_tokens: 32,
        tokens_per_sample: drafts + 1,
        steps_in_flight: 2,
        layers: 2,
        vocab: 100,
    };
    let config = FakeConfig {
        limits,
        page_tokens: 4,
        seed: 5,
        step_seconds: 0.0,
        token_seconds: 0.0,
    };
    FakeExecutor::new(config, None)
}

fn open(slot: u32, prompt: &[u32], output: &[u32]) -> SlotOpen {
    SlotOpen {
        slot: SlotId(slot),
        choice: slot,
        sampling: Arc::default(),
        prompt: prompt.into(),
        output: output.to_vec(),
    }
}

fn chunk(slot: u32, start: u32, tokens: &[u32], pages: &[u32], sample: &[u32]) -> Row {
    Row {
        slot: SlotId(slot),
        start: RowStart::Known(start),
        tokens: RowTokens::Host(tokens.to_vec()),
        pages: pages.iter().map(|page| PageId(*page)).collect(),
        sample: sample.iter().map(|slot| SlotId(*slot)).collect(),
    }
}

fn decode(slot: u32, start: RowStart, pages: &[u32]) -> Row {
    Row {
        start,
        tokens: RowTokens::LastOutput,
        ..chunk(slot, 0, &[], pages, &[slot])
    }
}

fn step(number: u64, opened: Vec<SlotOpen>, rows: Vec<Row>) -> StepPlan {
    StepPlan {
        step: StepId(number),
        opened,
        copies: Vec::new(),
        rows,
    }
}

/// Runs the plans one after the other and returns the last outcome.
fn run(fake: &mut FakeExecutor, plans: Vec<StepPlan>) -> Result<StepOutcome, String> {
    let mut last = None;
    for plan in plans {
        let ticket = fake.submit(plan).map_err(|error| error.reason)?;
        last = loop {
            if let Some(outcome) = fake.poll(&ticket).map_err(|error| error.reason)? {
                break Some(outcome);
            }
        };
    }
    Ok(last.expect("at least one plan"))
}

fn complaint(plans: Vec<StepPlan>) -> String {
    run(&mut fake(0), plans).expect_err("the plans are wrong")
}

/// Five tokens in slot 0, in pages 0 and 1.
fn prompt() -> StepPlan {
    step(
        1,
        vec![open(0, &[1, 2, 3, 4, 5], &[])],
        vec![chunk(0, 0, &[1, 2, 3, 4, 5], &[0, 1], &[0])],
    )
}

#[test]
fn right_plans_pass() {
    let mut fake = fake(0);
    let next = step(2, vec![], vec![decode(0, RowStart::Known(5), &[0, 1])]);
    let outcome = run(&mut fake, vec![prompt(), next]).expect("nothing is wrong");
    let expected = fake
        .model()
        .continue_from(&[1, 2, 3, 4, 5], 2, 0, &Default::default());
    assert_eq!(outcome.sampled[0].tokens, expected[1..]);
}

#[test]
fn a_page_that_was_reused_too_early_is_noticed() {
    let thief = step(
        2,
        vec![open(1, &[9, 9], &[])],
        vec![chunk(1, 0, &[9, 9], &[0], &[1])],
    );
    let next = step(3, vec![], vec![decode(0, RowStart::Known(5), &[0, 1])]);
    let reason = complaint(vec![prompt(), thief, next]);
    assert!(reason.contains("position 0 in PageId(0)"), "{reason}");
}

#[test]
fn a_prefix_of_other_tokens_is_noticed() {
    let other = [7, 2, 3, 4, 5];
    let shared = step(
        2,
        vec![open(1, &other, &[])],
        vec![chunk(1, 4, &other[4..], &[0, 2], &[1])],
    );
    let reason = complaint(vec![prompt(), shared]);
    assert!(reason.contains("finds other KV than its own"), "{reason}");
}

#[test]
fn a_fork_without_its_copy_is_noticed() {
    let both = || vec![open(0, &[1, 2, 3, 4, 5], &[]), open(1, &[1, 2, 3, 4, 5], &[])];
    let prompt = || step(1, both(), vec![chunk(0, 0, &[1, 2, 3, 4, 5], &[0, 1], &[0, 1])]);
    let rows = |page| {
        vec![
            decode(0, RowStart::Known(5), &[0, 1]),
            decode(1, RowStart::Known(5), &[0, page]),
        ]
    };
    let reason = complaint(vec![prompt(), step(2, vec![], rows(1))]);
    assert!(reason.contains("both write PageId(1)"), "{reason}");
    let reason = complaint(vec![prompt(), step(2, vec![], rows(2))]);
    assert!(reason.contains("position 4 in PageId(2)"), "{reason}");
    let copied = StepPlan {
        copies: vec![PageCopy {
            from: PageId(1),
            to: PageId(2),
        }],
        ..step(2, vec![], rows(2))
    };
    run(&mut fake(0), vec![prompt(), copied]).expect("a right fork");
}

#[test]
fn writing_what_another_row_reads_is_noticed() {
    let prefix = chunk(1, 4, &[6], &[0, 2], &[1]);
    let writer = chunk(2, 0, &[8], &[0], &[2]);
    let opened = vec![open(1, &[1, 2, 3, 4, 6], &[]), open(2, &[8], &[])];
    let reason = complaint(vec![prompt(), step(2, opened, vec![prefix, writer])]);
    assert!(reason.contains("writes PageId(0)"), "{reason}");
}

#[test]
fn rows_that_do_not_fit_their_sequence_are_noticed() {
    let next = |row| vec![prompt(), step(2, vec![], vec![row])];
    let cases = [
        (next(decode(0, RowStart::Known(4), &[0, 1])), "goes on at 4"),
        (next(decode(1, RowStart::Known(5), &[0, 1])), "never opened"),
        (
            next(decode(0, RowStart::AfterPrevious { at_most: 4 }, &[0, 1])),
            "planned at most 4",
        ),
        (next(decode(0, RowStart::Known(5), &[0])), "its table 4"),
        (next(decode(0, RowStart::Known(5), &[0, 9])), "out of range"),
        (next(decode(0, RowStart::Known(5), &[0, 0])), "twice in its table"),
        (
            next(chunk(0, 0, &[1, 2, 4], &[0], &[])),
            "its tokens are [1, 2, 3]",
        ),
        (next(chunk(0, 0, &[1, 2, 3], &[0], &[0])), "in the middle"),
        (vec![step(2, vec![], vec![])], "follows"),
        (vec![step(1, vec![], vec![])], "without rows"),
    ];
    for (plans, expected) in cases {
        let reason = complaint(plans);
        assert!(reason.contains(expected), "{reason}: expected {expected}");
    }
}

#[test]
fn a_hand_off_with_a_hole_is_noticed() {
    let mut sender = fake(0);
    run(&mut sender, vec![prompt()]).expect("a right prompt");
    let first = sender
        .model()
        .continue_from(&[1, 2, 3, 4, 5], 1, 0, &Default::default());
    let receive = |holes: &[(u32, u32)]| {
        let mut receiver = fake(0);
        for (page, layer) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            if !holes.contains(&(page, layer)) {
                let mut slice = Vec::new();
                sender
                    .kv_memory()
                    .read_slice(PageId(page), layer, &mut slice)
                    .expect("in range");
                receiver
                    .kv_memory()
                    .write_slice(PageId(page + 3), layer, &slice)
                    .expect("in range");
            }
        }
        let opened = vec![open(2, &[1, 2, 3, 4, 5], &first)];
        let mut row = step(1, opened, vec![decode(2, RowStart::Known(5), &[3, 4])]);
        row.opened[0].choice = 0;
        run(&mut receiver, vec![row])
    };
    receive(&[]).expect("a whole hand-off");
    let reason = receive(&[(1, 1)]).expect_err("a hole");
    assert!(reason.contains("PageId(4), layer 1"), "{reason}");
}

#[test]
fn drafts_change_how_many_tokens_come_and_not_which() {
    let mut fake = fake(3);
    let mut tokens: Vec<u32> = Vec::new();
    tokens.extend(&run(&mut fake, vec![prompt()]).expect("right").sampled[0].tokens);
    let mut counts = Vec::new();
    for number in 2..8 {
        let start = RowStart::Known(4 + tokens.len() as u32);
        let pages: Vec<u32> = (0..8).collect();
        let outcome = run(
            &mut fake,
            vec![step(number, vec![], vec![decode(0, start, &pages)])],
        )
        .expect("right");
        counts.push(outcome.sampled[0].tokens.len());
        tokens.extend(&outcome.sampled[0].tokens);
    }
    assert_eq!(
        tokens,
        fake.model()
            .continue_from(&[1, 2, 3, 4, 5], tokens.len(), 0, &Default::default())
    );
    assert!(counts.iter().any(|count| *count > 1), "{counts:?}");
    assert!(counts.iter().all(|count| *count <= 4), "{counts:?}");
}
