//! What an executor promises beside tokens: published layers, and errors that say what failed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::sync_channel,
    },
    time::Duration,
};

use baton_kernels::{kv::PageId, sampling::SamplingParams};

use super::{Bench, Sequence, config, model, prompt};
use crate::{
    cpu::{CpuExecutor, CpuExecutorConfig},
    executor::{Executor, Wake},
    step::{Row, RowStart, RowTokens, SlotId, StepId, StepPlan},
};

#[test]
fn layers_are_final_when_they_are_published() {
    let model = model("llama-f32-tied");
    let sequence = Sequence::new(0, prompt(8, 90), 1);
    let layers = model.config().layers as u32;

    let mut done = Bench::new(Arc::clone(&model), &config(1));
    done.run(vec![sequence.open(&[])], vec![sequence.prefill(0, 90)]);
    let read = |bench: &Bench, layer| {
        let mut slices = Vec::new();
        for page in &sequence.pages[..6] {
            let mut slice = Vec::new();
            bench
                .executor
                .kv_memory()
                .read_slice(*page, layer, &mut slice)
                .unwrap();
            slices.push(slice);
        }
        slices
    };

    let mut running = Bench::new(model, &config(1));
    let ticket = running.submit(
        vec![sequence.open(&[])],
        Vec::new(),
        vec![sequence.prefill(0, 90)],
    );
    let mut seen = 0;
    while seen < layers {
        let published = running.executor.layers_done(&ticket);
        for layer in seen..published {
            assert_eq!(read(&running, layer), read(&done, layer), "layer {layer}");
        }
        seen = published;
        if seen < layers {
            running
                .wakes
                .recv_timeout(Duration::from_secs(60))
                .expect("a wake for each layer");
        }
    }
    running.wait(&ticket);
}

#[test]
fn a_step_without_rows_finishes() {
    let mut bench = Bench::new(model("llama-f32-tied"), &config(1));
    let outcome = bench.run(Vec::new(), Vec::new());
    assert!(outcome.sampled.is_empty());
}

#[test]
fn a_request_that_forbids_every_token_harms_nobody() {
    let mut bench = Bench::new(model("llama-f32-tied"), &config(1));
    let sane = Sequence::new(0, prompt(0, 20), 0);
    let alone = bench.run(vec![sane.open(&[])], vec![sane.prefill(0, 20)]).sampled;

    let first_forbidden = Sequence::new(1, prompt(1, 20), 0);
    let mut ends = first_forbidden.open(&[]);
    ends.sampling = Arc::new(SamplingParams {
        allowed_tokens: vec![9],
        stop_tokens: vec![9],
        min_tokens: 5,
        ..SamplingParams::default()
    });
    let second_forbidden = Sequence::new(2, prompt(2, 20), 0);
    let mut unbounded = second_forbidden.open(&[]);
    unbounded.sampling = Arc::new(SamplingParams {
        allowed_tokens: vec![u32::MAX],
        ..SamplingParams::default()
    });
    let sequences = [&sane, &first_forbidden, &second_forbidden];
    let rows = sequences.map(|sequence| sequence.prefill(0, 20)).to_vec();
    let sampled = bench.run(vec![sane.open(&[]), ends, unbounded], rows).sampled;
    assert_eq!(sampled[0], alone[0]);
    assert_eq!(sampled[1].tokens, [9], "its stop token");
    assert_eq!(sampled[2].tokens.len(), 1);
}

#[test]
fn impossible_plans_end_the_executor_with_a_reason() {
    type Change = fn(&mut Row);
    let changes: [(&str, Change); 8] = [
        ("slot 19 is not open", |row| row.slot = SlotId(19)),
        ("slot 99 is not open", |row| row.sample = vec![SlotId(99)]),
        ("has no output", |row| row.tokens = RowTokens::LastOutput),
        ("has no tokens", |row| row.tokens = RowTokens::Host(Vec::new())),
        ("token 256 is outside", |row| {
            row.tokens = RowTokens::Host(vec![256])
        }),
        ("beyond its block table of 1 pages", |row| row.pages.truncate(1)),
        ("page 999 is outside", |row| row.pages[2] = PageId(999)),
        ("beyond the context of 256", |row| {
            row.start = RowStart::Known(250)
        }),
    ];
    let model = model("llama-f32-tied");
    for (reason, change) in changes {
        let mut bench = Bench::new(Arc::clone(&model), &config(1));
        let sequence = Sequence::new(0, prompt(0, 20), 0);
        let mut row = sequence.prefill(0, 20);
        change(&mut row);
        let ticket = bench.submit(vec![sequence.open(&[])], Vec::new(), vec![row]);
        let error = loop {
            match bench.executor.poll(&ticket) {
                Ok(outcome) => assert!(outcome.is_none(), "{reason}"),
                Err(error) => break error,
            }
            bench.wakes.recv_timeout(Duration::from_secs(60)).expect("a wake");
        };
        assert_eq!(error.step, Some(StepId(1)));
        assert!(error.reason.contains(reason), "{error} instead of {reason}");
        let plan = StepPlan {
            step: StepId(2),
            opened: Vec::new(),
            copies: Vec::new(),
            rows: Vec::new(),
        };
        assert!(bench.executor.submit(plan).is_err(), "it does not go on");
    }
}

#[test]
fn a_panic_on_the_compute_thread_is_an_error() {
    let (sender, wakes) = sync_channel(4);
    let first = AtomicBool::new(true);
    let wake: Wake = Arc::new(move || {
        if first.swap(false, Ordering::SeqCst) {
            panic!("in the middle of a step");
        }
        let _ = sender.try_send(());
    });
    let mut executor = CpuExecutor::new(model("llama-f32-tied"), &config(1), wake).unwrap();
    let sequence = Sequence::new(0, prompt(0, 20), 0);
    let ticket = executor
        .submit(StepPlan {
            step: StepId(1),
            opened: vec![sequence.open(&[])],
            copies: Vec::new(),
            rows: vec![sequence.prefill(0, 20)],
        })
        .unwrap();
    wakes
        .recv_timeout(Duration::from_secs(60))
        .expect("a wake after the panic");
    let error = executor.poll(&ticket).unwrap_err();
    assert!(error.reason.contains("in the middle of a step"), "{error}");
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    type Change = fn(&mut CpuExecutorConfig);
    let changes: [(&str, Change); 4] = [
        ("engine.context_tokens is 257", |config| {
            config.context_tokens = 257
        }),
        ("page_tokens is 17", |config| config.page_tokens = 17),
        ("engine.kv_pages is 0", |config| config.pages = 0),
        ("engine.max_running is 0", |config| config.slots = 0),
    ];
    let model = model("llama-f32-tied");
    for (named, change) in changes {
        let mut config = config(1);
        change(&mut config);
        let error = CpuExecutor::new(Arc::clone(&model), &config, Arc::new(|| ()))
            .err()
            .expect(named);
        assert!(error.to_string().contains(named), "{error}");
    }
}
