//! The gRPC port: generation, the registry, health and reflection.

use baton_proto::v1::{
    ChatInput, ChatMessage, FinishReason, GenerateRequest, TokenSequence, WorkerHello, WorkerLeaving,
    WorkerLoad, WorkerReport, WorkerRole, generate_event::Event, generate_request::Input,
    inference_client::InferenceClient, registry_client::RegistryClient, worker_report::Report,
};
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Endpoint};

use crate::{
    fleet::{Fleet, ids, says, script},
    worker::{FakeWorker, Step, hello, tokens},
};

async fn generate(fleet: &Fleet, request: GenerateRequest) -> Result<Vec<Event>, Status> {
    let mut client = InferenceClient::connect(format!("http://{}", fleet.router.grpc_addr))
        .await
        .expect("listens");
    let mut stream = client.generate(request).await?.into_inner();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event?.event.expect("an event"));
    }
    Ok(events)
}

fn chat(words: &str) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Chat(ChatInput {
            messages: vec![ChatMessage {
                role: "user".into(),
                content: words.into(),
            }],
        })),
        ..Default::default()
    }
}

#[tokio::test]
async fn generate_does_what_http_does() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", says("one two three")).await;
    let request = GenerateRequest {
        stop: vec![" three".into()],
        seed: Some(4),
        n: Some(2),
        ..chat("hi")
    };
    let events = generate(&fleet, request).await.expect("succeeds");
    for choice in 0..2 {
        let text: String = events
            .iter()
            .filter_map(|event| match event {
                Event::Delta(delta) if delta.choice == choice => Some(delta.text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(text, "one two");
    }
    let stopped =
        |event: &&Event| matches!(event, Event::Finished(end) if end.reason() == FinishReason::Stop);
    assert_eq!(events.iter().filter(stopped).count(), 2);
    let Some(Event::Usage(usage)) = events.last() else {
        panic!("no usage at the end: {events:?}")
    };
    let sent = worker.seen.request(0).await;
    assert_eq!(
        (usage.prompt_tokens as usize, usage.cached_tokens),
        (sent.prompt_ids.len(), 3)
    );
    assert_eq!(sent.sampling.expect("sent").seed, 4);

    let tokens = GenerateRequest {
        input: Some(Input::Tokens(TokenSequence { ids: vec![8, 9] })),
        ..Default::default()
    };
    generate(&fleet, tokens).await.expect("succeeds");
    assert_eq!(worker.seen.request(1).await.prompt_ids, [8, 9]);
    fleet.stop().await;
}

#[tokio::test]
async fn errors_have_grpc_codes() {
    let fleet = Fleet::start().await;
    let code = async |request| generate(&fleet, request).await.expect_err("fails");
    assert_eq!(code(chat("hi")).await.code(), Code::Unavailable);
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let ids = ids("half");
        script(move |_| vec![tokens(0, &ids), Step::Fail(Status::internal("broken"))])
    })
    .await;
    let bad = |change: fn(&mut GenerateRequest)| {
        let mut request = chat("hi");
        change(&mut request);
        request
    };
    let named = code(bad(|request| request.temperature = Some(f32::NAN))).await;
    assert_eq!(named.code(), Code::InvalidArgument);
    assert!(named.message().starts_with("temperature"), "{named}");
    assert_eq!(
        code(bad(|request| request.input = None)).await.code(),
        Code::InvalidArgument
    );
    assert_eq!(
        code(bad(|request| request.model = "other".into())).await.code(),
        Code::NotFound
    );
    assert_eq!(
        code(bad(|request| request.deadline_ms = Some(0))).await.code(),
        Code::DeadlineExceeded
    );
    assert_eq!(worker.seen.count(), 0);
    assert_eq!(code(chat("hi")).await.code(), Code::Internal);
    fleet.stop().await;
}

#[tokio::test]
async fn a_client_that_cancels_cancels_the_worker() {
    let fleet = Fleet::start().await;
    let worker = FakeWorker::join(fleet.router.grpc_addr, "d0", {
        let ids = ids("first");
        script(move |_| vec![tokens(0, &ids), Step::Hang])
    })
    .await;
    let mut client = InferenceClient::connect(format!("http://{}", fleet.router.grpc_addr))
        .await
        .expect("listens");
    let mut stream = client.generate(chat("hi")).await.expect("begins").into_inner();
    stream.next().await.expect("an event").expect("an event");
    drop(stream);
    worker.seen.cancelled(1).await;
    fleet.stop().await;
}

