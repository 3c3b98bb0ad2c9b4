//! What decides a sample beside the logits.

use serde::{Deserialize, Serialize};

/// Parameters of one sequence. [`SamplingParams::default`] is greedy and filters nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 is greedy; else logits are divided by it.
    pub temperature: f32,
    /// Keeps the smallest set of likeliest tokens whose probability reaches it; 1 keeps all.
    pub top_p: f32,
    /// Keeps that many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Drops tokens less likely than this share of the likeliest.
    pub min_p: f32,
    /// Key of the random numbers, with choice and position.
    pub seed: u64,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// 1 is none.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Where not empty, the only tokens that may be chosen.
    pub allowed_tokens: Vec<u32>,
    /// Sequences whose last token is forbidden after the others.
    pub bad_words: Vec<Vec<u32>>,
    /// Tokens that must not be chosen before `min_tokens` outputs: EOS and stop tokens.
    pub stop_tokens: Vec<u32>,
    /// Outputs before which `stop_tokens` are forbidden.
    pub min_tokens: u32,
    /// How many alternatives to report beside the chosen token; none reports nothing.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            allowed_tokens: Vec::new(),
            bad_words: Vec::new(),
            stop_tokens: Vec::new(),
            min_tokens: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Whether logits change before temperature and filters.
    pub(super) fn adjusts(&self) -> bool {
        self.penalizes()
            || !self.logit_bias.is_empty()
            || !self.allowed_tokens.is_empty()
            || !self.bad_words.is_empty()
            || (self.min_tokens > 0 && !self.stop_tokens.is_empty())
    }

    /// Whether the tokens so far change logits.
    pub(super) fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}
