//! Transfers that end early: both sides learn it, and every pin is dropped.

use std::sync::Arc;

use baton_kernels::kv::{KvLayout, KvMemory, PageId, SliceError};
use baton_kvcache::{
    MutablePage,
    transfer::{TransferConfig, TransferError, TransportChoice},
};
use parking_lot::{Condvar, Mutex};

use crate::world::{
    Decode, LAYERS, POOL, Prefill, Sequence, config, eventually, failure, host_memory, identity, soon, value,
};

const BOTH: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Local];

async fn first_layer_arrived(decode: &Decode, sequence: &Sequence) {
    let expected = sequence.from.len() as f64;
    eventually("a layer has arrived", || {
        value(&decode.registry, "baton_kv_transfer_slices_total", &["in"]) == expected
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_cancels_in_the_middle() {
    for transport in BOTH {
        let config = config(transport);
        let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
        let sequence = Sequence::new(&mut prefill, &mut decode, 0, 4);
        let (sending, grant) = (
            prefill.send(&decode, &sequence),
            decode.grant(&prefill, &sequence),
        );
        let sink = sending.sink();
        sink.ready(0, &sequence.layer());
        first_layer_arrived(&decode, &sequence).await;
        drop(grant);
        let error = failure(sending.complete()).await;
        assert!(matches!(&error, TransferError::PeerAborted { .. }), "{error}");
        assert!(error.to_string().contains("the transfer was dropped"), "{error}");
        // The engine does not know yet: what it names goes nowhere.
        sink.ready(1, &sequence.layer());
        drop(sequence);
        decode.assert_idle().await;
        prefill.assert_idle().await;
        assert_eq!(value(&decode.registry, "baton_kv_links_live", &["in"]), 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sender_cancels_in_the_middle() {
    for transport in BOTH {
        let config = config(transport);
        let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
        let sequence = Sequence::new(&mut prefill, &mut decode, 0, 4);
        let (sending, grant) = (
            prefill.send(&decode, &sequence),
            decode.grant(&prefill, &sequence),
        );
        sending.sink().ready(0, &sequence.layer());
        first_layer_arrived(&decode, &sequence).await;
        drop(sending);
        let error = failure(grant.complete()).await;
        assert!(matches!(&error, TransferError::PeerAborted { .. }), "{error}");
        drop(sequence);
        decode.assert_idle().await;
        prefill.assert_idle().await;
        assert_eq!(
            value(
                &decode.registry,
                "baton_kv_transfer_aborts_total",
                &["in", "peer_aborted"]
            ),
            1.0
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_for_a_transfer_that_ended_fails_at_once() {
    let config = config(TransportChoice::Tcp);
    let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 1);
    drop(prefill.send(&decode, &sequence));
    let error = failure(decode.grant(&prefill, &sequence).complete()).await;
    assert!(matches!(error, TransferError::PeerAborted { .. }), "{error}");
    drop(sequence);
    decode.assert_idle().await;
    prefill.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sender_dies_in_the_middle_and_others_go_on() {
    for transport in BOTH {
        let config = config(transport);
        let mut decode = Decode::start(&config).await;
        let (mut dying, mut living) = (Prefill::start(&config), Prefill::start(&config));
        let lost = Sequence::new(&mut dying, &mut decode, 0, 4);
        let kept = Sequence::new(&mut living, &mut decode, 0, 4);
        let (sending_lost, grant_lost) = (dying.send(&decode, &lost), decode.grant(&dying, &lost));
        let (sending_kept, grant_kept) = (living.send(&decode, &kept), decode.grant(&living, &kept));
        sending_lost.sink().ready(0, &lost.layer());
        first_layer_arrived(&decode, &lost).await;
        drop(dying.outbound);
        let error = failure(grant_lost.complete()).await;
        assert!(matches!(error, TransferError::LinkLost { .. }), "{error}");
        let error = failure(sending_lost.complete()).await;
        assert!(matches!(error, TransferError::LinkLost { .. }), "{error}");
        for layer in 0..LAYERS {
            sending_kept.sink().ready(layer, &kept.layer());
        }
        let (sent, received) =
            soon(async { tokio::join!(sending_kept.complete(), grant_kept.complete()) }).await;
        assert_eq!(sent.expect("sent").bytes, received.expect("received").bytes);
        kept.assert_arrived(&living, &decode);
        drop((lost, kept));
        decode.assert_idle().await;
        living.assert_idle().await;
        dying.pages.reclaim();
        assert_eq!(dying.pages.counts().free, POOL);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_a_sender_expires() {
    let config = config(TransportChoice::Tcp);
    let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 2);
    let begun = tokio::time::Instant::now();
    let error = decode
        .grant(&prefill, &sequence)
        .complete()
        .await
        .expect_err("nobody sends");
    assert_eq!(
        error,
        TransferError::Expired {
            timeout_ms: config.lease_timeout_ms,
            missing: sequence.slices() as usize
        }
    );
    assert_eq!(begun.elapsed().as_millis() as u64, config.lease_timeout_ms);
    drop(sequence);
    decode.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_stops_in_the_middle_hears_that_the_lease_expired() {
    for transport in BOTH {
        let config = TransferConfig {
            lease_timeout_ms: 50,
            ..config(transport)
        };
        let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
        let sequence = Sequence::new(&mut prefill, &mut decode, 0, 2);
        let sending = prefill.send(&decode, &sequence);
        sending.sink().ready(0, &sequence.layer());
        // The first grant may expire while the link opens on a slow machine: lease when it is open.
        eventually("the link is open", || {
            value(&decode.registry, "baton_kv_links_live", &["in"]) == 1.0
        })
        .await;
        let grant = decode.grant(&prefill, &sequence);
        let (received, sent) = soon(async { tokio::join!(grant.complete(), sending.complete()) }).await;
        assert!(
            matches!(received, Err(TransferError::Expired { .. })),
            "{received:?}"
        );
        let error = sent.expect_err("the lease expired");
        assert!(error.to_string().contains("no progress for 50 ms"), "{error}");
        drop(sequence);
        decode.assert_idle().await;
        prefill.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_that_disagree_on_the_pages_abort() {
    let config = config(TransportChoice::Tcp);
    let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
    let sequence = Sequence::new(&mut prefill, &mut decode, 3, 2);
    let sending = prefill.outbound.start(&decode.target, sequence.id, 2, 5);
    let grant = decode.grant(&prefill, &sequence);
    let (received, sent) = soon(async { tokio::join!(grant.complete(), sending.complete()) }).await;
    assert!(
        matches!(
            sent,
            Err(TransferError::RangeMismatch {
                leased_first: 3,
                leased_end: 5,
                first_page: 2,
                end_page: 5
            })
        ),
        "{sent:?}"
    );
    let error = received.expect_err("the sender gave up").to_string();
    assert!(
        error.contains("leased pages 3..5, and 2..5 are to be sent"),
        "{error}"
    );
    drop(sequence);
    decode.assert_idle().await;
    prefill.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_repeated_ids_refuse_at_once() {
    let config = TransferConfig {
        max_transfers: 2,
        ..config(TransportChoice::Tcp)
    };
    let (mut decode, mut prefill) = (Decode::start(&config).await, Prefill::start(&config));
    let sequences: Vec<_> = (0..3)
        .map(|_| Sequence::new(&mut prefill, &mut decode, 0, 1))
        .collect();
    let first = (
        prefill.send(&decode, &sequences[0]),
        decode.grant(&prefill, &sequences[0]),
    );
    let (again_out, again_in) = (
        prefill.send(&decode, &sequences[0]),
        decode.grant(&prefill, &sequences[0]),
    );
    assert_eq!(failure(again_out.complete()).await, TransferError::IdInUse);
    assert_eq!(failure(again_in.complete()).await, TransferError::IdInUse);
    let second = (
        prefill.send(&decode, &sequences[1]),
        decode.grant(&prefill, &sequences[1]),
    );
    let limit = TransferError::TooMany { limit: 2 };
    assert_eq!(
        failure(prefill.send(&decode, &sequences[2]).complete()).await,
        limit
    );
    assert_eq!(
        failure(decode.grant(&prefill, &sequences[2]).complete()).await,
        limit
    );
    // What was refused harmed nobody.
    for (sequence, (sending, grant)) in sequences.iter().zip([first, second]) {
        for layer in 0..LAYERS {
            sending.sink().ready(layer, &sequence.layer());
        }
        let (sent, received) = soon(async { tokio::join!(sending.complete(), grant.complete()) }).await;
        assert_eq!(sent.expect("sent").bytes, received.expect("received").bytes);
    }
    drop(sequences);
    decode.assert_idle().await;
    prefill.assert_idle().await;
}

/// A memory whose writes wait at a gate.
struct Gated {
    inner: Arc<dyn KvMemory>,
    state: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    arrived: bool,
    open: bool,
}

impl KvMemory for Gated {
    fn layout(&self) -> &KvLayout {
        self.inner.layout()
    }

    fn pages(&self) -> u32 {
        self.inner.pages()
    }

    fn read_slice(&self, page: PageId, layer: u32, out: &mut Vec<u8>) -> Result<(), SliceError> {
        self.inner.read_slice(page, layer, out)
    }

    fn write_slice(&self, page: PageId, layer: u32, bytes: &[u8]) -> Result<(), SliceError> {
        let mut gate = self.state.lock();
        gate.arrived = true;
        while !gate.open {
            self.changed.wait(&mut gate);
        }
        self.inner.write_slice(page, layer, bytes)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_page_stays_pinned_until_a_write_that_outlives_its_transfer_has_ended() {
    for transport in BOTH {
        let config = config(transport);
        let memory = Arc::new(Gated {
            inner: host_memory(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut decode = Decode::start_with(&config, Arc::clone(&memory) as _, identity("decode")).await;
        let mut prefill = Prefill::start(&config);
        let mut sequence = Sequence::new(&mut prefill, &mut decode, 0, 3);
        let (sending, grant) = (
            prefill.send(&decode, &sequence),
            decode.grant(&prefill, &sequence),
        );
        for layer in 0..LAYERS {
            sending.sink().ready(layer, &sequence.layer());
        }
        eventually("a write has begun", || memory.state.lock().arrived).await;
        drop(grant);
        let writing = sequence.to[0].id();
        let others: Vec<PageId> = sequence.to[1..].iter().map(MutablePage::id).collect();
        sequence.to.clear();
        decode.pages.reclaim();
        assert_eq!(
            decode.pages.counts().mutable,
            1,
            "only {writing:?} is held, and not {others:?}"
        );
        let free: Vec<_> = std::iter::from_fn(|| decode.pages.alloc()).collect();
        assert!(free.iter().all(|page| page.id() != writing));
        drop(free);
        memory.state.lock().open = true;
        memory.changed.notify_all();
        drop((sending, sequence));
        decode.assert_idle().await;
        prefill.assert_idle().await;
    }
}
