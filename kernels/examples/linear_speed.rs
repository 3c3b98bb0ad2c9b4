//! Measures `linear` against a plain loop: `cargo run --release -p baton-kernels --example linear_speed`.

use std::{hint::black_box, time::Instant};

use baton_kernels::{
    Threads,
    linear::{PackedWeights, linear},
};
use half::bf16;

/// Seconds of one call, the best of several rounds.
fn seconds(mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let mut calls = 1_u32;
    for _ in 0..8 {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        let each = start.elapsed().as_secs_f64() / f64::from(calls);
        best = best.min(each);
        calls = ((0.05 / each) as u32).clamp(1, 100_000);
    }
    best
}

/// What a first version would be: one dot product after another over bf16 rows.
fn plain(x: &[f32], weights: &[bf16], k: usize, y: &mut [f32]) {
    let n = weights.len() / k;
    for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
        for (y, w) in y.iter_mut().zip(weights.chunks_exact(k)) {
            *y = x.iter().zip(w).map(|(x, w)| x * w.to_f32()).sum();
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cores = std::thread::available_parallelism()?.get();
    println!("threads     k     n  rows   GFLOP/s      GB/s   plain loop x");
    for (k, n) in [(256, 704), (256, 4096), (2048, 2048), (2048, 16_384)] {
        let weights: Vec<bf16> = (0..n * k)
            .map(|i| bf16::from_f32((i % 251) as f32 / 125.0 - 1.0))
            .collect();
        let packed = PackedWeights::from_bf16(&weights, n, k);
        for rows in [1, 2, 4, 8, 16, 64] {
            let x: Vec<f32> = (0..rows * k).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
            let mut y = vec![0.0; rows * n];
            let slow = if rows == 1 || rows == 64 {
                seconds(|| plain(black_box(&x), black_box(&weights), k, black_box(&mut y)))
            } else {
                f64::NAN
            };
            for count in [1, cores] {
                let threads = Threads::new(count)?;
                let fast = seconds(|| linear(&threads, black_box(&x), &packed, None, black_box(&mut y)));
                let flops = 2.0 * (rows * n * k) as f64;
                println!(
                    "{count:7} {k:5} {n:5} {rows:5} {:9.1} {:9.1} {:14.1}",
                    flops / fast / 1e9,
                    packed.bytes() as f64 / fast / 1e9,
                    slow / fast
                );
            }
        }
    }
    Ok(())
}
