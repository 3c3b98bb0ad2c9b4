//! Sixteen f32 lanes on whatever the machine has.
//!
//! An operation is written once over [`Lanes`] and compiled once per [`SimdLevel`]. Every method is one IEEE operation
//! per lane, so the levels differ in speed, never in bits.

use std::sync::OnceLock;

/// Lanes of a vector, whatever the instruction set.
pub(crate) const LANES: usize = 16;

/// An instruction set that operations are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimdLevel {
    /// x86-64 with AVX-512F: one register.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// x86-64 with AVX2, FMA and F16C: two registers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Plain Rust, which the compiler vectorizes where it can.
    Portable,
}

impl SimdLevel {
    /// The fastest that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        static BEST: OnceLock<SimdLevel> = OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// All that this machine has, fastest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let half = is_x86_feature_detected!("f16c");
            if half && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                levels.insert(0, Self::Avx2);
                if is_x86_feature_detected!("avx512f") {
                    levels.insert(0, Self::Avx512);
                }
            }
        }
        levels
    }
}

/// Sixteen f32.
///
/// # Safety
/// Methods of an implementation may be called only where its instruction set exists, which
/// [`multiversion!`] sees to. Pointers must be valid for the lanes that a method names; no alignment is needed.
pub(crate) unsafe trait Lanes: Copy {
    /// How many accumulators stay in registers beside a few operands.
    const ACCUMULATORS: usize;

    fn splat(value: f32) -> Self;
    /// # Safety
    /// `from` must be readable for 16 f32.
    unsafe fn load(from: *const f32) -> Self;
    /// 16 bf16, widened.
    ///
    /// # Safety
    /// `from` must be readable for 16 u16.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// 16 E4M3 codes, decoded; the two NaN codes give +-480, as if E4M3 had no NaN.
    ///
    /// # Safety
    /// `from` must be readable for 16 bytes.
    unsafe fn load_e4m3(from: *const u8) -> Self;
    /// # Safety
    /// `to` must be writable for 16 f32.
    unsafe fn store(self, to: *mut f32);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// The larger; `other` where one is NaN.
    fn max(self, other: Self) -> Self;
    /// self * by + plus, rounded once.
    fn fma(self, by: Self, plus: Self) -> Self;
    /// Bits of each lane shifted left by 23: the integer in the low bits becomes an exponent.
    fn shift_left_23(self) -> Self;
    /// Zero in the lanes where `a < b`, false for NaN.
    fn zero_where_less(self, a: Self, b: Self) -> Self;

    fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array has 16 f32.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }
}

/// Sum of 16 lanes, in one fixed tree.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// One E4M3 code as f32; the two NaN codes give +-480.
#[inline(always)]
pub(crate) fn e4m3_to_f32(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    // A normal code needs another exponent bias. A subnormal one gets an implicit 1 that is then taken away.
    let (bias, implicit) = if magnitude < 8 {
        (121 << 23, 0.015_625)
    } else {
        (120 << 23, 0.0)
    };
    let value = f32::from_bits((magnitude << 20) + bias) - implicit;
    f32::from_bits(value.to_bits() | (u32::from(code & 0x80) << 24))
}

/// The lanes of [`SimdLevel::Portable`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| op(self.0[i], other.0[i])))
    }
}

