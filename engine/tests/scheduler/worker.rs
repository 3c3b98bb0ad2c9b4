//! A scheduler with its fake device, and everything that the outside has heard of it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use baton_engine::{
    EngineConfig,
    executor::{Executor, ExecutorLimits, Ticket},
    fake::{FakeConfig, FakeExecutor, FakeModel},
    request::{EngineEvent, EngineRequest, FinishReason, RequestError, Work},
    scheduler::{Delivery, RequestKey, RequestLimits, Scheduler},
};
use baton_kernels::kv::KvMemory;
use baton_proto::BlockHasher;

pub(crate) struct Worker {
    pub(crate) scheduler: Scheduler,
    pub(crate) executor: FakeExecutor,
    pub(crate) limits: ExecutorLimits,
    pub(crate) page_tokens: u32,
    pub(crate) steps: u64,
    pub(crate) logs: BTreeMap<RequestKey, Log>,
    config: EngineConfig,
    in_flight: VecDeque<(Ticket, Vec<Delivery>, u32)>,
    next_key: u64,
}

/// One request as its owner sees it.
pub(crate) struct Log {
    pub(crate) request: EngineRequest,
    /// Output so far, emitted tokens first.
    pub(crate) outputs: BTreeMap<u32, Vec<u32>>,
    pub(crate) finished: BTreeMap<u32, (FinishReason, Option<u32>)>,
    pub(crate) failed: Option<RequestError>,
    pub(crate) started: bool,
    pub(crate) needs_handoff: Option<u32>,
    pub(crate) leased: Option<(u64, u32, Vec<baton_kvcache::PagePin>)>,
    pub(crate) ended: bool,
    pub(crate) cancelled: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) pages: u32,
    pub(crate) slots: u32,
    pub(crate) page_tokens: u32,
    pub(crate) context: u32,
    pub(crate) drafts: u32,
    pub(crate) layers: u32,
    pub(crate) batch: u32,
    pub(crate) prefills: usize,
    pub(crate) max_waiting: usize,
    pub(crate) inbound_share: f64,
    pub(crate) vocab: u32,
    pub(crate) seed: u64,
}

pub(crate) fn hasher(page_tokens: u32) -> BlockHasher {
    BlockHasher::new([3; 16], page_tokens as usize, "fake", "f32")
}

impl Worker {
    pub(crate) fn new(shape: &Shape) -> Self {
        let limits = ExecutorLimits {
            pages: shape.pages,
            slots: shape.slots,
            context_tokens: shape.context,
            tokens_per_sample: shape.drafts + 1,
            steps_in_flight: 2,
            layers: shape.layers,
            vocab: shape.vocab,
        };
        let config = EngineConfig {
            kv_pages: shape.pages,
            max_running: shape.slots,
            max_waiting: shape.max_waiting,
            max_batch_tokens: shape.batch.max(shape.slots),
            max_prefills: shape.prefills,
            aging_seconds: 0.05,
            inbound_share: shape.inbound_share,
            ..EngineConfig::default()
        };
        config.validate().expect("the shape is sensible");
        let fake = FakeConfig {
            limits,
            page_tokens: shape.page_tokens as usize,
            seed: shape.seed,
            step_seconds: 0.001,
            token_seconds: 0.0,
        };
        Self {
            scheduler: Scheduler::new(
                config.clone(),
                limits,
                shape.page_tokens,
                hasher(shape.page_tokens),
            ),
            executor: FakeExecutor::new(fake, None),
            limits,
            page_tokens: shape.page_tokens,
            steps: 0,
            logs: BTreeMap::new(),
            config,
            in_flight: VecDeque::new(),
            next_key: 0,
        }
    }

    pub(crate) fn submit(
        &mut self,
        request: EngineRequest,
        now: Duration,
    ) -> Result<RequestKey, RequestError> {
        let checked = RequestLimits::new(self.limits, self.page_tokens).check(request.clone())?;
        self.next_key += 1;
        let key = RequestKey(self.next_key);
        self.scheduler.submit(key, checked, now)?;
        let outputs = request
            .choices
            .iter()
            .map(|choice| (choice.index, choice.emitted.clone()))
            .collect();
        let log = Log {
            request,
            outputs,
            finished: BTreeMap::new(),
            failed: None,
            started: false,
            needs_handoff: None,
            leased: None,
            ended: false,
            cancelled: false,
        };
        self.logs.insert(key, log);
        self.check();
        Ok(key)
    }

    pub(crate) fn cancel(&mut self, key: RequestKey) {
        self.hear();
        let log = self.logs.get_mut(&key).expect("submitted");
        log.cancelled |= !log.ended;
        log.leased = None;
        self.scheduler.cancel(key);
        self.check();
    }

    /// Returns whether a step was submitted.
    pub(crate) fn plan(&mut self, now: Duration) -> bool {
        let planned = self.scheduler.plan(now);
        let is_some = planned.is_some();
        if let Some(planned) = planned {
            let tokens: u32 = planned.plan.rows.iter().map(|row| row.query_len()).sum();
            assert!(
                tokens <= self.config.max_batch_tokens,
                "{tokens} tokens in a step"
            );
            let ticket = self
                .executor
                .submit(planned.plan)
                .unwrap_or_else(|error| panic!("{error}"));
            self.in_flight.push_back((ticket, planned.deliveries, 0));
        }
        for delivery in self.scheduler.take_ready() {
            (0..self.limits.layers).for_each(|layer| delivery.sink.ready(layer, &delivery.pages));
        }
        self.check();
        is_some
    }

