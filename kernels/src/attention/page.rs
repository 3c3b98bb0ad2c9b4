//! One KV head of one page, in the order in which attention reads it.

use std::ops::Range;

use crate::{
    kv::{KvDtype, KvLayout, KvPart, codec},
    simd::{LANES, Lanes},
};

#[cfg(target_endian = "big")]
compile_error!("KV pages are little-endian, and are read as they lie");

/// A value that lanes can load: an E4M3 code or an f32.
pub(super) trait Stored: Copy {
    /// # Safety
    /// `from` must be readable for 16 values.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
}

impl Stored for u8 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller says that 16 codes are readable.
        unsafe { V::load_e4m3(from) }
    }
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller says that 16 values are readable.
        unsafe { V::load(from) }
    }
}

/// Keys are `[token / 16][dim][token mod 16]`, so that 16 scores grow side by side; values are `[token][dim]`, `dim` up to a
/// multiple of 16. Only the tokens asked for are there; others are whatever they are.
pub(super) enum PageHead<'a> {
    /// E4M3 codes: values where they lie in the page.
    Codes {
        keys: &'a [u8],
        values: &'a [u8],
        scales: (&'a [f32], &'a [f32]),
    },
    Decoded {
        keys: &'a [f32],
        values: &'a [f32],
        scales: (&'a [f32], &'a [f32]),
    },
}

impl PageHead<'_> {
    /// `[page_tokens]` each: of keys, of values.
    pub(super) fn scales(&self) -> (&[f32], &[f32]) {
        match self {
            Self::Codes { scales, .. } | Self::Decoded { scales, .. } => *scales,
        }
    }
}

