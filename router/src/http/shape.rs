//! Events of the pipeline in the shapes of the two endpoints, whole or in chunks.

use std::{sync::Arc, time::SystemTime};

use baton_proto::v1::{FinishReason, TokenLogprobs};
use serde::Serialize;

use super::{
    logprobs,
    wire::{
        ChatAnswer, ChatChoice, ChatChunkChoice, ChatDelta, CompletionChoice, Envelope, PromptDetails,
        StopReason, UsageBody,
    },
};
use crate::{
    pipeline::{Delta, Event, Finished, StopCause, Usage},
    text::ModelText,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Completions,
    Chat,
}

/// One response.
#[derive(Debug)]
pub(super) struct Shape {
    dialect: Dialect,
    id: String,
    created: u64,
    model: String,
    text: Arc<ModelText>,
    include_usage: bool,
    with_logprobs: bool,
    answers: Vec<AnswerShape>,
}

#[derive(Debug, Default)]
struct AnswerShape {
    /// Whether the chunk that names the role has been sent.
    opened: bool,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    /// Characters of the tokens so far.
    offset: usize,
    finished: Option<Finished>,
}

/// What a response needs to know beside its events.
pub(super) struct ShapeSettings {
    pub(super) dialect: Dialect,
    pub(super) request_id: String,
    pub(super) model: String,
    pub(super) text: Arc<ModelText>,
    pub(super) include_usage: bool,
    pub(super) with_logprobs: bool,
    /// To all prompts together.
    pub(super) answers: usize,
}

impl Shape {
    pub(super) fn new(settings: ShapeSettings) -> Self {
        let prefix = match settings.dialect {
            Dialect::Completions => "cmpl",
            Dialect::Chat => "chatcmpl",
        };
        let created = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Self {
            dialect: settings.dialect,
            id: format!("{prefix}-{}", settings.request_id),
            created,
            model: settings.model,
            text: settings.text,
            include_usage: settings.include_usage,
            with_logprobs: settings.with_logprobs,
            answers: (0..settings.answers).map(|_| AnswerShape::default()).collect(),
        }
    }

    /// The chunks that tell `event`, as JSON.
    pub(super) fn chunks(&mut self, event: Event) -> Vec<String> {
        let choice = match &event {
            Event::Delta(delta) => delta.choice,
            Event::Finished(finished) => finished.choice,
        };
        let mut chunks = Vec::new();
        // An answer may end with tokens that show nothing, as those of a stop string.
        if let Event::Delta(delta) = &event
            && delta.text.is_empty()
            && !self.with_logprobs
        {
            return chunks;
        }
        if self.dialect == Dialect::Chat && self.opens(choice) {
            let role = ChatDelta {
                role: Some("assistant"),
                content: Some(String::new()),
            };
            chunks.push(self.chat_chunk(choice, role, &[], None));
        }
        chunks.push(match (self.dialect, event) {
            (Dialect::Chat, Event::Delta(delta)) => {
                let content = ChatDelta {
                    role: None,
                    content: Some(delta.text),
                };
                self.chat_chunk(choice, content, &delta.logprobs, None)
            }
            (Dialect::Chat, Event::Finished(finished)) => {
                self.chat_chunk(choice, ChatDelta::default(), &[], Some(finished))
            }
            (Dialect::Completions, Event::Delta(delta)) => self.completion_chunk(delta),
            (Dialect::Completions, Event::Finished(finished)) => {
                let (finish_reason, stop_reason) = reasons(Some(finished));
                self.chunk(CompletionChoice {
                    index: choice,
                    text: String::new(),
                    logprobs: None,
                    finish_reason,
                    stop_reason,
                })
            }
        });
        chunks
    }

    /// The chunk that ends a stream whose client asked for its usage.
    pub(super) fn usage_chunk(&self, usage: Usage) -> Option<String> {
        self.include_usage
            .then(|| json(&self.envelope::<()>(self.chunk_object(), Vec::new(), Some(Some(body(usage))))))
    }

