//! The forward pass.

use std::{ops::Deref, sync::Arc};

use baton_kernels::{
    Threads,
    attention::{AttentionShape, QuerySpan, paged_attention},
    kv::{HostKv, KvMemory as _},
    linear::linear,
    rms_norm::{add_rms_norm, rms_norm_in_place},
    rotary::RopeTable,
    swiglu::swiglu,
};

use super::{
    Model, PlanError,
    batch::{Batch, BatchRow},
    model::Layer,
};
use crate::model::ModelConfig;

/// A model over its KV memory, with buffers that are kept from step to step.
pub(super) struct Forward<M> {
    model: M,
    memory: Arc<HostKv>,
    threads: Threads,
    rope: RopeTable,
    buffers: Buffers,
}

/// Activations of a batch; each only grows.
#[derive(Default)]
struct Buffers {
    /// The residual stream, `[tokens][hidden]`.
    residual: Vec<f32>,
    /// What a block reads of it, `[tokens][hidden]`.
    normed: Vec<f32>,
    /// What a block adds to it, `[tokens][hidden]`.
    delta: Vec<f32>,
    /// `[tokens][heads + 2 kv_heads][head_dim]`
    qkv: Vec<f32>,
    /// `[tokens][heads][head_dim]`
    queries: Vec<f32>,
    /// `[tokens][heads][head_dim]`
    attended: Vec<f32>,
    /// `[tokens][2 intermediate]`
    gate_up: Vec<f32>,
    /// `[tokens][intermediate]`
    activated: Vec<f32>,
    /// `[logit tokens][vocab]`
    logits: Vec<f32>,
}

impl<M: Deref<Target = Model>> Forward<M> {
    /// For sequences of up to `context_tokens`.
    pub(super) fn new(model: M, memory: Arc<HostKv>, threads: Threads, context_tokens: usize) -> Self {
        let config = model.config();
        let rope = RopeTable::new(
            config.head_dim,
            config.rope.theta,
            config.rope.scaling,
            context_tokens,
        );
        Self {
            model,
            memory,
            threads,
            rope,
            buffers: Buffers::default(),
        }
    }

    /// Appends the batch's KV, and gives the logits `[logit tokens][vocab]`. `layers_done(n)` is called when the KV of the
    /// first n layers is final.
    pub(super) fn run(
        &mut self,
        batch: &Batch,
        mut layers_done: impl FnMut(u32),
    ) -> Result<&[f32], PlanError> {
        let model = &*self.model;
        let config = model.config();
        let (tokens, hidden, eps) = (batch.tokens.len(), config.hidden, config.norm_eps);
        let spans: Vec<QuerySpan<'_>> = batch.rows.iter().map(|row| span(batch, row)).collect();

        let buffers = &mut self.buffers;
        let residual = fit(&mut buffers.residual, tokens * hidden);
        let normed = fit(&mut buffers.normed, tokens * hidden);
        let delta = fit(&mut buffers.delta, tokens * hidden);
        let qkv = fit(
            &mut buffers.qkv,
            tokens * (config.query_width() + 2 * config.kv_width()),
        );
        let queries = fit(&mut buffers.queries, tokens * config.query_width());
        let attended = fit(&mut buffers.attended, tokens * config.query_width());
        let gate_up = fit(&mut buffers.gate_up, tokens * 2 * config.intermediate);
        let activated = fit(&mut buffers.activated, tokens * config.intermediate);

        model.embedding.gather(&batch.tokens, residual);
        delta.fill(0.0);
        for (index, layer) in model.layers.iter().enumerate() {
            add_rms_norm(residual, delta, &layer.attention_norm, eps, normed);
            layer.qkv.apply(&self.threads, normed, qkv);
            let heads = Heads {
                config,
                layer,
                rope: &self.rope,
            };
            heads.store(&self.memory, index as u32, batch, qkv, queries)?;
            layers_done(index as u32 + 1);
            let shape = AttentionShape {
                q_heads: config.heads,
                scale: 1.0 / (config.head_dim as f32).sqrt(),
                window: layer.window,
            };
            paged_attention(
                &self.threads,
                &self.memory,
                index as u32,
                &shape,
                &spans,
                queries,
                attended,
            )?;
            layer.output.apply(&self.threads, attended, delta);

            add_rms_norm(residual, delta, &layer.mlp_norm, eps, normed);
            layer.gate_up.apply(&self.threads, normed, gate_up);
            swiglu(gate_up, config.intermediate, activated);
            layer.down.apply(&self.threads, activated, delta);
        }

        // Only the tokens whose logits are wanted go on; their rows move to the front.
        let wanted = batch.logit_tokens.len();
        for (to, &from) in batch.logit_tokens.iter().enumerate() {
            let (from, to) = (from * hidden..(from + 1) * hidden, to * hidden..(to + 1) * hidden);
            for ((sum, x), d) in normed[to]
                .iter_mut()
                .zip(&residual[from.clone()])
                .zip(&delta[from])
            {
                *sum = x + d;
            }
        }
        let last = &mut normed[..wanted * hidden];
        rms_norm_in_place(last, &model.norm, eps);
        let logits = fit(&mut buffers.logits, wanted * config.vocab);
        if wanted > 0 {
            linear(&self.threads, last, &model.output, None, logits);
        }
        Ok(logits)
    }
}

/// Turns projected tokens into queries to attend with, and keys and values to keep.
struct Heads<'a> {
    config: &'a ModelConfig,
    layer: &'a Layer,
    rope: &'a RopeTable,
}

impl Heads<'_> {
    /// `qkv [tokens][heads + 2 kv_heads][head_dim]`: rotated queries go to `queries [tokens][heads][head_dim]`, rotated keys
    /// and values into the pages.
    fn store(
        &self,
        memory: &HostKv,
        layer: u32,
        batch: &Batch,
        qkv: &mut [f32],
        queries: &mut [f32],
    ) -> Result<(), PlanError> {
        let (query_width, kv_width) = (self.config.query_width(), self.config.kv_width());
        let page_tokens = memory.layout().page_tokens;
        let width = query_width + 2 * kv_width;
        for row in &batch.rows {
            let table = batch.table(row);
            let tokens = qkv[row.first * width..][..row.len * width].chunks_exact_mut(width);
            let outs =
                queries[row.first * query_width..][..row.len * query_width].chunks_exact_mut(query_width);
            for (position, (token, out)) in (row.start as usize..).zip(tokens.zip(outs)) {
                let (query, kv) = token.split_at_mut(query_width);
                let (key, value) = kv.split_at_mut(kv_width);
                if let Some(norms) = &self.layer.head_norms {
                    rms_norm_in_place(query, &norms.query, self.config.norm_eps);
                    rms_norm_in_place(key, &norms.key, self.config.norm_eps);
                }
                self.rope.apply(position, query);
                self.rope.apply(position, key);
                out.copy_from_slice(query);
                let page = table[position / page_tokens];
                memory.append(page, layer, position % page_tokens, key, value)?;
            }
        }
        Ok(())
    }
}

fn span<'a>(batch: &'a Batch, row: &BatchRow) -> QuerySpan<'a> {
    QuerySpan {
        pages: batch.table(row),
        start: row.start,
        len: row.len as u32,
    }
}

/// The first `len` values of a buffer that grows when it must.
fn fit(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
