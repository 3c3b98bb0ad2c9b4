//! The one way from a request to its answers, which HTTP and gRPC share: check, admit, encode, plan, run.

mod answer;
mod call;
mod context;
mod generation;
mod run;
mod validate;

pub use call::{
    Delta, Event, Finished, GenerateCall, Input, Route, SamplingFields, StopCause, StopFields, Usage,
};
pub use context::{RequestContext, random, request_id};
pub use generation::Generation;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use baton_proto::v1::Stop;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    answer::AnswerSettings,
    generation::{Events, Held},
    run::{CallState, PromptRun},
    validate::CallLimits,
};
use crate::{
    config::RouterConfig,
    error::RequestError,
    metrics::RouterMetrics,
    policy::{self, PlanRequest},
    registry::Registry,
    text::{ModelText, TextError, TextPool},
};

/// Everything that serving a request needs.
#[derive(Debug)]
pub struct Pipeline {
    pub config: RouterConfig,
    /// The name of the one model that is served.
    pub model: String,
    pub text: Arc<ModelText>,
    pub pool: TextPool,
    pub registry: Arc<Registry>,
    pub metrics: RouterMetrics,
    admission: Arc<Semaphore>,
    draining: AtomicBool,
    /// Ends what still runs when the drain's grace is over.
    abort: CancellationToken,
    running: TaskTracker,
}

impl Pipeline {
    #[must_use]
    pub fn new(
        config: RouterConfig,
        text: Arc<ModelText>,
        registry: Arc<Registry>,
        metrics: RouterMetrics,
    ) -> Arc<Self> {
        let threads = match config.text_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        Arc::new(Self {
            model: config.served_name(),
            text,
            pool: TextPool::new(threads),
            registry,
            metrics,
            admission: Arc::new(Semaphore::new(config.max_concurrent_requests)),
            draining: AtomicBool::new(false),
            abort: CancellationToken::new(),
            running: TaskTracker::new(),
            config,
        })
    }

    /// Takes a request as far as its workers. A failure is recorded in the metrics before it is returned.
    ///
    /// # Errors
    /// [`RequestError`] for what is wrong with the request, or with the router's state.
    pub async fn start(
        &self,
        call: GenerateCall,
        mut context: RequestContext,
    ) -> Result<Generation, RequestError> {
        match Box::pin(self.prepare(call, &context)).await {
            Ok(prepared) => {
                let Prepared {
                    state,
                    prompts,
                    prompt_tokens,
                    held,
                } = prepared;
                Ok(Generation::new(context, state, prompts, prompt_tokens, held))
            }
            Err(error) => {
                context.fail(&error);
                Err(error)
            }
        }
    }

    /// Refuses a model that is not served; empty stands for the one that is.
    ///
    /// # Errors
    /// [`RequestError::UnknownModel`].
    pub fn check_model(&self, asked: &str) -> Result<(), RequestError> {
        if asked.is_empty() || asked == self.model {
            return Ok(());
        }
        Err(RequestError::UnknownModel {
            asked: asked.to_owned(),
            served: self.model.clone(),
        })
    }

