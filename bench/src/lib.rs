//! What Baton measures of itself. [`eval`] scores a model's answers to questions that it was never trained on, for each
//! way of storing the KV cache.

pub mod eval;
