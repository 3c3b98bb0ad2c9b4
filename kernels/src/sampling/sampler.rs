//! From logits to a token.

use super::{
    SampleKey, SamplingParams, TokenHistory,
    gumbel::{NOISE_BLOCK, NOISE_BOUND, gumbel, gumbel_block},
};
use crate::{
    SimdLevel,
    math::exp,
    simd::{LANES, Lanes, multiversion},
};

/// Buffers of [`sample`], to be used again and again.
#[derive(Clone, Debug, Default)]
pub struct SampleScratch {
    logits: Vec<f32>,
    candidates: Vec<u64>,
}

/// No token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    #[error("every token is forbidden: allowed_tokens, logit_bias, bad_words and min_tokens leave none")]
    AllForbidden,
    #[error("the model gave no logit above -inf: its weights or its input are broken")]
    NoFiniteLogit,
}

/// The token for `logits [vocab]`.
///
/// # Errors
/// [`SampleError`] where nothing is left to choose.
pub fn sample(
    logits: &[f32],
    params: &SamplingParams,
    key: SampleKey,
    history: &TokenHistory,
    scratch: &mut SampleScratch,
) -> Result<u32, SampleError> {
    let adjusted = if params.adjusts() {
        scratch.logits.clear();
        scratch.logits.extend_from_slice(logits);
        adjust(&mut scratch.logits, params, history);
        scratch.logits.as_slice()
    } else {
        logits
    };
    let level = SimdLevel::detect();
    let max = largest_at(level, adjusted);
    if max == f32::NEG_INFINITY {
        let broken = largest_at(level, logits) == f32::NEG_INFINITY;
        return Err(if broken {
            SampleError::NoFiniteLogit
        } else {
            SampleError::AllForbidden
        });
    }
    if params.temperature == 0.0 {
        let best = adjusted.iter().position(|&l| l == max);
        return Ok(best.expect("the largest is one of them") as u32);
    }
    let heat = Heat::new(max, params.temperature);
    let noise = Noise {
        seed: params.seed,
        key,
    };
    if params.min_p <= 0.0 && params.top_k == 0 && params.top_p >= 1.0 {
        return Ok(noisiest_of_all(level, adjusted, heat, noise));
    }
    filter_at(level, adjusted, params, heat, &mut scratch.candidates);
    Ok(noisiest_of(level, adjusted, &scratch.candidates, heat, noise))
}

multiversion! { fn largest_at(logits: &[f32]) -> f32 = largest }
multiversion! { fn filter_at(logits: &[f32], params: &SamplingParams, heat: Heat, candidates: &mut Vec<u64>) = filter }
multiversion! { fn noisiest_of_all(logits: &[f32], heat: Heat, noise: Noise) -> u32 = noisiest_dense }
multiversion! { fn noisiest_of(logits: &[f32], ranks: &[u64], heat: Heat, noise: Noise) -> u32 = noisiest_sparse }

