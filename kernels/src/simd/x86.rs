//! The lanes of x86-64.

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
