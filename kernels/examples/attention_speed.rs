//! Measures `paged_attention`: `cargo run --release -p baton-kernels --example attention_speed`.

use std::{hint::black_box, time::Instant};

use baton_kernels::{
    Threads,
    attention::{AttentionShape, QuerySpan, paged_attention},
    kv::{HostKv, KvDtype, KvLayout, PageId},
};

/// Seconds of one call, the best of several rounds.
fn seconds(mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let mut calls = 1_u32;
    for _ in 0..6 {
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cores = std::thread::available_parallelism()?.get();
    println!("threads kv_heads group dim context sequences rows        us   GFLOP/s   KV GB/s");
    for (kv_heads, group, head_dim) in [(2, 2, 64), (8, 4, 128)] {
        let layout = KvLayout {
            dtype: KvDtype::Fp8E4m3,
            page_tokens: 64,
            layers: 1,
            kv_heads,
            head_dim,
        };
        for (context, sequences, rows) in [(1024, 1, 1), (1024, 16, 1), (3000, 1, 1), (1024, 1, 256)] {
            let pages_each = 3000_u32.div_ceil(64);
            let kv = HostKv::new(layout, pages_each * sequences)?;
            let vector: Vec<f32> = (0..kv_heads * head_dim)
                .map(|i| (i % 17) as f32 / 8.0 - 1.0)
                .collect();
            for page in 0..pages_each * sequences {
                for token in 0..64 {
                    kv.append(PageId(page), 0, token, &vector, &vector)?;
                }
            }
            let tables: Vec<Vec<PageId>> = (0..sequences)
                .map(|s| (0..pages_each).map(|p| PageId(s * pages_each + p)).collect())
                .collect();
            let spans: Vec<QuerySpan<'_>> = tables
                .iter()
                .map(|pages| QuerySpan {
                    pages,
                    start: context - rows,
                    len: rows,
                })
                .collect();
            let shape = AttentionShape {
                q_heads: kv_heads * group,
                scale: 0.1,
                window: None,
            };
            let q = vec![0.3; (rows * sequences) as usize * shape.q_heads * head_dim];
            let mut out = vec![0.0; q.len()];
            for count in [1, cores] {
                let threads = Threads::new(count)?;
                let time = seconds(|| {
                    paged_attention(
                        &threads,
                        &kv,
                        0,
                        &shape,
                        &spans,
                        black_box(&q),
                        black_box(&mut out),
                    )
                    .expect("pages exist");
                });
                let seen = f64::from(sequences * rows) * (f64::from(context) - f64::from(rows - 1) / 2.0);
                let flops = 4.0 * seen * (shape.q_heads * head_dim) as f64;
                let bytes = f64::from(context * sequences) * 2.0 * (kv_heads * (head_dim + 1)) as f64;
                println!(
                    "{count:7} {kv_heads:8} {group:5} {head_dim:3} {context:7} {sequences:9} {rows:4} {:9.1} {:9.1} {:9.1}",
                    time * 1e6,
                    flops / time / 1e9,
                    bytes / time / 1e9
                );
            }
        }
    }
    Ok(())
}
