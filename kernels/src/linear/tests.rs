use half::bf16;
use proptest::prelude::*;

use super::*;

/// Numbers in about -2..2 that look random.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let mixed = i.wrapping_add(seed).wrapping_mul(2_654_435_761);
            ((mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519) >> 8) as f32 / 4_194_304.0 - 2.0
        })
        .collect()
}

fn run(
    level: SimdLevel,
    threads: &Threads,
    x: &[f32],
    weights: &PackedWeights,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let rows = x.len() / weights.inputs();
    let mut y = vec![f32::NAN; rows * weights.outputs()];
    cpu::linear(level, threads, x, rows, weights, bias, &mut y);
    y
}

fn check(rows: usize, n: usize, k: usize, with_bias: bool, seed: u32) {
    let x = numbers(rows * k, seed);
    let w16: Vec<bf16> = numbers(n * k, seed + 1).into_iter().map(bf16::from_f32).collect();
    let w32: Vec<f32> = w16.iter().map(|w| w.to_f32()).collect();
    let bias = numbers(n, seed + 2);
    let bias = with_bias.then_some(&bias[..]);
    let exact = reference::linear(&x, &w32, k, bias);
    let threads = Threads::new(3).unwrap();
    let packed16 = PackedWeights::from_bf16(&w16, n, k);
    let packed32 = PackedWeights::from_f32(&w32, n, k);
    let mut y = vec![f32::NAN; rows * n];
    linear(&threads, &x, &packed16, bias, &mut y);
    for (found, exact) in y.iter().zip(&exact) {
        // Each of k products and sums rounds once; they are at most 4 each.
        let bound = 4.0 * k as f64 * f64::from(f32::EPSILON) * (1.0 + exact.abs());
        assert!((f64::from(*found) - exact).abs() <= bound, "{found} {exact}");
    }
    for level in SimdLevel::available() {
        for packed in [&packed16, &packed32] {
            assert!(run(level, &threads, &x, packed, bias) == y, "{level:?} together");
            for (row, y) in x.chunks_exact(k).zip(y.chunks_exact(n)) {
                assert!(
                    run(level, &Threads::single(), row, packed, bias) == y,
                    "{level:?} alone"
                );
            }
        }
    }
}

#[test]
fn every_batch_size_gives_equal_bits() {
    for rows in 1..=65 {
        check(rows, 100, 40, rows % 2 == 0, rows as u32);
    }
}

#[test]
fn large_shapes_split_over_threads_give_equal_bits() {
    check(9, 704, 256, false, 1);
    check(2, 1000, 513, true, 2);
}

#[test]
fn stacked_matrices_follow_each_other() {
    let k = 24;
    let (a, b) = (numbers(40 * k, 1), numbers(7 * k, 2));
    let x = numbers(3 * k, 3);
    let threads = Threads::single();
    let one = |w: &PackedWeights| run(SimdLevel::detect(), &threads, &x, w, None);
    let stacked = PackedWeights::stack_f32(&[(&a, 40), (&b, 7)], k);
    assert_eq!((stacked.outputs(), stacked.inputs()), (47, k));
    assert_eq!(stacked.bytes(), 64 * k * 4);
    let (ya, yb) = (
        one(&PackedWeights::from_f32(&a, 40, k)),
        one(&PackedWeights::from_f32(&b, 7, k)),
    );
    for (row, y) in one(&stacked).chunks_exact(47).enumerate() {
        assert_eq!(y[..40], ya[row * 40..][..40]);
        assert_eq!(y[40..], yb[row * 7..][..7]);
    }
}

#[test]
fn no_rows_are_no_work() {
    let weights = PackedWeights::from_f32(&[1.0, 2.0], 1, 2);
    linear(&Threads::single(), &[], &weights, None, &mut []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn odd_shapes_equal_the_reference(
        rows in 1usize..20,
        n in 1usize..150,
        k in 1usize..150,
        bias in any::<bool>(),
        seed in 0u32..1_000_000,
    ) {
        check(rows, n, k, bias, seed);
    }
}
