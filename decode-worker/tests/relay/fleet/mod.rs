//! Workers in one process, on real ports, with executors that check every page they read.

mod executor;
mod scripted;

use std::{collections::BTreeMap, time::Duration};

use baton_decode_worker::{DecodeConfig, DecodeWorker};
use baton_engine::{EngineConfig, fake::FakeModel};
use baton_kernels::sampling::SamplingParams;
use baton_kvcache::transfer::{TransferConfig, TransportChoice};
use baton_prefill_worker::PrefillWorker;
use baton_proto::v1::{
    Choice, DecodeEvent, DecodeRequest, FinishReason, KvFingerprint, PrefillCandidate, Prefilled, Sampling,
    Stop, decode_client::DecodeClient, decode_event::Event,
};
use baton_worker::{RunningWorker, ServedModel, WorkerConfig, WorkerSetup};
use tonic::{Status, Streaming, transport::Channel};

pub(crate) use executor::Gate;
pub(crate) use scripted::{Line, ScriptedPrefill};

pub(crate) const PAGE_TOKENS: usize = 16;
pub(crate) const VOCAB: u32 = 5000;
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How a worker of the fleet differs from the others.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) worker: WorkerConfig,
    pub(crate) engine: EngineConfig,
    pub(crate) transfer: TransferConfig,
    pub(crate) decode: DecodeConfig,
    pub(crate) revision: String,
    pub(crate) gate: Gate,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            worker: WorkerConfig {
                model_name: "fake".into(),
                ..WorkerConfig::default()
            },
            engine: EngineConfig {
                page_tokens: PAGE_TOKENS,
                kv_pages: 256,
                max_running: 16,
                max_batch_tokens: 64,
                ..EngineConfig::default()
            },
            transfer: TransferConfig {
                transport: TransportChoice::Tcp,
                ..TransferConfig::default()
            },
            decode: DecodeConfig::default(),
            revision: "r1".into(),
            gate: Gate::open(),
        }
    }
}

impl Shape {
    pub(crate) async fn prefill(self) -> RunningWorker {
        let (setup, _) = self.setup();
        PrefillWorker::start(setup)
            .await
            .expect("the prefill worker starts")
    }

    pub(crate) async fn decode(self) -> RunningWorker {
        let (setup, config) = self.setup();
        DecodeWorker::start(setup, config)
            .await
            .expect("the decode worker starts")
    }

    fn setup(self) -> (WorkerSetup<executor::Factory>, DecodeConfig) {
        let model = ServedModel {
            name: "fake".into(),
            fingerprint: KvFingerprint {
                model_revision: self.revision,
                kv_dtype: "fake".into(),
                page_tokens: PAGE_TOKENS as u32,
                layers: executor::LAYERS,
                kv_heads: 1,
                head_dim: 1,
                tensor_parallel: 1,
            },
            device: "fake".into(),
        };
        let executor = executor::factory(&self.engine, self.gate);
        let setup = WorkerSetup {
            worker: self.worker,
            engine: self.engine,
            transfer: self.transfer,
            model,
            executor,
        };
        (setup, self.decode)
    }
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: BTreeMap<u32, Vec<u32>>,
    pub(crate) finished: BTreeMap<u32, FinishReason>,
    pub(crate) prefilled: Option<Prefilled>,
}

/// A request of `length` tokens that are like no others with another `salt`.
pub(crate) fn request(salt: u32, length: u32, max_tokens: u32) -> DecodeRequest {
    DecodeRequest {
        request_id: format!("r{salt}"),
        model: "fake".into(),
        prompt_ids: prompt(salt, length),
        choices: vec![Choice::default()],
        sampling: Some(Sampling {
            temperature: 1.0,
            seed: 11,
            ..Sampling::default()
        }),
        stop: Some(Stop {
            max_tokens,
            ..Stop::default()
        }),
        ..DecodeRequest::default()
    }
}

