//! A request in the terms that HTTP and gRPC share, before and after its ranges are checked.

use std::time::Duration;

use baton_proto::v1::{FinishReason, TokenLogprobs};

use crate::text::{ChatMessage, ChatOptions};

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Raw text, in which special-token text is special. `add_special_tokens` lets the tokenizer add its BOS.
    Text {
        text: String,
        add_special_tokens: bool,
    },
    Tokens(Vec<u32>),
    Chat {
        messages: Vec<ChatMessage>,
        options: ChatOptions,
    },
}

/// How tokens are chosen; what is absent takes the model's `generation_config.json`, then the API's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingFields {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// -1 and 0 keep every token.
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    /// Any 64 bits; absent: random.
    pub seed: Option<u64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub logit_bias: Vec<(u32, f64)>,
    pub allowed_token_ids: Vec<u32>,
    /// Alternatives to report beside each token.
    pub logprobs: Option<u32>,
}

/// When answers end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StopFields {
    pub max_tokens: Option<u32>,
    pub min_tokens: u32,
    pub strings: Vec<String>,
    pub token_ids: Vec<u32>,
    pub ignore_eos: bool,
}

/// A request for one or more answers to each of one or more prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateCall {
    /// Empty: the one that is served.
    pub model: String,
    pub inputs: Vec<Input>,
    /// The field that held the prompts, for errors.
    pub input_field: &'static str,
    pub sampling: SamplingFields,
    pub stop: StopFields,
    /// What `max_tokens` is where it is absent; `None` fills the context.
    pub default_max_tokens: Option<u32>,
    /// Answers to each prompt.
    pub choices: u32,
    pub cache_salt: String,
    pub deadline: Option<Duration>,
    /// Lower runs first.
    pub priority: i32,
    pub skip_special_tokens: bool,
}

/// What happens to an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Delta(Delta),
    Finished(Finished),
}

/// The next piece of an answer's text and the tokens that completed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// Answers of the first prompt first: `prompt * choices + choice`.
    pub choice: u32,
    pub text: String,
    pub ids: Vec<u32>,
    /// Empty, or one for each id.
    pub logprobs: Vec<TokenLogprobs>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub choice: u32,
    pub reason: FinishReason,
    pub cause: Option<StopCause>,
    /// Tokens of the answer, with the one that ended it.
    pub tokens: u32,
}

/// What ended an answer that was not cut by its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    String(String),
    Token(u32),
}

/// Tokens of a whole request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
}

/// The workers that serve a request's first prompt, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    pub decode: Option<String>,
    pub prefill: Option<String>,
}
