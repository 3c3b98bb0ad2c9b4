//! What it costs to send a request to a worker, term by term.

use serde::Serialize;

use super::{PolicyConfig, WorkerView};

/// One reason for or against a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostTerm {
    pub name: &'static str,
    /// About 0 when idle and 1 when full; may exceed 1.
    pub value: f64,
    pub weight: f64,
}

/// All terms of one worker's cost. Lower is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    pub terms: Vec<CostTerm>,
    pub total: f64,
}

impl Cost {
    fn of(terms: Vec<CostTerm>) -> Self {
        let total = terms.iter().map(|term| term.value * term.weight).sum();
        Self { terms, total }
    }

    /// Decode: who waits, how full the batch is, how few pages are left. Cached pages that nobody refers to count as free.
    pub(super) fn decode(worker: &WorkerView, config: &PolicyConfig) -> Self {
        let batch = f64::from(worker.capacity.max_running.max(1));
        let waiting = f64::from(worker.load.waiting) + f64::from(worker.assigned.requests);
        let total_pages = f64::from(worker.capacity.total_pages.max(1));
        let available = f64::from(worker.load.free_pages) + f64::from(worker.load.cached_pages);
        Self::of(vec![
            CostTerm {
                name: "waiting",
                value: waiting / batch,
                weight: config.waiting_weight,
            },
            CostTerm {
                name: "running",
                value: f64::from(worker.load.running) / batch,
                weight: config.running_weight,
            },
            CostTerm {
                name: "pages",
                value: (1.0 - available / total_pages).clamp(0.0, 1.0),
                weight: config.pages_weight,
            },
        ])
    }

    /// Prefill: how many prompt tokens are ahead.
    pub(super) fn prefill(worker: &WorkerView, config: &PolicyConfig) -> Self {
        let batch = f64::from(worker.capacity.max_running.max(1));
        Self::of(vec![
            CostTerm {
                name: "queue",
                value: queued_tokens(worker) as f64 / config.prefill_queue_tokens as f64,
                weight: config.queue_weight,
            },
            CostTerm {
                name: "running",
                value: f64::from(worker.load.running) / batch,
                weight: config.running_weight,
            },
        ])
    }
}

/// Prompt tokens that a new prompt would wait for.
pub(super) fn queued_tokens(worker: &WorkerView) -> u64 {
    worker
        .load
        .waiting_tokens
        .saturating_add(worker.assigned.prompt_tokens)
}
