//! What is sent arrives, whatever the order of grants and of ready slices.

use baton_kvcache::transfer::{TransferConfig, TransportChoice};

use crate::world::{Decode, LAYERS, Prefill, Sequence, config, soon, unique, value};

const BOTH: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Local];

#[derive(Clone, Copy, Debug)]
enum Granted {
    BeforeStart,
    BeforeReady,
    InTheMiddle,
    AfterReady,
}

async fn one(config: &TransferConfig, granted: Granted) {
    let (mut decode, mut prefill) = (Decode::start(config).await, Prefill::start(config));
    let sequence = Sequence::new(&mut prefill, &mut decode, 5, 4);
    let mut grant = None;
    if matches!(granted, Granted::BeforeStart) {
        grant = Some(decode.grant(&prefill, &sequence));
    }
    let sending = prefill.send(&decode, &sequence);
    let sink = sending.sink();
    if matches!(granted, Granted::BeforeReady) {
        grant = Some(decode.grant(&prefill, &sequence));
    }
    // Layers of single pages in an order that is not theirs.
    for (turn, step) in (0..LAYERS)
        .flat_map(|layer| (0..4).map(move |page| (layer, page)))
        .enumerate()
    {
        if turn == 6 && matches!(granted, Granted::InTheMiddle) {
            grant = Some(decode.grant(&prefill, &sequence));
        }
        let (layer, page) = ((step.0 * 2 + 1) % LAYERS, (step.1 * 3 + 2) % 4);
        sink.ready(layer, &sequence.page(page));
        tokio::task::yield_now().await;
    }
    let grant = grant.unwrap_or_else(|| decode.grant(&prefill, &sequence));
    let (received, sent) = soon(async { tokio::join!(grant.complete(), sending.complete()) }).await;
    assert_eq!(received.expect("received").bytes, sequence.bytes());
    assert_eq!(sent.expect("sent").bytes, sequence.bytes());
    sequence.assert_arrived(&prefill, &decode);
    for (registry, direction) in [(&decode.registry, "in"), (&prefill.registry, "out")] {
        let total = |name| value(registry, name, &[direction]);
        assert_eq!(total("baton_kv_transfer_bytes_total"), sequence.bytes() as f64);
        assert_eq!(total("baton_kv_transfer_slices_total"), sequence.slices() as f64);
        assert_eq!(total("baton_kv_transfer_aborts_total"), 0.0);
        assert_eq!(total("baton_kv_links_live"), 1.0);
    }
    drop((sequence, sink));
    decode.assert_idle().await;
    prefill.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_equal_whenever_the_grant_comes() {
    for transport in BOTH {
        for granted in [
            Granted::BeforeStart,
            Granted::BeforeReady,
            Granted::InTheMiddle,
            Granted::AfterReady,
        ] {
            one(&config(transport), granted).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_needs_no_socket() {
    let auto = config(TransportChoice::Auto);
    one(&auto, Granted::BeforeReady).await;
    // TCP could not work here: it was not chosen.
    let decode_config = TransferConfig {
        data_advertise: "127.0.0.1:1".into(),
        ..auto
    };
    one(&decode_config, Granted::BeforeReady).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_transfers_share_a_link() {
    for transport in BOTH {
        let config = config(transport);
        let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
        let mut sequences = Vec::new();
        let mut running = Vec::new();
        for length in [1, 7, 2, 9, 3] {
            let sequence = Sequence::new(&mut prefill, &mut decode, length, length);
            let (sending, grant) = (
                prefill.send(&decode, &sequence),
                decode.grant(&prefill, &sequence),
            );
            sequences.push((sequence, sending.sink()));
            running.push(async move { tokio::join!(sending.complete(), grant.complete()) });
        }
        // The engine's threads are not tokio's.
        let named = std::thread::spawn(move || {
            for layer in 0..LAYERS {
                for (sequence, sink) in &sequences {
                    // Pages on both sides of the transfer's own are not its business, nor is a repetition.
                    let mut pages = sequence.layer();
                    let (index, pin) = pages[0].clone();
                    pages.push((index - 1, pin.clone()));
                    pages.push((index + 9, pin));
                    sink.ready(layer, &pages);
                    sink.ready(layer, &pages);
                }
            }
            sequences
        });
        for (sent, received) in soon(futures::future::join_all(running)).await {
            assert_eq!(sent.expect("sent").bytes, received.expect("received").bytes);
        }
        let sequences = named.join().expect("the engine lives");
        for (sequence, _) in &sequences {
            sequence.assert_arrived(&prefill, &decode);
        }
        assert_eq!(value(&prefill.registry, "baton_kv_links_live", &["out"]), 1.0);
        drop(sequences);
        decode.assert_idle().await;
        prefill.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_senders_and_two_receivers_do_not_mix() {
    let config = config(TransportChoice::Tcp);
    let mut decodes = [Decode::start(&config).await, Decode::start(&config).await];
    let mut prefills = [Prefill::start(&config), Prefill::start(&config)];
    for _ in 0..3 {
        for decode in &mut decodes {
            for prefill in &mut prefills {
                let sequence = Sequence::new(prefill, decode, unique() as u32 % 9, 3);
                let (sending, grant) = (prefill.send(decode, &sequence), decode.grant(prefill, &sequence));
                for layer in (0..LAYERS).rev() {
                    sending.sink().ready(layer, &sequence.layer());
                }
                let (sent, received) =
                    soon(async { tokio::join!(sending.complete(), grant.complete()) }).await;
                assert_eq!(sent.expect("sent").bytes, received.expect("received").bytes);
                sequence.assert_arrived(prefill, decode);
            }
        }
    }
    for decode in &mut decodes {
        decode.assert_idle().await;
        assert_eq!(value(&decode.registry, "baton_kv_links_live", &["in"]), 2.0);
    }
    for prefill in &mut prefills {
        prefill.assert_idle().await;
    }
}

#[tokio::test]
async fn nothing_to_send_is_done_at_once() {
    let config = config(TransportChoice::Tcp);
    let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
    let sequence = Sequence::new(&mut prefill, &mut decode, 5, 0);
    let (sending, grant) = (
        prefill.send(&decode, &sequence),
        decode.grant(&prefill, &sequence),
    );
    assert_eq!(soon(sending.complete()).await.expect("sent").bytes, 0);
    assert_eq!(soon(grant.complete()).await.expect("received").bytes, 0);
    decode.assert_idle().await;
    prefill.assert_idle().await;
}
