//! W3C trace context: one trace and a tree of spans across router, decode and prefill worker.
//!
//! <https://www.w3.org/TR/trace-context/#traceparent-header>

use std::fmt;

/// Name of the HTTP header and gRPC metadata key.
pub const TRACEPARENT: &str = "traceparent";

/// Position in a trace: the trace, this hop's span, and the span that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The whole request, over all hops; never zero.
    pub trace_id: u128,
    /// This hop; never zero.
    pub span_id: u64,
    /// The caller's span, where there is one.
    pub parent_id: Option<u64>,
    /// Whether the caller records this trace.
    pub sampled: bool,
}

impl TraceContext {
    /// A new trace. Zero is not a valid id on the wire and is replaced by one.
    #[must_use]
    pub fn root(trace_id: u128, span_id: u64) -> Self {
        Self {
            trace_id: trace_id.max(1),
            span_id: span_id.max(1),
            parent_id: None,
            sampled: true,
        }
    }

    /// The context of a hop called from this one.
    #[must_use]
    pub fn child(&self, span_id: u64) -> Self {
        Self {
            span_id: span_id.max(1),
            parent_id: Some(self.span_id),
            ..*self
        }
    }

    /// Reads a `traceparent` value as the context of the *caller*; `None` if it is malformed, in which case the
    /// standard asks for a new trace.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lower_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let shaped =
            lower_hex(version, 2) && lower_hex(trace, 32) && lower_hex(span, 16) && lower_hex(flags, 2);
        // Version 00 has exactly four parts; later ones may append more.
        if !shaped || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
        let span_id = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(Self {
            trace_id,
            span_id,
            parent_id: None,
            sampled,
        })
    }
}

/// The `traceparent` value that tells a callee about this hop.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id,
            self.span_id,
            u8::from(self.sampled)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_keeps_the_trace_and_names_its_parent() {
        let root = TraceContext::root(10, 20);
        let seen_by_callee = TraceContext::parse(&root.to_string()).expect("own format");
        let child = seen_by_callee.child(30);
        assert_eq!(
            (child.trace_id, child.span_id, child.parent_id),
            (10, 30, Some(20))
        );
    }

    #[test]
    fn malformed_values_are_refused() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(TraceContext::parse(good).is_some());
        assert!(
            TraceContext::parse("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some()
        );
        for bad in [
            "",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert!(TraceContext::parse(bad).is_none(), "{bad}");
        }
    }
}
