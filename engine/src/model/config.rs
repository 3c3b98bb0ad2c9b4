//! A model's shape, checked once so that nothing after it needs to.

use std::{fs, path::Path};

use baton_kernels::rotary::RopeScaling;

use super::{ModelError, hf};

/// What `config.json` calls `architectures`. All are decoder-only transformers of one family: RMSNorm before attention
/// and before a SwiGLU feed-forward, rotary positions, grouped-query attention; [`ModelConfig`] has their differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

/// Rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    pub scaling: RopeScaling,
}

impl Architecture {
    pub(super) const SUPPORTED: &'static str =
        "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM";

    /// The class in `config.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3]
            .into_iter()
            .find(|architecture| architecture.name() == name)
    }
}

/// The shape of a model. One made by [`ModelConfig::parse`] is consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward.
    pub intermediate: usize,
    pub layers: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    /// Even. `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    pub norm_eps: f32,
    pub rope: Rope,
    /// The output projection is the embedding table.
    pub tied_embeddings: bool,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The attention's output projection has one.
    pub output_bias: bool,
    /// The feed-forward's three projections have them.
    pub mlp_bias: bool,
    /// Query and key heads are normalized before rotation.
    pub qk_norm: bool,
    /// One entry for each layer: how many positions a token sees, itself included; none sees all.
    pub windows: Vec<Option<usize>>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// Reads `config.json` of a checkpoint in the Hugging Face layout.
    ///
    /// # Errors
    /// [`ModelError`] where it cannot be read, or as [`ModelConfig::parse`].
    pub fn read(model_dir: &Path) -> Result<Self, ModelError> {
        let path = model_dir.join("config.json");
        let text = fs::read_to_string(&path).map_err(|source| ModelError::Io {
            path: path.clone(),
            source,
        })?;
        Self::parse(&text, &path)
    }

    /// `path` is named in errors.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] names what was found and what is supported; [`ModelError::Inconsistent`] where the
    /// fields contradict each other.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ModelError> {
        let syntax = |source| ModelError::ConfigSyntax {
            path: path.to_owned(),
            source,
        };
        // First, because another architecture's file may lack the fields that these have.
        let architecture = serde_json::from_str::<hf::Kind>(text)
            .map_err(syntax)?
            .architecture()?;
        let raw: hf::Config = serde_json::from_str(text).map_err(syntax)?;
        let config = raw.into_model(architecture)?;
        config.validate()?;
        Ok(config)
    }

    /// Values in all heads' queries of one token.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values in all heads' keys of one token.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn validate(&self) -> Result<(), ModelError> {
        // Far above any real model, and small enough that no product of two overflows.
        const MOST: usize = 1 << 24;
        for (field, value) in [
            ("vocab_size", self.vocab),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_positions),
        ] {
            if value == 0 || value > MOST {
                return Err(inconsistent(field, format!("{value} is outside of 1..={MOST}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(inconsistent(
                "num_attention_heads",
                format!(
                    "{} query heads cannot share {} key-value heads evenly",
                    self.heads, self.kv_heads
                ),
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(inconsistent(
                "head_dim",
                format!("{} is odd, rotary positions turn pairs", self.head_dim),
            ));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return Err(inconsistent(
                "rms_norm_eps",
                format!("{} is not above 0", self.norm_eps),
            ));
        }
        if self.windows.contains(&Some(0)) {
            return Err(inconsistent(
                "sliding_window",
                "0 would let a token see nothing".to_owned(),
            ));
        }
        for token in &self.eos {
            if *token as usize >= self.vocab {
                return Err(inconsistent(
                    "eos_token_id",
                    format!("{token} is outside of the vocabulary of {}", self.vocab),
                ));
            }
        }
        Ok(())
    }
}

pub(super) fn inconsistent(field: &'static str, problem: String) -> ModelError {
    ModelError::Inconsistent { field, problem }
}
