//! `Inference.Generate`: what the HTTP endpoints do, for gRPC clients.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_stream::stream;
use baton_proto::{
    trace_context::TRACEPARENT,
    v1::{
        ChatInput, ChoiceFinished, GenerateEvent, GenerateRequest, TextDelta, Usage as UsageMessage,
        generate_event::Event as Told, generate_request::Input as Asked, inference_server::Inference,
    },
};
use futures::Stream;
use tonic::{Request, Response, Status};

use crate::{
    error::RequestError,
    pipeline::{
        Event, GenerateCall, Generation, Input, Pipeline, RequestContext, SamplingFields, StopFields, Usage,
    },
    text::{ChatMessage, ChatOptions},
};

const ENDPOINT: &str = "grpc_generate";

#[derive(Debug)]
pub(crate) struct InferenceService {
    pipeline: Arc<Pipeline>,
}

impl InferenceService {
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline }
    }
}

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<GenerateEvent, Status>> + Send>>;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let text = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let mut context = RequestContext::new(
            &self.pipeline.metrics,
            ENDPOINT,
            text("x-request-id"),
            text(TRACEPARENT),
        );
        let call = match call(request.into_inner()) {
            Ok(call) => call,
            Err(error) => {
                context.fail(&error);
                return Err((&error).into());
            }
        };
        let generation = self
            .pipeline
            .start(call, context)
            .await
            .map_err(|error| Status::from(&error))?;
        Ok(Response::new(Box::pin(events(generation))))
    }
}

fn events(mut generation: Generation) -> impl Stream<Item = Result<GenerateEvent, Status>> + Send {
    stream! {
        let request_id = generation.request_id().to_owned();
        let told = |event| GenerateEvent { request_id: request_id.clone(), event: Some(event) };
        while let Some(event) = generation.next().await {
            match event {
                Ok(Event::Delta(delta)) => yield Ok(told(Told::Delta(TextDelta {
                    choice: delta.choice,
                    text: delta.text,
                    ids: delta.ids,
                }))),
                Ok(Event::Finished(finished)) => yield Ok(told(Told::Finished(ChoiceFinished {
                    choice: finished.choice,
                    reason: finished.reason.into(),
                }))),
                Err(error) => {
                    yield Err(Status::from(&error));
                    return;
                }
            }
        }
        yield Ok(told(Told::Usage(usage(generation.usage()))));
    }
}

fn call(request: GenerateRequest) -> Result<GenerateCall, RequestError> {
    let (input, input_field) = match request.input {
        None => {
            return Err(RequestError::field(
                "input",
                "one of text, tokens and chat is needed",
            ));
        }
        Some(Asked::Text(text)) => {
            let input = Input::Text {
                text,
                add_special_tokens: true,
            };
            (input, "text")
        }
        Some(Asked::Tokens(tokens)) => (Input::Tokens(tokens.ids), "tokens"),
        Some(Asked::Chat(chat)) => (messages(chat)?, "chat"),
    };
    Ok(GenerateCall {
        model: request.model,
        inputs: vec![input],
        input_field,
        sampling: SamplingFields {
            temperature: request.temperature.map(f64::from),
            top_p: request.top_p.map(f64::from),
            top_k: request.top_k.map(i64::from),
            min_p: request.min_p.map(f64::from),
            seed: request.seed,
            ..SamplingFields::default()
        },
        stop: StopFields {
            max_tokens: request.max_tokens,
            min_tokens: 0,
            strings: request.stop,
            token_ids: request.stop_token_ids,
            ignore_eos: request.ignore_eos,
        },
        default_max_tokens: None,
        choices: request.n.unwrap_or(1),
        cache_salt: request.cache_salt,
        deadline: request.deadline_ms.map(Duration::from_millis),
        priority: request.priority,
        skip_special_tokens: true,
    })
}

fn messages(chat: ChatInput) -> Result<Input, RequestError> {
    if chat.messages.is_empty() {
        return Err(RequestError::field("chat", "at least one message is needed"));
    }
    let message = |(index, message): (usize, baton_proto::v1::ChatMessage)| match message.role.as_str() {
        "system" | "user" | "assistant" => Ok(ChatMessage::new(message.role, message.content)),
        "developer" => Ok(ChatMessage::new("system", message.content)),
        other => {
            let path = format!("chat.messages[{index}].role");
            let text = format!("{path} is {other:?}; supported are system, developer, user and assistant");
            Err(RequestError::field(path, text))
        }
    };
    Ok(Input::Chat {
        messages: chat
            .messages
            .into_iter()
            .enumerate()
            .map(message)
            .collect::<Result<_, _>>()?,
        options: ChatOptions::default(),
    })
}

fn usage(usage: Usage) -> UsageMessage {
    UsageMessage {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.cached_tokens,
    }
}
