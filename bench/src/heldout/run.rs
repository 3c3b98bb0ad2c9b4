//! Questions through the scheduler and the CPU executor, many at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use baton_engine::{
    Engine, EngineConfig, EngineHandle, EngineMetrics, EngineThread, RequestHandle,
    cpu::{CpuExecutor, CpuExecutorConfig, Model},
    executor::Executor,
    request::{ChoiceStart, EngineEvent, EngineRequest, StopRules, Work},
};
use baton_kernels::{kv::KvDtype, sampling::SamplingParams};
use baton_proto::{BlockHasher, CacheScope};
use baton_router::text::{ChatMessage, ChatOptions, ModelText};

use super::{Case, Column, EvalError};

/// Questions under way together.
const CONCURRENT: u32 = 16;
/// The longest answer; the bundled tasks need a third of it.
const ANSWER_TOKENS: u32 = 256;

/// An engine that answers with one KV dtype.
pub(super) struct EvalEngine {
    kv_dtype: KvDtype,
    scope: CacheScope,
    handle: EngineHandle,
    thread: EngineThread,
}

impl EvalEngine {
    pub(super) fn start(model: Arc<Model>, kv_dtype: KvDtype, threads: usize) -> Result<Self, EvalError> {
        let mut config = EngineConfig {
            kv_dtype,
            threads,
            max_running: CONCURRENT,
            ..EngineConfig::default()
        };
        // Room for every running question at the model's full context.
        let context = model.config().max_positions.div_ceil(config.page_tokens) as u32;
        config.kv_pages = CONCURRENT * context;
        let hasher = BlockHasher::new([0; 16], config.page_tokens, model.revision(), kv_dtype.name());
        let scope = hasher.scope("", "");
        let metrics = EngineMetrics::new(&prometheus::Registry::new())?;
        let executor_config = CpuExecutorConfig::from(&config);
        let (handle, thread) = Engine::spawn(
            config,
            move |wake| Ok(Box::new(CpuExecutor::new(model, &executor_config, wake)?) as Box<dyn Executor>),
            hasher,
            metrics,
        )?;
        Ok(Self {
            kv_dtype,
            scope,
            handle,
            thread,
        })
    }

    /// Asks every question.
    pub(super) async fn column(self, text: &ModelText, cases: &[Case]) -> Result<Column, EvalError> {
        let mut column = Column {
            kv_dtype: self.kv_dtype.name().to_owned(),
            scores: BTreeMap::new(),
            output_tokens: 0,
            seconds: 0.0,
        };
        let start = Instant::now();
        let mut asked = VecDeque::new();
        let mut next = 0;
        // Answers are read in order; those behind the first run meanwhile.
        while next < cases.len() || !asked.is_empty() {
            while next < cases.len() && asked.len() < CONCURRENT as usize {
                asked.push_back((next, self.ask(text, next, &cases[next])?));
                next += 1;
            }
            if let Some((index, request)) = asked.pop_front() {
                let tokens = answer(index, request).await?;
                let given = text.decode(&tokens, true)?;
                column.output_tokens += tokens.len();
                column.count(&cases[index], cases[index].is_right(&given));
            }
        }
        column.seconds = start.elapsed().as_secs_f64();
        self.thread.stop();
        Ok(column)
    }

    fn ask(&self, text: &ModelText, index: usize, case: &Case) -> Result<RequestHandle, EvalError> {
        let messages: Vec<_> = case
            .messages
            .iter()
            .map(|message| ChatMessage::new(message.role.as_str(), message.content.as_str()))
            .collect();
        let chat = text.render_chat(&messages, &ChatOptions::default())?;
        let request = EngineRequest {
            id: format!("question-{index}"),
            prompt: text.encode_chat(&chat)?.into(),
            choices: vec![ChoiceStart {
                index: 0,
                emitted: Vec::new(),
            }],
            sampling: Arc::new(SamplingParams::default()),
            stop: StopRules {
                max_tokens: ANSWER_TOKENS,
                stop_tokens: text.eos_ids().to_vec(),
            },
            scope: self.scope,
            priority: 0,
            deadline: None,
            work: Work::Generate,
        };
        self.handle
            .submit(request)
            .map_err(|source| EvalError::Request { case: index, source })
    }
}

/// Output tokens to the end of the request.
async fn answer(index: usize, mut request: RequestHandle) -> Result<Vec<u32>, EvalError> {
    let mut answer = Vec::new();
    while let Some(event) = request.next().await {
        match event {
            EngineEvent::Tokens { tokens, .. } => answer.extend(tokens),
            EngineEvent::Finished { .. } => return Ok(answer),
            EngineEvent::Failed(source) => return Err(EvalError::Request { case: index, source }),
            EngineEvent::Queued { .. }
            | EngineEvent::Started { .. }
            | EngineEvent::NeedsHandoff { .. }
            | EngineEvent::Leased { .. } => {}
        }
    }
    Err(EvalError::Unanswered { case: index })
}
