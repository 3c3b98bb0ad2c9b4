//! From logits to a token.

use super::{SampleKey, SamplingParams, TokenHistory, gumbel, gumbel::NOISE_BOUND};
use crate::math::exp;

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
    let best = likeliest(adjusted).ok_or_else(|| {
        if likeliest(logits).is_some() {
            SampleError::AllForbidden
        } else {
            SampleError::NoFiniteLogit
        }
    })?;
    if params.temperature == 0.0 {
        return Ok(best);
    }
    let heat = Heat::new(adjusted[best as usize], params.temperature);
    if params.min_p <= 0.0 && params.top_k == 0 && params.top_p >= 1.0 {
        let all = adjusted
            .iter()
            .enumerate()
            .map(|(token, &l)| (token as u32, heat.apply(l)));
        return Ok(noisiest(all, params.seed, key));
    }
    filter(adjusted, params, heat, &mut scratch.candidates);
    let kept = scratch.candidates.iter().map(|&c| {
        let token = token_of(c);
        (token, heat.apply(adjusted[token as usize]))
    });
    Ok(noisiest(kept, params.seed, key))
}

/// Adds `value` to finite logits only: what is forbidden stays so.
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

/// The largest logit above -inf, the lowest id among equals.
fn likeliest(logits: &[f32]) -> Option<u32> {
    // Chunks without a branch on the position first; then the position in the one chunk that has the maximum.
    let mut max = f32::NEG_INFINITY;
    for chunk in logits.chunks(16) {
        let mut lanes = [f32::NEG_INFINITY; 16];
        for (lane, &l) in lanes.iter_mut().zip(chunk) {
            *lane = if l > *lane { l } else { *lane };
        }
        for lane in lanes {
            max = if lane > max { lane } else { max };
        }
    }
    if max == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&l| l == max).map(|token| token as u32)
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
    fn apply(self, logit: f32) -> f32 {
        let heated = (logit.min(f32::MAX) - self.max) / self.temperature;
        if logit.is_nan() { f32::NEG_INFINITY } else { heated }
    }
}

/// Largest `heated + noise`. Noise is made only for tokens that could still win.
fn noisiest(tokens: impl Iterator<Item = (u32, f32)>, seed: u64, key: SampleKey) -> u32 {
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    for (token, heated) in tokens {
        if heated == f32::NEG_INFINITY || heated + NOISE_BOUND < best.0 {
            continue;
        }
        let noisy = heated + gumbel(seed, key, token);
        if noisy > best.0 || (noisy == best.0 && token < best.1) {
            best = (noisy, token);
        }
    }
    best.1
}

/// Orders tokens: the larger rank is the larger logit, then the lower id. NaN ranks as -inf.
pub(super) fn rank(logits: &[f32], token: u32) -> u64 {
    let logit = logits[token as usize];
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

fn token_of(rank: u64) -> u32 {
    !(rank as u32)
}

/// Probability relative to the likeliest token's, in units of 2^-40.
fn weight(heated: f32) -> u64 {
    const UNIT: f32 = 1_099_511_627_776.0;
    (exp(heated) * UNIT) as u64
}

/// Leaves in `candidates` the ranks of the tokens that min_p, top_k and top_p keep: at least the likeliest.
fn filter(logits: &[f32], params: &SamplingParams, heat: Heat, candidates: &mut Vec<u64>) {
    candidates.clear();
    let floor = params.min_p.min(1.0);
    candidates.extend((0..logits.len() as u32).filter_map(|token| {
        let heated = heat.apply(logits[token as usize]);
        (heated > f32::NEG_INFINITY && (floor <= 0.0 || exp(heated) >= floor)).then(|| rank(logits, token))
    }));
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
fn keep_top_p(logits: &[f32], top_p: f32, heat: Heat, candidates: &mut Vec<u64>) {
    let weight_of = |rank: u64| weight(heat.apply(logits[token_of(rank) as usize]));
    let total: u64 = candidates.iter().map(|&c| weight_of(c)).sum();
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
        for &candidate in &rest[..size] {
            kept += 1;
            reached += weight_of(candidate);
            if reached as f64 >= enough {
                candidates.truncate(kept);
                return;
            }
        }
        sorted += size;
        block *= 8;
    }
}
