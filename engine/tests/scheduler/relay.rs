//! A prefill and a decode worker with the hand-offs between them: what services and transports do, one small action at a
//! time, so that anything can happen in between.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use baton_engine::{
    FirstToken,
    request::{ChoiceStart, EngineRequest, KvSink, StopRules, Work},
    scheduler::RequestKey,
};
use baton_kvcache::PagePin;
use parking_lot::Mutex;

use crate::worker::{Shape, Worker};

pub(crate) struct Relay {
    pub(crate) decode: Worker,
    pub(crate) prefill: Worker,
    pub(crate) now: Duration,
    handoffs: BTreeMap<RequestKey, HandOff>,
    next_lease: u64,
}

/// A hand-off as the decode worker's service sees it.
struct HandOff {
    prefill: RequestKey,
    sink: Arc<Sink>,
    held: u32,
    lease: Option<u64>,
    /// Slices that have arrived.
    arrived: usize,
}

/// Slices that the prefill worker may send, in the order in which they became final.
#[derive(Default)]
pub(crate) struct Sink {
    ready: Mutex<Vec<(u32, u32, PagePin)>>,
    named: Mutex<std::collections::BTreeSet<(u32, u32)>>,
    aborted: AtomicBool,
}

impl Sink {
    /// As a transfer does that was given up: no pin stays.
    fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.ready.lock().clear();
    }
}

impl KvSink for Sink {
    fn ready(&self, layer: u32, pages: &[(u32, PagePin)]) {
        for (index, pin) in pages {
            assert!(
                self.named.lock().insert((layer, *index)),
                "page {index} layer {layer} is named twice"
            );
            if !self.aborted.load(Ordering::Relaxed) {
                self.ready.lock().push((layer, *index, pin.clone()));
            }
        }
    }
}

impl Relay {
    pub(crate) fn new(decode: &Shape, prefill: &Shape) -> Self {
        Self {
            decode: Worker::new(decode),
            prefill: Worker::new(prefill),
            now: Duration::ZERO,
            handoffs: BTreeMap::new(),
            next_lease: 0,
        }
    }

    pub(crate) fn submit(&mut self, request: EngineRequest) -> Option<RequestKey> {
        self.decode.submit(request, self.now).ok()
    }

    pub(crate) fn cancel(&mut self, key: RequestKey) {
        self.decode.cancel(key);
    }

    /// The prefill worker of a hand-off is lost: another try, or the prompt is run by the decode worker.
    pub(crate) fn lose_prefill(&mut self, key: RequestKey, again: bool) {
        let Some(handoff) = self.handoffs.remove(&key) else {
            return;
        };
        handoff.sink.abort();
        self.prefill.cancel(handoff.prefill);
        let log = self.decode.logs.get_mut(&key).expect("submitted");
        log.leased = None;
        if again {
            self.decode.scheduler.release_lease(key);
            log.needs_handoff = Some(handoff.held);
        } else {
            self.decode.scheduler.prefill_here(key);
        }
        self.decode.check();
    }

    /// Does the first thing that some hand-off is due for. Returns whether there was any.
    pub(crate) fn network(&mut self, from: usize) -> bool {
        let keys: Vec<RequestKey> = self.decode.logs.keys().copied().collect();
        let from = from % keys.len().max(1);
        let (later, first) = keys.split_at(from);
        first.iter().chain(later).any(|key| self.act(*key))
    }

