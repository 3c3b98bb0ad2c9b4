//! Ranges of a request's fields, by the names that the APIs give them.

use std::collections::HashMap;

use baton_proto::v1::{Sampling, Stop};

use super::GenerateCall;
use crate::{error::RequestError, text::ModelText};

/// Stop strings that a request may name, and bytes of each: what is held back of a stream is bounded by the latter.
const MAX_STOP_STRINGS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
const MAX_STOP_TOKENS: usize = 128;
const MAX_LOGPROBS: u32 = 20;
const MAX_LOGIT_BIAS: usize = 1024;

/// A range of real numbers, as clients are told of it.
struct Range {
    low: f64,
    /// Whether `low` itself is allowed.
    closed: bool,
    high: f64,
}

const ZERO_TO_TWO: Range = Range {
    low: 0.0,
    closed: true,
    high: 2.0,
};
const ZERO_TO_ONE: Range = Range {
    low: 0.0,
    closed: true,
    high: 1.0,
};
const ABOVE_ZERO_TO_ONE: Range = Range {
    low: 0.0,
    closed: false,
    high: 1.0,
};
const ABOVE_ZERO_TO_TWO: Range = Range {
    low: 0.0,
    closed: false,
    high: 2.0,
};
const PENALTY: Range = Range {
    low: -2.0,
    closed: true,
    high: 2.0,
};
const BIAS: Range = Range {
    low: -100.0,
    closed: true,
    high: 100.0,
};

/// How many prompts and answers the configuration allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimits {
    pub(super) prompts: usize,
    pub(super) choices: u32,
}

/// Checks everything that can be checked without encoding. `random_seed` is used where the request names none.
pub(super) fn sampling(
    call: &GenerateCall,
    text: &ModelText,
    limits: CallLimits,
    random_seed: u64,
) -> Result<Sampling, RequestError> {
    let fields = &call.sampling;
    let defaults = text.defaults();
    if call.inputs.is_empty() {
        return Err(RequestError::field(
            call.input_field,
            "at least one prompt is needed",
        ));
    }
    if call.inputs.len() > limits.prompts {
        let message = format!(
            "{} prompts in one request; at most {} are allowed",
            call.inputs.len(),
            limits.prompts
        );
        return Err(RequestError::field(call.input_field, message));
    }
    if !(1..=limits.choices).contains(&call.choices) {
        let message = format!("n is {}; it must be from 1 to {}", call.choices, limits.choices);
        return Err(RequestError::field("n", message));
    }
    let greedy_model = defaults.do_sample == Some(false);
    let temperature = real("temperature", fields.temperature, &ZERO_TO_TWO)?
        .or(if greedy_model {
            Some(0.0)
        } else {
            defaults.temperature
        })
        .unwrap_or(1.0);
    let top_k = match fields.top_k {
        None => defaults.top_k.unwrap_or(0),
        Some(-1) => 0,
        Some(top_k) => u32::try_from(top_k).map_err(|_| {
            RequestError::field(
                "top_k",
                format!("top_k is {top_k}; it must be -1 or 0 for all tokens, or at least 1"),
            )
        })?,
    };
    if let Some(logprobs) = fields.logprobs.filter(|logprobs| *logprobs > MAX_LOGPROBS) {
        let message = format!("{logprobs} alternatives for each token; at most {MAX_LOGPROBS} are allowed");
        return Err(RequestError::field("logprobs", message));
    }
    known_ids(text, "allowed_token_ids", &fields.allowed_token_ids)?;
    Ok(Sampling {
        temperature,
        top_p: real("top_p", fields.top_p, &ABOVE_ZERO_TO_ONE)?.or(defaults.top_p),
        top_k,
        min_p: real("min_p", fields.min_p, &ZERO_TO_ONE)?
            .or(defaults.min_p)
            .unwrap_or(0.0),
        seed: fields.seed.unwrap_or(random_seed),
        presence_penalty: real("presence_penalty", fields.presence_penalty, &PENALTY)?.unwrap_or(0.0),
        frequency_penalty: real("frequency_penalty", fields.frequency_penalty, &PENALTY)?.unwrap_or(0.0),
        repetition_penalty: real(
            "repetition_penalty",
            fields.repetition_penalty,
            &ABOVE_ZERO_TO_TWO,
        )?
        .or(defaults.repetition_penalty),
        logit_bias: logit_bias(text, &fields.logit_bias)?,
        allowed_token_ids: fields.allowed_token_ids.clone(),
        bad_words: Vec::new(),
        logprobs: fields.logprobs,
        prompt_logprobs: None,
    })
}

