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
mod x86;

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
