//! A model's weights, packed for the CPU.

use std::{path::Path, sync::Arc};

use baton_kernels::{embedding::Embedding, linear::PackedWeights};

use super::projection::{Projection, pack};
use crate::{
    model::{ModelConfig, ModelError},
    weights::{Checkpoint, Tensor, model_revision},
};

/// A decoder-only transformer, ready to run. Immutable: executors share it.
pub struct Model {
    config: ModelConfig,
    revision: String,
    pub(super) embedding: Embedding,
    pub(super) layers: Vec<Layer>,
    /// Gain before the output projection, `[hidden]`.
    pub(super) norm: Vec<f32>,
    /// `[vocab][hidden]`.
    pub(super) output: Arc<PackedWeights>,
}

/// One block: attention, then feed-forward, each behind its norm and added to the residual stream.
pub(super) struct Layer {
    /// `[hidden]`
    pub(super) attention_norm: Vec<f32>,
    /// To `[heads][head_dim]` queries, `[kv_heads][head_dim]` keys, as many values, one behind the other.
    pub(super) qkv: Projection,
    pub(super) head_norms: Option<HeadNorms>,
    /// From `[heads][head_dim]` back to `[hidden]`.
    pub(super) output: Projection,
    /// `[hidden]`
    pub(super) mlp_norm: Vec<f32>,
    /// To `[intermediate]` gates, then as many values.
    pub(super) gate_up: Projection,
    pub(super) down: Projection,
    /// Tokens seen, the token itself included; none sees all.
    pub(super) window: Option<u32>,
}

/// Gains of single heads, `[head_dim]` each.
pub(super) struct HeadNorms {
    pub(super) query: Vec<f32>,
    pub(super) key: Vec<f32>,
}

impl Model {
    /// Reads and packs a checkpoint in the Hugging Face layout: `config.json` and safetensors.
    ///
    /// # Errors
    /// [`ModelError`] names the file, field or tensor that is not as it must be.
    pub fn load(model_dir: &Path) -> Result<Self, ModelError> {
        let config = ModelConfig::read(model_dir)?;
        let checkpoint = Checkpoint::open(model_dir)?;
        let revision = model_revision(model_dir, &checkpoint)?;
        let layers = (0..config.layers)
            .map(|layer| Layer::load(&checkpoint, &config, layer))
            .collect::<Result<_, _>>()?;
        let norm = checkpoint.tensor("model.norm.weight", &[config.hidden])?.to_f32();

        let (vocab, hidden) = (config.vocab, config.hidden);
        let table = checkpoint.tensor("model.embed_tokens.weight", &[vocab, hidden])?;
        let (embedding, output) = if config.tied_embeddings {
            let output = Arc::new(pack(&[(table, vocab)], hidden));
            (Embedding::tied(Arc::clone(&output)), output)
        } else {
            let output = checkpoint.tensor("lm_head.weight", &[vocab, hidden])?;
            (
                embedding(&table, vocab, hidden),
                Arc::new(pack(&[(output, vocab)], hidden)),
            )
        };
        Ok(Self {
            config,
            revision,
            embedding,
            layers,
            norm,
            output,
        })
    }

    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Names exactly these weights: see [`model_revision`].
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }
}

impl Layer {
    fn load(checkpoint: &Checkpoint, config: &ModelConfig, layer: usize) -> Result<Self, ModelError> {
        let (hidden, intermediate) = (config.hidden, config.intermediate);
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let gain = |part: &str, size: usize| {
            checkpoint
                .tensor(&name(&format!("{part}.weight")), &[size])
                .map(|tensor| tensor.to_f32())
        };
        let project = |parts: &[(&str, usize)], inputs: usize, bias: bool| {
            let parts: Vec<_> = parts
                .iter()
                .map(|(part, outputs)| (name(part), *outputs))
                .collect();
            Projection::load(checkpoint, &parts, inputs, bias)
        };
        let head_norms = if config.qk_norm {
            Some(HeadNorms {
                query: gain("self_attn.q_norm", config.head_dim)?,
                key: gain("self_attn.k_norm", config.head_dim)?,
            })
        } else {
            None
        };
        let qkv = [
            ("self_attn.q_proj", config.query_width()),
            ("self_attn.k_proj", config.kv_width()),
            ("self_attn.v_proj", config.kv_width()),
        ];
        let output = [("self_attn.o_proj", hidden)];
        let gate_up = [("mlp.gate_proj", intermediate), ("mlp.up_proj", intermediate)];
        let down = [("mlp.down_proj", hidden)];
        Ok(Self {
            attention_norm: gain("input_layernorm", hidden)?,
            qkv: project(&qkv, hidden, config.qkv_bias)?,
            head_norms,
            output: project(&output, config.query_width(), config.output_bias)?,
            mlp_norm: gain("post_attention_layernorm", hidden)?,
            gate_up: project(&gate_up, hidden, config.mlp_bias)?,
            down: project(&down, intermediate, config.mlp_bias)?,
            window: config.windows[layer].map(|window| window as u32),
        })
    }
}

fn embedding(table: &Tensor<'_>, vocab: usize, hidden: usize) -> Embedding {
    match table.as_bf16() {
        Some(values) => Embedding::from_bf16(values.into_owned(), vocab, hidden),
        None => Embedding::from_f32(table.to_f32(), vocab, hidden),
    }
}
