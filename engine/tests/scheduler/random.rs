//! Random arrivals, lengths, choices, priorities, cancels, deadlines, page counts, budgets, drafts, and hand-offs.

use std::{sync::Arc, time::Duration};

use baton_engine::request::{ChoiceStart, EngineRequest, StopRules, Work};
use baton_kernels::sampling::SamplingParams;
use proptest::prelude::*;

use crate::{
    relay::{Relay, request},
    worker::{Shape, expected},
};

#[derive(Clone, Debug)]
enum Action {
    Submit(Arrival),
    Cancel(prop::sample::Index),
    LosePrefill { of: prop::sample::Index, again: bool },
    Tick(u64),
    Plan { decode: bool },
    Poll { decode: bool },
    Network(prop::sample::Index),
}

#[derive(Clone, Debug)]
struct Arrival {
    /// Prompts of one family share a prefix of this length.
    family: u32,
    shared: u32,
    own: u32,
    choices: u32,
    max_tokens: u32,
    /// Part of the output that exists already.
    resumed: Option<u32>,
    stops: u32,
    seed: u64,
    priority: i32,
    deadline: Option<u64>,
    hand_off: bool,
    min_missing: u32,
    logprobs: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        (6_u32..40, 1_u32..7, 1_u32..6, 16_u32..64),
        (0_u32..4, 1_u32..3, 2_u32..24, 1_usize..4),
        (4_usize..24, 0.2_f64..1.0, 12_u32..60, any::<u64>()),
    )
        .prop_map(
            |((pages, slots, page_tokens, context), (drafts, layers, batch, prefills), rest)| Shape {
                pages,
                slots,
                page_tokens,
                context,
                drafts,
                layers,
                batch,
                prefills,
                max_waiting: rest.0,
                inbound_share: rest.1,
                vocab: rest.2,
                seed: rest.3,
            },
        )
}

fn arrival() -> impl Strategy<Value = Arrival> {
    (
        (0_u32..3, 0_u32..20, 1_u32..30, 1_u32..4, 1_u32..24),
        (
            prop::option::weighted(0.25, 0_u32..10),
            0_u32..6,
            0_u64..2,
            -2_i32..3,
        ),
        (
            prop::option::weighted(0.15, 1_u64..80),
            any::<bool>(),
            0_u32..8,
            any::<bool>(),
        ),
    )
        .prop_map(
            |((family, shared, own, choices, max_tokens), (resumed, stops, seed, priority), rest)| Arrival {
                family,
                shared,
                own,
                choices,
                max_tokens,
                resumed,
                stops,
                seed,
                priority,
                deadline: rest.0,
                hand_off: rest.1,
                min_missing: rest.2,
                logprobs: rest.3,
            },
        )
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => arrival().prop_map(Action::Submit),
        1 => any::<prop::sample::Index>().prop_map(Action::Cancel),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(of, again)| Action::LosePrefill { of, again }),
        2 => (0_u64..10).prop_map(Action::Tick),
        8 => any::<bool>().prop_map(|decode| Action::Plan { decode }),
        8 => any::<bool>().prop_map(|decode| Action::Poll { decode }),
        8 => any::<prop::sample::Index>().prop_map(Action::Network),
    ]
}

impl Arrival {
    fn request(&self, relay: &Relay) -> EngineRequest {
        let vocab = relay.decode.limits.vocab;
        let shared = (0..self.shared).map(|position| (self.family * 7 + position * 3) % vocab);
        let own = (0..self.own).map(|position| (self.family + self.own * 5 + position * 11) % vocab);
        let prompt: Vec<u32> = shared.chain(own).collect();
        let stop = StopRules {
            max_tokens: self.max_tokens,
            stop_tokens: (0..self.stops).collect(),
        };
        let choices = |emitted: Vec<u32>| -> Vec<ChoiceStart> {
            let start = |index| ChoiceStart {
                index,
                emitted: Vec::new(),
            };
            let mut choices: Vec<ChoiceStart> = (0..self.choices).map(start).collect();
            choices[0].emitted = emitted;
            choices
        };
        let work = if self.hand_off && (self.resumed.is_none() || self.choices == 1) {
            Work::GenerateFromHandoff {
                min_missing_tokens: self.min_missing,
            }
        } else {
            Work::Generate
        };
        let mut request = request(prompt, choices(Vec::new()), stop, work);
        request.priority = self.priority;
        request.deadline = self.deadline.map(Duration::from_millis);
        request.sampling = Arc::new(SamplingParams {
            seed: self.seed,
            logprobs: self.logprobs.then_some(1),
            ..SamplingParams::default()
        });
        if let Some(resumed) = self.resumed {
            let context = relay.decode.limits.context_tokens;
            if request.prompt.len() < context as usize {
                let whole = expected(&relay.decode.model(), &request, 0, context).tokens;
                let most = whole
                    .len()
                    .min(self.max_tokens as usize - 1)
                    .min(resumed as usize);
                request.choices = choices(whole[..most].to_vec());
            }
        }
        request
    }
}

fn run(decode: &Shape, prefill: &Shape, actions: Vec<Action>) {
    let mut relay = Relay::new(decode, prefill);
    let mut keys = Vec::new();
    for action in actions {
        match action {
            Action::Submit(arrival) => {
                let request = arrival.request(&relay);
                keys.extend(relay.submit(request));
            }
            Action::Cancel(index) if !keys.is_empty() => relay.cancel(*index.get(&keys)),
            Action::LosePrefill { of, again } if !keys.is_empty() => {
                relay.lose_prefill(*of.get(&keys), again)
            }
            Action::Cancel(_) | Action::LosePrefill { .. } => {}
            Action::Tick(millis) => relay.now += Duration::from_millis(millis),
            Action::Plan { decode } => {
                let now = relay.now;
                let worker = if decode {
                    &mut relay.decode
                } else {
                    &mut relay.prefill
                };
                worker.plan(now);
            }
            Action::Poll { decode } => {
                let now = relay.now;
                let worker = if decode {
                    &mut relay.decode
                } else {
                    &mut relay.prefill
                };
                worker.poll(now);
            }
            Action::Network(from) => {
                relay.network(from.index(1 << 16));
            }
        }
    }
    relay.run_out();
    relay.check_end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 768, max_shrink_time: 20_000, ..ProptestConfig::default() })]

    /// Conservation after every operation, progress, order, and outputs equal to those of each request alone.
    #[test]
    fn every_request_ends_as_if_it_were_alone(
        decode in shape(),
        mut prefill in shape(),
        actions in prop::collection::vec(action(), 1..150),
    ) {
        // What both ends of a hand-off must have in common.
        prefill.page_tokens = decode.page_tokens;
        prefill.layers = decode.layers;
        prefill.vocab = decode.vocab;
        run(&decode, &prefill, actions);
    }
}
