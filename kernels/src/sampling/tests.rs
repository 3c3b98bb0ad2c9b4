use proptest::prelude::*;

use super::*;

const KEY: SampleKey = SampleKey {
    choice: 0,
    position: 7,
};

fn choose(logits: &[f32], params: &SamplingParams) -> Result<u32, SampleError> {
    choose_after(logits, params, &[], &[])
}

fn choose_after(
    logits: &[f32],
    params: &SamplingParams,
    prompt: &[u32],
    output: &[u32],
) -> Result<u32, SampleError> {
    let history = TokenHistory::new(prompt, output, params);
    sample(logits, params, KEY, &history, &mut SampleScratch::default())
}

/// Numbers in about -4..4 that look random.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let mixed = i
                .wrapping_add(seed.wrapping_mul(7919))
                .wrapping_mul(2_654_435_761);
            ((mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519) >> 8) as f32 / 2_097_152.0 - 4.0
        })
        .collect()
}

/// How often each token is chosen over positions 0..draws.
fn histogram(logits: &[f32], params: &SamplingParams, draws: u32) -> Vec<u32> {
    let mut counts = vec![0; logits.len()];
    let history = TokenHistory::default();
    let mut scratch = SampleScratch::default();
    for position in 0..draws {
        let key = SampleKey { choice: 3, position };
        counts[sample(logits, params, key, &history, &mut scratch).unwrap() as usize] += 1;
    }
    counts
}

/// Chi-square statistic of `counts` against the softmax of `kept`, and the degrees of freedom.
fn chi_square(counts: &[u32], kept: &[(u32, f64)]) -> (f64, f64) {
    let draws: f64 = counts.iter().map(|&c| f64::from(c)).sum();
    let total: f64 = kept.iter().map(|(_, l)| l.exp()).sum();
    let statistic = kept
        .iter()
        .map(|(token, l)| {
            let expected = draws * l.exp() / total;
            (f64::from(counts[*token as usize]) - expected).powi(2) / expected
        })
        .sum();
    (statistic, kept.len() as f64 - 1.0)
}

#[test]
fn samples_follow_the_softmax() {
    let logits = numbers(60, 3).iter().map(|l| l / 3.0).collect::<Vec<_>>();
    for (temperature, top_k, top_p, min_p) in [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.0, 20, 1.0, 0.0),
        (1.3, 0, 0.6, 0.0),
        (1.0, 0, 1.0, 0.3),
    ] {
        let params = SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            seed: 99,
            ..SamplingParams::default()
        };
        let kept = reference::kept(&reference::adjusted(&logits, &params, &[], &[]), &params);
        let counts = histogram(&logits, &params, 100_000);
        let inside: u32 = kept.iter().map(|(t, _)| counts[*t as usize]).sum();
        assert_eq!(inside, 100_000, "a filtered token was chosen");
        let (statistic, freedom) = chi_square(&counts, &kept);
        // Four standard deviations of the chi-square distribution.
        assert!(
            statistic < freedom + 4.0 * (2.0 * freedom).sqrt(),
            "{statistic} of {freedom}"
        );
        assert!(
            statistic > freedom - 4.0 * (2.0 * freedom).sqrt(),
            "too even: {statistic}"
        );
    }
}

#[test]
fn seeds_choices_and_positions_are_independent() {
    let logits = vec![0.0; 1000];
    let mut seen = Vec::new();
    for seed in [1_u64, 2, 1 << 32] {
        for choice in 0..3 {
            for position in 0..20 {
                let params = SamplingParams {
                    temperature: 1.0,
                    seed,
                    ..SamplingParams::default()
                };
                let key = SampleKey { choice, position };
                let history = TokenHistory::default();
                let mut scratch = SampleScratch::default();
                let token = sample(&logits, &params, key, &history, &mut scratch).unwrap();
                assert_eq!(sample(&logits, &params, key, &history, &mut scratch), Ok(token));
                seen.push(token);
            }
        }
    }
    seen.sort_unstable();
    seen.dedup();
    // 180 draws of 1000 give 165 different ones on average.
    assert!(seen.len() > 140, "{}", seen.len());
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    let params = SamplingParams::default();
    assert_eq!(choose(&[1.0, 3.0, 3.0, 2.0], &params), Ok(1));
    assert_eq!(choose(&[-0.0, 0.0], &params), Ok(0));
    let mut many = vec![0.5; 1000];
    many[777] = 0.75;
    many[900] = 0.75;
    assert_eq!(choose(&many, &params), Ok(777));
}

