//! Choosing the next token: a pure function of logits, parameters, and the tokens so far.
//!
//! # Contract
//! `logits [vocab]` become one token in this order, the one that vLLM documents:
//!
//! 1. allowed tokens, then `logit_bias`, then stop tokens forbidden before `min_tokens` outputs, then bad words;
//! 2. repetition, frequency and presence penalties;
//! 3. greedy (`temperature` 0): the largest logit, the lowest id among equals;
//! 4. else logits / temperature, then `min_p`, `top_k`, `top_p`;
//! 5. the largest of `logit / temperature + Gumbel noise` among what is left, the lowest id among equals, which is a sample
//!    of their softmax (Gumbel 1954; Maddison et al. 2014).
//!
//! The noise of a token is a function of (seed, choice, position, token id): see [`gumbel`]. Filters keep tokens by (logit
//! descending, id ascending); probabilities are summed as integers in units of 2^-40 of the likeliest one's, so no sum
//! depends on an order. Everything is f32 multiply, add, fused multiply-add and divide, in the order written here: a
//! device with IEEE arithmetic can repeat every bit.
//!
//! A NaN logit is a token that is never chosen; +inf counts as `f32::MAX`.
//!
//! # Cost
//! Greedy without penalties reads the logits once. Filters partition and sort only the candidates they need.

mod gumbel;
mod history;
mod logprobs;
mod params;
#[cfg(test)]
mod reference;
mod sampler;

pub use gumbel::{gumbel, philox4x32};
pub use history::TokenHistory;
pub use logprobs::{Logprobs, token_logprobs};
pub use params::SamplingParams;
pub use sampler::{SampleError, SampleScratch, sample};

/// Which sample of a request this is. With the request's seed it names the random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleKey {
    /// Position of the answer among the request's `n`.
    pub choice: u32,
    /// Position in its sequence of the token to be chosen.
    pub position: u32,
}

#[cfg(test)]
mod tests;