// SAFETY: uses no instruction beyond the target's own.
unsafe impl Lanes for Portable {
    const ACCUMULATORS: usize = 3;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller says that 16 f32 are readable.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller says that 16 u16 are readable.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: the caller says that 16 bytes are readable.
        let codes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        Self(codes.map(e4m3_to_f32))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller says that 16 f32 are writable.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn fma(self, by: Self, plus: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(by.0[i], plus.0[i])))
    }
    #[inline(always)]
    fn shift_left_23(self) -> Self {
        Self(self.0.map(|v| f32::from_bits(v.to_bits() << 23)))
    }
    #[inline(always)]
    fn zero_where_less(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(
            |i| if a.0[i] < b.0[i] { 0.0 } else { self.0[i] },
        ))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Lanes;

    /// The lanes of [`super::SimdLevel::Avx512`].
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub(crate) struct Avx512(__m512);

    /// The lanes of [`super::SimdLevel::Avx2`].
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256, __m256);

    // In both: the intrinsics exist because a caller of `Lanes` runs under the features that the implementation names.

    // SAFETY: used under avx512f, avx2, fma and f16c.
    unsafe impl Lanes for Avx512 {
        const ACCUMULATORS: usize = 24;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: contract of the trait; the caller says that 16 f32 are readable.
            Self(unsafe { _mm512_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: contract of the trait; the caller says that 16 u16 are readable.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
            }
        }
        #[inline(always)]
        unsafe fn load_e4m3(from: *const u8) -> Self {
            // SAFETY: contract of the trait; the caller says that 16 bytes are readable.
            unsafe {
                let half = e4m3_to_half(_mm_loadu_si128(from.cast()));
                Self(_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(HALF_TO_E4M3)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: contract of the trait; the caller says that 16 f32 are writable.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn fma(self, by: Self, plus: Self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_fmadd_ps(self.0, by.0, plus.0) })
        }
        #[inline(always)]
        fn shift_left_23(self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self.0))) })
        }
        #[inline(always)]
        fn zero_where_less(self, a: Self, b: Self) -> Self {
            // SAFETY: contract of the trait.
            Self(unsafe {
                let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a.0, b.0);
                _mm512_maskz_mov_ps(keep, self.0)
            })
        }
    }

    /// 16 E4M3 codes as f16 of [`HALF_TO_E4M3`] less: the same bits, further left, under another bias.
    #[inline(always)]
    unsafe fn e4m3_to_half(codes: __m128i) -> __m256i {
        // SAFETY: the caller runs under avx2.
        unsafe {
            // Sign-extended and shifted, the sign is in the two topmost bits; it belongs into one.
            let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
            _mm256_and_si256(shifted, _mm256_set1_epi16(0xbfff_u16 as i16))
        }
    }

    /// 2^(15 - 7), from f16's bias to E4M3's.
    const HALF_TO_E4M3: f32 = 256.0;

    // SAFETY: used under avx2, fma and f16c.
    unsafe impl Lanes for Avx2 {
        const ACCUMULATORS: usize = 6;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: contract of the trait.
            let v = unsafe { _mm256_set1_ps(value) };
            Self(v, v)
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: contract of the trait; the caller says that 16 f32 are readable.
            unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: contract of the trait; the caller says that 16 u16 are readable.
            unsafe {
                let half = |at: *const u16| {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                };
                Self(half(from), half(from.add(8)))
            }
        }
        #[inline(always)]
        unsafe fn load_e4m3(from: *const u8) -> Self {
            // SAFETY: contract of the trait; the caller says that 16 bytes are readable.
            unsafe {
                let half = e4m3_to_half(_mm_loadu_si128(from.cast()));
                let factor = _mm256_set1_ps(HALF_TO_E4M3);
                Self(
                    _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor),
                    _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(half)), factor),
                )
            }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: contract of the trait; the caller says that 16 f32 are writable.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            unsafe { Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            unsafe { Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: contract of the trait.
            unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn fma(self, by: Self, plus: Self) -> Self {
            // SAFETY: contract of the trait.
            unsafe {
                Self(
                    _mm256_fmadd_ps(self.0, by.0, plus.0),
                    _mm256_fmadd_ps(self.1, by.1, plus.1),
                )
            }
        }
        #[inline(always)]
        fn shift_left_23(self) -> Self {
            // SAFETY: contract of the trait.
            unsafe {
                let half = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(v)));
                Self(half(self.0), half(self.1))
            }
        }
        #[inline(always)]
        fn zero_where_less(self, a: Self, b: Self) -> Self {
            // SAFETY: contract of the trait.
            unsafe {
                let half = |v, a, b| _mm256_and_ps(v, _mm256_cmp_ps::<_CMP_NLT_UQ>(a, b));
                Self(half(self.0, a.0, b.0), half(self.1, a.1, b.1))
            }
        }
    }
}

/// Defines `fn name(level, arguments)` that runs `body::<V>(arguments)` compiled for the level.
///
/// `body` may have a second type parameter, given in brackets. It must be `#[inline(always)]`, so that it is compiled with the features of its caller.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $([$extra:ty])?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(level: $crate::simd::SimdLevel, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::simd::Avx512 $(, $extra)?>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::simd::Avx2 $(, $extra)?>($($arg),*)
            }
            match level {
                // SAFETY: a level is taken only from those that `SimdLevel::available` found.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::SimdLevel::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::SimdLevel::Avx2 => unsafe { avx2($($arg),*) },
                $crate::simd::SimdLevel::Portable => $body::<$crate::simd::Portable $(, $extra)?>($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
