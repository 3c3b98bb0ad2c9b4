//! Policy v1: least load, and remote prefill where the prompt is long and the prefill queue is short.

use std::hash::Hasher as _;

use baton_proto::v1::{KvFingerprint, WorkerRole};
use serde::Serialize;
use siphasher::sip::SipHasher13;

use super::{Cost, PolicyConfig, WorkerView, cost::queued_tokens};

/// What of a request decides its plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    pub request_id: &'a str,
    pub model: &'a str,
    pub prompt_tokens: u32,
}

/// Where the prompt runs, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillPlace {
    Remote,
    /// The prompt is shorter than `remote_prefill_min_tokens`.
    LocalShortPrompt,
    /// No prefill worker serves this model.
    LocalNoWorker,
    /// Every prefill worker has too long a queue.
    LocalQueueTooLong,
}

impl PrefillPlace {
    /// Label of `baton_router_plans_total`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Remote => "remote",
            Self::LocalShortPrompt => "local_short_prompt",
            Self::LocalNoWorker => "local_no_worker",
            Self::LocalQueueTooLong => "local_queue_too_long",
        }
    }
}

/// One worker of the plan, with every term of its cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    pub worker_id: String,
    pub incarnation: u64,
    pub addr: String,
    pub cost: Cost,
    #[serde(skip)]
    pub fingerprint: KvFingerprint,
}

/// Where a request goes, in order of preference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub decode: Vec<Candidate>,
    pub prefill: Vec<Candidate>,
    pub place: PrefillPlace,
    /// The decode worker, which knows its own cache, prefills locally when fewer tokens are missing from it.
    pub remote_prefill_min_tokens: u32,
}

impl Plan {
    /// The prefill candidates whose KV means the same as that of `decode`.
    pub fn prefill_for<'a>(&'a self, decode: &'a Candidate) -> impl Iterator<Item = &'a Candidate> {
        self.prefill
            .iter()
            .filter(|prefill| prefill.fingerprint == decode.fingerprint)
    }
}

/// Plans a request. The same workers and request id give the same plan on every router.
#[must_use]
pub fn plan(workers: &[WorkerView], request: PlanRequest<'_>, config: &PolicyConfig) -> Plan {
    let serving = |role: WorkerRole| {
        workers
            .iter()
            .filter(move |worker| worker.role == role && worker.model == request.model && !worker.leaving)
    };
    // Room for the prompt and one token. A worker that reports no limit has none.
    let fits = |worker: &&WorkerView| {
        let limit = worker.capacity.context_tokens;
        limit == 0 || request.prompt_tokens < limit
    };
    let decode: Vec<_> = serving(WorkerRole::Decode)
        .filter(fits)
        .map(|worker| candidate(worker, Cost::decode(worker, config)))
        .collect();
    let mut prefill = Vec::new();
    let place = if request.prompt_tokens < config.remote_prefill_min_tokens {
        PrefillPlace::LocalShortPrompt
    } else if serving(WorkerRole::Prefill).next().is_none() {
        PrefillPlace::LocalNoWorker
    } else {
        prefill.extend(
            serving(WorkerRole::Prefill)
                .filter(fits)
                .filter(|worker| queued_tokens(worker) < config.prefill_queue_tokens)
                .map(|worker| candidate(worker, Cost::prefill(worker, config))),
        );
        if prefill.is_empty() {
            PrefillPlace::LocalQueueTooLong
        } else {
            PrefillPlace::Remote
        }
    };
    Plan {
        decode: ordered(decode, request.request_id, config.near),
        prefill: ordered(prefill, request.request_id, config.near),
        place,
        remote_prefill_min_tokens: config.remote_prefill_min_tokens,
    }
}

fn candidate(worker: &WorkerView, cost: Cost) -> Candidate {
    Candidate {
        worker_id: worker.worker_id.clone(),
        incarnation: worker.incarnation,
        addr: worker.addr.clone(),
        cost,
        fingerprint: worker.fingerprint.clone(),
    }
}

/// By cost in steps of `near`, then by a hash of request and worker: routers that see the same loads spread their
/// requests instead of all choosing the same worker. Steps, because "differs by less than" is no order.
fn ordered(mut candidates: Vec<Candidate>, request_id: &str, near: f64) -> Vec<Candidate> {
    candidates.sort_by_cached_key(|candidate| {
        let step = (candidate.cost.total / near).round() as u64;
        (
            step,
            spread(request_id, &candidate.worker_id),
            candidate.worker_id.clone(),
        )
    });
    candidates
}