    fn act(&mut self, key: RequestKey) -> bool {
        let log = self.decode.logs.get_mut(&key).expect("submitted");
        if log.ended || log.cancelled {
            let Some(handoff) = self.handoffs.remove(&key) else {
                return false;
            };
            handoff.sink.abort();
            self.prefill.cancel(handoff.prefill);
            return true;
        }
        if let Some(held) = log.needs_handoff.take() {
            let request = log.request.clone();
            self.ask(key, held, request);
            return true;
        }
        let Some(handoff) = self.handoffs.get_mut(&key) else {
            return false;
        };
        let source = &self.prefill.logs[&handoff.prefill];
        if source.failed.is_some() || source.cancelled || (source.ended && !source.finished.is_empty()) {
            self.lose_prefill(key, false);
            return true;
        }
        if source.started && handoff.lease.is_none() {
            self.next_lease += 1;
            handoff.lease = Some(self.next_lease);
            self.decode.scheduler.lease(key, self.next_lease);
            self.decode.check();
            return true;
        }
        let log = &self.decode.logs[&key];
        let Some((lease, first_page, pages)) = &log.leased else {
            return false;
        };
        assert_eq!((Some(*lease), *first_page), (handoff.lease, handoff.held));
        let next = handoff.sink.ready.lock().pop();
        if let Some((layer, index, from)) = next {
            let to = &pages[(index - first_page) as usize];
            let mut slice = Vec::new();
            self.prefill
                .memory()
                .read_slice(from.id(), layer, &mut slice)
                .expect("a page of the sender");
            self.decode
                .memory()
                .write_slice(to.id(), layer, &slice)
                .expect("a page of the receiver");
            handoff.arrived += 1;
            return true;
        }
        let whole = pages.len() * self.decode.limits.layers as usize;
        if !source.ended || handoff.arrived < whole {
            return false;
        }
        assert_eq!(handoff.arrived, whole);
        let resumed = log.request.choices[0].emitted.len();
        let first = source.outputs.iter().map(|(choice, tokens)| FirstToken {
            choice: *choice,
            token: tokens[resumed],
            logprobs: None,
        });
        let first: Vec<FirstToken> = first.collect();
        // The decode worker's service sends first tokens on by itself.
        let stops = log.request.stop.stop_tokens.clone();
        let log = self.decode.logs.get_mut(&key).expect("submitted");
        for first in first.iter().filter(|first| !stops.contains(&first.token)) {
            log.outputs
                .get_mut(&first.choice)
                .expect("a choice")
                .push(first.token);
        }
        log.leased = None;
        self.handoffs.remove(&key);
        self.decode.scheduler.adopt(key, &first, self.now);
        self.decode.check();
        true
    }

    fn ask(&mut self, key: RequestKey, held_pages: u32, request: EngineRequest) {
        let sink = Arc::new(Sink::default());
        let work = Work::Prefill {
            sink: Arc::clone(&sink) as Arc<dyn KvSink>,
            held_pages,
        };
        match self.prefill.submit(
            EngineRequest {
                work,
                deadline: None,
                ..request
            },
            self.now,
        ) {
            Ok(prefill) => {
                let handoff = HandOff {
                    prefill,
                    sink,
                    held: held_pages,
                    lease: None,
                    arrived: 0,
                };
                self.handoffs.insert(key, handoff);
            }
            Err(_) => {
                self.decode.scheduler.prefill_here(key);
                self.decode.check();
            }
        }
    }

    /// Everybody does a little. Returns whether anybody could.
    pub(crate) fn turn(&mut self, turn: usize) -> bool {
        let mut moved = false;
        for worker in [&mut self.decode, &mut self.prefill] {
            moved |= worker.plan(self.now);
            moved |= worker.plan(self.now);
            moved |= worker.poll(self.now);
        }
        moved | self.network(turn)
    }

    /// Lets everything go on until all is done. Every turn makes some progress, so the number of turns is bounded.
    pub(crate) fn run_out(&mut self) {
        let tokens = |worker: &Worker| -> usize {
            let whole = |request: &EngineRequest| {
                let output = request.stop.max_tokens as usize * request.choices.len();
                request.prompt.len() * request.choices.len() + output
            };
            worker.logs.values().map(|log| whole(&log.request)).sum()
        };
        let bound = 200 + 40 * (tokens(&self.decode) + tokens(&self.prefill));
        for turn in 0..bound {
            self.now += Duration::from_millis(1);
            let moved = self.turn(turn);
            if !moved && self.decode.is_idle() && self.prefill.is_idle() {
                return;
            }
        }
        panic!(
            "no end after {bound} turns: decode {:?}, prefill {:?}",
            self.decode.scheduler.load(),
            self.prefill.scheduler.load()
        );
    }

    /// When all has ended, only the prefix caches keep pages.
    pub(crate) fn check_end(&mut self) {
        self.handoffs.clear();
        for worker in [&mut self.decode, &mut self.prefill] {
            worker.check_outputs();
            // Leases and sinks hold pins.
            worker.logs.clear();
            let pages = worker.scheduler.page_load();
            assert_eq!((pages.mutable, pages.retiring), (0, 0), "{pages:?}");
            assert_eq!(pages.cached, pages.sealed, "{pages:?}");
        }
    }
}

/// A request for the tests: `work` is what the decode worker is asked to do.
pub(crate) fn request(
    prompt: Vec<u32>,
    choices: Vec<ChoiceStart>,
    stop: StopRules,
    work: Work,
) -> EngineRequest {
    EngineRequest {
        id: "test".into(),
        prompt: prompt.into(),
        choices,
        sampling: Arc::default(),
        stop,
        scope: crate::worker::hasher(1).scope("", ""),
        priority: 0,
        deadline: None,
        work,
    }
}