pub(crate) fn prompt(salt: u32, length: u32) -> Vec<u32> {
    (0..length)
        .map(|position| (position * 7 + salt * 131) % VOCAB)
        .collect()
}

/// With these prefill workers, in order.
pub(crate) fn with_prefill(mut request: DecodeRequest, workers: &[&RunningWorker]) -> DecodeRequest {
    request.prefill = workers
        .iter()
        .map(|worker| PrefillCandidate {
            worker_id: worker.identity().worker_id.clone(),
            addr: worker.identity().url.clone(),
        })
        .collect();
    request
}

/// What the fake model says to `request`, for one choice.
pub(crate) fn expected(request: &DecodeRequest, choice: u32) -> Vec<u32> {
    let sampling = SamplingParams {
        temperature: 1.0,
        seed: 11,
        ..SamplingParams::default()
    };
    let max_tokens = request.stop.as_ref().map_or(0, |stop| stop.max_tokens) as usize;
    FakeModel { vocab: VOCAB }.continue_from(&request.prompt_ids, max_tokens, choice, &sampling)
}

pub(crate) async fn open(
    decode: &RunningWorker,
    request: DecodeRequest,
) -> Result<Streaming<DecodeEvent>, Status> {
    Ok(client(decode).await.generate(request).await?.into_inner())
}

pub(crate) async fn client(worker: &RunningWorker) -> DecodeClient<Channel> {
    DecodeClient::connect(worker.identity().url.clone())
        .await
        .expect("the worker listens")
}

pub(crate) async fn generate(decode: &RunningWorker, request: DecodeRequest) -> Result<Answer, Status> {
    let stream = open(decode, request).await?;
    within(collect(stream)).await
}

/// Everything up to the end of the stream.
pub(crate) async fn collect(mut stream: Streaming<DecodeEvent>) -> Result<Answer, Status> {
    let mut answer = Answer::default();
    while let Some(event) = stream.message().await? {
        match event.event.expect("an event") {
            Event::Accepted(_) => {}
            Event::Prefilled(prefilled) => {
                assert_eq!(answer.prefilled.replace(prefilled), None, "it is said once");
            }
            Event::Tokens(tokens) => answer.tokens.entry(tokens.choice).or_default().extend(tokens.ids),
            Event::Finished(finished) => {
                let again = answer.finished.insert(finished.choice, finished.reason());
                assert_eq!(again, None, "a choice finishes once");
            }
        }
    }
    Ok(answer)
}

/// The first event that satisfies `wanted`.
pub(crate) async fn heard(stream: &mut Streaming<DecodeEvent>, wanted: impl Fn(&Event) -> bool) -> Event {
    within(async {
        loop {
            let event = stream
                .message()
                .await
                .expect("no error")
                .expect("not the end")
                .event
                .expect("an event");
            if wanted(&event) {
                return event;
            }
        }
    })
    .await
}

/// The worker has nothing to do and every page is free, or kept by the prefix cache alone.
pub(crate) async fn all_pages_back(worker: &RunningWorker) {
    eventually("all pages come back", || {
        let load = worker.engine().load();
        load.running == 0
            && load.waiting == 0
            && load.pages.mutable == 0
            && load.pages.retiring == 0
            && load.pages.sealed == load.pages.cached
    })
    .await;
}

pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it ends in time")
}

/// A metric's value, summed over the samples that carry `label`; an empty label takes all.
pub(crate) fn metric(worker: &RunningWorker, name: &str, label: &str) -> f64 {
    let families = worker.registry().gather();
    let found = families.iter().filter(|family| family.name() == name);
    let samples = found.flat_map(|family| family.get_metric());
    samples
        .filter(|sample| label.is_empty() || sample.get_label().iter().any(|pair| pair.value() == label))
        .map(|sample| sample.get_counter().get_value() + sample.get_gauge().get_value())
        .sum()
}
