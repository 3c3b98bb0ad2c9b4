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
#[inline(always)]
#[must_use]
pub fn gumbel(seed: u64, key: super::SampleKey, token: u32) -> f32 {
    let words = philox4x32(
        [token / 4, key.position, key.choice, DOMAIN],
        [seed as u32, (seed >> 32) as u32],
    );
    noise(words[(token % 4) as usize])
}

/// Tokens of one [`gumbel_block`].
pub(super) const NOISE_BLOCK: usize = 64;

/// [`gumbel`] of `first .. first + 64`, `first` a multiple of 4: written so that the compiler vectorizes it.
#[inline(always)]
pub(super) fn gumbel_block(seed: u64, key: super::SampleKey, first: u32) -> [f32; NOISE_BLOCK] {
    let mut words = [0; NOISE_BLOCK];
    for (i, four) in words.chunks_exact_mut(4).enumerate() {
        let counter = [first / 4 + i as u32, key.position, key.choice, DOMAIN];
        four.copy_from_slice(&philox4x32(counter, [seed as u32, (seed >> 32) as u32]));
    }
    let mut out = [0.0; NOISE_BLOCK];
    for (out, word) in out.iter_mut().zip(words) {
        *out = noise(word);
    }
    out
}

/// All noise lies below this.
pub(super) const NOISE_BOUND: f32 = 16.7;

#[inline(always)]
fn noise(word: u32) -> f32 {
    const STEP: f32 = 1.0 / 8_388_608.0; // 2^-23
    let u = ((word >> 9) as f32).mul_add(STEP, STEP / 2.0);
    -ln(-ln(u))
}

#[cfg(test)]
mod tests {
    use super::{super::SampleKey, *};
    use crate::sampling::reference;

    /// The known answers of Random123's `kat_vectors` for philox4x32 with 10 rounds.
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        // Digits of pi.
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn noise_is_accurate_and_bounded() {
        let key = SampleKey {
            choice: 1,
            position: 2,
        };
        let mut sum = 0.0;
        for token in 0..200_000 {
            let found = gumbel(0x1234_5678_9abc_def0, key, token);
            let exact = reference::gumbel(0x1234_5678_9abc_def0, key, token);
            assert!((f64::from(found) - exact).abs() < 2e-6, "{found} {exact}");
            sum += f64::from(found);
            if token % 64 == 0 {
                let block = gumbel_block(0x1234_5678_9abc_def0, key, token);
                assert!((0..64).all(|i| block[i] == gumbel(0x1234_5678_9abc_def0, key, token + i as u32)));
            }
        }
        // The mean of a Gumbel distribution is Euler's constant, its deviation 1.28.
        assert!((sum / 200_000.0 - 0.577_215_66).abs() < 0.015);
        let (lowest, highest) = (noise(0), noise(u32::MAX));
        assert!(lowest > -2.9 && highest < NOISE_BOUND, "{lowest} {highest}");
        assert!(highest > 16.0);
    }
}