#[test]
fn what_is_not_a_number_is_never_chosen() {
    let greedy = SamplingParams::default();
    let warm = SamplingParams {
        temperature: 1.0,
        ..SamplingParams::default()
    };
    let filtered = SamplingParams {
        top_p: 0.9,
        min_p: 0.01,
        top_k: 3,
        ..warm.clone()
    };
    for params in [&greedy, &warm, &filtered] {
        assert_eq!(choose(&[f32::NAN, 1.0, f32::NAN], params), Ok(1));
        assert_eq!(
            choose(&[f32::NAN, f32::NEG_INFINITY], params),
            Err(SampleError::NoFiniteLogit)
        );
        assert_eq!(choose(&[], params), Err(SampleError::NoFiniteLogit));
        assert_eq!(choose(&[0.0, f32::INFINITY, f32::MIN], params), Ok(1));
        let forbidden = SamplingParams {
            allowed_tokens: vec![5],
            ..params.clone()
        };
        assert_eq!(choose(&[1.0, 2.0], &forbidden), Err(SampleError::AllForbidden));
    }
}

#[test]
fn each_narrowest_filter_is_greedy() {
    let logits = numbers(300, 8);
    let best = choose(&logits, &SamplingParams::default());
    let base = SamplingParams {
        temperature: 5.0,
        ..SamplingParams::default()
    };
    for seed in 0..50 {
        for params in [
            SamplingParams {
                top_k: 1,
                seed,
                ..base.clone()
            },
            SamplingParams {
                top_p: 1e-9,
                seed,
                ..base.clone()
            },
            SamplingParams {
                min_p: 1.0,
                seed,
                ..base.clone()
            },
            SamplingParams {
                temperature: 1e-30,
                seed,
                ..base.clone()
            },
        ] {
            assert_eq!(choose(&logits, &params), best, "{params:?}");
        }
    }
}

#[test]
fn filters_among_equals_keep_the_lowest_ids() {
    let logits = vec![2.0; 50];
    for (params, kept) in [
        (
            SamplingParams {
                top_k: 5,
                ..SamplingParams::default()
            },
            5,
        ),
        (
            SamplingParams {
                top_p: 0.11,
                ..SamplingParams::default()
            },
            6,
        ),
        (
            SamplingParams {
                min_p: 1.0,
                ..SamplingParams::default()
            },
            50,
        ),
    ] {
        let params = SamplingParams {
            temperature: 1.0,
            ..params
        };
        let counts = histogram(&logits, &params, 2000);
        assert!(counts[..kept].iter().all(|&c| c > 0));
        assert!(counts[kept..].iter().all(|&c| c == 0), "{counts:?}");
    }
}

#[test]
fn penalties_follow_their_formulas() {
    let logits = [4.0, 3.9, -1.0, 3.5];
    let repetition = SamplingParams {
        repetition_penalty: 2.0,
        ..SamplingParams::default()
    };
    assert_eq!(choose_after(&logits, &repetition, &[0], &[]), Ok(1));
    // Once, although it is in the prompt and in the output: 4 / 2 > 3.9 / 2, 3.5 / 2.
    assert_eq!(choose_after(&logits, &repetition, &[0, 1, 3], &[0, 0]), Ok(0));
    let presence = SamplingParams {
        presence_penalty: 0.3,
        ..SamplingParams::default()
    };
    assert_eq!(
        choose_after(&logits, &presence, &[0], &[]),
        Ok(0),
        "prompts do not count"
    );
    assert_eq!(choose_after(&logits, &presence, &[], &[0, 0]), Ok(1));
    let frequency = SamplingParams {
        frequency_penalty: 0.08,
        ..SamplingParams::default()
    };
    assert_eq!(choose_after(&logits, &frequency, &[], &[0]), Ok(0));
    assert_eq!(choose_after(&logits, &frequency, &[], &[0, 0]), Ok(1));
}

#[test]
fn lists_forbid_and_allow() {
    let logits = [4.0, 3.0, 2.0, 1.0];
    let params = SamplingParams {
        allowed_tokens: vec![3, 2, 2, 1000],
        ..SamplingParams::default()
    };
    assert_eq!(choose(&logits, &params), Ok(2));
    let params = SamplingParams {
        logit_bias: vec![(3, 9.0), (77, 1.0)],
        ..SamplingParams::default()
    };
    assert_eq!(choose(&logits, &params), Ok(3));
    let params = SamplingParams {
        stop_tokens: vec![0],
        min_tokens: 2,
        ..SamplingParams::default()
    };
    assert_eq!(choose_after(&logits, &params, &[], &[9]), Ok(1));
    assert_eq!(choose_after(&logits, &params, &[], &[9, 9]), Ok(0));
    let params = SamplingParams {
        bad_words: vec![vec![1, 2, 0], vec![], vec![3]],
        ..SamplingParams::default()
    };
    assert_eq!(
        choose_after(&logits, &params, &[1, 2], &[]),
        Ok(0),
        "words lie in the output"
    );
    assert_eq!(choose_after(&logits, &params, &[], &[1, 2]), Ok(1));
    assert_eq!(choose_after(&logits, &params, &[], &[1, 2, 1]), Ok(0));
}

