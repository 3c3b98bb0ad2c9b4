use proptest::prelude::*;

use super::*;
use crate::kv::{KvDtype, KvLayout};

/// Numbers in about -2..2 that look random.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let mixed = i
                .wrapping_add(seed.wrapping_mul(7919))
                .wrapping_mul(2_654_435_761);
            ((mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519) >> 8) as f32 / 4_194_304.0 - 2.0
        })
        .collect()
}

/// Sequences with their pages scattered over one memory whose unused bytes are all 0xff: NaN in each dtype, and in scales.
struct Scene {
    kv: HostKv,
    tables: Vec<Vec<PageId>>,
    lengths: Vec<u32>,
}

const LAYER: u32 = 1;

impl Scene {
    fn new(layout: KvLayout, lengths: &[u32], seed: u32) -> Self {
        let pages_of = |len: u32| (len as usize).div_ceil(layout.page_tokens);
        let total: usize = lengths.iter().map(|&l| pages_of(l)).sum();
        let kv = HostKv::new(layout, total as u32 + 1).unwrap();
        let poison = vec![0xff; layout.slice_bytes()];
        for page in 0..kv.pages() {
            kv.write_slice(PageId(page), LAYER, &poison).unwrap();
        }
        // Pages are dealt round robin and backwards, so no sequence has neighbours.
        let mut next = kv.pages();
        let mut tables = vec![Vec::new(); lengths.len()];
        while tables.iter().zip(lengths).any(|(t, &l)| t.len() < pages_of(l)) {
            for (table, &len) in tables.iter_mut().zip(lengths) {
                if table.len() < pages_of(len) {
                    next -= 1;
                    table.push(PageId(next));
                }
            }
        }
        for (sequence, (table, &len)) in tables.iter().zip(lengths).enumerate() {
            for token in 0..len as usize {
                let key_seed = seed + 1000 * sequence as u32 + token as u32;
                let width = layout.kv_heads * layout.head_dim;
                kv.append(
                    table[token / layout.page_tokens],
                    LAYER,
                    token % layout.page_tokens,
                    &numbers(width, key_seed),
                    &numbers(width, key_seed + 500_000),
                )
                .unwrap();
            }
        }
        Self {
            kv,
            tables,
            lengths: lengths.to_vec(),
        }
    }

    /// One span for each sequence: its last `rows` tokens.
    fn spans(&self, rows: u32) -> Vec<QuerySpan<'_>> {
        self.tables
            .iter()
            .zip(&self.lengths)
            .map(|(pages, &len)| QuerySpan {
                pages,
                start: len - rows.min(len),
                len: rows.min(len),
            })
            .collect()
    }

    fn run(
        &self,
        level: SimdLevel,
        threads: &Threads,
        shape: &AttentionShape,
        spans: &[QuerySpan<'_>],
        q: &[f32],
    ) -> Vec<f32> {
        let mut out = vec![f32::NAN; q.len()];
        cpu::paged_attention(level, threads, &self.kv, LAYER, shape, spans, q, &mut out);
        out
    }
}

fn check(layout: KvLayout, group: usize, window: Option<u32>, lengths: &[u32], rows: u32, seed: u32) {
    let scene = Scene::new(layout, lengths, seed);
    let spans = scene.spans(rows);
    let width = layout.kv_heads * group * layout.head_dim;
    let total: u32 = spans.iter().map(|s| s.len).sum();
    let q = numbers(total as usize * width, seed + 77);
    let shape = AttentionShape {
        q_heads: layout.kv_heads * group,
        scale: (layout.head_dim as f32).sqrt().recip(),
        window,
    };
    let threads = Threads::new(3).unwrap();
    let mut out = vec![f32::NAN; q.len()];
    paged_attention(&threads, &scene.kv, LAYER, &shape, &spans, &q, &mut out).unwrap();
    let exact = reference::paged_attention(&scene.kv, LAYER, &shape, &spans, &q);
    for (found, exact) in out.iter().zip(exact) {
        assert!((f64::from(*found) - exact).abs() < 2e-5, "{found} {exact}");
    }
    for level in SimdLevel::available() {
        assert!(
            scene.run(level, &threads, &shape, &spans, &q) == out,
            "{level:?} together"
        );
        // Token by token, alone.
        let mut at = 0;
        for span in &spans {
            for row in 0..span.len {
                let alone = QuerySpan {
                    start: span.start + row,
                    len: 1,
                    ..*span
                };
                let one = scene.run(level, &Threads::single(), &shape, &[alone], &q[at..at + width]);
                assert!(one == out[at..at + width], "{level:?} row {row} alone");
                at += width;
            }
        }
    }
}

fn layout(dtype: KvDtype, page_tokens: usize, kv_heads: usize, head_dim: usize) -> KvLayout {
    KvLayout {
        dtype,
        page_tokens,
        layers: 2,
        kv_heads,
        head_dim,
    }
}

