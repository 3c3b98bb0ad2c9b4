//! What accompanies a request from its first byte: its name, its place in a trace, and its record in the metrics.

use baton_proto::TraceContext;
use tokio::time::Instant;

use crate::{
    error::RequestError,
    metrics::{RequestRecord, RouterMetrics},
};

const LONGEST_ID: usize = 128;

/// Dropping it before the request has ended counts a client that went away.
#[derive(Debug)]
pub struct RequestContext {
    pub request_id: String,
    /// This hop.
    pub trace: TraceContext,
    pub arrived: Instant,
    pub span: tracing::Span,
    metrics: RouterMetrics,
    record: RequestRecord,
}

impl RequestContext {
    /// `request_id` and `traceparent` are what the client sent; values that are not fit for logs and headers are replaced.
    #[must_use]
    pub fn new(
        metrics: &RouterMetrics,
        endpoint: &'static str,
        request_id: Option<&str>,
        traceparent: Option<&str>,
    ) -> Self {
        let request_id = self::request_id(request_id);
        let trace = match traceparent.and_then(TraceContext::parse) {
            Some(caller) => caller.child(random()),
            None => TraceContext::root(u128::from(random()) << 64 | u128::from(random()), random()),
        };
        let span = tracing::info_span!(
            "request",
            endpoint,
            request_id,
            trace_id = format_args!("{:032x}", trace.trace_id),
            span_id = format_args!("{:016x}", trace.span_id),
            parent_id = trace.parent_id.map(|id| format!("{id:016x}")),
        );
        Self {
            request_id,
            trace,
            arrived: Instant::now(),
            span,
            metrics: metrics.clone(),
            record: metrics.begin(endpoint),
        }
    }

    /// The request failed; the client is told `error`.
    pub fn fail(&mut self, error: &RequestError) {
        let status = error.status();
        self.metrics.errors.with_label_values(&[status.code]).inc();
        if status.retry_after.is_some() {
            self.metrics.refusals.with_label_values(&[status.code]).inc();
        }
        self.record.end(status.http.as_u16());
        self.span.in_scope(|| {
            if status.http.is_server_error() {
                tracing::warn!(
                    code = status.code,
                    status = status.http.as_u16(),
                    "request failed: {error}"
                );
            } else {
                tracing::debug!(
                    code = status.code,
                    status = status.http.as_u16(),
                    "request refused: {error}"
                );
            }
        });
    }

    pub fn succeed(&mut self) {
        self.record.succeeded_after(self.arrived.elapsed());
    }
}

/// The client's own id where it is fit for logs and headers, else a new one.
#[must_use]
pub fn request_id(asked: Option<&str>) -> String {
    asked
        .filter(|id| is_sane(id))
        .map_or_else(|| format!("{:016x}{:016x}", random(), random()), str::to_owned)
}

/// 64 random bits, for names and seeds.
///
/// # Panics
/// If the operating system has no randomness, without which nothing here can be named.
#[must_use]
pub fn random() -> u64 {
    getrandom::u64().expect("the operating system provides randomness")
}

fn is_sane(id: &str) -> bool {
    (1..=LONGEST_ID).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':'))
}
