//! Log-probabilities for the client.

use crate::{
    SimdLevel,
    math::exp,
    simd::{LANES, Lanes, multiversion},
};

/// Log-probabilities at one position, of the distribution before temperature, penalties and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The chosen token and its log-probability.
    pub chosen: (u32, f32),
    /// The most likely tokens, best first, the lowest id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// Log-probabilities of `chosen` and of the `top` likeliest tokens under `logits [vocab]`, as the model gave them.
///
/// NaN counts as impossible. Where no logit is above -inf, everything is -inf.
///
/// # Panics
/// Where `chosen` is not in the vocabulary.
#[must_use]
pub fn token_logprobs(logits: &[f32], chosen: u32, top: u32) -> Logprobs {
    let max = logits
        .iter()
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
        .min(f32::MAX);
    let total = total_at(SimdLevel::detect(), logits, max);
    let log_total = f64::from(max) + total.ln();
    let logprob = |token: u32| {
        let logit = logits[token as usize];
        let logprob = (f64::from(logit.min(f32::MAX)) - log_total) as f32;
        if logit.is_nan() || logprob.is_nan() {
            f32::NEG_INFINITY
        } else {
            logprob
        }
    };
    let mut best: Vec<u32> = Vec::new();
    let top = (top as usize).min(logits.len());
    if top > 0 {
        best = (0..logits.len() as u32).collect();
        let order =
            |&a: &u32, &b: &u32| super::sampler::rank(logits, b).cmp(&super::sampler::rank(logits, a));
        if top < best.len() {
            best.select_nth_unstable_by(top - 1, order);
            best.truncate(top);
        }
        best.sort_unstable_by(order);
    }
    Logprobs {
        chosen: (chosen, logprob(chosen)),
        top: best.into_iter().map(|token| (token, logprob(token))).collect(),
    }
}

multiversion! { fn total_at(logits: &[f32], max: f32) -> f64 = total_on }

/// Sum of e^(logit - max), in 16 lanes of f64.
#[inline(always)]
fn total_on<V: Lanes>(logits: &[f32], max: f32) -> f64 {
    let mut totals = [0.0; LANES];
    for logits in logits.chunks(LANES) {
        for (total, &logit) in totals.iter_mut().zip(logits) {
            let share = f64::from(exp(logit.min(f32::MAX) - max));
            *total += if logit.is_nan() { 0.0 } else { share };
        }
    }
    totals.iter().sum()
}
