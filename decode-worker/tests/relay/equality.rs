//! Wherever a prompt runs, the tokens are the same.

use baton_kvcache::transfer::{TransferConfig, TransportChoice};
use baton_proto::v1::{Choice, FinishReason, decode_event::Event};

use crate::fleet::*;

#[tokio::test]
async fn a_prompt_without_prefill_workers_runs_here() {
    let decode = Shape::default().decode().await;
    let request = request(1, 100, 12);
    let answer = generate(&decode, request.clone()).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&request, 0));
    assert_eq!(answer.finished[&0], FinishReason::Length);
    let prefilled = answer.prefilled.expect("said");
    assert_eq!(prefilled.worker_id, decode.identity().worker_id);
    assert_eq!((prefilled.handoff_bytes, prefilled.cached_tokens), (0, 0));
    all_pages_back(&decode).await;
}

async fn handed_off_over(transport: TransportChoice) {
    let shape = Shape {
        transfer: TransferConfig {
            transport,
            ..TransferConfig::default()
        },
        ..Shape::default()
    };
    let (prefill, decode) = (shape.clone().prefill().await, shape.decode().await);
    for length in [1, 15, 16, 17, 100, 500] {
        let request = with_prefill(request(length, length, 12), &[&prefill]);
        let answer = generate(&decode, request.clone()).await.expect("served");
        assert_eq!(answer.tokens[&0], expected(&request, 0), "prompt of {length}");
        let prefilled = answer.prefilled.expect("said");
        assert_eq!(
            prefilled.worker_id,
            prefill.identity().worker_id,
            "prompt of {length}"
        );
        let pages = u64::from(length).div_ceil(PAGE_TOKENS as u64);
        let memory = decode.engine().kv_memory();
        let slice = memory.layout().slice_bytes() as u64;
        assert_eq!(
            prefilled.handoff_bytes,
            pages * memory.layout().layers as u64 * slice
        );
    }
    assert_eq!(metric(&decode, "baton_decode_prefills_total", "remote"), 6.0);
    assert_eq!(metric(&decode, "baton_decode_handoffs_total", "done"), 6.0);
    all_pages_back(&decode).await;
    all_pages_back(&prefill).await;
}

#[tokio::test]
async fn a_hand_off_over_tcp_changes_no_token() {
    handed_off_over(TransportChoice::Tcp).await;
}

#[tokio::test]
async fn a_hand_off_inside_one_process_changes_no_token() {
    handed_off_over(TransportChoice::Local).await;
}

#[tokio::test]
async fn several_choices_share_one_hand_off() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let mut request = with_prefill(request(3, 90, 20), &[&prefill]);
    request.choices = vec![
        Choice::default(),
        Choice {
            index: 1,
            emitted_ids: Vec::new(),
        },
    ];
    let answer = generate(&decode, request.clone()).await.expect("served");
    for choice in [0, 1] {
        assert_eq!(answer.tokens[&choice], expected(&request, choice));
    }
    assert_ne!(answer.tokens[&0], answer.tokens[&1]);
    assert_eq!(metric(&decode, "baton_decode_handoffs_total", "done"), 1.0);
    all_pages_back(&decode).await;
    all_pages_back(&prefill).await;
}

#[tokio::test]
async fn a_moved_request_goes_on_after_what_it_had_emitted() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let mut whole = with_prefill(request(4, 60, 24), &[&prefill]);
    let tokens = expected(&whole, 0);
    whole.choices[0].emitted_ids = tokens[..10].to_vec();
    let remote = generate(&decode, whole.clone()).await.expect("served");
    assert_eq!(remote.tokens[&0], tokens[10..]);
    assert_eq!(metric(&decode, "baton_decode_prefills_total", "remote"), 1.0);
    // Two choices with different pasts have no common prompt: they run here.
    whole.choices.push(Choice {
        index: 1,
        emitted_ids: expected(&whole, 1)[..3].to_vec(),
    });
    let local = generate(&decode, whole.clone()).await.expect("served");
    assert_eq!(local.tokens[&0], tokens[10..]);
    assert_eq!(local.tokens[&1], expected(&whole, 1)[3..]);
    assert_eq!(metric(&decode, "baton_decode_prefills_total", "local"), 1.0);
}

