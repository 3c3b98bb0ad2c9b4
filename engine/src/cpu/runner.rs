//! One step plan after the other, exactly as planned.

use std::{sync::Arc, time::Instant};

use baton_kernels::{
    Threads,
    kv::{HostKv, KvMemory as _},
    sampling::{SampleError, SampleKey, SampleScratch, SamplingParams, sample, token_logprobs},
};

use super::{
    Model, PlanError,
    batch::{Batch, Bounds},
    forward::Forward,
    slots::{Slot, Slots},
};
use crate::{
    executor::ExecutorLimits,
    step::{Sampled, SlotId, StepOutcome, StepPlan, TokenLogprobs},
};

/// What the compute thread owns.
pub(super) struct Runner {
    memory: Arc<HostKv>,
    bounds: Bounds,
    slots: Slots,
    batch: Batch,
    forward: Forward<Arc<Model>>,
    scratch: SampleScratch,
}

impl Runner {
    pub(super) fn new(
        model: Arc<Model>,
        memory: Arc<HostKv>,
        threads: Threads,
        limits: ExecutorLimits,
    ) -> Self {
        Self {
            bounds: Bounds {
                vocab: limits.vocab,
                context_tokens: limits.context_tokens,
                pages: limits.pages,
                page_tokens: memory.layout().page_tokens,
            },
            slots: Slots::new(limits.slots),
            batch: Batch::default(),
            forward: Forward::new(
                model,
                Arc::clone(&memory),
                threads,
                limits.context_tokens as usize,
            ),
            memory,
            scratch: SampleScratch::default(),
        }
    }

    /// Runs a step. `layers_done(n)` is called as the KV of the first n layers is final.
    pub(super) fn run(
        &mut self,
        plan: &StepPlan,
        layers_done: impl FnMut(u32),
    ) -> Result<StepOutcome, PlanError> {
        let start = Instant::now();
        for open in &plan.opened {
            self.slots.open(open)?;
        }
        for copy in &plan.copies {
            self.memory.copy_page(copy.from, copy.to)?;
        }
        self.batch.fill(&plan.rows, &mut self.slots, self.bounds)?;
        let logits = self.forward.run(&self.batch, layers_done)?;

        let vocab = self.bounds.vocab as usize;
        let mut sampled = Vec::with_capacity(self.batch.samples.len());
        for &(slot, index) in &self.batch.samples {
            let logits = &logits[index * vocab..][..vocab];
            // The sampled token follows the row's last.
            let position = self.batch.positions[self.batch.logit_tokens[index].token] + 1;
            sampled.push(choose(
                slot,
                self.slots.get_mut(slot)?,
                logits,
                position,
                &mut self.scratch,
            )?);
        }
        Ok(StepOutcome {
            step: plan.step,
            sampled,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

fn choose(
    id: SlotId,
    slot: &mut Slot,
    logits: &[f32],
    position: u32,
    scratch: &mut SampleScratch,
) -> Result<Sampled, PlanError> {
    let params = &slot.sampling;
    let key = SampleKey {
        choice: slot.choice,
        position,
    };
    let broken = |source| PlanError::Sample { slot: id.0, source };
    let token = match sample(logits, params, key, &slot.history, scratch) {
        Ok(token) => token,
        // One request's constraints contradict each other. Its text ends where it can; the others go on in any case.
        Err(SampleError::AllForbidden) => match params.stop_tokens.first() {
            Some(stop) => *stop,
            None => {
                sample(logits, &SamplingParams::default(), key, &slot.history, scratch).map_err(broken)?
            }
        },
        Err(source) => return Err(broken(source)),
    };
    slot.history.push(token);
    let logprobs = params.logprobs.map(|top| {
        let logprobs = token_logprobs(logits, token, top);
        TokenLogprobs {
            chosen: logprobs.chosen,
            top: logprobs.top,
        }
    });
    Ok(Sampled {
        slot: id,
        tokens: vec![token],
        logprobs: logprobs.into_iter().collect(),
    })
}
