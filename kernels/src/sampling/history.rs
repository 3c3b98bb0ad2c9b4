//! The tokens of one sequence, as far as sampling asks for them.

use std::collections::HashMap;

use super::SamplingParams;

/// The tokens of one sequence so far. It keeps of the prompt only what the parameters need.
#[derive(Clone, Debug, Default)]
pub struct TokenHistory {
    /// Distinct prompt tokens, ascending; empty without a repetition penalty.
    prompt: Vec<u32>,
    output: Vec<u32>,
    /// How often each output token was chosen; empty without penalties.
    counts: HashMap<u32, u32>,
    counted: bool,
}

impl TokenHistory {
    /// The history of a sequence with this prompt and these outputs.
    #[must_use]
    pub fn new(prompt: &[u32], output: &[u32], params: &SamplingParams) -> Self {
        let mut history = Self {
            counted: params.penalizes(),
            ..Self::default()
        };
        if params.repetition_penalty != 1.0 {
            history.prompt = prompt.to_vec();
            history.prompt.sort_unstable();
            history.prompt.dedup();
        }
        for &token in output {
            history.push(token);
        }
        history
    }

    /// A token was chosen.
    pub fn push(&mut self, token: u32) {
        self.output.push(token);
        if self.counted {
            *self.counts.entry(token).or_default() += 1;
        }
    }

    /// All tokens chosen so far, in order.
    #[must_use]
    pub fn output(&self) -> &[u32] {
        &self.output
    }

    pub(super) fn prompt_tokens(&self) -> &[u32] {
        &self.prompt
    }

    pub(super) fn is_in_prompt(&self, token: u32) -> bool {
        self.prompt.binary_search(&token).is_ok()
    }

    pub(super) fn counts(&self) -> &HashMap<u32, u32> {
        &self.counts
    }
}