    /// Collects an event for a whole response.
    pub(super) fn collect(&mut self, event: Event) {
        match event {
            Event::Delta(delta) => {
                if let Some(answer) = self.answers.get_mut(delta.choice as usize) {
                    answer.text.push_str(&delta.text);
                    answer.logprobs.extend(delta.logprobs);
                }
            }
            Event::Finished(finished) => {
                if let Some(answer) = self.answers.get_mut(finished.choice as usize) {
                    answer.finished = Some(finished);
                }
            }
        }
    }

    /// What was collected, as JSON.
    pub(super) fn whole(mut self, usage: Usage) -> String {
        let answers = std::mem::take(&mut self.answers);
        let usage = Some(Some(body(usage)));
        match self.dialect {
            Dialect::Chat => {
                let choices = (0..).zip(answers).map(|(index, answer)| {
                    let (finish_reason, stop_reason) = reasons(answer.finished);
                    ChatChoice {
                        index,
                        message: ChatAnswer {
                            role: "assistant",
                            content: answer.text,
                            refusal: None,
                        },
                        logprobs: self
                            .with_logprobs
                            .then(|| logprobs::chat(&self.text, &answer.logprobs)),
                        finish_reason,
                        stop_reason,
                    }
                });
                json(&self.envelope("chat.completion", choices.collect(), usage))
            }
            Dialect::Completions => {
                let choices = (0..).zip(answers).map(|(index, answer)| {
                    let (finish_reason, stop_reason) = reasons(answer.finished);
                    CompletionChoice {
                        index,
                        text: answer.text,
                        logprobs: self
                            .with_logprobs
                            .then(|| logprobs::completion(&self.text, &answer.logprobs, &mut 0)),
                        finish_reason,
                        stop_reason,
                    }
                });
                json(&self.envelope("text_completion", choices.collect(), usage))
            }
        }
    }

    fn opens(&mut self, choice: u32) -> bool {
        match self.answers.get_mut(choice as usize) {
            Some(answer) => !std::mem::replace(&mut answer.opened, true),
            None => false,
        }
    }

    fn chat_chunk(
        &self,
        index: u32,
        delta: ChatDelta,
        token_logprobs: &[TokenLogprobs],
        finished: Option<Finished>,
    ) -> String {
        let (finish_reason, stop_reason) = reasons(finished);
        let shown = self.with_logprobs && !token_logprobs.is_empty();
        self.chunk(ChatChunkChoice {
            index,
            delta,
            logprobs: shown.then(|| logprobs::chat(&self.text, token_logprobs)),
            finish_reason,
            stop_reason,
        })
    }

    fn completion_chunk(&mut self, delta: Delta) -> String {
        let mut shown = None;
        if self.with_logprobs
            && let Some(answer) = self.answers.get_mut(delta.choice as usize)
        {
            shown = Some(logprobs::completion(
                &self.text,
                &delta.logprobs,
                &mut answer.offset,
            ));
        }
        self.chunk(CompletionChoice {
            index: delta.choice,
            text: delta.text,
            logprobs: shown,
            finish_reason: None,
            stop_reason: None,
        })
    }

    fn chunk<C: Serialize>(&self, choice: C) -> String {
        json(&self.envelope(
            self.chunk_object(),
            vec![choice],
            self.include_usage.then_some(None),
        ))
    }

    fn envelope<C>(
        &self,
        object: &'static str,
        choices: Vec<C>,
        usage: Option<Option<UsageBody>>,
    ) -> Envelope<'_, C> {
        Envelope {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        }
    }

    fn chunk_object(&self) -> &'static str {
        match self.dialect {
            Dialect::Completions => "text_completion",
            Dialect::Chat => "chat.completion.chunk",
        }
    }
}

fn reasons(finished: Option<Finished>) -> (Option<&'static str>, Option<StopReason>) {
    let Some(finished) = finished else {
        return (None, None);
    };
    let reason = match finished.reason {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Unspecified | FinishReason::Deadline => "stop",
    };
    let cause = finished.cause.map(|cause| match cause {
        StopCause::String(stop) => StopReason::String(stop),
        StopCause::Token(id) => StopReason::Token(id),
    });
    (Some(reason), cause)
}

fn body(usage: Usage) -> UsageBody {
    UsageBody {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
        prompt_tokens_details: PromptDetails {
            cached_tokens: usage.cached_tokens,
        },
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs with string keys have a JSON form")
}