/// Lists and penalties. What is forbidden is -inf, and stays so.
fn adjust(logits: &mut [f32], params: &SamplingParams, history: &TokenHistory) {
    let vocab = logits.len();
    if !params.allowed_tokens.is_empty() {
        let mut allowed: Vec<u32> = params.allowed_tokens.clone();
        allowed.sort_unstable();
        let mut from = 0;
        for token in allowed.into_iter().map(|t| t as usize).filter(|&t| t < vocab) {
            if token >= from {
                logits[from..token].fill(f32::NEG_INFINITY);
                from = token + 1;
            }
        }
        logits[from..].fill(f32::NEG_INFINITY);
    }
    for &(token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
    if history.output().len() < params.min_tokens as usize {
        for &token in &params.stop_tokens {
            forbid(logits, token);
        }
    }
    for word in &params.bad_words {
        if let Some((&last, before)) = word.split_last()
            && history.output().ends_with(before)
        {
            forbid(logits, last);
        }
    }
    if !params.penalizes() {
        return;
    }
    let counts = history.counts();
    for &token in history.prompt_tokens() {
        if let Some(logit) = logits.get_mut(token as usize) {
            repeat_less(logit, params.repetition_penalty);
        }
    }
    for (&token, &count) in counts {
        if let Some(logit) = logits.get_mut(token as usize) {
            if !history.is_in_prompt(token) {
                repeat_less(logit, params.repetition_penalty);
            }
            *logit -= params.frequency_penalty * count as f32;
            *logit -= params.presence_penalty;
        }
    }
}

fn forbid(logits: &mut [f32], token: u32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

/// Keskar et al. 2019, section 4.1: the penalty always lowers the logit.
fn repeat_less(logit: &mut f32, penalty: f32) {
    if *logit > 0.0 {
        *logit /= penalty;
    } else {
        *logit *= penalty;
    }
}

/// The largest logit; -inf where there is none, or only NaN.
#[inline(always)]
fn largest<V: Lanes>(logits: &[f32]) -> f32 {
    let mut max = V::splat(f32::NEG_INFINITY);
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        // SAFETY: a chunk has 16 f32.
        max = unsafe { V::load(chunk.as_ptr()) }.max(max);
    }
    let lanes = max.to_array();
    let all = lanes.iter().chain(rest);
    all.fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max })
}

/// Division by the temperature, with the largest logit moved to 0 first so that nothing overflows.
#[derive(Clone, Copy)]
struct Heat {
    max: f32,
    temperature: f32,
}

impl Heat {
    fn new(max: f32, temperature: f32) -> Self {
        Self {
            max: max.min(f32::MAX),
            temperature,
        }
    }

    /// At most 0; -inf for NaN.
    #[inline(always)]
    fn apply(self, logit: f32) -> f32 {
        let heated = (logit.min(f32::MAX) - self.max) / self.temperature;
        if logit.is_nan() { f32::NEG_INFINITY } else { heated }
    }
}

/// Which random numbers.
#[derive(Clone, Copy)]
struct Noise {
    seed: u64,
    key: SampleKey,
}

/// Largest `heated + noise` of all tokens. Noise is made only for blocks that could still win.
#[inline(always)]
fn noisiest_dense<V: Lanes>(logits: &[f32], heat: Heat, noise: Noise) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (block, logits) in logits.chunks(NOISE_BLOCK).enumerate() {
        let mut heated = [f32::NEG_INFINITY; NOISE_BLOCK];
        for (heated, &logit) in heated.iter_mut().zip(logits) {
            *heated = heat.apply(logit);
        }
        let max = largest::<V>(&heated);
        if max == f32::NEG_INFINITY || max + NOISE_BOUND < best.0 {
            continue;
        }
        let first = block * NOISE_BLOCK;
        let noise = gumbel_block(noise.seed, noise.key, first as u32);
        let mut noisy = [0.0; NOISE_BLOCK];
        for i in 0..NOISE_BLOCK {
            noisy[i] = heated[i] + noise[i];
        }
        if largest::<V>(&noisy) > best.0 {
            for (i, &noisy) in noisy.iter().enumerate() {
                if noisy > best.0 {
                    best = (noisy, (first + i) as u32);
                }
            }
        }
    }
    best.1
}

/// The same among `ranks`.
#[inline(always)]
fn noisiest_sparse<V: Lanes>(logits: &[f32], ranks: &[u64], heat: Heat, noise: Noise) -> u32 {
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    for &rank in ranks {
        let token = token_of(rank);
        let heated = heat.apply(logits[token as usize]);
        if heated + NOISE_BOUND < best.0 {
            continue;
        }
        let noisy = heated + gumbel(noise.seed, noise.key, token);
        if noisy > best.0 || (noisy == best.0 && token < best.1) {
            best = (noisy, token);
        }
    }
    best.1
}

