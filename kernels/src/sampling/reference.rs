//! The rules in f64, by full sort and without shortcuts: the oracle.

use super::{SampleKey, SamplingParams, philox4x32};

/// Logits after lists and penalties.
pub(super) fn adjusted(logits: &[f32], params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Vec<f64> {
    let mut all: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    for (token, logit) in all.iter_mut().enumerate() {
        let token = token as u32;
        if !params.allowed_tokens.is_empty() && !params.allowed_tokens.contains(&token) {
            *logit = f64::NEG_INFINITY;
        }
        for (_, bias) in params.logit_bias.iter().filter(|(t, _)| *t == token) {
            *logit += f64::from(*bias);
        }
        let early = output.len() < params.min_tokens as usize && params.stop_tokens.contains(&token);
        let completes = params.bad_words.iter().any(|word| {
            let mut whole = output.to_vec();
            whole.push(token);
            !word.is_empty() && whole.ends_with(word)
        });
        if early || completes {
            *logit = f64::NEG_INFINITY;
        }
        let count = output.iter().filter(|&&t| t == token).count() as f64;
        if count > 0.0 || prompt.contains(&token) {
            let penalty = f64::from(params.repetition_penalty);
            *logit = if *logit > 0.0 {
                *logit / penalty
            } else {
                *logit * penalty
            };
        }
        if count > 0.0 {
            *logit -= f64::from(params.frequency_penalty) * count + f64::from(params.presence_penalty);
        }
        if logit.is_nan() {
            *logit = f64::NEG_INFINITY;
        }
    }
    all
}

/// Tokens that filters keep, likeliest first, with logits over temperature.
pub(super) fn kept(adjusted: &[f64], params: &SamplingParams) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> = adjusted
        .iter()
        .enumerate()
        .filter(|(_, l)| **l > f64::NEG_INFINITY)
        .map(|(token, l)| (token as u32, l / f64::from(params.temperature)))
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let Some(max) = all.first().map(|a| a.1) else {
        return all;
    };
    all.retain(|(_, l)| (l - max).exp() >= f64::from(params.min_p));
    if params.top_k > 0 {
        all.truncate(params.top_k as usize);
    }
    let total: f64 = all.iter().map(|(_, l)| (l - max).exp()).sum();
    let mut reached = 0.0;
    let enough = all.iter().position(|(_, l)| {
        reached += (l - max).exp() / total;
        reached >= f64::from(params.top_p)
    });
    all.truncate(enough.map_or(all.len(), |last| last + 1));
    all
}

/// -ln(-ln(u)) of the same random word.
pub(super) fn gumbel(seed: u64, key: SampleKey, token: u32) -> f64 {
    let counter = [token / 4, key.position, key.choice, u32::from_be_bytes(*b"bato")];
    let word = philox4x32(counter, [seed as u32, (seed >> 32) as u32])[token as usize % 4];
    let u = (f64::from(word >> 9) + 0.5) / 2f64.powi(23);
    -(-u.ln()).ln()
}

/// The chosen token, or none; and by how much it wins, so that a test can leave out what rounding decides.
pub(super) fn sample(
    logits: &[f32],
    params: &SamplingParams,
    key: SampleKey,
    prompt: &[u32],
    output: &[u32],
) -> Option<(u32, f64)> {
    let adjusted = adjusted(logits, params, prompt, output);
    let mut scores: Vec<(u32, f64)> = if params.temperature == 0.0 {
        let tokens = adjusted.iter().enumerate().map(|(t, &l)| (t as u32, l));
        tokens.filter(|(_, l)| *l > f64::NEG_INFINITY).collect()
    } else {
        let kept = kept(&adjusted, params).into_iter();
        kept.map(|(t, l)| (t, l + gumbel(params.seed, key, t))).collect()
    };
    scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let margin = scores
        .get(1)
        .map_or(f64::INFINITY, |second| scores[0].1 - second.1);
    scores.first().map(|best| (best.0, margin))
}
