//! `generation_config.json` and what `config.json` says about the same.

use serde::Deserialize;

/// What a request that is silent gets. Sources: `generation_config.json`, else the API's defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GenerationDefaults {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// `Some(false)` means greedy where no temperature is asked for.
    pub do_sample: Option<bool>,
    pub(super) eos_token_id: Option<TokenIds>,
}

/// One id or several.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum TokenIds {
    One(u32),
    Several(Vec<u32>),
}

/// The part of `config.json` that matters to text.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ModelConfig {
    pub(super) eos_token_id: Option<TokenIds>,
    pub(super) max_position_embeddings: Option<u32>,
}

impl TokenIds {
    pub(super) fn ids(&self) -> &[u32] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Several(ids) => ids,
        }
    }
}
