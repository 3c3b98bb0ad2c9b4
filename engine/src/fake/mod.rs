//! An executor that computes nothing and believes nothing.
//!
//! It makes up tokens that depend only on a sequence's own tokens, and remembers in its KV memory, for each position of
//! each page and layer, of which tokens it was written. Every row is checked against that: a page that was reused too early, a
//! wrong prefix, a fork without its copy or a hand-off with a hole in it stops it with a sentence that says what is wrong. Work
//! happens as late as the contract allows, one layer for each poll, so that whoever writes too early is caught.

mod history;
mod kv;
mod model;
mod rules;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use baton_kernels::kv::{KvMemory, PageId};

use crate::{
    executor::{Executor, ExecutorError, ExecutorLimits, Ticket, Wake},
    step::{Sampled, StepId, StepOutcome, StepPlan},
};

pub use kv::FakeKv;
pub use model::FakeModel;

use history::History;
use rules::{ResolvedRow, Rules};

/// What a [`FakeExecutor`] pretends to be.
#[derive(Clone, Debug)]
pub struct FakeConfig {
    pub limits: ExecutorLimits,
    /// Any number: the fake does not care for alignment.
    pub page_tokens: usize,
    /// Decides how many of the drafted tokens are accepted.
    pub seed: u64,
    /// Reported as [`StepOutcome::seconds`]: for each step, and for each token that it computes.
    pub step_seconds: f64,
    pub token_seconds: f64,
}

/// See the [module](self).
pub struct FakeExecutor {
    config: FakeConfig,
    kv: Arc<FakeKv>,
    wake: Option<Wake>,
    slots: HashMap<crate::step::SlotId, History>,
    queue: VecDeque<Step>,
    last_submitted: StepId,
    failed: Option<String>,
}

struct Step {
    plan: StepPlan,
    /// Empty until the steps before it are done.
    rows: Vec<ResolvedRow>,
    layers_done: u32,
}

impl FakeExecutor {
    /// `wake` is called whenever a poll may bring something new, which is after each poll and each submission.
    #[must_use]
    pub fn new(config: FakeConfig, wake: Option<Wake>) -> Self {
        let kv = FakeKv::new(config.limits.pages, config.limits.layers, config.page_tokens);
        Self {
            kv: Arc::new(kv),
            wake,
            slots: HashMap::new(),
            queue: VecDeque::new(),
            last_submitted: StepId(0),
            failed: None,
            config,
        }
    }

    /// What its tokens are made of.
    #[must_use]
    pub fn model(&self) -> FakeModel {
        FakeModel {
            vocab: self.config.limits.vocab,
        }
    }

    /// From the next call on, the device fails with this reason.
    pub fn break_down(&mut self, reason: impl Into<String>) {
        self.failed = Some(reason.into());
    }

    /// Why it has failed, or will at the next call.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Makes the slots and copies of the oldest step take effect, and finds out what its rows are.
    fn begin(&mut self, step: &mut Step) -> Result<(), String> {
        let model = self.model();
        for open in &step.plan.opened {
            if open.slot.0 >= self.config.limits.slots {
                return Err(format!("{:?} of {}", open.slot, self.config.limits.slots));
            }
            if open.prompt.is_empty() {
                return Err(format!("{:?} was opened without a prompt", open.slot));
            }
            self.slots.insert(open.slot, History::open(open, model));
        }
        let rules = Rules {
            limits: &self.config.limits,
            page_tokens: self.config.page_tokens as u32,
            slots: &self.slots,
        };
        let (seed, number) = (self.config.seed, step.plan.step.0);
        let most = self.config.limits.tokens_per_sample;
        let yields = |history: &History| 1 + history.digest(history.len() - 1).choose(seed, number, most);
        step.rows = rules.resolve(&step.plan, yields)?;
        for copy in &step.plan.copies {
            self.kv.copy(copy.from, copy.to);
        }
        Ok(())
    }

