//! Tokens and logprobs do not depend on what else runs, bit for bit.

use std::{collections::VecDeque, sync::Arc};

use baton_kernels::kv::KvDtype;

use super::{Bench, PAGE_TOKENS, Sequence, config, model, prompt};
use crate::{
    cpu::CpuExecutorConfig,
    executor::Executor,
    step::{PageCopy, RowStart, Sampled, SlotId},
};

const OUTPUT: usize = 12;
const CASES: [&str; 3] = [
    "llama3-rope-bf16-sharded",
    "mistral-window-bf16",
    "qwen3-qknorm-f32",
];

/// Output with the bits of its logprobs, without the slot.
type Output = Vec<(Vec<u32>, Vec<(u32, u32)>)>;

fn bits(sampled: &[Sampled], slot: SlotId) -> Output {
    sampled
        .iter()
        .filter(|sampled| sampled.slot == slot)
        .map(|sampled| {
            let logprobs = &sampled.logprobs[0];
            assert_eq!(logprobs.top.len(), 8);
            let all = logprobs.top.iter().chain([&logprobs.chosen]);
            (
                sampled.tokens.clone(),
                all.map(|(token, value)| (*token, value.to_bits())).collect(),
            )
        })
        .collect()
}

/// Prefill in chunks, then decode, one step at a time.
fn generate(bench: &mut Bench, sequence: &Sequence, chunk: usize) -> Output {
    let len = sequence.prompt.len();
    let mut output = Vec::new();
    let mut opened = vec![sequence.open(&[])];
    for from in (0..len).step_by(chunk) {
        let row = sequence.prefill(from, (from + chunk).min(len));
        let outcome = bench.run(std::mem::take(&mut opened), vec![row]);
        output.extend(bits(&outcome.sampled, sequence.slot));
    }
    for outputs in 1..OUTPUT {
        let outcome = bench.run(Vec::new(), vec![sequence.decode(outputs)]);
        output.extend(bits(&outcome.sampled, sequence.slot));
    }
    assert_eq!(output.len(), OUTPUT);
    output
}

#[test]
fn alone_equals_in_a_batch_of_sixteen_with_two_steps_in_flight() {
    for case in CASES {
        let model = model(case);
        let sequences: Vec<_> = (0..16)
            .map(|i| Sequence::new(i, prompt(i, 3 + 6 * i as usize), u64::from(i)))
            .collect();

        let mut batched = Bench::new(Arc::clone(&model), &config(2));
        let mut outputs = vec![Output::new(); sequences.len()];
        let mut pending = VecDeque::new();
        // A sequence joins each step, so that prefill and decode rows mix, and each step is planned before the one
        // before it is known.
        for step in 0..sequences.len() + OUTPUT - 1 {
            let mut rows = Vec::new();
            let mut opened = Vec::new();
            for (joined, sequence) in sequences.iter().enumerate() {
                match step.checked_sub(joined) {
                    Some(0) => {
                        opened.push(sequence.open(&[]));
                        rows.push(sequence.prefill(0, sequence.prompt.len()));
                    }
                    Some(outputs) if outputs < OUTPUT => rows.push(sequence.decode(outputs)),
                    _ => {}
                }
            }
            pending.push_back(batched.submit(opened, Vec::new(), rows));
            if pending.len() == 2 {
                let outcome = batched.wait(&pending.pop_front().unwrap());
                for (sequence, output) in sequences.iter().zip(&mut outputs) {
                    output.extend(bits(&outcome.sampled, sequence.slot));
                }
            }
        }
        let outcome = batched.wait(&pending.pop_front().unwrap());
        for (sequence, output) in sequences.iter().zip(&mut outputs) {
            output.extend(bits(&outcome.sampled, sequence.slot));
        }

        for (sequence, output) in sequences.iter().zip(outputs) {
            let mut alone = Bench::new(Arc::clone(&model), &config(1));
            assert_eq!(
                generate(&mut alone, sequence, usize::MAX),
                output,
                "{case}, {:?}",
                sequence.slot
            );
        }
    }
}

#[test]
fn chunks_and_threads_do_not_change_a_bit() {
    for case in CASES {
        let model = model(case);
        for dtype in [KvDtype::Fp8E4m3, KvDtype::Bf16, KvDtype::F32] {
            let sequence = Sequence::new(3, prompt(9, 77), 5);
            let mut outputs = Vec::new();
            for (threads, chunk) in [(1, usize::MAX), (1, 1), (1, 7), (2, 16), (2, 64), (4, usize::MAX)] {
                let config = CpuExecutorConfig {
                    kv_dtype: dtype,
                    ..config(threads)
                };
                let mut bench = Bench::new(Arc::clone(&model), &config);
                outputs.push(generate(&mut bench, &sequence, chunk));
            }
            for output in &outputs[1..] {
                assert_eq!(output, &outputs[0], "{case}, {}", dtype.name());
            }
        }
    }
}