type Joined = (
    mpsc::Sender<WorkerReport>,
    Result<Streaming<baton_proto::v1::Directive>, Status>,
);

async fn join(fleet: &Fleet, hello: WorkerHello) -> Joined {
    let (sender, receiver) = mpsc::channel(4);
    sender.send(report(Report::Hello(hello))).await.expect("open");
    let mut client = RegistryClient::connect(format!("http://{}", fleet.router.grpc_addr))
        .await
        .expect("listens");
    let joined = client
        .join(ReceiverStream::new(receiver))
        .await
        .map(tonic::Response::into_inner);
    (sender, joined)
}

fn report(report: Report) -> WorkerReport {
    WorkerReport { report: Some(report) }
}

#[tokio::test]
async fn old_and_incomplete_workers_are_refused_by_name() {
    let fleet = Fleet::start().await;
    let mut old = hello("ancient");
    old.protocol_version = 0;
    let refused = join(&fleet, old).await.1.expect_err("too old");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("ancient"), "{refused}");
    let mut nobody = hello("nobody");
    nobody.role = WorkerRole::Unspecified.into();
    assert_eq!(
        join(&fleet, nobody).await.1.expect_err("no role").code(),
        Code::InvalidArgument
    );
    assert!(!fleet.router.is_ready());
    fleet.stop().await;
}

#[tokio::test]
async fn the_later_worker_with_an_id_takes_it_over() {
    let fleet = Fleet::start().await;
    let (_first_reports, first) = join(&fleet, hello("d0")).await;
    let mut first = first.expect("joins");
    first.next().await.expect("welcome").expect("welcome");
    let mut next = hello("d0");
    next.incarnation += 1;
    let (second_reports, second) = join(&fleet, next).await;
    let mut second = second.expect("takes over");
    second.next().await.expect("welcome").expect("welcome");
    let ended = first.next().await.expect("an end").expect_err("is told why");
    assert_eq!(ended.code(), Code::AlreadyExists);
    assert!(ended.message().contains("d0"), "{ended}");

    // Draining, then gone.
    assert!(fleet.router.is_ready());
    second_reports
        .send(report(Report::Load(WorkerLoad::default())))
        .await
        .expect("open");
    let leaving = WorkerLeaving {
        reason: "upgrade".into(),
    };
    second_reports
        .send(report(Report::Leaving(leaving)))
        .await
        .expect("open");
    drop(second_reports);
    assert!(second.next().await.is_none());
    assert!(!fleet.router.is_ready());
    fleet.stop().await;
}

#[tokio::test]
async fn a_silent_worker_is_taken_for_gone() {
    let fleet = Fleet::with(|config| config.worker_silence_seconds = 0.05).await;
    let (_reports, joined) = join(&fleet, hello("d0")).await;
    let mut directives = joined.expect("joins");
    directives.next().await.expect("welcome").expect("welcome");
    let ended = directives.next().await.expect("an end").expect_err("is told why");
    assert!(ended.message().contains("worker_silence_seconds"), "{ended}");
    assert!(!fleet.router.is_ready());
    fleet.stop().await;
}

#[tokio::test]
async fn health_and_reflection_are_served() {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let fleet = Fleet::start().await;
    let endpoint = Endpoint::from_shared(format!("http://{}", fleet.router.grpc_addr)).expect("a URL");
    let channel = endpoint.connect().await.expect("listens");
    let mut health = HealthClient::new(channel.clone());
    let request = HealthCheckRequest {
        service: "baton.v1.Inference".into(),
    };
    let answer = health.check(request).await.expect("known").into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
    let mut reflection = ServerReflectionClient::new(channel);
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection
        .server_reflection_info(futures::stream::iter([list]))
        .await
        .expect("served");
    let answer = answers
        .into_inner()
        .next()
        .await
        .expect("an answer")
        .expect("an answer")
        .message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else {
        panic!("not a list: {answer:?}")
    };
    assert!(
        list.service
            .iter()
            .any(|service| service.name == "baton.v1.Inference")
    );
    fleet.stop().await;
}