    /// Reads what the rows attend to in one layer, and writes their KV.
    fn run_layer(&self, rows: &[ResolvedRow], layer: u32) -> Result<(), String> {
        let size = self.config.page_tokens;
        let place = |row: &ResolvedRow, position: usize| (row.pages[position / size], position % size);
        for row in rows {
            let Some(history) = self.slots.get(&row.slot) else {
                continue;
            };
            for (offset, digest) in row.written.iter().enumerate() {
                let (page, token): (PageId, usize) = place(row, row.start as usize + offset);
                let rejected = !history.digest(row.start.min(history.len() - 1)).kv(layer);
                let value = digest.map_or(rejected, |digest| digest.kv(layer));
                self.kv.write(page, layer, token, value);
            }
        }
        for row in rows {
            let Some(history) = self.slots.get(&row.slot) else {
                continue;
            };
            for position in 0..row.start {
                let (page, token) = place(row, position as usize);
                if self.kv.read(page, layer, token) != history.digest(position).kv(layer) {
                    let slot = row.slot;
                    return Err(format!(
                        "{slot:?} reads position {position} in {page:?}, layer {layer}, and finds other KV than its own"
                    ));
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, step: &Step) -> StepOutcome {
        let mut sampled = Vec::new();
        let mut computed = 0;
        for row in &step.rows {
            computed += row.written.len();
            for slot in &row.sample {
                if let Some(history) = self.slots.get_mut(slot) {
                    let (tokens, logprobs) = history.sample(row.yields);
                    sampled.push(Sampled {
                        slot: *slot,
                        tokens,
                        logprobs,
                    });
                }
            }
            if let Some(history) = self.slots.get_mut(&row.slot) {
                history.set_row_end(row.start + accepted(row));
            }
        }
        StepOutcome {
            step: step.plan.step,
            sampled,
            seconds: self.config.step_seconds + self.config.token_seconds * computed as f64,
        }
    }

    fn advance(&mut self, step: &mut Step) -> Result<(), String> {
        if step.rows.is_empty() {
            self.begin(step)?;
        }
        if step.layers_done < self.config.limits.layers {
            self.run_layer(&step.rows, step.layers_done)?;
            step.layers_done += 1;
        }
        Ok(())
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake();
        }
    }

    fn fail(&mut self, step: StepId, reason: String) -> ExecutorError {
        self.failed = Some(reason.clone());
        ExecutorError {
            step: Some(step),
            reason,
        }
    }
}

impl Executor for FakeExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.config.limits
    }

    fn kv_memory(&self) -> Arc<dyn KvMemory> {
        Arc::clone(&self.kv) as Arc<dyn KvMemory>
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        let step = plan.step;
        if let Some(reason) = self.failed.clone() {
            return Err(self.fail(step, reason));
        }
        if step.0 != self.last_submitted.0 + 1 {
            let reason = format!("{step:?} follows {:?}", self.last_submitted);
            return Err(self.fail(step, reason));
        }
        if self.queue.len() >= self.config.limits.steps_in_flight {
            return Err(self.fail(step, format!("{} steps are in flight already", self.queue.len())));
        }
        self.last_submitted = step;
        self.queue.push_back(Step {
            plan,
            rows: Vec::new(),
            layers_done: 0,
        });
        self.wake();
        Ok(Ticket(step))
    }

    fn poll(&mut self, ticket: &Ticket) -> Result<Option<StepOutcome>, ExecutorError> {
        if let Some(reason) = self.failed.clone() {
            return Err(self.fail(ticket.0, reason));
        }
        let Some(mut step) = self.queue.pop_front() else {
            return Err(self.fail(ticket.0, "no step is in flight".into()));
        };
        if step.plan.step != ticket.0 {
            self.queue.push_front(step);
            return Ok(None);
        }
        if let Err(reason) = self.advance(&mut step) {
            return Err(self.fail(ticket.0, reason));
        }
        self.wake();
        if step.layers_done < self.config.limits.layers {
            self.queue.push_front(step);
            return Ok(None);
        }
        Ok(Some(self.finish(&step)))
    }

    fn layers_done(&self, ticket: &Ticket) -> u32 {
        match self.queue.iter().find(|step| step.plan.step == ticket.0) {
            Some(step) => step.layers_done,
            None if ticket.0 <= self.last_submitted => self.config.limits.layers,
            None => 0,
        }
    }
}

/// How far a row moved its sequence; rejected drafts are the end of what it wrote.
fn accepted(row: &ResolvedRow) -> u32 {
    row.written.iter().take_while(|digest| digest.is_some()).count() as u32
}