fn spread(request_id: &str, worker_id: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(request_id.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(worker_id.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::{Capacity, WorkerLoad};

    use super::{super::Assigned, *};

    fn worker(worker_id: &str, role: WorkerRole) -> WorkerView {
        WorkerView {
            worker_id: worker_id.into(),
            incarnation: 1,
            role,
            addr: format!("http://{worker_id}"),
            model: "tiny".into(),
            fingerprint: KvFingerprint::default(),
            capacity: Capacity {
                max_running: 10,
                max_waiting: 10,
                context_tokens: 4096,
                total_pages: 100,
                page_tokens: 16,
            },
            load: WorkerLoad {
                free_pages: 100,
                ..Default::default()
            },
            assigned: Assigned::default(),
            leaving: false,
        }
    }

    fn decode(id: &str) -> WorkerView {
        worker(id, WorkerRole::Decode)
    }

    fn planned(workers: &[WorkerView], request_id: &str, prompt_tokens: u32) -> Plan {
        let request = PlanRequest {
            request_id,
            model: "tiny",
            prompt_tokens,
        };
        plan(workers, request, &PolicyConfig::default())
    }

    fn ids(candidates: &[Candidate]) -> Vec<&str> {
        candidates
            .iter()
            .map(|candidate| candidate.worker_id.as_str())
            .collect()
    }

    #[test]
    fn less_load_comes_first_and_every_term_counts() {
        let mut workers = [
            decode("waits"),
            decode("runs"),
            decode("full"),
            decode("idle"),
            decode("assigned"),
        ];
        workers[0].load.waiting = 9;
        workers[1].load.running = 2;
        workers[2].load.free_pages = 10;
        workers[4].assigned.requests = 30;
        let plan = planned(&workers, "r", 10);
        assert_eq!(ids(&plan.decode), ["idle", "runs", "full", "waits", "assigned"]);
        let names: Vec<_> = plan.decode[0].cost.terms.iter().map(|term| term.name).collect();
        assert_eq!(names, ["waiting", "running", "pages"]);
    }

    #[test]
    fn cached_pages_are_no_pressure() {
        let mut cached = decode("cached");
        cached.load.free_pages = 0;
        cached.load.cached_pages = 100;
        let plan = planned(&[cached], "r", 10);
        assert_eq!(plan.decode[0].cost.total, 0.0);
    }

    #[test]
    fn near_equals_are_spread_by_request_and_alike_on_every_router() {
        let workers = [decode("a"), decode("b"), decode("c")];
        let mut reversed = workers.clone();
        reversed.reverse();
        let mut firsts = [0; 3];
        for index in 0..300 {
            let request_id = format!("request-{index}");
            let plan = planned(&workers, &request_id, 10);
            assert_eq!(plan, planned(&reversed, &request_id, 10));
            let first = ids(&plan.decode)[0].to_owned();
            firsts[workers
                .iter()
                .position(|worker| worker.worker_id == first)
                .expect("one of them")] += 1;
        }
        assert!(
            firsts.iter().all(|count| (60..=140).contains(count)),
            "{firsts:?}"
        );
    }

    #[test]
    fn other_models_leaving_workers_and_small_contexts_are_left_out() {
        let mut workers = [
            decode("other"),
            decode("leaving"),
            decode("small"),
            decode("good"),
        ];
        workers[0].model = "large".into();
        workers[1].leaving = true;
        workers[2].capacity.context_tokens = 10;
        assert_eq!(ids(&planned(&workers, "r", 10).decode), ["good"]);
        assert_eq!(planned(&workers, "r", 9).decode.len(), 2);
    }

    #[test]
    fn remote_prefill_needs_a_long_prompt_and_a_short_queue() {
        let mut workers = [
            decode("d"),
            worker("p1", WorkerRole::Prefill),
            worker("p2", WorkerRole::Prefill),
        ];
        workers[1].load.waiting_tokens = 8000;
        assert_eq!(planned(&workers, "r", 255).place, PrefillPlace::LocalShortPrompt);
        let plan = planned(&workers, "r", 256);
        assert_eq!(
            (plan.place, ids(&plan.prefill)),
            (PrefillPlace::Remote, vec!["p2", "p1"])
        );
        workers[1].assigned.prompt_tokens = 9000;
        assert_eq!(ids(&planned(&workers, "r", 256).prefill), ["p2"]);
        workers[2].load.waiting_tokens = 16_384;
        assert_eq!(planned(&workers, "r", 256).place, PrefillPlace::LocalQueueTooLong);
        assert_eq!(
            planned(&workers[..1], "r", 256).place,
            PrefillPlace::LocalNoWorker
        );
    }

    #[test]
    fn kv_goes_only_between_workers_with_one_fingerprint() {
        let mut workers = [
            decode("d"),
            worker("p1", WorkerRole::Prefill),
            worker("p2", WorkerRole::Prefill),
        ];
        workers[1].fingerprint.kv_dtype = "bf16".into();
        let plan = planned(&workers, "r", 1000);
        let prefill: Vec<_> = plan
            .prefill_for(&plan.decode[0])
            .map(|candidate| &candidate.worker_id)
            .collect();
        assert_eq!(prefill, ["p2"]);
    }
}
