//! Which failures callers see as which gRPC status: the one place.
//!
//! INVALID_ARGUMENT and NOT_FOUND are final; RESOURCE_EXHAUSTED and UNAVAILABLE ask for another worker; ABORTED says
//! that a hand-off broke and may be tried again.

use baton_engine::request::RequestError;
use tonic::{Code, Status, metadata::MetadataValue};

use crate::request::InvalidField;

/// Metadata key of the detail that comes with a refusal, as JSON: `kind`, `message` and, where one is to blame, `field`.
pub const ERROR_DETAIL: &str = "baton-error";

/// Why a request is not, or no longer, served.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    #[error("model {asked:?} is not served here; this worker serves {served:?}")]
    UnknownModel { asked: String, served: String },
    #[error("{limit} requests are open, which is worker.max_requests; try another worker or later")]
    AtLimit { limit: u32 },
    #[error(transparent)]
    Engine(#[from] RequestError),
    #[error("the hand-off failed: {0}")]
    Handoff(String),
    #[error("the deadline passed")]
    Deadline,
    #[error("{0}")]
    Internal(&'static str),
}

impl ServeError {
    /// The refusal of a worker that is going down.
    #[must_use]
    pub fn draining() -> Self {
        Self::Engine(RequestError::Draining)
    }

    /// Short name in metrics and in the JSON detail.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::UnknownModel { .. } => "unknown_model",
            Self::AtLimit { .. } => "at_limit",
            Self::Engine(error) => engine_kind(error).0,
            Self::Handoff(_) => "handoff_failed",
            Self::Deadline => "deadline",
            Self::Internal(_) => "internal",
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::UnknownModel { .. } => Code::NotFound,
            Self::AtLimit { .. } => Code::ResourceExhausted,
            Self::Engine(error) => engine_kind(error).1,
            Self::Handoff(_) => Code::Aborted,
            Self::Deadline => Code::DeadlineExceeded,
            Self::Internal(_) => Code::Internal,
        }
    }

    fn field(&self) -> Option<&str> {
        match self {
            Self::Invalid(invalid) => Some(&invalid.field),
            _ => None,
        }
    }
}

/// Name and status of each of the engine's reasons.
fn engine_kind(error: &RequestError) -> (&'static str, Code) {
    match error {
        // The same on every worker of this model and configuration.
        RequestError::TooLong { .. } => ("too_long", Code::InvalidArgument),
        RequestError::NeverFits { .. } => ("never_fits", Code::InvalidArgument),
        RequestError::TokenOutOfRange { .. } => ("token_out_of_range", Code::InvalidArgument),
        RequestError::Invalid(_) => ("invalid", Code::InvalidArgument),
        // Another worker may have room.
        RequestError::QueueFull { .. } => ("queue_full", Code::ResourceExhausted),
        // Another worker will do it.
        RequestError::Draining => ("draining", Code::Unavailable),
        RequestError::EngineStopped(_) => ("engine_stopped", Code::Unavailable),
    }
}

impl From<&ServeError> for Status {
    fn from(error: &ServeError) -> Self {
        let mut status = Status::new(error.code(), error.to_string());
        let detail = serde_json::json!({
            "kind": error.kind(),
            "message": error.to_string(),
            "field": error.field(),
        });
        if let Ok(value) = MetadataValue::try_from(ascii_json(&detail.to_string())) {
            status.metadata_mut().insert(ERROR_DETAIL, value);
        }
        status
    }
}

impl From<ServeError> for Status {
    fn from(error: ServeError) -> Self {
        Self::from(&error)
    }
}

/// Metadata is ASCII; JSON can say everything in ASCII.
fn ascii_json(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for character in json.chars() {
        if (' '..='~').contains(&character) {
            ascii.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_status() {
        let cases = [
            (
                ServeError::Engine(RequestError::TooLong {
                    prompt: 9,
                    context: 8,
                }),
                Code::InvalidArgument,
            ),
            (
                ServeError::Engine(RequestError::NeverFits { needed: 9, total: 8 }),
                Code::InvalidArgument,
            ),
            (
                ServeError::Engine(RequestError::QueueFull { waiting: 1 }),
                Code::ResourceExhausted,
            ),
            (ServeError::AtLimit { limit: 1 }, Code::ResourceExhausted),
            (ServeError::draining(), Code::Unavailable),
            (
                ServeError::Engine(RequestError::EngineStopped("x".into())),
                Code::Unavailable,
            ),
            (ServeError::Handoff("x".into()), Code::Aborted),
            (ServeError::Deadline, Code::DeadlineExceeded),
        ];
        for (error, code) in cases {
            assert_eq!(Status::from(&error).code(), code, "{error}");
        }
    }

    #[test]
    fn the_detail_names_the_field_and_survives_any_text() {
        let status = Status::from(ServeError::Invalid(InvalidField {
            field: "adapter".into(),
            problem: "\"zażółć 𝕏\" is not loaded".into(),
        }));
        let detail = status.metadata().get(ERROR_DETAIL).expect("a detail");
        let detail: serde_json::Value = serde_json::from_str(detail.to_str().expect("ascii")).expect("json");
        assert_eq!(detail["field"], "adapter");
        assert!(
            detail["message"]
                .as_str()
                .is_some_and(|text| text.contains("zażółć 𝕏"))
        );
    }
}
