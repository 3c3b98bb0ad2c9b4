//! One trace across processes: `traceparent` in, a span around the work, `traceparent` out.

use baton_proto::{TraceContext, trace_context::TRACEPARENT};
use tonic::metadata::{MetadataMap, MetadataValue};
use tracing::Span;

use crate::random;

/// This hop's place in the caller's trace; a new trace where the caller names none.
#[must_use]
pub fn enter(metadata: &MetadataMap) -> TraceContext {
    let caller = metadata
        .get(TRACEPARENT)
        .and_then(|value| value.to_str().ok())
        .and_then(TraceContext::parse);
    match caller {
        Some(caller) => caller.child(random::bits64()),
        None => TraceContext::root(random::bits128(), random::bits64()),
    }
}

/// Tells a callee about this hop.
pub fn pass_on(context: &TraceContext, metadata: &mut MetadataMap) {
    if let Ok(value) = MetadataValue::try_from(context.to_string()) {
        metadata.insert(TRACEPARENT, value);
    }
}

/// The span that everything logged for this request belongs to.
#[must_use]
pub fn span(role: &'static str, request_id: &str, context: &TraceContext) -> Span {
    tracing::info_span!(
        "request",
        role,
        request_id,
        trace_id = format_args!("{:032x}", context.trace_id),
        span_id = format_args!("{:016x}", context.span_id),
        parent_id = context.parent_id.map(|id| format!("{id:016x}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callee_continues_the_callers_trace() {
        let mut metadata = MetadataMap::new();
        let root = enter(&metadata);
        assert_eq!(root.parent_id, None);
        pass_on(&root, &mut metadata);
        let callee = enter(&metadata);
        assert_eq!(
            (callee.trace_id, callee.parent_id),
            (root.trace_id, Some(root.span_id))
        );
        assert_ne!(callee.span_id, root.span_id);
    }
}