    /// Lets the device advance by one layer. Returns whether a step came to its end.
    pub(crate) fn poll(&mut self, now: Duration) -> bool {
        let Some((ticket, deliveries, named)) = self.in_flight.front_mut() else {
            return false;
        };
        let outcome = self
            .executor
            .poll(ticket)
            .unwrap_or_else(|error| panic!("{error}"));
        let layers = self.executor.layers_done(ticket);
        for layer in *named..layers {
            deliveries
                .iter()
                .for_each(|delivery| delivery.sink.ready(layer, &delivery.pages));
        }
        *named = layers;
        let Some(outcome) = outcome else {
            return false;
        };
        self.in_flight.pop_front();
        self.steps += 1;
        self.scheduler
            .apply(outcome, now)
            .unwrap_or_else(|error| panic!("{error}"));
        self.check();
        true
    }

    /// What must hold after every operation.
    pub(crate) fn check(&mut self) {
        self.hear();
        self.scheduler
            .check_pages()
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(self.scheduler.is_consistent());
        let load = self.scheduler.load();
        let bound = self.config.max_waiting + self.limits.slots as usize;
        assert!(load.waiting as usize <= bound, "{} wait", load.waiting);
        let pages = load.pages;
        assert_eq!(
            pages.free + pages.mutable + pages.sealed + pages.retiring,
            pages.total
        );
    }

    /// Takes in the events, and checks that they make sense one after the other.
    fn hear(&mut self) {
        for notice in self.scheduler.take_events() {
            let log = self.logs.get_mut(&notice.request).expect("submitted");
            assert!(!log.ended, "{:?} after the end", notice.event);
            log.ended = notice.last;
            if log.ended {
                log.leased = None;
            }
            match notice.event {
                EngineEvent::Queued { .. } => {}
                EngineEvent::NeedsHandoff { held_pages } => log.needs_handoff = Some(held_pages),
                EngineEvent::Leased { first_page, pages } => {
                    log.leased = Some((notice.lease.expect("a lease has a number"), first_page, pages));
                }
                EngineEvent::Started { .. } => assert!(!std::mem::replace(&mut log.started, true)),
                EngineEvent::Tokens {
                    choice,
                    tokens,
                    logprobs,
                } => {
                    assert!(!tokens.is_empty());
                    let asked = log.request.sampling.logprobs.is_some();
                    assert_eq!(logprobs.len(), if asked { tokens.len() } else { 0 });
                    assert!(!log.finished.contains_key(&choice), "tokens of a finished choice");
                    log.outputs
                        .get_mut(&choice)
                        .expect("a choice of the request")
                        .extend(tokens);
                }
                EngineEvent::Finished {
                    choice,
                    reason,
                    stop_token,
                } => {
                    assert!(log.finished.insert(choice, (reason, stop_token)).is_none());
                }
                EngineEvent::Failed(error) => log.failed = Some(error),
            }
        }
    }

    pub(crate) fn memory(&self) -> Arc<dyn KvMemory> {
        self.executor.kv_memory()
    }

    pub(crate) fn model(&self) -> FakeModel {
        self.executor.model()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Whatever has ended by itself ended as it would have alone on an empty engine.
    pub(crate) fn check_outputs(&self) {
        for (key, log) in &self.logs {
            if log.cancelled {
                continue;
            }
            assert!(log.ended, "{key:?} has not ended");
            assert_eq!(log.failed, None, "{key:?}");
            for choice in &log.request.choices {
                self.check_choice(*key, log, choice.index);
            }
        }
    }

    fn check_choice(&self, key: RequestKey, log: &Log, choice: u32) {
        let expected = expected(&self.model(), &log.request, choice, self.limits.context_tokens);
        let found = &log.outputs[&choice];
        let finished = log.finished.get(&choice).copied();
        if let (Some((FinishReason::Deadline, None)), false) = (finished, log.request.deadline.is_none()) {
            assert!(
                expected.tokens.starts_with(found),
                "{key:?}.{choice} at its deadline"
            );
            return;
        }
        if let Work::Prefill { .. } = log.request.work {
            let emitted = log
                .request
                .choices
                .iter()
                .find(|start| start.index == choice)
                .expect("known");
            let all: Vec<u32> = expected.tokens.iter().copied().chain(expected.end.1).collect();
            assert_eq!(
                found,
                &all[..=emitted.emitted.len()],
                "{key:?}.{choice}, a prefill"
            );
            assert_eq!(finished, None);
            return;
        }
        assert_eq!(found, &expected.tokens, "{key:?}.{choice}");
        assert_eq!(finished, Some(expected.end), "{key:?}.{choice}");
    }
}

pub(crate) struct Expected {
    pub(crate) tokens: Vec<u32>,
    pub(crate) end: (FinishReason, Option<u32>),
}

/// The output of one choice as a plain function of its prompt.
pub(crate) fn expected(model: &FakeModel, request: &EngineRequest, choice: u32, context: u32) -> Expected {
    let room = (context as usize - request.prompt.len()).min(request.stop.max_tokens as usize);
    let mut tokens = model.continue_from(&request.prompt, room, choice, &request.sampling);
    let is_stop = |token: &u32| request.stop.stop_tokens.contains(token);
    match tokens.iter().position(is_stop) {
        Some(at) => {
            let stop = tokens[at];
            tokens.truncate(at);
            Expected {
                tokens,
                end: (FinishReason::Stop, Some(stop)),
            }
        }
        None => Expected {
            tokens,
            end: (FinishReason::Length, None),
        },
    }
}
