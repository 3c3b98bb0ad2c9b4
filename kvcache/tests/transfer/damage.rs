//! What happens on the wire between the two.

use baton_kvcache::transfer::{TransferConfig, TransferError, TransportChoice};

use crate::{
    proxy::{Harm, Proxy},
    world::{Decode, LAYERS, Prefill, Sequence, config, eventually, failure, layout, soon, value},
};

/// Preamble of a data connection, header of a frame: see `transfer::frame`.
const PREAMBLE: usize = 20;
const HEADER: usize = 36;

async fn start(harm: Harm) -> (Decode, Prefill) {
    let proxy = Proxy::start(harm).await;
    let config = TransferConfig {
        data_advertise: proxy.addr.to_string(),
        ..config(TransportChoice::Tcp)
    };
    let decode = Decode::start(&config).await;
    proxy.aim(decode.data_addr);
    (decode, Prefill::start(&config))
}

async fn transfer_whole(decode: &mut Decode, prefill: &mut Prefill) {
    let sequence = Sequence::new(prefill, decode, 0, 2);
    let (sending, grant) = (prefill.send(decode, &sequence), decode.grant(prefill, &sequence));
    for layer in 0..LAYERS {
        sending.sink().ready(layer, &sequence.layer());
    }
    let (sent, received) = soon(async { tokio::join!(sending.complete(), grant.complete()) }).await;
    assert_eq!(sent.expect("sent").bytes, received.expect("received").bytes);
    sequence.assert_arrived(prefill, decode);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_ends_its_transfer_and_no_other() {
    // In the payload of the second frame.
    let second = PREAMBLE + HEADER + layout().slice_bytes() + HEADER + 100;
    let (mut decode, mut prefill) = start(Harm::Flip(second)).await;
    let hit = Sequence::new(&mut prefill, &mut decode, 7, 2);
    let spared = Sequence::new(&mut prefill, &mut decode, 0, 2);
    let (sending_hit, grant_hit) = (prefill.send(&decode, &hit), decode.grant(&prefill, &hit));
    let (sending_spared, grant_spared) = (prefill.send(&decode, &spared), decode.grant(&prefill, &spared));
    sending_hit.sink().ready(1, &hit.layer());
    let (received, sent) = soon(async { tokio::join!(grant_hit.complete(), sending_hit.complete()) }).await;
    assert_eq!(received, Err(TransferError::Checksum { page: 8, layer: 1 }));
    let error = sent.expect_err("the receiver aborted").to_string();
    assert!(error.contains("checksum of page 8 layer 1"), "{error}");
    for layer in 0..LAYERS {
        sending_spared.sink().ready(layer, &spared.layer());
    }
    let (received, sent) =
        soon(async { tokio::join!(grant_spared.complete(), sending_spared.complete()) }).await;
    assert_eq!(received.expect("received").bytes, sent.expect("sent").bytes);
    spared.assert_arrived(&prefill, &decode);
    assert_eq!(value(&decode.registry, "baton_kv_links_live", &["in"]), 1.0);
    drop((hit, spared));
    decode.assert_idle().await;
    prefill.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_cuts_end_the_link_which_opens_again() {
    let frame = HEADER + layout().slice_bytes();
    let cases = [
        (Harm::Garbage(PREAMBLE + frame), "garbage on the data connection"),
        // The length, and the id, which could be anybody's.
        (
            Harm::Flip(PREAMBLE + frame + 31),
            "garbage on the data connection",
        ),
        (
            Harm::Flip(PREAMBLE + frame + 10),
            "damaged slice on the data connection",
        ),
        (Harm::Cut(PREAMBLE + frame + 5), "closed"),
    ];
    for (harm, reason) in cases {
        let (mut decode, mut prefill) = start(harm).await;
        let mut bystander = Prefill::start(&config(TransportChoice::Tcp));
        let sequence = Sequence::new(&mut prefill, &mut decode, 0, 2);
        let (sending, grant) = (
            prefill.send(&decode, &sequence),
            decode.grant(&prefill, &sequence),
        );
        sending.sink().ready(0, &sequence.layer());
        // Nothing more is ready: whole frames have to follow for a damaged one to be noticed at once.
        sending.sink().ready(1, &sequence.layer());
        let (received, sent) = soon(async { tokio::join!(grant.complete(), sending.complete()) }).await;
        for error in [received.expect_err("link lost"), sent.expect_err("link lost")] {
            assert!(
                matches!(error, TransferError::LinkLost { .. }),
                "{harm:?}: {error}"
            );
            assert!(error.to_string().contains(reason), "{harm:?}: {error}");
        }
        drop(sequence);
        decode.assert_idle().await;
        prefill.assert_idle().await;
        transfer_whole(&mut decode, &mut prefill).await;
        transfer_whole(&mut decode, &mut bystander).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_a_transfer_that_was_just_aborted_are_dropped() {
    let config = config(TransportChoice::Tcp);
    let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
    transfer_whole(&mut decode, &mut prefill).await;
    // The race between slices on their way and an abort on its way is won by the abort often enough.
    let mut stray = 0.0;
    while stray == 0.0 {
        let sequence = Sequence::new(&mut prefill, &mut decode, 0, 12);
        let (sending, grant) = (
            prefill.send(&decode, &sequence),
            decode.grant(&prefill, &sequence),
        );
        let before = value(&decode.registry, "baton_kv_transfer_slices_total", &["in"]);
        for layer in 0..LAYERS {
            sending.sink().ready(layer, &sequence.layer());
        }
        eventually("slices arrive", || {
            value(&decode.registry, "baton_kv_transfer_slices_total", &["in"]) > before
        })
        .await;
        drop(grant);
        // Complete already, if the race was lost.
        let _ = soon(sending.complete()).await;
        drop(sequence);
        stray = value(&decode.registry, "baton_kv_stray_slices_total", &[]);
        decode.assert_idle().await;
        prefill.assert_idle().await;
    }
    transfer_whole(&mut decode, &mut prefill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_forget_what_failed() {
    let (mut decode, mut prefill) = start(Harm::Cut(PREAMBLE + 1)).await;
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 1);
    let sending = prefill.send(&decode, &sequence);
    let grant = decode.grant(&prefill, &sequence);
    sending.sink().ready(0, &sequence.layer());
    drop(sequence);
    failure(sending.complete()).await;
    failure(grant.complete()).await;
    decode.assert_idle().await;
    prefill.assert_idle().await;
    eventually("the links are closed", || {
        value(&decode.registry, "baton_kv_links_live", &["in"]) == 0.0
            && value(&prefill.registry, "baton_kv_links_live", &["out"]) == 0.0
    })
    .await;
}
