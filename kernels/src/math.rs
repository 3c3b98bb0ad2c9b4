//! `exp` and `ln` from f32 multiply, add, fused multiply-add and division only, so that another device that has these
//! IEEE operations can repeat every bit. Both are series derived here; the tests bound their error against f64.

use crate::simd::Lanes;

/// ln 2 with its low 11 bits zero, so that a product with an exponent is exact; and the rest.
const LN_2_HIGH: f32 = f32::from_bits(0x3f31_7000);
const LN_2_LOW: f32 = (std::f64::consts::LN_2 - LN_2_HIGH as f64) as f32;
/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// Below this `exp` gives 0: the smallest argument whose result is a normal number, rounded towards 0.
const EXP_LOWEST: f32 = -87.0;

/// e^x for x <= 88, within 2 ulp; 0 below -87 and for -inf; NaN for NaN.
#[inline(always)]
#[must_use]
pub(crate) fn exp(x: f32) -> f32 {
    let n = x.mul_add(std::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut sum = EXP_TERMS[0];
    for &term in &EXP_TERMS[1..] {
        sum = sum.mul_add(r, term);
    }
    let y = sum * f32::from_bits((n + ROUND + 127.0).to_bits() << 23);
    if x < EXP_LOWEST { 0.0 } else { y }
}

/// [`exp`] of 16 numbers, with equal bits.
#[inline(always)]
pub(crate) fn exp_lanes<V: Lanes>(x: V) -> V {
    let round = V::splat(ROUND);
    let n = x.fma(V::splat(std::f32::consts::LOG2_E), round).sub(round);
    let r = n.fma(V::splat(-LN_2_LOW), n.fma(V::splat(-LN_2_HIGH), x));
    let mut sum = V::splat(EXP_TERMS[0]);
    for &term in &EXP_TERMS[1..] {
        sum = sum.fma(r, V::splat(term));
    }
    let power = n.add(round).add(V::splat(127.0)).shift_left_23();
    sum.mul(power).zero_where_less(x, V::splat(EXP_LOWEST))
}

/// 1/7!, 1/6!, ..., 1/1!, 1: |r| <= ln(2)/2 leaves a relative error of 5e-9.
const EXP_TERMS: [f32; 8] = [
    1.0 / 5040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// Natural logarithm of a positive normal number, within 3 ulp.
///
/// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(s) with s = (m - 1) / (m + 1), |s| <= 0.172.
#[inline(always)]
#[must_use]
pub(crate) fn ln(x: f32) -> f32 {
    const HALF_SQRT: u32 = 0x3f35_04f3; // sqrt(1/2)
    let offset = x.to_bits().wrapping_sub(HALF_SQRT);
    let exponent = (offset as i32) >> 23;
    let m = f32::from_bits((offset & 0x007f_ffff) + HALF_SQRT);
    let f = m - 1.0;
    let s = f / (f + 2.0);
    let z = s * s;
    let mut sum = 2.0 / 11.0_f32;
    for term in [2.0 / 9.0_f32, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0] {
        sum = sum.mul_add(z, term);
    }
    // 2s = f - f*s exactly, which keeps the bits of f near 1.
    let tail = s.mul_add(sum * z, -(f * s));
    let e = exponent as f32;
    e.mul_add(LN_2_HIGH, f + e.mul_add(LN_2_LOW, tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(found: f32, exact: f64) -> f64 {
        let near = exact.abs() as f32;
        let step = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
        (f64::from(found) - exact).abs() / step
    }

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0_f64;
        for i in 0..2_000_000 {
            let x = -87.0 + 175.0 * (i as f32 / 2_000_000.0);
            worst = worst.max(ulps(exp(x), f64::from(x).exp()));
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_within_three_ulp() {
        let mut worst = 0.0_f64;
        for bits in (f32::MIN_POSITIVE.to_bits()..f32::INFINITY.to_bits()).step_by(997) {
            let x = f32::from_bits(bits);
            if x != 1.0 {
                worst = worst.max(ulps(ln(x), f64::from(x).ln()));
            }
        }
        // Next to 1, where noise is decided, each number.
        for bits in 0x3f7f_0000..0x3f81_0000_u32 {
            let x = f32::from_bits(bits);
            if x != 1.0 {
                worst = worst.max(ulps(ln(x), f64::from(x).ln()));
            }
        }
        assert!(worst <= 3.0, "{worst} ulp");
        assert_eq!(ln(1.0), 0.0);
    }
}
