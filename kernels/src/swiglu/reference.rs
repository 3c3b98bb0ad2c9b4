//! The definition in f64: the oracle.

/// `gate_up [rows][2 * inner]`, result `[rows][inner]`.
pub(super) fn swiglu(gate_up: &[f32], inner: usize) -> Vec<f64> {
    gate_up
        .chunks_exact(2 * inner)
        .flat_map(|row| {
            let (gate, up) = row.split_at(inner);
            gate.iter().zip(up).map(|(&g, &u)| {
                let g = f64::from(g);
                g / (1.0 + (-g).exp()) * f64::from(u)
            })
        })
        .collect()
}
