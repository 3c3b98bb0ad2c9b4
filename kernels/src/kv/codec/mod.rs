//! E4M3 values with one E8M0 (power of two) scale per vector.
//!
//! # Contract
//! `vector [dim] f32` becomes `codes [dim] u8` and one scale byte `b`; it reads back as `decode(code) * 2^(b - 127)`.
//!
//! * **E4M3** (OCP 8-bit floating point, "FP8 formats for deep learning", 2022): sign, 4 exponent bits with bias 7, 3
//!   mantissa bits; largest 448; 0x7f and 0xff are NaN; no infinities. Encoding rounds to nearest, ties to even,
//!   saturates to +-448 (infinities too), and turns every NaN into 0x7f: what PTX `cvt.rn.satfinite.e4m3x2.f32` does.
//! * **Scale**: the smallest power of two `s` with `amax / s <= 448`. From the bits of `amax = m * 2^E`: as
//!   `448 = 1.75 * 2^8`, `s = 2^(E - 8)` where `m <= 1.75`, else `2^(E - 7)`; not below 2^-126, so that `s` and `1 / s`
//!   are both normal. An all-zero vector has the scale byte 127 (`s = 1`).
//! * **Not finite**: a vector with an infinity or a NaN is broken as a whole: its scale byte is 255, E8M0's NaN, and each of
//!   its codes 0x7f, so whatever reads it gets NaN. Values within half a step of 2^128 read back as infinite.
//!
//! Everything is integer arithmetic, one multiplication by a power of two, and one addition: no division and no
//! library function, so a GPU computes equal bits. A vector's bytes depend on that vector alone: appending a token never
//! changes what is stored.
//!
//! # Cost
//! Reads 4 bytes and writes 1 per value, about 10 integer operations each.

#[cfg(test)]
mod reference;

use crate::simd::{LANES, Lanes, SimdLevel, e4m3_to_f32, multiversion};

/// The largest E4M3 value.
pub const E4M3_MAX: f32 = 448.0;

/// Scale byte of an all-zero vector: 2^0.
pub const UNIT_SCALE: u8 = 127;

/// Scale byte of a vector that is not finite: NaN.
pub const BROKEN_SCALE: u8 = 255;

const NAN_CODE: u8 = 0x7f;
const LARGEST_CODE: u32 = 0x7e;

/// The value of each code.
static DECODED: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let mantissa = (code & 7) as f32;
        let exponent = (code >> 3) & 15;
        let magnitude = if code & 0x7f == 0x7f {
            f32::NAN
        } else if exponent == 0 {
            mantissa / 512.0
        } else {
            // 2^(exponent - 7), from its bits.
            (1.0 + mantissa / 8.0) * f32::from_bits(((exponent + 120) as u32) << 23)
        };
        table[code] = if code & 0x80 == 0 { magnitude } else { -magnitude };
        code += 1;
    }
    table
};

/// Rounds to the nearest E4M3 code, ties to even, saturating; NaN gives 0x7f.
#[inline(always)]
#[must_use]
pub fn encode(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Normal codes: round the 20 bits that fall away to nearest even, change the bias from 127 to 7.
    let normal = ((magnitude + 0x0007_ffff + ((magnitude >> 20) & 1)) >> 20).wrapping_sub(120 << 3);
    // Subnormal codes count multiples of 2^-9, the distance of f32 numbers from 2^14 to 2^15.
    const COUNTER: f32 = 16_384.0;
    let small = (f32::from_bits(magnitude) + COUNTER)
        .to_bits()
        .wrapping_sub(COUNTER.to_bits());
    const SMALLEST_NORMAL: u32 = 121 << 23; // 2^-6
    let code = if magnitude < SMALLEST_NORMAL {
        small
    } else {
        normal.min(LARGEST_CODE)
    };
    let code = code | ((bits >> 24) & 0x80);
    if magnitude > 0x7f80_0000 {
        NAN_CODE
    } else {
        code as u8
    }
}

/// The value of a code; NaN for 0x7f and 0xff.
#[inline]
#[must_use]
pub fn decode(code: u8) -> f32 {
    DECODED[usize::from(code)]
}

/// The scale byte for a vector whose largest magnitude is `amax`.
#[inline(always)]
fn scale_byte(amax_bits: u32) -> u8 {
    if amax_bits == 0 {
        return UNIT_SCALE;
    }
    if amax_bits >= 0x7f80_0000 {
        return BROKEN_SCALE;
    }
    let exponent = amax_bits >> 23; // biased; 0 for subnormal numbers
    let above = u32::from(amax_bits & 0x007f_ffff > 0x0060_0000); // m > 1.75
    (exponent + above).saturating_sub(8).max(1) as u8
}

/// The scale that a byte stands for: `2^(byte - 127)`.
///
/// 255 is NaN. [`quantize`] never writes 0, which is 2^-127.
#[inline]
#[must_use]
pub fn scale(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        BROKEN_SCALE => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// Quantizes `vector [dim]` into `codes [dim]`; returns the scale byte.
///
/// # Panics
/// Where the lengths differ.
#[must_use]
pub fn quantize(vector: &[f32], codes: &mut [u8]) -> u8 {
    assert_eq!(vector.len(), codes.len(), "one code for each value");
    quantize_at(SimdLevel::detect(), vector, codes)
}

/// Reads `codes [dim]`, as [`quantize`] wrote them, back into `vector [dim]`.
///
/// # Panics
/// Where the lengths differ.
pub fn dequantize(codes: &[u8], scale_byte: u8, vector: &mut [f32]) {
    assert_eq!(codes.len(), vector.len(), "one value for each code");
    dequantize_at(SimdLevel::detect(), codes, scale(scale_byte), vector);
}

multiversion! { fn quantize_at(vector: &[f32], codes: &mut [u8]) -> u8 = quantize_on }
multiversion! { fn dequantize_at(codes: &[u8], scale: f32, vector: &mut [f32]) = dequantize_on }

#[inline(always)]
fn quantize_on<V: Lanes>(vector: &[f32], codes: &mut [u8]) -> u8 {
    let amax_bits = vector
        .iter()
        .fold(0, |amax, v| (v.to_bits() & 0x7fff_ffff).max(amax));
    let byte = scale_byte(amax_bits);
    if byte == BROKEN_SCALE {
        codes.fill(NAN_CODE);
        return byte;
    }
    // 2^-(byte - 127): the byte is in 1..=247, so this is normal.
    let inverse = f32::from_bits((254 - u32::from(byte)) << 23);
    for (code, v) in codes.iter_mut().zip(vector) {
        *code = encode(v * inverse);
    }
    byte
}

#[inline(always)]
fn dequantize_on<V: Lanes>(codes: &[u8], scale: f32, vector: &mut [f32]) {
    let whole = codes.len() / LANES * LANES;
    let lanes = vector[..whole].chunks_exact_mut(LANES);
    for (v, codes) in lanes.zip(codes[..whole].chunks_exact(LANES)) {
        // SAFETY: chunks of 16.
        unsafe {
            V::load_e4m3(codes.as_ptr())
                .mul(V::splat(scale))
                .store(v.as_mut_ptr())
        };
    }
    for (v, &code) in vector[whole..].iter_mut().zip(&codes[whole..]) {
        *v = e4m3_to_f32(code) * scale;
    }
}

#[cfg(test)]
mod tests;
