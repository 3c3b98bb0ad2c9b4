//! Requests from the wire in the engine's terms, and what makes one invalid.

use std::{collections::HashSet, sync::Arc, time::Duration};

use baton_engine::request::{ChoiceStart, StopRules};
use baton_kernels::sampling::SamplingParams;
use baton_proto::v1;

/// Longest request id, in bytes: it is repeated in every log line.
const MAX_ID_BYTES: usize = 256;
/// Most alternatives that can be reported beside a token.
const MAX_LOGPROBS: u32 = 20;

/// What `DecodeRequest` and `PrefillRequest` have in common, as it came.
#[derive(Clone, Debug, Default)]
pub struct RequestFields {
    pub request_id: String,
    pub model: String,
    pub prompt_ids: Vec<u32>,
    pub choices: Vec<v1::Choice>,
    pub sampling: Option<v1::Sampling>,
    pub stop: Option<v1::Stop>,
    pub cache_salt: String,
    pub adapter: String,
    pub deadline_ms: Option<u64>,
    pub priority: i32,
}

/// The same, checked and in the engine's types.
#[derive(Clone, Debug)]
pub struct CheckedFields {
    pub prompt: Arc<[u32]>,
    pub choices: Vec<ChoiceStart>,
    pub sampling: Arc<SamplingParams>,
    pub stop: StopRules,
    pub deadline: Option<Duration>,
}

/// What a worker can take.
#[derive(Clone, Copy, Debug)]
pub struct RequestBounds {
    pub vocab: u32,
    pub max_choices: u32,
}

/// A field that no worker could act on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Path in the message, as in `sampling.top_p`.
    pub field: String,
    pub problem: String,
}

impl RequestFields {
    /// # Errors
    /// [`InvalidField`] with the first field that cannot be.
    pub fn check(self, bounds: &RequestBounds) -> Result<CheckedFields, InvalidField> {
        if self.request_id.is_empty() || self.request_id.len() > MAX_ID_BYTES {
            return invalid("request_id", format!("1 to {MAX_ID_BYTES} bytes are needed"));
        }
        if self.prompt_ids.is_empty() {
            return invalid("prompt_ids", "at least one token is needed");
        }
        if !self.adapter.is_empty() {
            return invalid("adapter", format!("{:?} is not loaded here", self.adapter));
        }
        check_tokens("prompt_ids", &self.prompt_ids, bounds)?;
        let stop = self.stop.unwrap_or_default();
        let choices = check_choices(self.choices, stop.max_tokens, bounds)?;
        let mut stop_tokens = stop.stop_token_ids;
        check_tokens("stop.stop_token_ids", &stop_tokens, bounds)?;
        if !stop.ignore_eos {
            check_tokens("stop.eos_token_ids", &stop.eos_token_ids, bounds)?;
            stop_tokens.extend(stop.eos_token_ids);
        }
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        if stop.max_tokens == 0 {
            return invalid("stop.max_tokens", "at least 1 is needed");
        }
        if stop.min_tokens > stop.max_tokens {
            return invalid(
                "stop.min_tokens",
                format!("{} is more than max_tokens, {}", stop.min_tokens, stop.max_tokens),
            );
        }
        let sampling = SamplingParams {
            stop_tokens: stop_tokens.clone(),
            min_tokens: stop.min_tokens,
            ..check_sampling(self.sampling.unwrap_or_default(), bounds)?
        };
        Ok(CheckedFields {
            prompt: self.prompt_ids.into(),
            choices,
            sampling: Arc::new(sampling),
            stop: StopRules {
                max_tokens: stop.max_tokens,
                stop_tokens,
            },
            deadline: self.deadline_ms.map(Duration::from_millis),
        })
    }
}

fn check_choices(
    choices: Vec<v1::Choice>,
    max_tokens: u32,
    bounds: &RequestBounds,
) -> Result<Vec<ChoiceStart>, InvalidField> {
    if choices.is_empty() || choices.len() > bounds.max_choices as usize {
        return invalid(
            "choices",
            format!(
                "1 to {} are possible, found {}",
                bounds.max_choices,
                choices.len()
            ),
        );
    }
    let mut seen = HashSet::new();
    let mut checked = Vec::with_capacity(choices.len());
    for (position, choice) in choices.into_iter().enumerate() {
        if !seen.insert(choice.index) {
            return invalid(
                format!("choices[{position}].index"),
                format!("{} is there twice", choice.index),
            );
        }
        let field = format!("choices[{position}].emitted_ids");
        check_tokens(&field, &choice.emitted_ids, bounds)?;
        if max_tokens > 0 && choice.emitted_ids.len() >= max_tokens as usize {
            return invalid(
                field,
                format!("{} tokens leave none of max_tokens", choice.emitted_ids.len()),
            );
        }
        checked.push(ChoiceStart {
            index: choice.index,
            emitted: choice.emitted_ids,
        });
    }
    Ok(checked)
}

