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
    batch::{Batch, LogitToken},
    model::Layer,
};
use crate::model::ModelConfig;

/// A model over its KV memory, with buffers that are kept from step to step.
pub(super) struct Forward<M> {
    model: M,
    memory: Arc<HostKv>,
    threads: Threads,
    rope: RopeTable,
    activations: Activations,
}

/// What the layers make of a batch's tokens.
#[derive(Default)]
struct Activations {
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
            activations: Activations::default(),
        }
    }

    /// Appends the batch's KV, and gives the logits `[logit tokens][vocab]`. `layers_done(n)` is called when the KV of the
    /// first n layers is final.
    pub(super) fn run(
        &mut self,
        batch: &Batch,
        mut layers_done: impl FnMut(u32),
    ) -> Result<&[f32], PlanError> {
        let (threads, memory, a) = (&self.threads, &*self.memory, &mut self.activations);
        let model = &*self.model;
        let config = model.config();
        let eps = config.norm_eps;
        let mut spans = Vec::with_capacity(batch.rows.len().max(batch.logit_tokens.len()));
        spans.extend(batch.rows.iter().map(|row| QuerySpan {
            pages: batch.table(row),
            start: row.start,
            len: row.len as u32,
        }));

        a.shape(batch.tokens.len(), config);
        model.embedding.gather(&batch.tokens, &mut a.residual);
        a.delta.fill(0.0);
        for (index, layer) in model.layers.iter().enumerate() {
            let index = index as u32;
            add_rms_norm(
                &mut a.residual,
                &a.delta,
                &layer.attention_norm,
                eps,
                &mut a.normed,
            );
            layer.qkv.apply(threads, &a.normed, &mut a.qkv);
            let heads = Heads {
                config,
                layer,
                rope: &self.rope,
            };
            heads.store(memory, index, batch, &mut a.qkv, &mut a.queries)?;
            layers_done(index + 1);
            if index as usize == config.layers - 1 {
                // All KV is stored; what the rest of the last layer makes of a token only serves its logits.
                if batch.logit_tokens.is_empty() {
                    return Ok(&[]);
                }
                a.keep(&batch.logit_tokens, config);
                spans.clear();
                spans.extend(batch.logit_tokens.iter().map(|wanted| QuerySpan {
                    pages: batch.table(&batch.rows[wanted.row]),
                    start: batch.positions[wanted.token],
                    len: 1,
                }));
            }
            let shape = AttentionShape {
                q_heads: config.heads,
                scale: 1.0 / (config.head_dim as f32).sqrt(),
                window: layer.window,
            };
            paged_attention(
                threads,
                memory,
                index,
                &shape,
                &spans,
                &a.queries,
                &mut a.attended,
            )?;
            layer.output.apply(threads, &a.attended, &mut a.delta);

            add_rms_norm(&mut a.residual, &a.delta, &layer.mlp_norm, eps, &mut a.normed);
            layer.gate_up.apply(threads, &a.normed, &mut a.gate_up);
            swiglu(&a.gate_up, config.intermediate, &mut a.activated);
            layer.down.apply(threads, &a.activated, &mut a.delta);
        }
        add_rms_norm(&mut a.residual, &a.delta, &model.norm, eps, &mut a.normed);
        a.logits.resize(batch.logit_tokens.len() * config.vocab, 0.0);
        linear(threads, &a.normed, &model.output, None, &mut a.logits);
        Ok(&a.logits)
    }
}

impl Activations {
    /// Room for that many tokens; memory is never given back.
    fn shape(&mut self, tokens: usize, config: &ModelConfig) {
        self.residual.resize(tokens * config.hidden, 0.0);
        self.normed.resize(tokens * config.hidden, 0.0);
        self.delta.resize(tokens * config.hidden, 0.0);
        self.qkv
            .resize(tokens * (config.query_width() + 2 * config.kv_width()), 0.0);
        self.queries.resize(tokens * config.query_width(), 0.0);
        self.attended.resize(tokens * config.query_width(), 0.0);
        self.gate_up.resize(tokens * 2 * config.intermediate, 0.0);
        self.activated.resize(tokens * config.intermediate, 0.0);
    }

    /// Leaves only these tokens, in their order, ready to attend.
    fn keep(&mut self, wanted: &[LogitToken], config: &ModelConfig) {
        for (values, width) in [
            (&mut self.residual, config.hidden),
            (&mut self.queries, config.query_width()),
        ] {
            for (to, wanted) in wanted.iter().enumerate() {
                values.copy_within(wanted.token * width..(wanted.token + 1) * width, to * width);
            }
        }
        self.shape(wanted.len(), config);
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