/// Buffers for one page and head.
#[derive(Default)]
pub(super) struct PageScratch {
    key_codes: Vec<u8>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[K|V][page_tokens]`
    scales: Vec<f32>,
}

impl PageScratch {
    /// Reads one head's `tokens` from a slice. `direct` leaves E4M3 codes as they are, for a `head_dim` that is a multiple
    /// of 16.
    #[inline(always)]
    pub(super) fn load<'a, V: Lanes>(
        &'a mut self,
        slice: &'a [u8],
        layout: &KvLayout,
        head: usize,
        tokens: Range<usize>,
        direct: bool,
    ) -> PageHead<'a> {
        let page_tokens = layout.page_tokens;
        let dim = layout.head_dim;
        let padded = dim.next_multiple_of(LANES);
        let part = |part| {
            let at = layout.vector_offset(part, head, 0);
            &slice[at..at + page_tokens * dim * layout.dtype.bytes()]
        };
        let (keys, values) = (part(KvPart::Key), part(KvPart::Value));
        self.scales.resize(2 * page_tokens, 1.0);
        if layout.dtype == KvDtype::Fp8E4m3 {
            for (scales, part) in self
                .scales
                .chunks_exact_mut(page_tokens)
                .zip([KvPart::Key, KvPart::Value])
            {
                let at = layout.scale_offset(part, head, 0);
                for (scale, &byte) in scales.iter_mut().zip(&slice[at..at + page_tokens]) {
                    *scale = codec::scale(byte);
                }
            }
        } else {
            self.scales.fill(1.0);
        }
        let blocks = tokens.start / LANES..tokens.end.div_ceil(LANES);
        if layout.dtype == KvDtype::Fp8E4m3 {
            self.key_codes.resize(page_tokens * dim, 0);
            transpose_codes(keys, dim, blocks.clone(), &mut self.key_codes);
        }
        if direct {
            let scales = self.scales.split_at(page_tokens);
            return PageHead::Codes {
                keys: &self.key_codes,
                values,
                scales,
            };
        }
        self.keys.resize(page_tokens * dim, 0.0);
        self.values.resize(page_tokens * padded, 0.0);
        match layout.dtype {
            KvDtype::Fp8E4m3 => {
                let wanted = blocks.start * LANES * dim..blocks.end * LANES * dim;
                decode::<V>(&self.key_codes[wanted.clone()], &mut self.keys[wanted]);
                for token in tokens {
                    decode::<V>(
                        &values[token * dim..][..dim],
                        &mut self.values[token * padded..][..dim],
                    );
                }
            }
            KvDtype::Bf16 => {
                let read = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
                self.widen::<2>(keys, values, dim, tokens, read);
            }
            KvDtype::F32 => {
                let read = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                self.widen::<4>(keys, values, dim, tokens, read);
            }
        }
        let scales = self.scales.split_at(page_tokens);
        PageHead::Decoded {
            keys: &self.keys,
            values: &self.values,
            scales,
        }
    }

    /// Keys and values of B bytes each.
    #[inline(always)]
    fn widen<const B: usize>(
        &mut self,
        keys: &[u8],
        values: &[u8],
        dim: usize,
        tokens: Range<usize>,
        read: impl Fn(&[u8]) -> f32,
    ) {
        let padded = dim.next_multiple_of(LANES);
        for token in tokens {
            let bytes = token * dim * B..(token + 1) * dim * B;
            let block = &mut self.keys[token / LANES * LANES * dim..][..LANES * dim];
            for (d, b) in keys[bytes.clone()].chunks_exact(B).enumerate() {
                block[d * LANES + token % LANES] = read(b);
            }
            let out = &mut self.values[token * padded..][..dim];
            for (v, b) in out.iter_mut().zip(values[bytes].chunks_exact(B)) {
                *v = read(b);
            }
        }
    }
}

#[inline(always)]
fn decode<V: Lanes>(codes: &[u8], out: &mut [f32]) {
    let whole = codes.len() / LANES * LANES;
    for (codes, out) in codes[..whole]
        .chunks_exact(LANES)
        .zip(out[..whole].chunks_exact_mut(LANES))
    {
        // SAFETY: chunks of 16.
        unsafe { V::load_e4m3(codes.as_ptr()).store(out.as_mut_ptr()) };
    }
    for (v, &code) in out[whole..].iter_mut().zip(&codes[whole..]) {
        *v = crate::simd::e4m3_to_f32(code);
    }
}

/// Blocks of `[16 tokens][dim]` to `[dim][16 tokens]`.
#[inline(always)]
fn transpose_codes(codes: &[u8], dim: usize, blocks: Range<usize>, out: &mut [u8]) {
    for block in blocks {
        let source = &codes[block * LANES * dim..][..LANES * dim];
        let target = &mut out[block * LANES * dim..][..LANES * dim];
        let whole = dim / LANES * LANES;
        for d in (0..whole).step_by(LANES) {
            transpose_square(&source[d..], dim, &mut target[d * LANES..][..LANES * LANES]);
        }
        for d in whole..dim {
            for t in 0..LANES {
                target[d * LANES + t] = source[t * dim + d];
            }
        }
    }
}

/// 16 rows of 16 bytes, `stride` apart, to 16 columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transpose_square(source: &[u8], stride: usize, target: &mut [u8]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_setzero_si128, _mm_storeu_si128};
    use std::arch::x86_64::{_mm_unpackhi_epi8, _mm_unpacklo_epi8};

    assert!(
        source.len() >= (LANES - 1) * stride + LANES && target.len() >= LANES * LANES,
        "a square"
    );
    // SAFETY: SSE2 is part of x86-64, and the lengths are checked above.
    unsafe {
        let mut rows = [_mm_setzero_si128(); LANES];
        for (t, row) in rows.iter_mut().enumerate() {
            *row = _mm_loadu_si128(source.as_ptr().add(t * stride).cast());
        }
        // Each round interleaves row i with row i + 8, which rotates the bits of (row, column) by one; four rounds swap
        // the two.
        for _ in 0..4 {
            let old = rows;
            for i in 0..LANES / 2 {
                rows[2 * i] = _mm_unpacklo_epi8(old[i], old[i + LANES / 2]);
                rows[2 * i + 1] = _mm_unpackhi_epi8(old[i], old[i + LANES / 2]);
            }
        }
        for (d, row) in rows.into_iter().enumerate() {
            _mm_storeu_si128(target.as_mut_ptr().add(d * LANES).cast(), row);
        }
    }
}

/// 16 rows of 16 bytes, `stride` apart, to 16 columns.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transpose_square(source: &[u8], stride: usize, target: &mut [u8]) {
    for t in 0..LANES {
        for d in 0..LANES {
            target[d * LANES + t] = source[t * stride + d];
        }
    }
}
