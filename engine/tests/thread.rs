//! The engine thread as workers use it, over the fake device.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use baton_engine::{
    Engine, EngineConfig, EngineHandle, EngineMetrics, EngineThread, RequestHandle,
    executor::{Executor, ExecutorError, ExecutorLimits, Ticket, Wake},
    fake::{FakeConfig, FakeExecutor, FakeModel},
    request::{ChoiceStart, EngineEvent, EngineRequest, FinishReason, RequestError, StopRules, Work},
    step::{StepOutcome, StepPlan},
};
use baton_kernels::kv::KvMemory;
use baton_proto::BlockHasher;

const PAGE: usize = 4;
const VOCAB: u32 = 5000;
/// Nothing here takes that long; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A fake device whose steps end only when the test lets them.
struct Gated {
    fake: FakeExecutor,
    gate: mpsc::Receiver<Gate>,
    open: bool,
}

enum Gate {
    Open,
    Break,
    Panic,
}

/// The test's side of the gate.
struct Key {
    gate: mpsc::SyncSender<Gate>,
    wake: Wake,
}

impl Key {
    fn turn(&self, gate: Gate) {
        self.gate.send(gate).expect("the engine runs");
        (self.wake)();
    }
}

impl Executor for Gated {
    fn limits(&self) -> ExecutorLimits {
        self.fake.limits()
    }

    fn kv_memory(&self) -> Arc<dyn KvMemory> {
        self.fake.kv_memory()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        self.fake.submit(plan)
    }

    fn poll(&mut self, ticket: &Ticket) -> Result<Option<StepOutcome>, ExecutorError> {
        match self.gate.try_recv() {
            Ok(Gate::Open) => self.open = true,
            Ok(Gate::Break) => self.fake.break_down("the fan stopped"),
            Ok(Gate::Panic) => panic!("a bug in the executor"),
            Err(_) => {}
        }
        match self.fake.failure() {
            Some(reason) => Err(ExecutorError {
                step: Some(ticket.0),
                reason: reason.into(),
            }),
            None if self.open => self.fake.poll(ticket),
            None => Ok(None),
        }
    }

    fn layers_done(&self, ticket: &Ticket) -> u32 {
        self.fake.layers_done(ticket)
    }
}

fn start(config: EngineConfig) -> (EngineHandle, EngineThread, Key) {
    let (gate, receiver) = mpsc::sync_channel(8);
    let (wake_sender, wake) = mpsc::sync_channel(1);
    let limits = ExecutorLimits {
        pages: 64,
        slots: 4,
        context_tokens: 200,
        tokens_per_sample: 1,
        steps_in_flight: 2,
        layers: 2,
        vocab: VOCAB,
    };
    let fake = FakeConfig {
        limits,
        page_tokens: PAGE,
        seed: 0,
        step_seconds: 0.001,
        token_seconds: 0.0,
    };
    let metrics = EngineMetrics::new(&prometheus::Registry::new()).expect("an empty registry");
    let hasher = BlockHasher::new([1; 16], PAGE, "fake", "f32");
    let factory = move |wake: Wake| {
        wake_sender.send(Arc::clone(&wake))?;
        let fake = FakeExecutor::new(fake, Some(wake));
        Ok(Box::new(Gated {
            fake,
            gate: receiver,
            open: false,
        }) as Box<dyn Executor>)
    };
    let (handle, thread) = Engine::spawn(config, factory, hasher, metrics).expect("the fake opens");
    (
        handle,
        thread,
        Key {
            gate,
            wake: wake.recv().expect("sent by the factory"),
        },
    )
}

fn request(prompt: u32, max_tokens: u32) -> EngineRequest {
    EngineRequest {
        id: "test".into(),
        prompt: (0..prompt).collect(),
        choices: vec![ChoiceStart {
            index: 0,
            emitted: Vec::new(),
        }],
        sampling: Arc::default(),
        stop: StopRules {
            max_tokens,
            stop_tokens: Vec::new(),
        },
        scope: BlockHasher::new([1; 16], PAGE, "fake", "f32").scope("", ""),
        priority: 0,
        deadline: None,
        work: Work::Generate,
    }
}