#[tokio::test]
async fn pages_that_are_here_already_are_not_sent_again() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let first = with_prefill(request(5, 320, 4), &[&prefill]);
    let cold = generate(&decode, first.clone())
        .await
        .expect("served")
        .prefilled
        .expect("said");
    let mut longer = first.clone();
    longer.prompt_ids.extend(prompt(99, 100));
    let answer = generate(&decode, longer.clone()).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&longer, 0));
    let warm = answer.prefilled.expect("said");
    assert_eq!(warm.cached_tokens, 320);
    assert!(
        warm.handoff_bytes < cold.handoff_bytes / 2,
        "{warm:?} after {cold:?}"
    );
    // Another salt shares nothing.
    longer.cache_salt = "tenant".into();
    let salted = generate(&decode, longer.clone()).await.expect("served");
    assert_eq!(salted.tokens[&0], expected(&longer, 0));
    assert_eq!(salted.prefilled.expect("said").cached_tokens, 0);
}

#[tokio::test]
async fn what_is_almost_all_here_runs_here() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let mut request = with_prefill(request(6, 200, 4), &[&prefill]);
    request.remote_prefill_min_tokens = 100;
    let first = generate(&decode, request.clone()).await.expect("served");
    let again = generate(&decode, request.clone()).await.expect("served");
    assert_eq!(first.tokens, again.tokens);
    assert_eq!(
        first.prefilled.expect("said").worker_id,
        prefill.identity().worker_id
    );
    assert_eq!(
        again.prefilled.expect("said").worker_id,
        decode.identity().worker_id
    );
}

#[tokio::test]
async fn a_first_token_can_be_the_last() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let one = with_prefill(request(7, 40, 1), &[&prefill]);
    let answer = generate(&decode, one.clone()).await.expect("served");
    assert_eq!(answer.tokens[&0], expected(&one, 0));
    assert_eq!(answer.finished[&0], FinishReason::Length);
    // A stop token ends the choice and is not streamed.
    let mut stopped = with_prefill(request(8, 40, 10), &[&prefill]);
    let stop = expected(&stopped, 0)[0];
    stopped.stop.as_mut().expect("set").stop_token_ids = vec![stop];
    let mut stream = open(&decode, stopped).await.expect("served");
    let finished = heard(&mut stream, |event| {
        assert!(!matches!(event, Event::Tokens(_)), "{event:?}");
        matches!(event, Event::Finished(_))
    })
    .await;
    let Event::Finished(finished) = finished else {
        panic!("as asked")
    };
    assert_eq!(
        (finished.reason(), finished.stop_token_id),
        (FinishReason::Stop, Some(stop))
    );
    all_pages_back(&decode).await;
    all_pages_back(&prefill).await;
}

#[tokio::test]
async fn logprobs_come_with_every_token() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let mut request = with_prefill(request(9, 40, 6), &[&prefill]);
    request.sampling.as_mut().expect("set").logprobs = Some(2);
    let mut stream = open(&decode, request.clone()).await.expect("served");
    let mut seen = Vec::new();
    while let Some(event) = within(stream.message()).await.expect("no error") {
        if let Some(Event::Tokens(tokens)) = event.event {
            assert_eq!(tokens.ids.len(), tokens.logprobs.len());
            for (id, logprobs) in tokens.ids.iter().zip(&tokens.logprobs) {
                assert_eq!(logprobs.chosen.as_ref().map(|chosen| chosen.id), Some(*id));
                assert_eq!(logprobs.top.len(), 2);
            }
            seen.extend(tokens.ids);
        }
    }
    assert_eq!(seen, expected(&request, 0));
}

#[tokio::test]
async fn many_requests_at_once_are_as_one_alone() {
    let (prefill, decode) = (Shape::default().prefill().await, Shape::default().decode().await);
    let requests: Vec<_> = (0..24)
        .map(|salt| {
            let request = request(100 + salt, 20 + salt * 9, 16);
            if salt % 3 == 0 {
                request
            } else {
                with_prefill(request, &[&prefill])
            }
        })
        .collect();
    let answers = requests.iter().map(|request| generate(&decode, request.clone()));
    for (request, answer) in requests.iter().zip(futures::future::join_all(answers).await) {
        assert_eq!(
            answer.expect("served").tokens[&0],
            expected(request, 0),
            "{}",
            request.request_id
        );
    }
    all_pages_back(&decode).await;
    all_pages_back(&prefill).await;
}
