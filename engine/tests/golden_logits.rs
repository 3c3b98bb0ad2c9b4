//! Logits of every architecture against what `transformers` computes: see `make_golden.py`.

#![allow(clippy::unwrap_used, reason = "a test throughout")]

use std::path::{Path, PathBuf};

use baton_engine::cpu::{Model, prompt_logits};
use baton_kernels::kv::KvDtype;
use safetensors::SafeTensors;

fn data(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(case)
}

fn top(row: &[f32]) -> usize {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap()
}

fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = found
        .iter()
        .zip(expected)
        .map(|(a, b)| square(f64::from(a - b)))
        .sum();
    let norm: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    (difference / norm).sqrt()
}

/// Calls `check` with the model's name, each prompt, and its logits `[tokens][vocab]` by transformers.
fn each_prompt(case: &str, mut check: impl FnMut(&Model, &[u32], &[f32])) {
    let model = Model::load(&data(case)).unwrap();
    let bytes = std::fs::read(data(case).join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    for length in [5, 50] {
        let tensor = |name: &str| golden.tensor(&format!("{name}.{length}")).unwrap();
        let tokens: Vec<u32> = tensor("tokens")
            .data()
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(tokens.len(), length);
        let logits: Vec<f32> = tensor("logits")
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        check(&model, &tokens, &logits);
    }
}

fn matches_transformers(case: &str) {
    each_prompt(case, |model, tokens, expected| {
        let vocab = model.config().vocab;
        let found = prompt_logits(model, KvDtype::F32, tokens).unwrap();
        let error = relative_error(&found, expected);
        println!("{case}, {} tokens: relative error {error:.2e}", tokens.len());
        assert!(error < 1e-3, "{case}: relative error {error}");
        for (position, (a, b)) in found.chunks(vocab).zip(expected.chunks(vocab)).enumerate() {
            assert_eq!(top(a), top(b), "{case}: top-1 at position {position}");
        }
    });
}

#[test]
fn llama() {
    matches_transformers("llama-f32-tied");
}

#[test]
fn llama_with_llama3_rope_in_shards() {
    matches_transformers("llama3-rope-bf16-sharded");
}

#[test]
fn llama_with_linear_rope_and_biases() {
    matches_transformers("llama-linear-rope-f16-biased");
}

#[test]
fn mistral_with_a_window_shorter_than_the_prompt() {
    matches_transformers("mistral-window-bf16");
}

#[test]
fn qwen2_with_bias_and_a_window_on_some_layers() {
    matches_transformers("qwen2-bias-window-bf16-tied");
}

#[test]
fn qwen3_with_normalized_queries_and_keys() {
    matches_transformers("qwen3-qknorm-f32");
}

/// The cache's precision shows in the logits, but only as much as its dtype may lose.
#[test]
fn narrower_kv_stays_near() {
    each_prompt("llama-f32-tied", |model, tokens, expected| {
        let mut errors = Vec::new();
        for (dtype, most) in [
            (KvDtype::F32, 1e-5),
            (KvDtype::Bf16, 0.01),
            (KvDtype::Fp8E4m3, 0.1),
        ] {
            let error = relative_error(&prompt_logits(model, dtype, tokens).unwrap(), expected);
            assert!(error < most, "{}: {error}", dtype.name());
            errors.push(error);
        }
        assert!(
            errors.is_sorted(),
            "each is coarser than the one before: {errors:?}"
        );
    });
}
