//! What the router measures. Times are in seconds; latency buckets start at half a millisecond.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    core::Collector,
};

/// Cheap to clone: all clones count into the same series.
#[derive(Clone, Debug)]
pub struct RouterMetrics {
    /// Requests by endpoint and status code; 499 is a client that went away.
    pub requests: IntCounterVec,
    /// Requests that have not been answered completely, by endpoint.
    pub in_flight: IntGaugeVec,
    /// From the arrival of a request to the first text of its first answer.
    pub ttft: Histogram,
    /// Gap between two streamed events of an answer, divided by the tokens of the second.
    pub itl: Histogram,
    /// Mean time per token of an answer after its first event.
    pub tpot: Histogram,
    /// From arrival to the last token, of requests that succeeded.
    pub e2e: HistogramVec,
    pub prompt_tokens: IntCounter,
    pub completion_tokens: IntCounter,
    /// Prompt tokens that were found in a prefix cache.
    pub cached_tokens: IntCounter,
    /// Requests refused for want of capacity, by reason.
    pub refusals: IntCounterVec,
    /// Requests that failed, by kind.
    pub errors: IntCounterVec,
    /// Prompts that were sent to a further worker, by why the one before failed.
    pub retries: IntCounterVec,
    /// Plans by where the prompt was to be prefilled.
    pub plans: IntCounterVec,
    /// Workers that have joined, by role.
    pub workers: IntGaugeVec,
}

impl RouterMetrics {
    /// # Errors
    /// If `registry` has series of these names already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let register = Registrar(registry);
        Ok(Self {
            requests: register.counters(
                "requests_total",
                "Requests by endpoint and status code",
                &["endpoint", "code"],
            )?,
            in_flight: register.gauges("requests_in_flight", "Requests in work", &["endpoint"])?,
            ttft: register.latency("time_to_first_token_seconds", "From arrival to the first text")?,
            itl: register.latency(
                "inter_token_latency_seconds",
                "Gap between two streamed events, divided by the tokens of the second",
            )?,
            tpot: register.latency(
                "time_per_output_token_seconds",
                "Mean time per token after the first event",
            )?,
            e2e: register.add(HistogramVec::new(
                HistogramOpts::new("baton_router_request_seconds", "From arrival to the last token")
                    .buckets(latency_buckets()),
                &["endpoint"],
            )?)?,
            prompt_tokens: register.counter("prompt_tokens_total", "Tokens of prompts")?,
            completion_tokens: register.counter("completion_tokens_total", "Tokens of answers")?,
            cached_tokens: register
                .counter("cached_tokens_total", "Prompt tokens found in a prefix cache")?,
            refusals: register.counters(
                "refusals_total",
                "Requests refused for want of capacity",
                &["reason"],
            )?,
            errors: register.counters("errors_total", "Requests that failed", &["kind"])?,
            retries: register.counters("retries_total", "Prompts sent to a further worker", &["reason"])?,
            plans: register.counters(
                "plans_total",
                "Plans by where the prompt was to be prefilled",
                &["prefill"],
            )?,
            workers: register.gauges("workers", "Workers that have joined", &["role"])?,
        })
    }

    /// Counts a request from its arrival to its end.
    #[must_use]
    pub fn begin(&self, endpoint: &'static str) -> RequestRecord {
        self.in_flight.with_label_values(&[endpoint]).inc();
        RequestRecord {
            metrics: self.clone(),
            endpoint,
            done: false,
        }
    }
}

/// One request. Dropping it without an end counts a client that went away.
#[derive(Debug)]
pub struct RequestRecord {
    metrics: RouterMetrics,
    endpoint: &'static str,
    done: bool,
}

impl RequestRecord {
    /// The request was answered with `code`; later calls do nothing.
    pub fn end(&mut self, code: u16) {
        if !self.done {
            self.done = true;
            self.metrics.in_flight.with_label_values(&[self.endpoint]).dec();
            self.metrics
                .requests
                .with_label_values(&[self.endpoint, &code.to_string()])
                .inc();
        }
    }

    pub fn succeeded_after(&mut self, elapsed: Duration) {
        self.metrics
            .e2e
            .with_label_values(&[self.endpoint])
            .observe(elapsed.as_secs_f64());
        self.end(200);
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        // nginx's code for it; nobody receives it.
        self.end(499);
    }
}

struct Registrar<'a>(&'a Registry);

impl Registrar<'_> {
    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::new(format!("baton_router_{name}"), help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(
            Opts::new(format!("baton_router_{name}"), help),
            labels,
        )?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.add(IntGaugeVec::new(
            Opts::new(format!("baton_router_{name}"), help),
            labels,
        )?)
    }

    fn latency(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        let options = HistogramOpts::new(format!("baton_router_{name}"), help).buckets(latency_buckets());
        self.add(Histogram::with_opts(options)?)
    }
}

fn latency_buckets() -> Vec<f64> {
    vec![
        0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0,
    ]
}
