//! A client library that others wrote, for what a stream's shape has to be.

use async_openai::{
    Client,
    config::OpenAIConfig,
    error::OpenAIError,
    types::{
        chat::{
            ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequest,
            CreateChatCompletionRequestArgs, FinishReason,
        },
        completions::CreateCompletionRequestArgs,
    },
};
use futures::StreamExt as _;
use tonic::Status;

use crate::{
    fleet::{Fleet, ids, says, script},
    worker::{FakeWorker, Step, tokens},
};

fn client(fleet: &Fleet) -> Client<OpenAIConfig> {
    Client::with_config(
        OpenAIConfig::new()
            .with_api_base(fleet.url("/v1"))
            .with_api_key("none"),
    )
}

fn chat(model: &str) -> CreateChatCompletionRequest {
    let message = ChatCompletionRequestUserMessageArgs::default()
        .content("hi")
        .build()
        .expect("complete");
    CreateChatCompletionRequestArgs::default()
        .model(model)
        .messages([message.into()])
        .build()
        .expect("complete")
}

#[tokio::test]
async fn chat_whole_and_streamed() {
    let fleet = Fleet::start().await;
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says("Hello there")).await;
    let client = client(&fleet);
    let whole = client.chat().create(chat("tiny")).await.expect("succeeds");
    assert_eq!(whole.choices[0].message.content.as_deref(), Some("Hello there"));
    assert!(whole.usage.expect("usage").completion_tokens > 0);

    let mut stream = client.chat().create_stream(chat("tiny")).await.expect("begins");
    let (mut text, mut reason) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        for choice in chunk.expect("a chunk").choices {
            text.push_str(choice.delta.content.as_deref().unwrap_or_default());
            reason = reason.or(choice.finish_reason);
        }
    }
    assert_eq!((text.as_str(), reason), ("Hello there", Some(FinishReason::Stop)));
    fleet.stop().await;
}

#[tokio::test]
async fn completions_whole_and_streamed() {
    let fleet = Fleet::start().await;
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says(" upon a time")).await;
    let client = client(&fleet);
    let request = CreateCompletionRequestArgs::default()
        .model("tiny")
        .prompt("once")
        .build()
        .expect("complete");
    let whole = client
        .completions()
        .create(request.clone())
        .await
        .expect("succeeds");
    assert_eq!(whole.choices[0].text, " upon a time");
    let mut stream = client.completions().create_stream(request).await.expect("begins");
    let mut text = String::new();
    while let Some(chunk) = stream.next().await {
        text.extend(
            chunk
                .expect("a chunk")
                .choices
                .into_iter()
                .map(|choice| choice.text),
        );
    }
    assert_eq!(text, " upon a time");
    fleet.stop().await;
}

#[tokio::test]
async fn failures_are_raised() {
    let fleet = Fleet::start().await;
    let _worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let ids = ids("half");
        script(move |_| vec![tokens(0, &ids), Step::Fail(Status::internal("broken"))])
    })
    .await;
    let client = client(&fleet);
    let unknown = client
        .chat()
        .create(chat("other"))
        .await
        .expect_err("no such model");
    let OpenAIError::ApiError(error) = unknown else {
        panic!("not an API error: {unknown:?}")
    };
    let told = format!("{error:?}");
    assert!(
        told.contains("model_not_found") && told.contains("tiny"),
        "{told}"
    );

    let mut stream = client.chat().create_stream(chat("tiny")).await.expect("begins");
    let mut raised = None;
    while let Some(chunk) = stream.next().await {
        if let Err(error) = chunk {
            raised = Some(error.to_string());
            break;
        }
    }
    let raised = raised.expect("the error event is raised");
    assert!(
        raised.contains("upstream_worker_failed") || raised.contains("broken"),
        "{raised}"
    );
    fleet.stop().await;
}
