use super::PackedWeights;
use crate::{SimdLevel, Threads};

#[allow(clippy::too_many_arguments)]
pub(super) fn linear(
    _level: SimdLevel,
    _threads: &Threads,
    x: &[f32],
    _rows: usize,
    weights: &PackedWeights,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let (n, k) = (weights.outputs(), weights.inputs());
    let mut w = vec![0.0; k];
    for o in 0..n {
        weights.row(o, &mut w);
        for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
            y[o] = x.iter().zip(&w).fold(0.0, |s: f32, (a, b)| a.mul_add(*b, s)) + bias.map_or(0.0, |b| b[o]);
        }
    }
}
