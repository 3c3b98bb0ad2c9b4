//! The gated activation of Llama's feed-forward layer.
//!
//! # Contract
//! `gate_up [rows][2 * inner]`, each row its gate half and then its up half (one stacked linear writes both):
//! `out [rows][inner]`, `out[i] = silu(gate[i]) * up[i]`, `silu(x) = x / (1 + e^-x)` (Shazeer 2020).
//!
//! # Cost
//! 12 bytes and about 15 FLOPs for each output.

mod cpu;
#[cfg(test)]
mod reference;

use crate::SimdLevel;

/// `gate_up [rows][2 * inner]` to `out [rows][inner]`.
///
/// # Panics
/// Where the lengths do not fit.
pub fn swiglu(gate_up: &[f32], inner: usize, out: &mut [f32]) {
    assert!(
        inner > 0 && out.len().is_multiple_of(inner) && gate_up.len() == 2 * out.len(),
        "gate_up is [rows][2 * inner], out [rows][inner]"
    );
    cpu::swiglu(SimdLevel::detect(), gate_up, inner, out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_the_reference_on_every_level(inner in 1usize..70, rows in 1usize..6, seed in any::<u32>()) {
            let gate_up: Vec<f32> = (0..rows * 2 * inner)
                .map(|i| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 2e5 - 40.0)
                .collect();
            let exact = reference::swiglu(&gate_up, inner);
            let mut first: Option<Vec<f32>> = None;
            for level in SimdLevel::available() {
                let mut out = vec![f32::NAN; rows * inner];
                cpu::swiglu(level, &gate_up, inner, &mut out);
                for (found, exact) in out.iter().zip(&exact) {
                    prop_assert!((f64::from(*found) - exact).abs() <= 1e-6 * exact.abs() + 1e-30, "{} {}", found, exact);
                }
                prop_assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
            }
        }
    }

    #[test]
    fn far_gates_saturate() {
        let mut out = [0.0; 4];
        swiglu(&[-200.0, 200.0, -1e30, 1e30, 2.0, 2.0, 2.0, 2.0], 4, &mut out);
        assert_eq!(out[1..], [400.0, 0.0, 2e30]);
        assert!(out[0].abs() < 1e-30);
    }
}
