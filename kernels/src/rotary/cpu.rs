//! The fast path: written so that the compiler vectorizes it.

use crate::simd::{Lanes, multiversion};

multiversion! {
    pub(super) fn rotate(cos: &[f32], sin: &[f32], vectors: &mut [f32]) = rotate_on
}

#[inline(always)]
fn rotate_on<V: Lanes>(cos: &[f32], sin: &[f32], vectors: &mut [f32]) {
    let half = cos.len();
    for vector in vectors.chunks_exact_mut(2 * half) {
        let (first, second) = vector.split_at_mut(half);
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            // Two rounded products and a sum, as the unfused original.
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}
