//! The definition in f64: the oracle.

/// `x [rows][dim]`, `weight [dim]`, result `[rows][dim]`.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    x.chunks_exact(weight.len())
        .flat_map(|row| {
            let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / row.len() as f64;
            let r = (mean + f64::from(eps)).sqrt().recip();
            row.iter()
                .zip(weight)
                .map(move |(&v, &w)| f64::from(v) * r * f64::from(w))
        })
        .collect()
}