fn check_sampling(sampling: v1::Sampling, bounds: &RequestBounds) -> Result<SamplingParams, InvalidField> {
    let top_p = sampling.top_p.unwrap_or(1.0);
    let repetition_penalty = sampling.repetition_penalty.unwrap_or(1.0);
    // A comparison with NaN is false, so NaN fails every one of these.
    let ranges = [
        (
            "temperature",
            sampling.temperature,
            sampling.temperature >= 0.0,
            "0 or more",
        ),
        (
            "top_p",
            top_p,
            top_p > 0.0 && top_p <= 1.0,
            "above 0 and at most 1",
        ),
        (
            "min_p",
            sampling.min_p,
            (0.0..=1.0).contains(&sampling.min_p),
            "0 to 1",
        ),
        (
            "presence_penalty",
            sampling.presence_penalty,
            (-2.0..=2.0).contains(&sampling.presence_penalty),
            "-2 to 2",
        ),
        (
            "frequency_penalty",
            sampling.frequency_penalty,
            (-2.0..=2.0).contains(&sampling.frequency_penalty),
            "-2 to 2",
        ),
        (
            "repetition_penalty",
            repetition_penalty,
            repetition_penalty > 0.0,
            "above 0",
        ),
    ];
    for (name, value, holds, range) in ranges {
        if !holds || !value.is_finite() {
            return invalid(
                format!("sampling.{name}"),
                format!("{range} is possible, found {value}"),
            );
        }
    }
    if let Some(count) = sampling.logprobs.filter(|count| *count > MAX_LOGPROBS) {
        return invalid(
            "sampling.logprobs",
            format!("at most {MAX_LOGPROBS}, found {count}"),
        );
    }
    if sampling.prompt_logprobs.is_some() {
        return invalid("sampling.prompt_logprobs", "this worker does not compute them");
    }
    let mut logit_bias: Vec<(u32, f32)> = sampling.logit_bias.into_iter().collect();
    logit_bias.sort_unstable_by_key(|(token, _)| *token);
    for (token, bias) in &logit_bias {
        check_tokens("sampling.logit_bias", &[*token], bounds)?;
        if !(-100.0..=100.0).contains(bias) {
            return invalid(
                "sampling.logit_bias",
                format!("-100 to 100 is possible, found {bias}"),
            );
        }
    }
    check_tokens("sampling.allowed_token_ids", &sampling.allowed_token_ids, bounds)?;
    let bad_words: Vec<Vec<u32>> = sampling.bad_words.into_iter().map(|word| word.ids).collect();
    for word in &bad_words {
        if word.is_empty() {
            return invalid("sampling.bad_words", "an empty sequence forbids nothing");
        }
        check_tokens("sampling.bad_words", word, bounds)?;
    }
    Ok(SamplingParams {
        temperature: sampling.temperature,
        top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        seed: sampling.seed,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repetition_penalty,
        logit_bias,
        allowed_tokens: sampling.allowed_token_ids,
        bad_words,
        stop_tokens: Vec::new(),
        min_tokens: 0,
        logprobs: sampling.logprobs,
    })
}

fn check_tokens(field: &str, tokens: &[u32], bounds: &RequestBounds) -> Result<(), InvalidField> {
    match tokens.iter().find(|token| **token >= bounds.vocab) {
        None => Ok(()),
        Some(token) => invalid(
            field,
            format!("token {token} is outside of the vocabulary of {}", bounds.vocab),
        ),
    }
}

fn invalid<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, InvalidField> {
    Err(InvalidField {
        field: field.into(),
        problem: problem.into(),
    })
}

impl From<&v1::DecodeRequest> for RequestFields {
    fn from(request: &v1::DecodeRequest) -> Self {
        Self {
            request_id: request.request_id.clone(),
            model: request.model.clone(),
            prompt_ids: request.prompt_ids.clone(),
            choices: request.choices.clone(),
            sampling: request.sampling.clone(),
            stop: request.stop.clone(),
            cache_salt: request.cache_salt.clone(),
            adapter: request.adapter.clone(),
            deadline_ms: request.deadline_ms,
            priority: request.priority,
        }
    }
}