#[test]
fn page_boundaries() {
    for len in [1, 15, 16, 17, 31, 32, 33, 64, 65] {
        check(layout(KvDtype::Fp8E4m3, 16, 1, 64), 2, None, &[len], len, len);
    }
}

#[test]
fn long_contexts_and_large_groups() {
    check(layout(KvDtype::Fp8E4m3, 64, 2, 64), 2, None, &[700, 65, 1], 40, 1);
    check(layout(KvDtype::Fp8E4m3, 128, 1, 128), 8, None, &[300], 35, 2);
    check(
        layout(KvDtype::Fp8E4m3, 32, 2, 128),
        4,
        Some(50),
        &[333, 20],
        40,
        3,
    );
}

#[test]
fn chunks_of_any_size_give_equal_bits() {
    let layout = layout(KvDtype::Fp8E4m3, 16, 2, 64);
    let scene = Scene::new(layout, &[90], 5);
    let shape = AttentionShape {
        q_heads: 4,
        scale: 0.125,
        window: None,
    };
    let q = numbers(90 * 256, 6);
    let threads = Threads::new(2).unwrap();
    let level = SimdLevel::detect();
    let whole = scene.run(level, &threads, &shape, &scene.spans(90), &q);
    for chunk in [1, 3, 16, 17, 40] {
        let spans: Vec<QuerySpan<'_>> = (0..90)
            .step_by(chunk)
            .map(|start| QuerySpan {
                pages: &scene.tables[0],
                start: start as u32,
                len: chunk.min(90 - start) as u32,
            })
            .collect();
        assert!(
            scene.run(level, &threads, &shape, &spans, &q) == whole,
            "chunks of {chunk}"
        );
    }
}

#[test]
fn a_window_of_one_returns_the_value_itself() {
    let layout = layout(KvDtype::F32, 16, 1, 32);
    let scene = Scene::new(layout, &[40], 9);
    let shape = AttentionShape {
        q_heads: 1,
        scale: 1.0,
        window: Some(1),
    };
    let q = numbers(32, 1);
    let out = scene.run(
        SimdLevel::detect(),
        &Threads::single(),
        &shape,
        &scene.spans(1),
        &q,
    );
    assert_eq!(out, numbers(32, 9 + 39 + 500_000));
}

#[test]
fn a_broken_value_shows() {
    let layout = layout(KvDtype::Fp8E4m3, 16, 1, 16);
    let scene = Scene::new(layout, &[20], 9);
    let mut keys = numbers(16, 1);
    keys[3] = f32::NAN;
    scene
        .kv
        .append(scene.tables[0][0], LAYER, 4, &keys, &numbers(16, 2))
        .unwrap();
    let shape = AttentionShape {
        q_heads: 1,
        scale: 1.0,
        window: None,
    };
    let span = |start| QuerySpan {
        pages: &scene.tables[0],
        start,
        len: 1,
    };
    let q = numbers(16, 3);
    let run = |start| {
        scene.run(
            SimdLevel::detect(),
            &Threads::single(),
            &shape,
            &[span(start)],
            &q,
        )
    };
    assert!(run(3).iter().all(|v| v.is_finite()));
    assert!(run(4).iter().all(|v| v.is_nan()));
    assert!(run(19).iter().all(|v| v.is_nan()));
}

#[test]
fn a_page_that_is_not_there_is_an_error() {
    let kv = HostKv::new(layout(KvDtype::Fp8E4m3, 16, 1, 16), 2).unwrap();
    let shape = AttentionShape {
        q_heads: 1,
        scale: 1.0,
        window: None,
    };
    let call = |pages: &[PageId], layer| {
        let spans = [QuerySpan {
            pages,
            start: 0,
            len: 1,
        }];
        paged_attention(
            &Threads::single(),
            &kv,
            layer,
            &shape,
            &spans,
            &[0.0; 16],
            &mut [0.0; 16],
        )
    };
    assert!(call(&[PageId(2)], 0).is_err());
    assert!(call(&[PageId(1)], 2).is_err());
    assert!(call(&[PageId(1)], 1).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn odd_shapes_equal_the_reference(
        dtype in prop::sample::select(vec![KvDtype::Fp8E4m3, KvDtype::Bf16, KvDtype::F32]),
        page_tokens in prop::sample::select(vec![16usize, 32, 64]),
        kv_heads in 1usize..3,
        head_dim in prop::sample::select(vec![16usize, 20, 64, 80, 128]),
        group in prop::sample::select(vec![1usize, 2, 3, 4, 8]),
        window in prop::option::of(1u32..100),
        lengths in prop::collection::vec(1u32..150, 1..5),
        rows in prop_oneof![Just(1u32), 1u32..40],
        seed in 0u32..1_000_000,
    ) {
        check(layout(dtype, page_tokens, kv_heads, head_dim), group, window, &lengths, rows, seed);
    }
}
