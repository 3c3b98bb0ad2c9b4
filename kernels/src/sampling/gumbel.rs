//! Random numbers without state.

use crate::math::ln;

/// Marks the counter space of token sampling; other uses of a seed take another.
const DOMAIN: u32 = 0x6261_746f; // "bato"

const MULTIPLY: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#[inline(always)]
#[must_use]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLY[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLY[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// Gumbel noise of one token: `-ln(-ln(u))`.
///
/// Key: the halves of the seed, low first. Counter: token / 4, position, choice, a constant; the token's number is word
/// `token mod 4`. `u = (word >> 9) * 2^-23 + 2^-24`, so u is in [2^-24, 1 - 2^-24] and the noise in [-2.9, 16.7].
#[inline]
#[must_use]
pub fn gumbel(seed: u64, key: super::SampleKey, token: u32) -> f32 {
    let words = philox4x32(
        [token / 4, key.position, key.choice, DOMAIN],
        [seed as u32, (seed >> 32) as u32],
    );
    noise(words[(token % 4) as usize])
}

/// All noise lies below this.
pub(super) const NOISE_BOUND: f32 = 16.7;

#[inline(always)]
fn noise(word: u32) -> f32 {
    const STEP: f32 = 1.0 / 8_388_608.0; // 2^-23
    let u = ((word >> 9) as f32).mul_add(STEP, STEP / 2.0);
    -ln(-ln(u))
}
