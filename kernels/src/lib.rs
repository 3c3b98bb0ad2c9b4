//! The numeric side of Baton: one folder per operation, each with its contract, its f64 reference and its fast path;
//! the KV page layout and the FP8 codec.
//!
//! # Equal bits
//! Every operation computes each row alone: the order in which a row's numbers are added depends on shapes and
//! positions, never on the other rows, on the number of threads, or on the instruction set. Fused multiply-add is
//! explicit, `exp` and `ln` are this crate's own, and nothing is left to a reassociating compiler. A row therefore gives
//! the same bits alone and in a batch, in one prefill chunk or in five, on AVX-512 and on a machine without SIMD.

#![deny(clippy::undocumented_unsafe_blocks)]

pub mod attention;
pub mod embedding;
pub mod kv;
pub mod linear;
mod mapped_file;
mod math;
pub mod rms_norm;
pub mod rotary;
pub mod sampling;
mod simd;
pub mod swiglu;
mod threads;

pub use mapped_file::MappedFile;
pub use simd::SimdLevel;
pub use threads::Threads;
