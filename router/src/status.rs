//! How each cause is told to HTTP and gRPC clients: the one place where statuses are chosen.

use axum::http::StatusCode;
use serde::Serialize;
use tonic::Code;

use crate::{error::RequestError, registry::JoinError};

/// A cause in the terms of both protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorStatus {
    pub http: StatusCode,
    pub grpc: Code,
    /// `type` of OpenAI's error object.
    pub kind: &'static str,
    /// `code` of OpenAI's error object, and the `kind` label of the metrics.
    pub code: &'static str,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u64>,
}

/// OpenAI's error object.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    pub error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
pub struct ErrorObject<'a> {
    pub message: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub param: Option<&'a str>,
    pub code: &'static str,
}

impl RequestError {
    #[must_use]
    pub fn status(&self) -> ErrorStatus {
        const REQUEST: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        const BUSY: &str = "overloaded_error";
        let (http, grpc, kind, code) = match self {
            Self::Invalid { code, .. } => (StatusCode::BAD_REQUEST, Code::InvalidArgument, REQUEST, *code),
            Self::ContextLength { .. } => (
                StatusCode::BAD_REQUEST,
                Code::InvalidArgument,
                REQUEST,
                "context_length_exceeded",
            ),
            Self::WorkerRefused(_) => (
                StatusCode::BAD_REQUEST,
                Code::InvalidArgument,
                REQUEST,
                "refused_by_worker",
            ),
            Self::UnknownModel { .. } => (StatusCode::NOT_FOUND, Code::NotFound, REQUEST, "model_not_found"),
            Self::UnknownPath { .. } => (StatusCode::NOT_FOUND, Code::Unimplemented, REQUEST, "not_found"),
            Self::MethodNotAllowed { .. } => (
                StatusCode::METHOD_NOT_ALLOWED,
                Code::Unimplemented,
                REQUEST,
                "method_not_allowed",
            ),
            Self::BodyTooLarge { .. } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                Code::InvalidArgument,
                REQUEST,
                "body_too_large",
            ),
            Self::BodyTimeout(_) => (
                StatusCode::REQUEST_TIMEOUT,
                Code::DeadlineExceeded,
                REQUEST,
                "body_timeout",
            ),
            Self::MediaType(_) => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Code::InvalidArgument,
                REQUEST,
                "unsupported_media_type",
            ),
            Self::Overloaded { .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                Code::ResourceExhausted,
                BUSY,
                "too_many_requests",
            ),
            Self::NoWorkers { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::Unavailable,
                BUSY,
                "no_workers",
            ),
            Self::WorkersBusy { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::ResourceExhausted,
                BUSY,
                "workers_busy",
            ),
            Self::ShuttingDown { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::Unavailable,
                BUSY,
                "shutting_down",
            ),
            Self::Deadline(_) => (
                StatusCode::GATEWAY_TIMEOUT,
                Code::DeadlineExceeded,
                SERVER,
                "deadline_exceeded",
            ),
            Self::WorkerLost { .. } => (
                StatusCode::BAD_GATEWAY,
                Code::Unavailable,
                SERVER,
                "upstream_worker_lost",
            ),
            Self::WorkerFailed { .. } => (
                StatusCode::BAD_GATEWAY,
                Code::Internal,
                SERVER,
                "upstream_worker_failed",
            ),
            Self::Internal(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                Code::Internal,
                SERVER,
                "internal_error",
            ),
        };
        let retry_after = match self {
            Self::Overloaded { retry_after, .. }
            | Self::NoWorkers { retry_after, .. }
            | Self::WorkersBusy { retry_after, .. }
            | Self::ShuttingDown { retry_after } => Some(*retry_after),
            _ => None,
        };
        ErrorStatus {
            http,
            grpc,
            kind,
            code,
            retry_after,
        }
    }

    /// The field of the request that is at fault.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::ContextLength { param, .. } => Some(param),
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    #[must_use]
    pub fn body(&self) -> ErrorBody<'_> {
        let status = self.status();
        ErrorBody {
            error: ErrorObject {
                message: self.to_string(),
                kind: status.kind,
                param: self.param(),
                code: status.code,
            },
        }
    }
}

impl From<&RequestError> for tonic::Status {
    fn from(error: &RequestError) -> Self {
        let message = match error.param() {
            Some(param) => format!("{param}: {error}"),
            None => error.to_string(),
        };
        Self::new(error.status().grpc, message)
    }
}

impl From<&JoinError> for tonic::Status {
    fn from(error: &JoinError) -> Self {
        let code = match error {
            JoinError::TooOld { .. } => Code::FailedPrecondition,
            JoinError::Incomplete(_) | JoinError::BadAddress { .. } => Code::InvalidArgument,
            JoinError::Superseded(_) => Code::AlreadyExists,
            JoinError::Full(_) => Code::ResourceExhausted,
        };
        Self::new(code, error.to_string())
    }
}