/// Orders tokens: the larger rank is the larger logit, then the lower id. NaN ranks as -inf.
#[inline(always)]
pub(super) fn rank(logits: &[f32], token: u32) -> u64 {
    rank_of(logits[token as usize], token)
}

#[inline(always)]
fn rank_of(logit: f32, token: u32) -> u64 {
    let logit = if logit.is_nan() {
        f32::NEG_INFINITY
    } else {
        logit + 0.0
    };
    let bits = logit.to_bits();
    let ordered = if bits >> 31 == 0 {
        bits | 0x8000_0000
    } else {
        !bits
    };
    (u64::from(ordered) << 32) | u64::from(!token)
}

#[inline(always)]
fn token_of(rank: u64) -> u32 {
    !(rank as u32)
}

/// Probabilities of up to 16 candidates relative to the likeliest token's, in units of 2^-40; 0 for the lanes left over.
#[inline(always)]
fn weights(logits: &[f32], ranks: &[u64], heat: Heat) -> [u64; LANES] {
    const UNIT: f32 = 1_099_511_627_776.0;
    let mut heated = [f32::NEG_INFINITY; LANES];
    for (heated, &rank) in heated.iter_mut().zip(ranks) {
        *heated = heat.apply(logits[token_of(rank) as usize]);
    }
    let mut shares = [0.0; LANES];
    for (share, &heated) in shares.iter_mut().zip(&heated) {
        *share = exp(heated) * UNIT;
    }
    shares.map(|share| share as u64)
}

/// Leaves in `candidates` the ranks of the tokens that min_p, top_k and top_p keep: at least the likeliest.
#[inline(always)]
fn filter<V: Lanes>(logits: &[f32], params: &SamplingParams, heat: Heat, candidates: &mut Vec<u64>) {
    candidates.clear();
    candidates.reserve(logits.len());
    let floor = params.min_p.min(1.0);
    for (block, logits) in logits.chunks(LANES).enumerate() {
        // -inf would be likely enough for a floor of 0.
        let mut likely = [-1.0; LANES];
        for (likely, &logit) in likely.iter_mut().zip(logits) {
            let heated = heat.apply(logit);
            let share = if floor > 0.0 { exp(heated) } else { 0.0 };
            *likely = if heated > f32::NEG_INFINITY { share } else { -1.0 };
        }
        if largest::<V>(&likely) < floor {
            continue;
        }
        for (i, &logit) in logits.iter().enumerate() {
            if likely[i] >= floor {
                candidates.push(rank_of(logit, (block * LANES + i) as u32));
            }
        }
    }
    let top_k = params.top_k as usize;
    if top_k > 0 && top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k - 1, |a, b| b.cmp(a));
        candidates.truncate(top_k);
    }
    if params.top_p < 1.0 {
        keep_top_p(logits, params.top_p, heat, candidates);
    }
}

/// Keeps the shortest run of best candidates whose weight reaches `top_p` of all candidates' weight.
#[inline(always)]
fn keep_top_p(logits: &[f32], top_p: f32, heat: Heat, candidates: &mut Vec<u64>) {
    let mut total = 0_u64;
    for ranks in candidates.chunks(LANES) {
        total += weights(logits, ranks, heat).iter().sum::<u64>();
    }
    let enough = f64::from(top_p) * total as f64;
    let mut reached = 0_u64;
    let mut kept = 0;
    // Sorts only as far as needed: 64 candidates, then 8 times as many.
    let mut sorted = 0;
    let mut block = 64;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let size = block.min(rest.len());
        if size < rest.len() {
            rest.select_nth_unstable_by(size - 1, |a, b| b.cmp(a));
        }
        rest[..size].sort_unstable_by(|a, b| b.cmp(a));
        for ranks in rest[..size].chunks(LANES) {
            for &weight in &weights(logits, ranks, heat)[..ranks.len()] {
                kept += 1;
                reached += weight;
                if reached as f64 >= enough {
                    candidates.truncate(kept);
                    return;
                }
            }
        }
        sorted += size;
        block *= 8;
    }
}
