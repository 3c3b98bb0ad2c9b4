//! The same request gives the same tokens however it is served: by one worker or two, over sockets or in memory, alone or
//! in a batch, with a cold cache or a warm one.

use std::{sync::LazyLock, time::Duration};

use baton_tests::{Answer, Prompt, System, SystemOptions, Topology};
use serde_json::Value;

/// Prompts of many lengths: those of the committed golden file, some sampled, one with several choices.
static PROMPTS: LazyLock<Vec<Prompt>> = LazyLock::new(|| {
    let golden: Value =
        serde_json::from_str(include_str!("../../models/golden.json")).expect("models/golden.json is JSON");
    let cases = golden["baton-tiny"].as_array().expect("a list of cases");
    let prompts = cases.iter().take(16).enumerate().map(|(n, case)| {
        let ids = case["prompt_ids"].as_array().expect("prompt_ids");
        let ids = ids
            .iter()
            .map(|id| id.as_u64().expect("a token id") as u32)
            .collect();
        let prompt = Prompt::greedy(ids, 24);
        match n % 4 {
            0 | 1 => prompt,
            2 => prompt.sampled(1_000 + n as u64, 1),
            _ => prompt.sampled(2_000 + n as u64, 2),
        }
    });
    prompts.collect()
});

async fn one_by_one(system: &System) -> Vec<Vec<Answer>> {
    let mut answers = Vec::new();
    for prompt in PROMPTS.iter() {
        answers.push(system.answers(prompt).await);
    }
    answers
}

async fn start(topology: Topology) -> System {
    System::start(&SystemOptions {
        topology,
        ..SystemOptions::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_do_not_depend_on_how_they_are_served() {
    let aggregated = start(Topology::Aggregated).await;
    let reference = one_by_one(&aggregated).await;
    for (prompt, answers) in PROMPTS.iter().zip(&reference) {
        assert!(
            answers.iter().all(|answer| answer.len() == 24),
            "{prompt:?} gave {answers:?}"
        );
    }
    assert_eq!(
        one_by_one(&aggregated).await,
        reference,
        "a warm prefix cache changes nothing"
    );
    assert_eq!(
        aggregated.answers_together(&PROMPTS).await,
        reference,
        "a batch of 16 changes nothing"
    );

    for topology in [Topology::Tcp, Topology::Local] {
        let system = start(topology).await;
        assert_eq!(one_by_one(&system).await, reference, "{topology:?}, cold, alone");
        assert_eq!(
            system.answers_together(&PROMPTS).await,
            reference,
            "{topology:?}, warm, together"
        );
        let cold = start(topology).await;
        assert_eq!(
            cold.answers_together(&PROMPTS).await,
            reference,
            "{topology:?}, cold, together"
        );
        for system in [system, cold] {
            assert!(handoffs(&system) > 0, "{topology:?} handed KV over");
            system.until_pages_are_back(Duration::from_secs(2)).await;
            assert_eq!(
                early_ends(&system),
                0,
                "{topology:?}: a hand-off that is done is not cancelled"
            );
            system.parts.stop().await;
        }
    }
    assert_eq!(handoffs(&aggregated), 0);
}

/// Transfers that ended early, at either end.
fn early_ends(system: &System) -> u64 {
    total(system, "baton_kv_transfer_aborts_total")
}

/// Bytes that were handed over, at both ends.
fn handoffs(system: &System) -> u64 {
    total(system, "baton_kv_transfer_bytes_total")
}

/// The sum of a counter over all workers and labels.
fn total(system: &System, counter: &str) -> u64 {
    let workers = system.parts.decode.iter().chain(&system.parts.prefill);
    let families = workers.flat_map(|worker| worker.registry().gather());
    let found = families.filter(|family| family.name() == counter);
    found
        .flat_map(|family| {
            family
                .get_metric()
                .iter()
                .map(|metric| metric.get_counter().get_value() as u64)
                .collect::<Vec<_>>()
        })
        .sum()
}
