//! `baton_decode_*`: where prompts ran, and how hand-offs went.

use baton_worker::metrics::SECONDS;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Registered once per worker; clones share the values.
#[derive(Clone, Debug)]
pub(crate) struct DecodeMetrics {
    /// By `outcome`: `done`, `cancelled`, or the kind of the failure.
    pub(crate) handoffs: IntCounterVec,
    /// From the call to the prefill worker until tokens and KV are here.
    pub(crate) handoff_seconds: Histogram,
    pub(crate) handoffs_live: IntGauge,
    /// After a failed hand-off, by `to`: `candidate` or `local`.
    pub(crate) fallbacks: IntCounterVec,
    /// By `place`: `remote` or `local`.
    pub(crate) prefills: IntCounterVec,
    /// First tokens that two runs of the same prompt disagreed on: a bug, or workers that differ.
    pub(crate) contradictions: IntCounter,
}

impl DecodeMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, label: &str| {
            let counters = IntCounterVec::new(Opts::new(format!("baton_decode_{name}"), help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let handoff_seconds = Histogram::with_opts(
            HistogramOpts::new(
                "baton_decode_handoff_seconds",
                "From the call to a prefill worker until its first tokens and all KV are here.",
            )
            .buckets(SECONDS.to_vec()),
        )?;
        registry.register(Box::new(handoff_seconds.clone()))?;
        let handoffs_live = IntGauge::new(
            "baton_decode_handoffs_live",
            "Requests that wait for a prefill worker.",
        )?;
        registry.register(Box::new(handoffs_live.clone()))?;
        let contradictions = IntCounter::new(
            "baton_decode_first_token_contradictions_total",
            "First tokens that two runs of the same prompt disagreed on.",
        )?;
        registry.register(Box::new(contradictions.clone()))?;
        Ok(Self {
            handoffs: counters(
                "handoffs_total",
                "Attempts to get KV from a prefill worker, by outcome.",
                "outcome",
            )?,
            handoff_seconds,
            handoffs_live,
            fallbacks: counters(
                "fallbacks_total",
                "Where requests went after a failed hand-off.",
                "to",
            )?,
            prefills: counters(
                "prefills_total",
                "Requests by the place where their prompt ran.",
                "place",
            )?,
            contradictions,
        })
    }
}
