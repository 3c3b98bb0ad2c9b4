//! The rotation in f64: the oracle.

/// Turns one vector; angles are those of f32 products of position and frequency.
pub(super) fn rotate(frequencies: &[f32], position: usize, vector: &[f32]) -> Vec<f64> {
    let half = frequencies.len();
    let mut out = vec![0.0; 2 * half];
    for i in 0..half {
        let (sin, cos) = f64::from(position as f32 * frequencies[i]).sin_cos();
        let (a, b) = (f64::from(vector[i]), f64::from(vector[i + half]));
        out[i] = a * cos - b * sin;
        out[i + half] = b * cos + a * sin;
    }
    out
}
