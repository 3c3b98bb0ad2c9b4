//! The fields that completions and chat have in common.

use std::time::Duration;

use axum::http::HeaderMap;
use serde_json::Value;

use super::{
    fields::{self, Fields},
    unsupported,
};
use crate::{
    error::RequestError,
    pipeline::{GenerateCall, SamplingFields, StopFields},
};

/// Milliseconds that the client gives the request, less than the router's own limit.
const X_BATON_DEADLINE: &str = "x-baton-deadline-ms";

/// How the answer is to be delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// Everything but the prompts. `inputs` and what depends on the endpoint are for the caller to fill in.
pub(super) fn parse(
    fields: &mut Fields,
    headers: &HeaderMap,
    ignored: &mut Vec<String>,
) -> Result<(GenerateCall, Delivery), RequestError> {
    unsupported::check(fields)?;
    let delivery = delivery(fields, ignored)?;
    let max_tokens = match fields.integer("max_completion_tokens")? {
        Some(tokens) => {
            fields.take("max_tokens");
            Some(tokens)
        }
        None => fields.integer("max_tokens")?,
    };
    // `user` is for the operator's records and changes nothing.
    fields.text("user")?;
    let call = GenerateCall {
        model: fields.text("model")?.ok_or_else(|| fields::missing("model"))?,
        inputs: Vec::new(),
        input_field: "",
        sampling: SamplingFields {
            temperature: fields.number("temperature")?,
            top_p: fields.number("top_p")?,
            top_k: fields.integer("top_k")?,
            min_p: fields.number("min_p")?,
            seed: seed(fields)?,
            presence_penalty: fields.number("presence_penalty")?,
            frequency_penalty: fields.number("frequency_penalty")?,
            repetition_penalty: fields.number("repetition_penalty")?,
            logit_bias: logit_bias(fields)?,
            allowed_token_ids: fields.token_ids("allowed_token_ids")?.unwrap_or_default(),
            logprobs: None,
        },
        stop: StopFields {
            max_tokens,
            min_tokens: fields.integer("min_tokens")?.unwrap_or(0),
            strings: stop_strings(fields)?,
            token_ids: fields.token_ids("stop_token_ids")?.unwrap_or_default(),
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        },
        default_max_tokens: None,
        choices: fields.integer("n")?.unwrap_or(1),
        cache_salt: fields.text("cache_salt")?.unwrap_or_default(),
        deadline: deadline(headers)?,
        priority: fields.integer("priority")?.unwrap_or(0),
        skip_special_tokens: fields.boolean("skip_special_tokens")?.unwrap_or(true),
    };
    Ok((call, delivery))
}

fn delivery(fields: &mut Fields, ignored: &mut Vec<String>) -> Result<Delivery, RequestError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = match fields.take("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(RequestError::field(
                "stream_options",
                "stream_options is only allowed when stream is true",
            ));
        }
        Some(value) => {
            let mut options = Fields::at("stream_options", value)?;
            let include_usage = options.boolean("include_usage")?.unwrap_or(false);
            ignored.extend(options.ignored());
            include_usage
        }
    };
    Ok(Delivery {
        stream,
        include_usage,
    })
}

/// Any 64 bits, signed or not.
fn seed(fields: &mut Fields) -> Result<Option<u64>, RequestError> {
    let Some(seed) = fields.integer::<i128>("seed")? else {
        return Ok(None);
    };
    let bits = i64::try_from(seed)
        .map(i64::cast_unsigned)
        .or_else(|_| u64::try_from(seed));
    bits.map(Some)
        .map_err(|_| RequestError::field("seed", "seed must fit into 64 bits"))
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, RequestError> {
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop]),
        Some(Value::Array(stops)) => (0..)
            .zip(stops)
            .map(|(index, stop): (usize, _)| match stop {
                Value::String(stop) => Ok(stop),
                other => Err(fields::wrong_type(&format!("stop[{index}]"), "a string", &other)),
            })
            .collect(),
        Some(other) => Err(fields::wrong_type(
            "stop",
            "a string or an array of strings",
            &other,
        )),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f64)>, RequestError> {
    let pairs = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(pairs)) => pairs,
        Some(other) => return Err(fields::wrong_type("logit_bias", "an object", &other)),
    };
    pairs
        .into_iter()
        .map(|(id, bias)| {
            let token = id.parse().map_err(|_| {
                RequestError::field(
                    "logit_bias",
                    format!("the keys of logit_bias are token ids, and {id:?} is none"),
                )
            })?;
            let path = format!("logit_bias.{id}");
            Ok((
                token,
                bias.as_f64()
                    .ok_or_else(|| fields::wrong_type(&path, "a number", &bias))?,
            ))
        })
        .collect()
}

fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, RequestError> {
    let Some(value) = headers.get(X_BATON_DEADLINE) else {
        return Ok(None);
    };
    let milliseconds = value
        .to_str()
        .ok()
        .and_then(|text| text.parse::<u64>().ok())
        .filter(|value| *value > 0);
    match milliseconds {
        Some(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        None => Err(RequestError::field(
            X_BATON_DEADLINE,
            format!("{X_BATON_DEADLINE} must be milliseconds, at least 1"),
        )),
    }
}
