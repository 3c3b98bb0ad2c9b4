//! Delivers a generation, whole or as server-sent events.

use std::{convert::Infallible, time::Duration};

use async_stream::stream;
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use futures::Stream;
use tokio::time::timeout;

use super::{reply, shape::Shape};
use crate::{
    error::RequestError,
    pipeline::{Event, Generation},
};

const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// Everything in one body.
pub(super) async fn whole(mut generation: Generation, mut shape: Shape) -> Response {
    while let Some(event) = generation.next().await {
        match event {
            Ok(event) => shape.collect(event),
            Err(error) => return reply::error(&error),
        }
    }
    let json = HeaderValue::from_static("application/json");
    let mut response = ([(header::CONTENT_TYPE, json)], shape.whole(generation.usage())).into_response();
    reply::name_route(&mut response, &generation.route());
    response
}

/// A chunk for each event. The response begins with the first event, so that a failure before it has a status of its own
/// and the headers can name the workers; or with the first keep-alive comment, if that comes earlier.
pub(super) async fn events(mut generation: Generation, shape: Shape, keep_alive: Duration) -> Response {
    let first = match timeout(keep_alive, generation.next()).await {
        Ok(Some(Err(error))) => return reply::error(&error),
        Ok(first) => First::Event(first),
        Err(_) => First::Nothing,
    };
    let route = generation.route();
    let mut response = Body::from_stream(body(generation, shape, keep_alive, first)).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Tells nginx not to collect the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply::name_route(&mut response, &route);
    response
}

/// What came before the response began.
enum First {
    Event(Option<Result<Event, RequestError>>),
    Nothing,
}

fn body(
    mut generation: Generation,
    mut shape: Shape,
    keep_alive: Duration,
    first: First,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream! {
        let mut next = match first {
            First::Event(event) => Some(event),
            First::Nothing => {
                yield Ok(KEEP_ALIVE);
                None
            }
        };
        loop {
            let event = match next.take() {
                Some(event) => event,
                None => match timeout(keep_alive, generation.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        yield Ok(KEEP_ALIVE);
                        continue;
                    }
                },
            };
            match event {
                Some(Ok(event)) => {
                    for chunk in shape.chunks(event) {
                        yield Ok(data(&chunk));
                    }
                }
                // Clients raise what they find under `error`; without [DONE] nobody takes the answer for complete.
                Some(Err(error)) => {
                    let body = serde_json::to_string(&error.body()).unwrap_or_default();
                    yield Ok(data(&body));
                    return;
                }
                None => break,
            }
        }
        if let Some(chunk) = shape.usage_chunk(generation.usage()) {
            yield Ok(data(&chunk));
        }
        yield Ok(DONE);
    }
}

fn data(json: &str) -> Bytes {
    Bytes::from(format!("data: {json}\n\n"))
}
