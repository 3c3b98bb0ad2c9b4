//! `baton_engine_*`: what one engine counts and times.

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::{load::EngineLoad, request::RequestError};

/// Upper bounds in seconds, from half a millisecond on.
const SECONDS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 16.0, 64.0,
];
const BATCH: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Registered once per engine; clones share the values.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    /// From acceptance to the first chunk of the prompt, or to the adoption of handed-off KV.
    pub queue_seconds: Histogram,
    /// From acceptance to the first token sampled here.
    pub ttft_seconds: Histogram,
    /// Gap between two outcomes of a sequence, divided by the tokens of the second.
    pub itl_seconds: Histogram,
    /// As the executor measures it.
    pub step_seconds: Histogram,
    /// Rows of a step.
    pub batch_rows: Histogram,
    /// Prompt tokens computed, recomputed ones included.
    pub prefill_tokens: IntCounter,
    /// Tokens that became output.
    pub decode_tokens: IntCounter,
    pub running: IntGauge,
    pub waiting: IntGauge,
    /// By `state`: free, mutable, sealed, retiring.
    pub pages: IntGaugeVec,
    /// Sealed pages that only the prefix cache keeps.
    pub cached_pages: IntGauge,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queried_tokens: IntCounter,
    /// Prompt tokens found there.
    pub prefix_hit_tokens: IntCounter,
    /// Sequences that gave up their pages to be recomputed later.
    pub preemptions: IntCounter,
    /// Requests refused, by `kind`.
    pub refusals: IntCounterVec,
    /// Choices ended, by `reason`: stop, length, deadline, handed_off; and requests: cancelled, failed.
    pub finished: IntCounterVec,
    /// Times the engine was idle and its pages did not add up: a bug.
    pub conservation_errors: IntCounter,
}

impl EngineMetrics {
    /// # Errors
    /// When one of the names is registered already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::with_opts(
                HistogramOpts::new(format!("baton_engine_{name}"), help).buckets(buckets.to_vec()),
            )?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("baton_engine_{name}"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let counters = |name: &str, help: &str, label: &str| {
            let counters = IntCounterVec::new(Opts::new(format!("baton_engine_{name}"), help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(format!("baton_engine_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let pages = IntGaugeVec::new(Opts::new("baton_engine_pages", "KV pages by state."), &["state"])?;
        registry.register(Box::new(pages.clone()))?;
        Ok(Self {
            queue_seconds: histogram(
                "queue_seconds",
                "From acceptance to the first chunk of the prompt or to the adoption of handed-off KV.",
                &SECONDS,
            )?,
            ttft_seconds: histogram(
                "time_to_first_token_seconds",
                "From acceptance to the first token sampled here.",
                &SECONDS,
            )?,
            itl_seconds: histogram(
                "inter_token_seconds",
                "Gap between two outputs of a sequence, divided by the tokens of the second.",
                &SECONDS,
            )?,
            step_seconds: histogram("step_seconds", "Time the device spent on a step.", &SECONDS)?,
            batch_rows: histogram("batch_rows", "Rows of a step.", &BATCH)?,
            prefill_tokens: counter(
                "prefill_tokens_total",
                "Prompt tokens computed, recomputed ones included.",
            )?,
            decode_tokens: counter("decode_tokens_total", "Tokens that became output.")?,
            running: gauge("running_sequences", "Sequences that hold a slot.")?,
            waiting: gauge(
                "waiting_requests",
                "Requests that wait for a slot, pages or handed-off KV.",
            )?,
            pages,
            cached_pages: gauge("cached_pages", "Sealed pages that only the prefix cache keeps.")?,
            prefix_queried_tokens: counter(
                "prefix_cache_queried_tokens_total",
                "Prompt tokens looked up in the prefix cache.",
            )?,
            prefix_hit_tokens: counter(
                "prefix_cache_hit_tokens_total",
                "Prompt tokens found in the prefix cache.",
            )?,
            preemptions: counter(
                "preemptions_total",
                "Sequences that gave up their pages to be recomputed later.",
            )?,
            refusals: counters("refusals_total", "Requests refused, by kind.", "kind")?,
            finished: counters("finished_total", "Choices ended, by reason.", "reason")?,
            conservation_errors: counter(
                "conservation_errors_total",
                "Times the engine was idle and its pages did not add up.",
            )?,
        })
    }
}

impl EngineMetrics {
    pub(crate) fn refused(&self, error: &RequestError) {
        let kind = match error {
            RequestError::TooLong { .. } => "too_long",
            RequestError::NeverFits { .. } => "never_fits",
            RequestError::TokenOutOfRange { .. } => "token_out_of_range",
            RequestError::Invalid(_) => "invalid",
            RequestError::QueueFull { .. } => "queue_full",
            RequestError::Draining => "draining",
            RequestError::EngineStopped(_) => "engine_stopped",
        };
        self.refusals.with_label_values(&[kind]).inc();
    }

    pub(crate) fn show(&self, load: &EngineLoad) {
        self.running.set(i64::from(load.running));
        self.waiting.set(i64::from(load.waiting));
        self.cached_pages.set(i64::from(load.pages.cached));
        let states = [
            ("free", load.pages.free),
            ("mutable", load.pages.mutable),
            ("sealed", load.pages.sealed),
            ("retiring", load.pages.retiring),
        ];
        for (state, pages) in states {
            self.pages.with_label_values(&[state]).set(i64::from(pages));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_once_and_says_so_the_second_time() {
        let registry = Registry::new();
        let metrics = EngineMetrics::new(&registry).expect("names are free");
        metrics.preemptions.inc();
        let families = registry.gather();
        assert!(
            families
                .iter()
                .all(|family| family.name().starts_with("baton_engine_"))
        );
        assert!(EngineMetrics::new(&registry).is_err());
    }
}