impl From<v1::PrefillRequest> for RequestFields {
    fn from(request: v1::PrefillRequest) -> Self {
        Self {
            request_id: request.request_id,
            model: request.model,
            prompt_ids: request.prompt_ids,
            choices: request.choices,
            sampling: request.sampling,
            stop: request.stop,
            cache_salt: request.cache_salt,
            adapter: request.adapter,
            deadline_ms: request.deadline_ms,
            priority: request.priority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: RequestBounds = RequestBounds {
        vocab: 100,
        max_choices: 4,
    };

    fn fields() -> RequestFields {
        RequestFields {
            request_id: "r".into(),
            prompt_ids: vec![1, 2, 3],
            choices: vec![v1::Choice::default()],
            sampling: Some(v1::Sampling::default()),
            stop: Some(v1::Stop {
                max_tokens: 8,
                min_tokens: 2,
                stop_token_ids: vec![9, 7],
                eos_token_ids: vec![7, 3],
                ignore_eos: false,
            }),
            ..RequestFields::default()
        }
    }

    #[test]
    fn stop_tokens_are_eos_and_the_clients_and_bind_sampling_before_min_tokens() {
        let checked = fields().check(&BOUNDS).expect("valid");
        assert_eq!(checked.stop.stop_tokens, [3, 7, 9]);
        assert_eq!(checked.sampling.stop_tokens, [3, 7, 9]);
        assert_eq!(checked.sampling.min_tokens, 2);
        let mut ignoring = fields();
        ignoring.stop.as_mut().expect("set above").ignore_eos = true;
        assert_eq!(ignoring.check(&BOUNDS).expect("valid").stop.stop_tokens, [7, 9]);
    }

    #[test]
    fn absent_sampling_fields_are_neutral() {
        let checked = fields().check(&BOUNDS).expect("valid");
        assert_eq!(
            (checked.sampling.top_p, checked.sampling.repetition_penalty),
            (1.0, 1.0)
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_the_name_of_its_field() {
        type Change = fn(&mut RequestFields);
        fn sampling(fields: &mut RequestFields) -> &mut v1::Sampling {
            fields.sampling.as_mut().expect("set by fields()")
        }
        fn stop(fields: &mut RequestFields) -> &mut v1::Stop {
            fields.stop.as_mut().expect("set by fields()")
        }
        let bad: [(&str, Change); 21] = [
            ("request_id", |f| f.request_id.clear()),
            ("prompt_ids", |f| f.prompt_ids.clear()),
            ("prompt_ids", |f| f.prompt_ids.push(100)),
            ("adapter", |f| f.adapter = "lora".into()),
            ("choices", |f| f.choices.clear()),
            ("choices", |f| f.choices = vec![v1::Choice::default(); 5]),
            ("choices[1].index", |f| f.choices = vec![v1::Choice::default(); 2]),
            ("choices[0].emitted_ids", |f| {
                f.choices[0].emitted_ids = vec![1; 8]
            }),
            ("choices[0].emitted_ids", |f| f.choices[0].emitted_ids = vec![100]),
            ("stop.max_tokens", |f| f.stop = None),
            ("stop.min_tokens", |f| stop(f).min_tokens = 9),
            ("stop.stop_token_ids", |f| stop(f).stop_token_ids = vec![100]),
            ("stop.eos_token_ids", |f| stop(f).eos_token_ids = vec![100]),
            ("sampling.temperature", |f| sampling(f).temperature = f32::NAN),
            ("sampling.top_p", |f| sampling(f).top_p = Some(0.0)),
            ("sampling.min_p", |f| sampling(f).min_p = 1.5),
            ("sampling.repetition_penalty", |f| {
                sampling(f).repetition_penalty = Some(f32::INFINITY)
            }),
            ("sampling.logprobs", |f| sampling(f).logprobs = Some(21)),
            ("sampling.prompt_logprobs", |f| {
                sampling(f).prompt_logprobs = Some(1)
            }),
            ("sampling.logit_bias", |f| {
                sampling(f).logit_bias.insert(1, 101.0);
            }),
            ("sampling.bad_words", |f| {
                sampling(f).bad_words.push(v1::TokenSequence::default())
            }),
        ];
        for (field, change) in bad {
            let mut fields = fields();
            change(&mut fields);
            assert_eq!(fields.check(&BOUNDS).expect_err(field).field, field);
        }
    }
}
