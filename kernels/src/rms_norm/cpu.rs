//! The fast path: 16 lanes.

use crate::simd::{LANES, Lanes, multiversion, sum_lanes};

multiversion! {
    pub(super) fn normalize(x: &mut [f32], weight: &[f32], eps: f32) = normalize_on
}

#[inline(always)]
fn normalize_on<V: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    let dim = weight.len();
    let whole = dim / LANES * LANES;
    for row in x.chunks_exact_mut(dim) {
        let mut squares = V::splat(0.0);
        for lanes in row[..whole].chunks_exact(LANES) {
            // SAFETY: a chunk has 16 f32.
            let v = unsafe { V::load(lanes.as_ptr()) };
            squares = v.fma(v, squares);
        }
        let mut squares = squares.to_array();
        for (sum, v) in squares.iter_mut().zip(&row[whole..]) {
            *sum = v.mul_add(*v, *sum);
        }
        let scale = 1.0 / (sum_lanes(squares) / dim as f32 + eps).sqrt();
        let factor = V::splat(scale);
        for (lanes, w) in row[..whole]
            .chunks_exact_mut(LANES)
            .zip(weight.chunks_exact(LANES))
        {
            // SAFETY: both chunks have 16 f32.
            unsafe {
                let scaled = V::load(lanes.as_ptr()).mul(factor);
                scaled.mul(V::load(w.as_ptr())).store(lanes.as_mut_ptr());
            }
        }
        for (v, w) in row[whole..].iter_mut().zip(&weight[whole..]) {
            *v = *v * scale * w;
        }
    }
}
