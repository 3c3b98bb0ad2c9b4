//! Root-mean-square normalization.
//!
//! # Contract
//! Over rows of `dim = weight.len()` values: `out[i] = weight[i] * (x[i] * r)`, `r = 1 / sqrt(mean(x^2) + eps)`
//! (Zhang and Sennrich 2019; the order of products is that of Hugging Face's `LlamaRMSNorm`). Squares are added in 16
//! lanes, value `i` in lane `i mod 16`, then the lanes in a fixed tree. Norms of single heads (Qwen3's `q_norm` and
//! `k_norm`) are the same over rows of `head_dim`.
//!
//! # Cost
//! For each row 3 FLOPs and 8 bytes a value, in place; the fused residual adds one FLOP and 8 bytes.

mod cpu;
#[cfg(test)]
mod reference;

use crate::SimdLevel;

/// Normalizes `x [rows][dim]` into `out [rows][dim]`; `weight [dim]`.
///
/// # Panics
/// Where the lengths do not fit.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out have one shape");
    out.copy_from_slice(x);
    rms_norm_in_place(out, weight, eps);
}

/// Normalizes `x [rows][dim]` where it lies; `weight [dim]`.
///
/// # Panics
/// Where `x` is not a whole number of rows.
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(
        !weight.is_empty() && x.len().is_multiple_of(weight.len()),
        "x is [rows][dim], weight [dim]"
    );
    cpu::normalize(SimdLevel::detect(), x, weight, eps);
}

/// Adds `delta [rows][dim]` to `residual [rows][dim]`, and normalizes the sum into `out [rows][dim]`.
///
/// # Panics
/// Where the lengths do not fit.
pub fn add_rms_norm(residual: &mut [f32], delta: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(residual.len(), delta.len(), "residual and delta have one shape");
    for (sum, d) in residual.iter_mut().zip(delta) {
        *sum += d;
    }
    rms_norm(residual, weight, eps, out);
}

#[cfg(test)]
mod tests;