    /// Whether a request could be served now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && self.registry.is_ready(&self.model)
    }

    /// The longest sequence that can be served: what the model was made for, and what a worker has room for.
    #[must_use]
    pub fn context_tokens(&self) -> Option<u32> {
        let limits = [
            self.text.context_tokens(),
            self.registry.context_tokens(&self.model),
        ];
        limits.into_iter().flatten().min()
    }

    /// Ids of one prompt, encoded off the async threads.
    ///
    /// # Errors
    /// [`RequestError`] naming `field` where the prompt is at fault.
    pub async fn encode(&self, input: Input, field: &'static str) -> Result<Vec<u32>, RequestError> {
        let text = Arc::clone(&self.text);
        let work = move || match input {
            Input::Tokens(ids) => text.check_ids(&ids).map(|()| ids),
            Input::Text {
                text: prompt,
                add_special_tokens,
            } => text.encode(&prompt, add_special_tokens),
            Input::Chat { messages, options } => text.encode_chat(&text.render_chat(&messages, &options)?),
        };
        self.pool
            .run(work)
            .await
            .map_err(|error: TextError| RequestError::text(field, &error))
    }

    /// Takes nothing new; what runs goes on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.running.close();
    }

    /// Resolves when nothing runs, after [`Pipeline::drain`].
    pub async fn drained(&self) {
        self.running.wait().await;
    }

    /// Ends what runs with an error.
    pub fn abort(&self) {
        self.abort.cancel();
    }

    async fn prepare(&self, call: GenerateCall, context: &RequestContext) -> Result<Prepared, RequestError> {
        let retry_after = self.config.retry_after_seconds;
        if self.draining.load(Ordering::Relaxed) {
            return Err(RequestError::ShuttingDown { retry_after });
        }
        self.check_model(&call.model)?;
        let limits = CallLimits {
            prompts: self.config.max_prompts,
            choices: self.config.max_choices,
        };
        let sampling = validate::sampling(&call, &self.text, limits, random())?;
        let stop = validate::stop(&call, &self.text)?;
        let held = self.admit(call.inputs.len())?;
        let timeout = call
            .deadline
            .unwrap_or(self.config.request_timeout())
            .min(self.config.request_timeout());
        let state = Arc::new(CallState {
            model: self.model.clone(),
            sampling,
            answers: AnswerSettings {
                text: Arc::clone(&self.text),
                stop_strings: call.stop.strings,
                min_tokens: call.stop.min_tokens,
                skip_special_tokens: call.skip_special_tokens,
            },
            choices: call.choices,
            cache_salt: call.cache_salt,
            priority: call.priority,
            trace: context.trace,
            deadline: context.arrived + timeout,
            timeout,
            retry_after,
            max_attempts: self.config.max_attempts,
            abort: self.abort.clone(),
            registry: Arc::clone(&self.registry),
            metrics: self.metrics.clone(),
            cached_tokens: Mutex::new(vec![0; call.inputs.len()]),
            route: Mutex::default(),
        });
        let mut encoded = Vec::with_capacity(call.inputs.len());
        for input in call.inputs {
            encoded.push(state.bounded(self.encode(input, call.input_field)).await??);
        }
        let several = encoded.len() > 1;
        let mut prompts: Vec<Events> = Vec::with_capacity(encoded.len());
        let mut prompt_tokens = 0;
        for (index, prompt_ids) in (0..).zip(encoded) {
            let stop = self.fit(&prompt_ids, stop.clone(), call.input_field)?;
            prompt_tokens += u32::try_from(prompt_ids.len()).unwrap_or(u32::MAX);
            let request_id = if several {
                format!("{}.{index}", context.request_id)
            } else {
                context.request_id.clone()
            };
            let plan = self.plan(&request_id, &prompt_ids, context)?;
            let run = PromptRun {
                call: Arc::clone(&state),
                index,
                request_id,
                prompt_ids,
                stop,
                plan,
            };
            prompts.push(Box::pin(run.events()));
        }
        Ok(Prepared {
            state,
            prompts,
            prompt_tokens,
            held,
        })
    }

    fn admit(&self, prompts: usize) -> Result<Held, RequestError> {
        let permits = u32::try_from(prompts).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.admission)
            .try_acquire_many_owned(permits)
            .map_err(|_| RequestError::Overloaded {
                limit: self.config.max_concurrent_requests,
                retry_after: self.config.retry_after_seconds,
            })?;
        Ok(Held {
            permit,
            alive: self.running.token(),
        })
    }

    /// Leaves an answer no more than the room that its prompt does.
    fn fit(&self, prompt_ids: &[u32], mut stop: Stop, param: &'static str) -> Result<Stop, RequestError> {
        if prompt_ids.is_empty() {
            return Err(RequestError::field(
                param,
                "the prompt is empty: it has no tokens",
            ));
        }
        let limit = self.context_tokens().unwrap_or(u32::MAX);
        let prompt = u32::try_from(prompt_ids.len()).unwrap_or(u32::MAX);
        if prompt >= limit {
            return Err(RequestError::ContextLength {
                param,
                limit,
                prompt: prompt_ids.len(),
            });
        }
        stop.max_tokens = stop.max_tokens.min(limit - prompt);
        stop.min_tokens = stop.min_tokens.min(stop.max_tokens);
        Ok(stop)
    }

    fn plan(
        &self,
        request_id: &str,
        prompt_ids: &[u32],
        context: &RequestContext,
    ) -> Result<policy::Plan, RequestError> {
        let request = PlanRequest {
            request_id,
            model: &self.model,
            prompt_tokens: u32::try_from(prompt_ids.len()).unwrap_or(u32::MAX),
        };
        let plan = policy::plan(&self.registry.snapshot(), request, &self.config.policy);
        context.span.in_scope(|| tracing::debug!(?plan, "planned"));
        if plan.decode.is_empty() {
            return Err(RequestError::NoWorkers {
                model: self.model.clone(),
                retry_after: self.config.retry_after_seconds,
            });
        }
        self.metrics.plans.with_label_values(&[plan.place.name()]).inc();
        Ok(plan)
    }
}

/// A request that has everything it needs.
struct Prepared {
    state: Arc<CallState>,
    prompts: Vec<Events>,
    prompt_tokens: u32,
    held: Held,
}
