//! The numeric side of Baton: one folder per operation, each with its contract, its f64 reference and its fast path;
//! the KV page layout and the FP8 codec.

pub mod kv;
pub mod sampling;
