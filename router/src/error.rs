//! Why the router does not start, and why a request does not succeed.

use std::{net::SocketAddr, time::Duration};

use baton_proto::InvalidConfig;

use crate::text::TextError;

/// Why the router does not start.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        addr: SocketAddr,
        source: std::io::Error,
    },
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("gRPC reflection: {0}")]
    Reflection(String),
    #[error("the thread that loads the model's text files failed: {0}")]
    Load(String),
}

/// Why a request does not succeed. How each is told to clients is in [`crate::status`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A field, or the body as a whole, is not acceptable.
    #[error("{message}")]
    Invalid {
        param: Option<String>,
        code: &'static str,
        message: String,
    },
    #[error(
        "This model's maximum context length is {limit} tokens. However, your prompt has {prompt} tokens, and at least one more is needed for the answer. Please reduce the length of the prompt."
    )]
    ContextLength {
        param: &'static str,
        limit: u32,
        prompt: usize,
    },
    #[error("The model {asked:?} does not exist. Served here: {served}.")]
    UnknownModel { asked: String, served: String },
    #[error("There is nothing at {method} {path}.")]
    UnknownPath { method: String, path: String },
    #[error("{path} does not take {method}.")]
    MethodNotAllowed { method: String, path: String },
    #[error("The body is longer than {limit} bytes, the limit of router.max_body_bytes.")]
    BodyTooLarge { limit: usize },
    #[error("The body did not arrive within {0:?}.")]
    BodyTimeout(Duration),
    #[error("The body's content type is {0:?}; only application/json is understood.")]
    MediaType(String),
    #[error("{limit} prompts are in work, as many as router.max_concurrent_requests allows. Retry later.")]
    Overloaded { limit: usize, retry_after: u64 },
    #[error("No worker serves {model} at the moment. Retry later.")]
    NoWorkers { model: String, retry_after: u64 },
    #[error("Every worker is at its limit ({detail}). Retry later.")]
    WorkersBusy { detail: String, retry_after: u64 },
    #[error("The request's deadline of {0:?} has passed.")]
    Deadline(Duration),
    #[error("The worker {worker_id} was lost: {detail}")]
    WorkerLost { worker_id: String, detail: String },
    #[error("The worker {worker_id} failed: {detail}")]
    WorkerFailed { worker_id: String, detail: String },
    /// The worker found something that the router could not know.
    #[error("{0}")]
    WorkerRefused(String),
    #[error("The server is shutting down.")]
    ShuttingDown { retry_after: u64 },
    #[error("Internal error: {0}")]
    Internal(String),
}

impl RequestError {
    /// A field whose value cannot be used.
    #[must_use]
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            param: Some(param.into()),
            code: "invalid_value",
            message: message.into(),
        }
    }

    /// What went wrong between text and tokens; `param` is the field that held the text.
    #[must_use]
    pub fn text(param: &'static str, error: &TextError) -> Self {
        if error.is_request() {
            Self::field(param, error.to_string())
        } else {
            Self::Internal(error.to_string())
        }
    }
}
