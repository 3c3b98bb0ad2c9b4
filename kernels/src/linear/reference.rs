//! The product in f64: the oracle.

/// `x [rows][k]`, `weights [n][k]`, `bias [n]`; result `[rows][n]`.
pub(super) fn linear(x: &[f32], weights: &[f32], k: usize, bias: Option<&[f32]>) -> Vec<f64> {
    x.chunks_exact(k)
        .flat_map(|x| {
            weights.chunks_exact(k).enumerate().map(move |(o, w)| {
                let products = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
                products.sum::<f64>() + bias.map_or(0.0, |b| f64::from(b[o]))
            })
        })
        .collect()
}
