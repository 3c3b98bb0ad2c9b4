//! Choosing the next token: a pure function of logits, parameters, and the tokens so far.

mod params;

pub use params::SamplingParams;
