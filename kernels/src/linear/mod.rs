//! Matrix times weights.
//!
//! # Contract
//! `y [rows][n] = x [rows][k] * W [n][k]^T (+ bias [n])`; x, bias and y are f32, W is bf16 or f32.
//!
//! **Order**: every y is `fma(x[k-1], w[k-1], ... fma(x[0], w[0], 0))`, one after the other in k, then `+ bias`. It is the
//! same for any number of rows and threads and on every instruction set, so a row's bits do not depend on its batch.
//!
//! # Cost
//! 2 k n rows FLOPs; the weights (2 or 4 bytes each) are read once for every 8 rows. One row runs at the speed of memory,
//! many at the speed of fused multiply-add.

mod cpu;
mod packed;
#[cfg(test)]
mod reference;

pub use packed::PackedWeights;

use crate::{SimdLevel, Threads};

/// `y [rows][n] = x [rows][k] * weights^T (+ bias [n])`.
///
/// # Panics
/// Where the lengths do not fit.
pub fn linear(threads: &Threads, x: &[f32], weights: &PackedWeights, bias: Option<&[f32]>, y: &mut [f32]) {
    let (n, k) = (weights.outputs(), weights.inputs());
    assert!(x.len().is_multiple_of(k), "x is [rows][k]");
    let rows = x.len() / k;
    assert_eq!(y.len(), rows * n, "y is [rows][n]");
    assert!(bias.is_none_or(|b| b.len() == n), "bias is [n]");
    cpu::linear(SimdLevel::detect(), threads, x, rows, weights, bias, y);
}

#[cfg(test)]
mod tests;
