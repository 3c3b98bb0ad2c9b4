use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn equals_the_reference_and_is_independent_of_batch_and_level(
        dim in 1usize..150,
        rows in 1usize..9,
        eps in prop_oneof![Just(1e-5f32), Just(1e-6)],
        seed in any::<u32>(),
    ) {
        let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 2e6 - 4.0;
        let x: Vec<f32> = (0..rows * dim).map(value).collect();
        let weight: Vec<f32> = (0..dim).map(|i| value(i + 7777)).collect();
        let mut out = vec![0.0; x.len()];
        rms_norm(&x, &weight, eps, &mut out);
        for (found, exact) in out.iter().zip(reference::rms_norm(&x, &weight, eps)) {
            prop_assert!((f64::from(*found) - exact).abs() <= 1e-6 * (1.0 + exact.abs()), "{} {}", found, exact);
        }
        for level in SimdLevel::available() {
            for (row, together) in x.chunks_exact(dim).zip(out.chunks_exact(dim)) {
                let mut alone = row.to_vec();
                cpu::normalize(level, &mut alone, &weight, eps);
                prop_assert_eq!(&alone[..], together);
            }
        }
    }

    #[test]
    fn the_residual_is_added_first(dim in 1usize..70, rows in 1usize..4) {
        let x: Vec<f32> = (0..rows * dim).map(|i| (i % 13) as f32 - 6.0).collect();
        let delta: Vec<f32> = (0..rows * dim).map(|i| (i % 7) as f32 / 3.0).collect();
        let weight = vec![1.5; dim];
        let (mut residual, mut out) = (x.clone(), vec![0.0; x.len()]);
        add_rms_norm(&mut residual, &delta, &weight, 1e-5, &mut out);
        let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| a + b).collect();
        let mut exact = vec![0.0; x.len()];
        rms_norm(&sum, &weight, 1e-5, &mut exact);
        prop_assert_eq!(residual, sum);
        prop_assert_eq!(out, exact);
    }
}
