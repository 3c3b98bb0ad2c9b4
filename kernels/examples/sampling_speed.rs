//! Measures `sample`: `cargo run --release -p baton-kernels --example sampling_speed`.

use std::{hint::black_box, time::Instant};

use baton_kernels::sampling::{
    SampleKey, SampleScratch, SamplingParams, TokenHistory, sample, token_logprobs,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let warm = SamplingParams {
        temperature: 0.8,
        ..SamplingParams::default()
    };
    let cases = [
        ("greedy", SamplingParams::default()),
        ("temperature", warm.clone()),
        (
            "top_k 40",
            SamplingParams {
                top_k: 40,
                ..warm.clone()
            },
        ),
        (
            "top_p 0.9",
            SamplingParams {
                top_p: 0.9,
                ..warm.clone()
            },
        ),
        ("min_p 0.05", SamplingParams { min_p: 0.05, ..warm }),
        (
            "penalty",
            SamplingParams {
                repetition_penalty: 1.1,
                ..SamplingParams::default()
            },
        ),
    ];
    println!("{:>8} {:<12} {:>9}", "vocab", "", "us");
    for vocab in [4096_u32, 32_000, 128_256] {
        let logits: Vec<f32> = (0..vocab)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1_398_101.0)
            .collect();
        let mut scratch = SampleScratch::default();
        for (name, params) in &cases {
            let history = TokenHistory::new(&[1, 2, 3], &[4, 5], params);
            let mut best = f64::INFINITY;
            for round in 0..6 {
                let start = Instant::now();
                for position in 0..50 {
                    let key = SampleKey {
                        choice: round,
                        position,
                    };
                    black_box(sample(black_box(&logits), params, key, &history, &mut scratch)?);
                }
                best = best.min(start.elapsed().as_secs_f64() / 50.0);
            }
            println!("{vocab:8} {name:<12} {:9.1}", best * 1e6);
        }
        let start = Instant::now();
        for _ in 0..50 {
            black_box(token_logprobs(black_box(&logits), 5, 5));
        }
        println!(
            "{vocab:8} {:<12} {:9.1}",
            "logprobs",
            start.elapsed().as_secs_f64() / 50.0 * 1e6
        );
    }
    Ok(())
}
