//! The two products of attention, in registers: queries times keys, and weights times values.

use std::ops::Range;

use super::{cpu::Softmax, page::Stored};
use crate::simd::{LANES, Lanes};

/// R queries `q [dim]` times blocks of 16 keys, from query number `query` on.
#[inline(always)]
pub(super) fn dots_of<V: Lanes, T: Stored, const R: usize>(
    q: [*const f32; R],
    dim: usize,
    keys: &[T],
    blocks: Range<usize>,
    query: usize,
    page_tokens: usize,
    scores: &mut [f32],
) {
    let mut block = blocks.start;
    while block < blocks.end {
        if R * 4 <= V::ACCUMULATORS && blocks.end - block >= 4 {
            dots_tile::<V, T, R, 4>(q, dim, keys, block, query, page_tokens, scores);
            block += 4;
        } else if R * 2 <= V::ACCUMULATORS && blocks.end - block >= 2 {
            dots_tile::<V, T, R, 2>(q, dim, keys, block, query, page_tokens, scores);
            block += 2;
        } else {
            dots_tile::<V, T, R, 1>(q, dim, keys, block, query, page_tokens, scores);
            block += 1;
        }
    }
}

/// R queries times C blocks of 16 keys.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // unrolled over registers
fn dots_tile<V: Lanes, T: Stored, const R: usize, const C: usize>(
    q: [*const f32; R],
    dim: usize,
    keys: &[T],
    block: usize,
    query: usize,
    page_tokens: usize,
    scores: &mut [f32],
) {
    let size = dim * LANES;
    let keys = keys[block * size..][..C * size].as_ptr();
    let mut sums = [[V::splat(0.0); C]; R];
    for d in 0..dim {
        let mut k = [V::splat(0.0); C];
        for (c, k) in k.iter_mut().enumerate() {
            // SAFETY: the slice above has C blocks of [dim][16].
            *k = unsafe { T::load(keys.add(c * size + d * LANES)) };
        }
        for r in 0..R {
            // SAFETY: every q points to dim values.
            let v = V::splat(unsafe { *q[r].add(d) });
            for c in 0..C {
                sums[r][c] = v.fma(k[c], sums[r][c]);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        let scores = &mut scores[(query + r) * page_tokens + block * LANES..][..C * LANES];
        for (c, sum) in sums.into_iter().enumerate() {
            // SAFETY: the slice above has C blocks of 16.
            unsafe { sum.store(scores.as_mut_ptr().add(c * LANES)) };
        }
    }
}

/// `sums [query][padded]` of `queries`, rescaled, plus their weights times the values of `tokens`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn blend<V: Lanes, T: Stored>(
    values: &[T],
    padded: usize,
    page_tokens: usize,
    tokens: Range<usize>,
    queries: Range<usize>,
    scores: &[f32],
    softmax: &[Softmax],
    sums: &mut [f32],
) {
    if tokens.is_empty() {
        return;
    }
    let mut query = queries.start;
    while query < queries.end {
        let left = queries.end - query;
        let scores = &scores[query * page_tokens..];
        let (softmax, sums) = (&softmax[query..], &mut sums[query * padded..]);
        if left >= 4 {
            blend_rows::<V, T, 4>(values, padded, page_tokens, tokens.clone(), scores, softmax, sums);
            query += 4;
        } else if left >= 2 {
            blend_rows::<V, T, 2>(values, padded, page_tokens, tokens.clone(), scores, softmax, sums);
            query += 2;
        } else {
            blend_rows::<V, T, 1>(values, padded, page_tokens, tokens.clone(), scores, softmax, sums);
            query += 1;
        }
    }
}

#[inline(always)]
fn blend_rows<V: Lanes, T: Stored, const R: usize>(
    values: &[T],
    padded: usize,
    page_tokens: usize,
    tokens: Range<usize>,
    scores: &[f32],
    softmax: &[Softmax],
    sums: &mut [f32],
) {
    let mut column = 0;
    while column < padded {
        let left = (padded - column) / LANES;
        let (t, at) = (tokens.clone(), column);
        if R * 4 <= V::ACCUMULATORS && left >= 4 {
            blend_tile::<V, T, R, 4>(values, padded, page_tokens, t, at, scores, softmax, sums);
            column += 4 * LANES;
        } else if R * 2 <= V::ACCUMULATORS && left >= 2 {
            blend_tile::<V, T, R, 2>(values, padded, page_tokens, t, at, scores, softmax, sums);
            column += 2 * LANES;
        } else {
            blend_tile::<V, T, R, 1>(values, padded, page_tokens, t, at, scores, softmax, sums);
            column += LANES;
        }
    }
}

/// R queries times C columns of 16 dimensions.
#[inline(always)]
#[allow(clippy::too_many_arguments, clippy::needless_range_loop)] // unrolled over registers
fn blend_tile<V: Lanes, T: Stored, const R: usize, const C: usize>(
    values: &[T],
    padded: usize,
    page_tokens: usize,
    tokens: Range<usize>,
    column: usize,
    scores: &[f32],
    softmax: &[Softmax],
    sums: &mut [f32],
) {
    // The bounds of all that follows.
    let scores = scores[..R * page_tokens].as_ptr();
    let values = values[..tokens.end * padded].as_ptr();
    let sums = sums[..R * padded].as_mut_ptr();
    assert!(
        column + C * LANES <= padded && tokens.end <= page_tokens,
        "a tile lies in its page"
    );
    let mut tile = [[V::splat(0.0); C]; R];
    for r in 0..R {
        let rescale = V::splat(softmax[r].rescale);
        for c in 0..C {
            // SAFETY: sums is [R][padded], and the column fits.
            tile[r][c] = unsafe { V::load(sums.add(r * padded + column + c * LANES)) }.mul(rescale);
        }
    }
    for token in tokens {
        let mut v = [V::splat(0.0); C];
        for (c, v) in v.iter_mut().enumerate() {
            // SAFETY: values is [tokens.end or more][padded], and the column fits.
            *v = unsafe { T::load(values.add(token * padded + column + c * LANES)) };
        }
        for r in 0..R {
            // SAFETY: scores is [R][page_tokens].
            let weight = V::splat(unsafe { *scores.add(r * page_tokens + token) });
            for c in 0..C {
                tile[r][c] = weight.fma(v[c], tile[r][c]);
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            // SAFETY: as at the loads.
            unsafe { tile[r][c].store(sums.add(r * padded + column + c * LANES)) };
        }
    }
}