#[test]
fn logprobs_are_those_of_the_softmax() {
    let logits = numbers(500, 4);
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let found = token_logprobs(&logits, 17, 5);
    assert_eq!(found.chosen.0, 17);
    let mut order: Vec<u32> = (0..500).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), order[..5]);
    for (token, logprob) in found.top.iter().chain([&found.chosen]) {
        let exact = f64::from(logits[*token as usize]) - total.ln();
        assert!((f64::from(*logprob) - exact).abs() < 1e-6, "{logprob} {exact}");
    }
    assert!(token_logprobs(&logits, 0, 0).top.is_empty());
    assert_eq!(token_logprobs(&logits, 0, 9999).top.len(), 500);
    let odd = token_logprobs(&[f32::NAN, 1.0, f32::NEG_INFINITY], 0, 2);
    assert_eq!(odd.chosen.1, f32::NEG_INFINITY);
    assert_eq!(odd.top, vec![(1, 0.0), (0, f32::NEG_INFINITY)]);
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let filters = (
        prop_oneof![Just(0.0f32), 0.2f32..2.0],
        prop_oneof![Just(1.0f32), 0.05f32..1.0],
        prop_oneof![Just(0u32), 1u32..60],
        prop_oneof![Just(0.0f32), 0.001f32..0.9],
        any::<u64>(),
    );
    let penalties = (
        prop_oneof![Just(0.0f32), -2f32..2.0],
        prop_oneof![Just(0.0f32), -2f32..2.0],
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
    );
    let lists = (
        prop::collection::vec((0u32..100, -5f32..5.0), 0..4),
        prop_oneof![Just(Vec::new()), prop::collection::vec(0u32..100, 1..40)],
        prop::collection::vec(prop::collection::vec(0u32..8, 1..3), 0..3),
        prop::collection::vec(0u32..100, 0..3),
        0u32..10,
    );
    (filters, penalties, lists).prop_map(|(filters, penalties, lists)| SamplingParams {
        temperature: filters.0,
        top_p: filters.1,
        top_k: filters.2,
        min_p: filters.3,
        seed: filters.4,
        presence_penalty: penalties.0,
        frequency_penalty: penalties.1,
        repetition_penalty: penalties.2,
        logit_bias: lists.0,
        allowed_tokens: lists.1,
        bad_words: lists.2,
        stop_tokens: lists.3,
        min_tokens: lists.4,
        logprobs: None,
    })
}

/// Whether a filter's border lies so close to a token that f32 and f64 may differ about it.
fn is_close_call(logits: &[f32], params: &SamplingParams, prompt: &[u32], output: &[u32]) -> bool {
    let adjusted = reference::adjusted(logits, params, prompt, output);
    let tokens = |p: &SamplingParams| reference::kept(&adjusted, p).len();
    let nudge = |p: f32, by: f32| if p > 0.0 && p < 1.0 { p * by } else { p };
    let nudged = |by| {
        tokens(&SamplingParams {
            top_p: nudge(params.top_p, by),
            min_p: nudge(params.min_p, 2.0 - by),
            ..params.clone()
        })
    };
    params.temperature > 0.0 && nudged(0.9999) != nudged(1.0001)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn equals_the_reference(
        params in any_params(),
        vocab in 1usize..700,
        seed in any::<u32>(),
        prompt in prop::collection::vec(0u32..100, 0..20),
        output in prop::collection::vec(0u32..8, 0..20),
        choice in 0u32..4,
        position in any::<u32>(),
    ) {
        let logits = numbers(vocab, seed);
        let key = SampleKey { choice, position };
        let history = TokenHistory::new(&prompt, &output, &params);
        let found = sample(&logits, &params, key, &history, &mut SampleScratch::default());
        match reference::sample(&logits, &params, key, &prompt, &output) {
            None => prop_assert_eq!(found, Err(SampleError::AllForbidden)),
            Some((token, margin)) => {
                if margin > 1e-4 && !is_close_call(&logits, &params, &prompt, &output) {
                    prop_assert_eq!(found, Ok(token));
                } else {
                    prop_assert!(found.is_ok());
                }
            }
        }
    }

    #[test]
    fn a_history_grows_as_if_made_anew(
        output in prop::collection::vec(0u32..8, 0..20),
        more in prop::collection::vec(0u32..8, 0..20),
        params in any_params(),
    ) {
        let logits = numbers(100, 1);
        let mut grown = TokenHistory::new(&[1, 2], &output, &params);
        for &token in &more {
            grown.push(token);
        }
        let whole = [output, more].concat();
        prop_assert_eq!(grown.output(), &whole[..]);
        let anew = TokenHistory::new(&[1, 2], &whole, &params);
        let run = |history| sample(&logits, &params, KEY, history, &mut SampleScratch::default());
        prop_assert_eq!(run(&grown), run(&anew));
    }
}
