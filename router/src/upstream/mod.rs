//! The way to decode workers: one `Decode.Generate` call, and what its failures mean.

mod failure;

pub use failure::{Failure, FailureKind};

use std::time::Duration;

use baton_proto::{
    TraceContext,
    trace_context::TRACEPARENT,
    v1::{DecodeEvent, DecodeRequest, decode_client::DecodeClient},
};
use tonic::{Request, Streaming, metadata::MetadataValue};

use crate::registry::Worker;

/// Opens the call. The worker's first event tells that it has accepted; dropping the stream cancels everything below.
///
/// # Errors
/// [`Failure`], classified.
pub async fn open(
    worker: &Worker,
    request: DecodeRequest,
    trace: &TraceContext,
) -> Result<Streaming<DecodeEvent>, Failure> {
    let mut call = Request::new(request);
    if let Ok(value) = MetadataValue::try_from(trace.to_string()) {
        call.metadata_mut().insert(TRACEPARENT, value);
    }
    DecodeClient::new(worker.channel())
        .generate(call)
        .await
        .map(tonic::Response::into_inner)
        .map_err(|status| Failure::of(&worker.hello().worker_id, &status))
}

/// Milliseconds left, at least one: zero would mean none was set.
#[must_use]
pub fn deadline_ms(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)
}
