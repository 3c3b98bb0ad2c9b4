//! The arithmetic of the fake: tokens and KV contents that depend on nothing but a sequence's own tokens.

use baton_kernels::sampling::SamplingParams;

use crate::step::TokenLogprobs;

/// What follows a sequence of tokens, as [`FakeExecutor`](super::FakeExecutor) sees it: a function of the tokens, the
/// choice and the seed, so the same alone, batched, preempted, resumed or handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeModel {
    pub vocab: u32,
}

/// A digest of the tokens up to one position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest(u64);

impl FakeModel {
    /// The next `count` tokens after `tokens`.
    #[must_use]
    pub fn continue_from(
        &self,
        tokens: &[u32],
        count: usize,
        choice: u32,
        sampling: &SamplingParams,
    ) -> Vec<u32> {
        let mut digest = tokens
            .iter()
            .fold(Digest::default(), |digest, token| digest.push(*token));
        let mut output = Vec::with_capacity(count);
        for _ in 0..count {
            let token = self.next(digest, choice, sampling);
            digest = digest.push(token);
            output.push(token);
        }
        output
    }

    pub(super) fn next(&self, digest: Digest, choice: u32, sampling: &SamplingParams) -> u32 {
        let key = mix(digest.0 ^ mix(sampling.seed ^ u64::from(choice).rotate_left(32)));
        (key % u64::from(self.vocab.max(1))) as u32
    }

    /// Made-up log-probabilities, where they are asked for.
    pub(super) fn logprobs(&self, token: u32, sampling: &SamplingParams) -> Option<TokenLogprobs> {
        let alternatives = sampling.logprobs?.min(self.vocab);
        Some(TokenLogprobs {
            chosen: (token, -0.5),
            top: (0..alternatives)
                .map(|rank| ((token + rank) % self.vocab, -0.5 - rank as f32))
                .collect(),
        })
    }
}

impl Digest {
    pub(super) fn push(self, token: u32) -> Self {
        Self(mix(self.0.rotate_left(17) ^ (u64::from(token) + 1)))
    }

    /// What the KV of the last token holds in one layer. Never 0, which stands for "never written".
    pub(super) fn kv(self, layer: u32) -> u64 {
        mix(self.0 ^ (u64::from(layer) + 1).rotate_left(48)) | 1
    }

    /// A number below `bound`, different for each step that asks.
    pub(super) fn choose(self, seed: u64, step: u64, bound: u32) -> u32 {
        (mix(self.0 ^ mix(seed ^ step.rotate_left(20))) % u64::from(bound.max(1))) as u32
    }
}

/// SplitMix64's finalizer: <https://prng.di.unimi.it/splitmix64.c>.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