fn expected(prompt: u32, count: usize) -> Vec<u32> {
    let prompt: Vec<u32> = (0..prompt).collect();
    FakeModel { vocab: VOCAB }.continue_from(&prompt, count, 0, &Default::default())
}

async fn next(request: &mut RequestHandle) -> Option<EngineEvent> {
    tokio::time::timeout(PATIENCE, request.next())
        .await
        .expect("the engine answers")
}

/// All tokens up to the end, in how many events they came, and the last event.
async fn read_out(request: &mut RequestHandle) -> (Vec<u32>, usize, Option<EngineEvent>) {
    let (mut all, mut events, mut last) = (Vec::new(), 0, None);
    while let Some(event) = next(request).await {
        if let EngineEvent::Tokens { tokens, .. } = &event {
            all.extend(tokens);
            events += 1;
        }
        last = Some(event);
    }
    (all, events, last)
}

/// The load says so soon: it is published after each turn.
async fn until(handle: &EngineHandle, what: impl Fn(&baton_engine::EngineLoad) -> bool) {
    let wait = async {
        while !what(&handle.load()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("{:?}", handle.load()));
}

#[tokio::test]
async fn a_request_streams_to_its_end() {
    let (handle, thread, key) = start(EngineConfig::default());
    key.turn(Gate::Open);
    let mut request = handle.submit(request(10, 20)).expect("accepted");
    assert!(matches!(
        next(&mut request).await,
        Some(EngineEvent::Queued { requests_ahead: 0 })
    ));
    assert!(matches!(
        next(&mut request).await,
        Some(EngineEvent::Started { cached_tokens: 0, .. })
    ));
    let (tokens, _, last) = read_out(&mut request).await;
    assert_eq!(tokens, expected(10, 20));
    let reason = FinishReason::Length;
    assert!(matches!(last, Some(EngineEvent::Finished { reason: found, .. }) if found == reason));
    until(&handle, |load| load.pages.mutable == 0 && load.steps >= 20).await;
    thread.stop();
    assert_eq!(handle.stopped().await, None);
}

#[tokio::test]
async fn a_slow_reader_blocks_nobody_and_loses_nothing() {
    let config = EngineConfig {
        event_capacity: 1,
        ..EngineConfig::default()
    };
    let (handle, _thread, key) = start(config);
    key.turn(Gate::Open);
    let mut slow = handle.submit(request(10, 100)).expect("accepted");
    let mut fast = handle.submit(request(11, 100)).expect("accepted");
    assert_eq!(read_out(&mut fast).await.0, expected(11, 100));
    until(&handle, |load| load.running == 0).await;
    let (tokens, events, last) = read_out(&mut slow).await;
    assert_eq!(tokens, expected(10, 100));
    assert!(events < 10, "{events} events");
    assert!(matches!(last, Some(EngineEvent::Finished { .. })));
}

#[tokio::test]
async fn dropping_a_handle_frees_its_pages() {
    let (handle, _thread, key) = start(EngineConfig::default());
    let running = handle.submit(request(40, 100)).expect("accepted");
    until(&handle, |load| load.pages.mutable > 0).await;
    drop(running);
    until(&handle, |load| load.running == 0 && load.waiting == 0).await;
    // The steps that name them are still in flight.
    assert!(handle.load().pages.retiring > 0);
    key.turn(Gate::Open);
    until(&handle, |load| load.pages.free == load.pages.total).await;
}

#[tokio::test]
async fn a_failed_device_fails_every_request_and_refuses_new_ones() {
    let (handle, _thread, key) = start(EngineConfig::default());
    let mut first = handle.submit(request(10, 5)).expect("accepted");
    until(&handle, |load| load.running == 1).await;
    key.turn(Gate::Break);
    let (_, _, last) = read_out(&mut first).await;
    let Some(EngineEvent::Failed(RequestError::EngineStopped(reason))) = last else {
        panic!("{last:?}");
    };
    assert!(reason.contains("the fan stopped"), "{reason}");
    assert!(
        handle
            .stopped()
            .await
            .expect("a failure")
            .contains("the fan stopped")
    );
    // The reason comes first, the closed door a moment later.
    let refused = async {
        while handle.submit(request(10, 5)).is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .expect("nothing is accepted any more");
}

#[tokio::test]
async fn a_panic_is_reported_even_to_a_reader_whose_channel_is_full() {
    let config = EngineConfig {
        event_capacity: 1,
        ..EngineConfig::default()
    };
    let (handle, _thread, key) = start(config);
    let mut full = handle.submit(request(10, 5)).expect("accepted");
    until(&handle, |load| load.running == 1).await;
    key.turn(Gate::Panic);
    assert!(
        handle
            .stopped()
            .await
            .expect("a failure")
            .contains("a bug in the executor")
    );
    let (_, _, last) = read_out(&mut full).await;
    assert!(
        matches!(last, Some(EngineEvent::Failed(RequestError::EngineStopped(_)))),
        "{last:?}"
    );
}

#[tokio::test]
async fn a_drain_ends_with_the_last_request() {
    let (handle, _thread, key) = start(EngineConfig::default());
    let mut open = handle.submit(request(10, 5)).expect("accepted");
    handle.drain();
    assert_eq!(handle.submit(request(10, 5)).err(), Some(RequestError::Draining));
    until(&handle, |load| load.draining).await;
    key.turn(Gate::Open);
    assert_eq!(read_out(&mut open).await.0, expected(10, 5));
    let stopped = tokio::time::timeout(PATIENCE, handle.stopped()).await;
    assert_eq!(stopped.expect("it ends by itself"), None);
}

#[tokio::test]
async fn more_than_may_wait_is_refused_at_once() {
    let config = EngineConfig {
        max_waiting: 3,
        max_running: 1,
        ..EngineConfig::default()
    };
    let (handle, _thread, key) = start(config);
    let mut open = vec![handle.submit(request(10, 5)).expect("accepted")];
    until(&handle, |load| load.running == 1).await;
    for prompt in 11..14 {
        open.push(handle.submit(request(prompt, 5)).expect("may wait"));
    }
    let refused = handle.submit(request(14, 5)).err();
    assert_eq!(refused, Some(RequestError::QueueFull { waiting: 3 }));
    key.turn(Gate::Open);
    for (index, request) in open.iter_mut().enumerate() {
        assert_eq!(read_out(request).await.0, expected(10 + index as u32, 5));
    }
}

#[tokio::test]
async fn a_deadline_ends_a_request_while_the_device_hangs() {
    let (handle, _thread, _key) = start(EngineConfig::default());
    let deadline = Some(Duration::from_millis(20));
    let mut hangs = handle
        .submit(EngineRequest {
            deadline,
            ..request(10, 5)
        })
        .expect("accepted");
    let (_, _, last) = read_out(&mut hangs).await;
    let reason = FinishReason::Deadline;
    assert!(matches!(last, Some(EngineEvent::Finished { reason: found, .. }) if found == reason));
}

#[tokio::test]
async fn an_executor_that_does_not_open_is_an_error() {
    let metrics = EngineMetrics::new(&prometheus::Registry::new()).expect("an empty registry");
    let hasher = BlockHasher::new([1; 16], PAGE, "fake", "f32");
    let result = Engine::spawn(
        EngineConfig::default(),
        |_| Err("no such device".into()),
        hasher,
        metrics,
    );
    let error = result.err().expect("it cannot run").to_string();
    assert!(error.contains("could not open the device"), "{error}");
}
