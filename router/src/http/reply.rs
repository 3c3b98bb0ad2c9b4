//! Responses and their headers.

use axum::{
    Json,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse as _, Response},
};

use crate::{error::RequestError, pipeline::Route};

const X_BATON_DECODE: HeaderName = HeaderName::from_static("x-baton-decode");
const X_BATON_PREFILL: HeaderName = HeaderName::from_static("x-baton-prefill");
const X_BATON_IGNORED: HeaderName = HeaderName::from_static("x-baton-ignored-fields");
/// Longest list of ignored fields: names come from clients.
const LONGEST_LIST: usize = 512;

/// OpenAI's error object with its status.
pub(super) fn error(error: &RequestError) -> Response {
    let status = error.status();
    let mut response = (status.http, Json(error.body())).into_response();
    if let Some(seconds) = status.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Names the workers that serve the request, as far as they are known.
pub(super) fn name_route(response: &mut Response, route: &Route) {
    for (name, worker) in [(X_BATON_DECODE, &route.decode), (X_BATON_PREFILL, &route.prefill)] {
        if let Some(value) = worker
            .as_deref()
            .and_then(|worker| HeaderValue::from_str(worker).ok())
        {
            response.headers_mut().insert(name, value);
        }
    }
}

/// Names the fields of the request that had no effect.
pub(super) fn name_ignored(response: &mut Response, fields: &[String]) {
    if fields.is_empty() {
        return;
    }
    let list: String = fields
        .join(", ")
        .chars()
        .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
        .take(LONGEST_LIST)
        .collect();
    if let Ok(value) = HeaderValue::from_str(&list) {
        response.headers_mut().insert(X_BATON_IGNORED, value);
    }
}
