//! The executor, driven step by step as the scheduler drives it.

mod equality;
mod steps;

use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    time::Duration,
};

use baton_kernels::{
    kv::{KvDtype, PageId},
    sampling::SamplingParams,
};

use super::{CpuExecutor, CpuExecutorConfig, Model};
use crate::{
    executor::{Executor, Ticket, Wake},
    step::{PageCopy, Row, RowStart, RowTokens, SlotId, SlotOpen, StepId, StepOutcome, StepPlan},
};

const PAGE_TOKENS: usize = 16;
const PAGES_EACH: u32 = 10;

fn model(case: &str) -> Arc<Model> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(case);
    Arc::new(Model::load(&dir).unwrap())
}

fn config(threads: usize) -> CpuExecutorConfig {
    CpuExecutorConfig {
        threads,
        kv_dtype: KvDtype::Fp8E4m3,
        page_tokens: PAGE_TOKENS,
        pages: 20 * PAGES_EACH,
        slots: 20,
        context_tokens: 0,
    }
}

/// A prompt of random-looking tokens; the vocabulary of the test models is 256.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| {
            (seed + 1)
                .wrapping_mul(2_654_435_761)
                .wrapping_add(i.wrapping_mul(40_503))
                .rotate_left(i % 29)
                % 256
        })
        .collect()
}

/// Sampled, penalized, and with the logprobs that show every bit of the logits.
fn sampling(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        seed,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        logprobs: Some(8),
        ..SamplingParams::default()
    }
}

struct Bench {
    executor: CpuExecutor,
    wakes: Receiver<()>,
    step: u64,
}

impl Bench {
    fn new(model: Arc<Model>, config: &CpuExecutorConfig) -> Self {
        let (sender, wakes) = sync_channel(1);
        let wake: Wake = Arc::new(move || {
            // A full channel holds a wake already.
            let _ = sender.try_send(());
        });
        Self {
            executor: CpuExecutor::new(model, config, wake).unwrap(),
            wakes,
            step: 0,
        }
    }

    fn submit(&mut self, opened: Vec<SlotOpen>, copies: Vec<PageCopy>, rows: Vec<Row>) -> Ticket {
        self.step += 1;
        let plan = StepPlan {
            step: StepId(self.step),
            opened,
            copies,
            rows,
        };
        self.executor.submit(plan).unwrap()
    }

    fn wait(&mut self, ticket: &Ticket) -> StepOutcome {
        loop {
            if let Some(outcome) = self.executor.poll(ticket).unwrap() {
                assert_eq!(outcome.step, ticket.0);
                assert_eq!(self.executor.layers_done(ticket), self.executor.limits().layers);
                return outcome;
            }
            self.wakes
                .recv_timeout(Duration::from_secs(60))
                .expect("the executor wakes its owner");
        }
    }

    fn run(&mut self, opened: Vec<SlotOpen>, rows: Vec<Row>) -> StepOutcome {
        let ticket = self.submit(opened, Vec::new(), rows);
        self.wait(&ticket)
    }
}

/// One sequence and where it lies.
#[derive(Clone)]
struct Sequence {
    slot: SlotId,
    pages: Vec<PageId>,
    prompt: Vec<u32>,
    seed: u64,
}

impl Sequence {
    fn new(slot: u32, prompt: Vec<u32>, seed: u64) -> Self {
        let pages = (slot * PAGES_EACH..(slot + 1) * PAGES_EACH).map(PageId).collect();
        Self {
            slot: SlotId(slot),
            pages,
            prompt,
            seed,
        }
    }

    fn open(&self, output: &[u32]) -> SlotOpen {
        SlotOpen {
            slot: self.slot,
            choice: 0,
            sampling: Arc::new(sampling(self.seed)),
            prompt: self.prompt.clone().into(),
            output: output.to_vec(),
        }
    }

    /// Prompt tokens `from .. to`, which sample where they end the prompt.
    fn prefill(&self, from: usize, to: usize) -> Row {
        Row {
            slot: self.slot,
            start: RowStart::Known(from as u32),
            tokens: RowTokens::Host(self.prompt[from..to].to_vec()),
            pages: self.pages.clone(),
            sample: if to == self.prompt.len() {
                vec![self.slot]
            } else {
                Vec::new()
            },
        }
    }

    /// The token after `outputs` earlier ones, planned before those are known.
    fn decode(&self, outputs: usize) -> Row {
        Row {
            slot: self.slot,
            start: RowStart::AfterPrevious {
                at_most: (self.prompt.len() + outputs - 1) as u32,
            },
            tokens: RowTokens::LastOutput,
            pages: self.pages.clone(),
            sample: vec![self.slot],
        }
    }
}