#[test]
fn a_prefix_hit_equals_a_cold_prompt() {
    let model = model("qwen3-qknorm-f32");
    let mut bench = Bench::new(model, &config(1));
    let cold = Sequence::new(0, prompt(1, 60), 7);
    let expected = generate(&mut bench, &cold, usize::MAX);

    // The same prompt on the first sequence's three full pages.
    let mut hit = Sequence::new(1, cold.prompt.clone(), 7);
    hit.pages[..3].copy_from_slice(&cold.pages[..3]);
    let outcome = bench.run(vec![hit.open(&[])], vec![hit.prefill(3 * PAGE_TOKENS, 60)]);
    let mut output = bits(&outcome.sampled, hit.slot);
    for outputs in 1..OUTPUT {
        let outcome = bench.run(Vec::new(), vec![hit.decode(outputs)]);
        output.extend(bits(&outcome.sampled, hit.slot));
    }
    assert_eq!(output, expected);
}

#[test]
fn choices_fork_from_a_copied_page_and_resume_from_their_output() {
    let model = model("llama-linear-rope-f16-biased");
    let mut bench = Bench::new(model, &config(2));
    // 40 tokens: two full pages and a half one that each choice continues by itself.
    let first = Sequence::new(0, prompt(4, 40), 11);
    let mut second = Sequence::new(1, first.prompt.clone(), 11);
    second.pages[..2].copy_from_slice(&first.pages[..2]);

    let mut row = first.prefill(0, 40);
    row.sample = vec![first.slot, second.slot];
    let mut open_second = second.open(&[]);
    open_second.choice = 1;
    let outcome = bench.run(vec![first.open(&[]), open_second], vec![row]);
    let mut outputs = [
        bits(&outcome.sampled, first.slot),
        bits(&outcome.sampled, second.slot),
    ];
    assert_eq!(
        outputs[0][0].1[..8],
        outputs[1][0].1[..8],
        "both sample from the same logits"
    );

    let copies = vec![PageCopy {
        from: first.pages[2],
        to: second.pages[2],
    }];
    let mut forked = second.decode(1);
    forked.start = RowStart::Known(40);
    let ticket = bench.submit(Vec::new(), copies, vec![first.decode(1), forked]);
    let outcome = bench.wait(&ticket);
    for (sequence, output) in [&first, &second].into_iter().zip(&mut outputs) {
        output.extend(bits(&outcome.sampled, sequence.slot));
    }
    for count in 2..OUTPUT {
        let outcome = bench.run(Vec::new(), vec![first.decode(count), second.decode(count)]);
        for (sequence, output) in [&first, &second].into_iter().zip(&mut outputs) {
            output.extend(bits(&outcome.sampled, sequence.slot));
        }
    }
    let tokens =
        |output: &Output| -> Vec<u32> { output.iter().flat_map(|(tokens, _)| tokens.clone()).collect() };
    assert_ne!(
        tokens(&outputs[0]),
        tokens(&outputs[1]),
        "choices have their own noise"
    );

    // The second choice again, recomputed from its first half as after a preemption.
    let emitted = &tokens(&outputs[1])[..OUTPUT / 2];
    let mut resumed = Sequence::new(2, first.prompt.clone(), 11);
    let mut open = resumed.open(emitted);
    open.choice = 1;
    resumed.prompt.extend(emitted);
    let mut output = bits(
        &bench
            .run(vec![open], vec![resumed.prefill(0, resumed.prompt.len())])
            .sampled,
        resumed.slot,
    );
    for count in 1..OUTPUT - emitted.len() {
        let outcome = bench.run(Vec::new(), vec![resumed.decode(count)]);
        output.extend(bits(&outcome.sampled, resumed.slot));
    }
    assert_eq!(output, outputs[1][emitted.len()..]);
}

#[test]
fn kv_moved_to_another_executor_continues_equally() {
    let model = model("mistral-window-bf16");
    let sequence = Sequence::new(2, prompt(3, 37), 13);
    let mut alone = Bench::new(Arc::clone(&model), &config(1));
    let expected = generate(&mut alone, &sequence, usize::MAX);

    let mut prefill = Bench::new(Arc::clone(&model), &config(1));
    let outcome = prefill.run(vec![sequence.open(&[])], vec![sequence.prefill(0, 37)]);
    let mut output = bits(&outcome.sampled, sequence.slot);
    let first = outcome.sampled[0].tokens[0];

    let mut decode = Bench::new(model, &config(2));
    let adopted = Sequence::new(5, sequence.prompt.clone(), 13);
    let (from, to) = (prefill.executor.kv_memory(), decode.executor.kv_memory());
    let mut slice = Vec::new();
    for page in 0..3 {
        for layer in 0..decode.executor.limits().layers {
            from.read_slice(sequence.pages[page], layer, &mut slice).unwrap();
            to.write_slice(adopted.pages[page], layer, &slice).unwrap();
        }
    }
    let mut row = adopted.decode(1);
    row.start = RowStart::Known(37);
    let outcome = decode.run(vec![adopted.open(&[first])], vec![row]);
    output.extend(bits(&outcome.sampled, adopted.slot));
    for outputs in 2..OUTPUT {
        let outcome = decode.run(Vec::new(), vec![adopted.decode(outputs)]);
        output.extend(bits(&outcome.sampled, adopted.slot));
    }
    assert_eq!(output, expected);
}