/// When answers end; `max_tokens` is for the room that each prompt leaves, and set later.
pub(super) fn stop(call: &GenerateCall, text: &ModelText) -> Result<Stop, RequestError> {
    let stop = &call.stop;
    if stop.max_tokens == Some(0) {
        return Err(RequestError::field(
            "max_tokens",
            "max_tokens is 0; it must be at least 1",
        ));
    }
    let max_tokens = stop.max_tokens.or(call.default_max_tokens).unwrap_or(u32::MAX);
    if stop.min_tokens > max_tokens {
        let message = format!(
            "min_tokens is {}, more than max_tokens, which is {max_tokens}",
            stop.min_tokens
        );
        return Err(RequestError::field("min_tokens", message));
    }
    if stop.strings.len() > MAX_STOP_STRINGS {
        let message = format!(
            "{} stop strings; at most {MAX_STOP_STRINGS} are allowed",
            stop.strings.len()
        );
        return Err(RequestError::field("stop", message));
    }
    if stop.strings.iter().any(String::is_empty) {
        return Err(RequestError::field("stop", "a stop string is empty"));
    }
    if stop.strings.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        let message = format!("a stop string is longer than {MAX_STOP_BYTES} bytes");
        return Err(RequestError::field("stop", message));
    }
    if stop.token_ids.len() > MAX_STOP_TOKENS {
        let message = format!(
            "{} stop tokens; at most {MAX_STOP_TOKENS} are allowed",
            stop.token_ids.len()
        );
        return Err(RequestError::field("stop_token_ids", message));
    }
    known_ids(text, "stop_token_ids", &stop.token_ids)?;
    Ok(Stop {
        max_tokens,
        min_tokens: stop.min_tokens,
        stop_token_ids: stop.token_ids.clone(),
        eos_token_ids: text.eos_ids().to_vec(),
        ignore_eos: stop.ignore_eos,
    })
}

fn logit_bias(text: &ModelText, pairs: &[(u32, f64)]) -> Result<HashMap<u32, f32>, RequestError> {
    if pairs.len() > MAX_LOGIT_BIAS {
        let message = format!("{} entries; at most {MAX_LOGIT_BIAS} are allowed", pairs.len());
        return Err(RequestError::field("logit_bias", message));
    }
    let mut biases = HashMap::with_capacity(pairs.len());
    for (id, bias) in pairs {
        known_ids(text, "logit_bias", &[*id])?;
        if let Some(bias) = real("logit_bias", Some(*bias), &BIAS)? {
            biases.insert(*id, bias);
        }
    }
    Ok(biases)
}

fn known_ids(text: &ModelText, field: &'static str, ids: &[u32]) -> Result<(), RequestError> {
    text.check_ids(ids)
        .map_err(|error| RequestError::text(field, &error))
}

fn real(field: &'static str, value: Option<f64>, range: &Range) -> Result<Option<f32>, RequestError> {
    let Some(value) = value else { return Ok(None) };
    let above = if range.closed {
        value >= range.low
    } else {
        value > range.low
    };
    // Also refuses NaN, which gRPC can carry. What is above zero has to stay so in 32 bits.
    let rounded = value as f32;
    if above && value <= range.high && (range.closed || rounded > 0.0) {
        return Ok(Some(rounded));
    }
    let bound = if range.closed { "at least" } else { "above" };
    let message = format!(
        "{field} is {value}; it must be {bound} {} and at most {}",
        range.low, range.high
    );
    Err(RequestError::field(field, message))
}
