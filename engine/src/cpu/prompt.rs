//! A prompt's logits without an executor: for comparing models, not for serving.

use std::sync::Arc;

use baton_kernels::{
    Threads,
    kv::{HostKv, KvDtype, PageId},
    sampling::SamplingParams,
};

use super::{
    CpuExecutorConfig, Model, PlanError,
    batch::{Batch, Bounds, LogitToken},
    forward::Forward,
    slots::Slots,
};
use crate::{
    model::ModelError,
    step::{Row, RowStart, RowTokens, SlotId, SlotOpen},
};

/// Logits `[tokens][vocab]` at every position of a prompt, by the same forward pass as steps, with KV stored as `kv_dtype`.
///
/// # Errors
/// [`ModelError`] where the prompt is empty, longer than the model's positions, or has tokens outside of the vocabulary.
pub fn prompt_logits(model: &Model, kv_dtype: KvDtype, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
    const PAGE_TOKENS: usize = 16;
    let shape = model.config();
    let config = CpuExecutorConfig {
        threads: 1,
        kv_dtype,
        page_tokens: PAGE_TOKENS,
        pages: tokens.len().div_ceil(PAGE_TOKENS).max(1) as u32,
        slots: 1,
        context_tokens: 0,
    };
    let context_tokens = config.context(shape)?;
    let memory = Arc::new(HostKv::new(config.layout(shape), config.pages)?);
    let bounds = Bounds {
        vocab: shape.vocab as u32,
        context_tokens,
        pages: config.pages,
        page_tokens: PAGE_TOKENS,
    };
    let batch = whole_prompt(tokens, bounds).map_err(|error| ModelError::Prompt(error.to_string()))?;
    let mut forward = Forward::new(model, memory, Threads::single(), context_tokens as usize);
    let logits = forward.run(&batch, |_| ());
    Ok(logits
        .map_err(|error| ModelError::Prompt(error.to_string()))?
        .to_vec())
}

/// One row that wants the logits of each of its tokens.
fn whole_prompt(tokens: &[u32], bounds: Bounds) -> Result<Batch, PlanError> {
    let slot = SlotId(0);
    let mut slots = Slots::new(1);
    slots.open(&SlotOpen {
        slot,
        choice: 0,
        sampling: Arc::new(SamplingParams::default()),
        prompt: Arc::from(tokens),
        output: Vec::new(),
    })?;
    let row = Row {
        slot,
        start: RowStart::Known(0),
        tokens: RowTokens::Host(tokens.to_vec()),
        pages: (0..bounds.pages).map(PageId).collect(),
        sample: Vec::new(),
    };
    let mut batch = Batch::default();
    batch.fill(&[row], &mut slots, bounds)?;
    batch.logit_tokens = (0..tokens.len())
        .map(|token| LogitToken { token, row: 0 })
        .collect();
    Ok(batch)
}
