//! The bundled models' greedy answers against those of `transformers` in float32: token for token, through the executor.

#![allow(clippy::unwrap_used, reason = "a test throughout")]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc::sync_channel},
    time::Duration,
};

use baton_engine::{
    cpu::{CpuExecutor, CpuExecutorConfig},
    executor::{Executor, Wake},
    step::{Row, RowStart, RowTokens, SlotId, SlotOpen, StepId, StepPlan},
};
use baton_kernels::{
    kv::{KvDtype, PageId},
    sampling::SamplingParams,
};
use serde::Deserialize;

const PAGE_TOKENS: usize = 16;
/// Prompt tokens of one step: real prompts run in chunks.
const CHUNK: usize = 512;

/// `models/golden.json`, which `models/train/golden.py` writes.
#[derive(Deserialize)]
struct Goldens {
    #[serde(rename = "baton-tiny")]
    tiny: Vec<Golden>,
    #[serde(rename = "baton-draft")]
    draft: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

fn goldens() -> Goldens {
    let text = std::fs::read_to_string(models().join("golden.json")).expect("models/golden.json is bundled");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn baton_tiny_equals_transformers() {
    equals_transformers("baton-tiny", &goldens().tiny);
}

#[test]
fn baton_draft_equals_transformers() {
    equals_transformers("baton-draft", &goldens().draft);
}

fn equals_transformers(model: &str, goldens: &[Golden]) {
    assert!(goldens.len() >= 8, "{model} has {} prompts", goldens.len());
    assert!(
        goldens.iter().any(|golden| golden.prompt_ids.len() > CHUNK),
        "one prompt takes several chunks"
    );

    let (sender, wakes) = sync_channel(1);
    let wake: Wake = Arc::new(move || {
        let _ = sender.try_send(());
    });
    let longest = goldens
        .iter()
        .map(|g| g.prompt_ids.len() + g.output_ids.len())
        .max()
        .unwrap();
    let config = CpuExecutorConfig {
        threads: 0,
        kv_dtype: KvDtype::F32,
        page_tokens: PAGE_TOKENS,
        pages: longest.div_ceil(PAGE_TOKENS) as u32,
        slots: 1,
        context_tokens: 0,
    };
    let mut executor = CpuExecutor::load(&models().join(model), &config, wake).unwrap();

    let slot = SlotId(0);
    let pages: Vec<PageId> = (0..config.pages).map(PageId).collect();
    let mut step = 0;
    let mut run = |opened, row| {
        step += 1;
        let plan = StepPlan {
            step: StepId(step),
            opened,
            copies: Vec::new(),
            rows: vec![row],
        };
        let ticket = executor.submit(plan).unwrap();
        loop {
            if let Some(outcome) = executor.poll(&ticket).unwrap() {
                return outcome.sampled;
            }
            wakes.recv_timeout(Duration::from_secs(60)).expect("a wake");
        }
    };

    for (index, golden) in goldens.iter().enumerate() {
        let mut opened = vec![SlotOpen {
            slot,
            choice: 0,
            sampling: Arc::new(SamplingParams::default()),
            prompt: golden.prompt_ids.clone().into(),
            output: Vec::new(),
        }];
        let mut output = Vec::new();
        for (chunk, tokens) in golden.prompt_ids.chunks(CHUNK).enumerate() {
            let start = chunk * CHUNK;
            let last = start + tokens.len() == golden.prompt_ids.len();
            let row = Row {
                slot,
                start: RowStart::Known(start as u32),
                tokens: RowTokens::Host(tokens.to_vec()),
                pages: pages.clone(),
                sample: if last { vec![slot] } else { Vec::new() },
            };
            output.extend(run(std::mem::take(&mut opened), row));
        }
        while output.len() < golden.output_ids.len() {
            let position = (golden.prompt_ids.len() + output.len() - 1) as u32;
            let row = Row {
                slot,
                start: RowStart::Known(position),
                tokens: RowTokens::LastOutput,
                pages: pages.clone(),
                sample: vec![slot],
            };
            output.extend(run(Vec::new(), row));
        }
        let tokens: Vec<u32> = output.iter().flat_map(|sampled| sampled.tokens.clone()).collect();
        assert_eq!(tokens, golden.output_ids, "{model}, prompt {index}");
    }
}
