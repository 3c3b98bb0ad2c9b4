//! `baton_prefill_*`: how prompts run for others ended.

use baton_worker::metrics::SECONDS;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry};

/// Registered once per worker; clones share the values.
#[derive(Clone, Debug)]
pub(crate) struct PrefillMetrics {
    /// By `outcome`: `done`, `cancelled`, or the kind of the error.
    pub(crate) runs: IntCounterVec,
    /// From the prompt's first chunk to its first tokens.
    pub(crate) prompt_seconds: Histogram,
    /// From the first tokens to the receiver's acknowledgement: what the hand-off adds to the computation.
    pub(crate) tail_seconds: Histogram,
}

impl PrefillMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let histogram = |name: &str, help: &str| {
            let opts = HistogramOpts::new(format!("baton_prefill_{name}"), help).buckets(SECONDS.to_vec());
            let histogram = Histogram::with_opts(opts)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let runs = IntCounterVec::new(
            Opts::new(
                "baton_prefill_runs_total",
                "Prompts run for decode workers, by outcome.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(runs.clone()))?;
        Ok(Self {
            runs,
            prompt_seconds: histogram(
                "prompt_seconds",
                "From a prompt's first chunk to its first tokens.",
            )?,
            tail_seconds: histogram(
                "handoff_tail_seconds",
                "From the first tokens to the receiver's acknowledgement of the last slice.",
            )?,
        })
    }
}
