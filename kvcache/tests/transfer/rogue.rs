//! Senders that do not keep to the protocol: written by hand, as another implementation would be.

use baton_kvcache::transfer::{InboundTransfer, TransferConfig, TransferError, TransportChoice};
use baton_proto::{
    PROTOCOL_VERSION, TransferId,
    v1::{
        LinkAccept, LinkDown, LinkHello, LinkUp, TransferAbort, kv_link_client::KvLinkClient,
        link_down::Message as Down, link_up::Message as Up,
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::world::{
    Decode, LAYERS, Prefill, Sequence, config, eventually, failure, fingerprint, layout, soon, unique, value,
};

struct Rogue {
    up: mpsc::Sender<LinkUp>,
    down: Streaming<LinkDown>,
    accept: LinkAccept,
}

fn hello(worker_id: &str) -> LinkHello {
    LinkHello {
        worker_id: worker_id.to_owned(),
        incarnation: unique(),
        protocol_version: PROTOCOL_VERSION,
        fingerprint: Some(fingerprint()),
        transports: vec!["local".into(), "nccl".into(), "tcp".into()],
    }
}

impl Rogue {
    async fn open(decode: &Decode, first: Up) -> Result<Self, Status> {
        let (up, messages) = mpsc::channel(16);
        up.try_send(LinkUp { message: Some(first) }).expect("room");
        let mut down = KvLinkClient::connect(decode.target.kv_link_addr.clone())
            .await
            .expect("connects")
            .open(ReceiverStream::new(messages))
            .await?
            .into_inner();
        let Some(Down::Accept(accept)) = down.message().await?.and_then(|first| first.message) else {
            panic!("a link begins with LinkAccept");
        };
        Ok(Self { up, down, accept })
    }

    async fn connect(&self) -> TcpStream {
        let mut data = TcpStream::connect(&self.accept.data_addr)
            .await
            .expect("connects");
        data.write_all(b"BKL1").await.expect("sent");
        data.write_all(&self.accept.link_token).await.expect("sent");
        data
    }

    async fn aborted(&mut self) -> TransferAbort {
        loop {
            let message = soon(self.down.message()).await.expect("open").expect("not ended");
            if let Some(Down::Abort(abort)) = message.message {
                return abort;
            }
        }
    }
}

fn frame(transfer: TransferId, page: u32, layer: u32) -> Vec<u8> {
    let payload = vec![page as u8; layout().slice_bytes()];
    let mut bytes = b"BKV1".to_vec();
    bytes.extend(transfer.to_bytes());
    for word in [page, layer, payload.len() as u32] {
        bytes.extend(word.to_be_bytes());
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes);
    crc.update(&payload);
    bytes.extend(crc.finalize().to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A receiver, an accepted data connection from a rogue, and pages 4 and 5 of a sequence leased to it.
async fn linked() -> (Decode, Rogue, TcpStream, Sequence, InboundTransfer) {
    let config = config(TransportChoice::Auto);
    let mut decode = Decode::start(&config).await;
    let mut prefill = Prefill::start(&config);
    let rogue = Rogue::open(&decode, Up::Hello(hello(&prefill.worker_id)))
        .await
        .expect("opens");
    let mut data = rogue.connect().await;
    assert_eq!(data.read_u8().await.expect("answers"), 1);
    let sequence = Sequence::new(&mut prefill, &mut decode, 4, 2);
    let grant = decode.grant(&prefill, &sequence);
    (decode, rogue, data, sequence, grant)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_takes_the_first_transport_that_works() {
    let (_, rogue, ..) = linked().await;
    // "local" is offered first, but no sender of that name lives in this process.
    assert_eq!(rogue.accept.transport, "tcp");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hellos_that_cannot_work_are_refused() {
    let decode = Decode::start(&config(TransportChoice::Auto)).await;
    let abort = Up::Abort(TransferAbort::default());
    let old = Up::Hello(LinkHello {
        protocol_version: 0,
        ..hello("old")
    });
    let unlike = Up::Hello(LinkHello {
        fingerprint: None,
        ..hello("unlike")
    });
    let refusals = [
        (abort, Code::InvalidArgument, "LinkHello"),
        (old, Code::FailedPrecondition, "protocol_version 0 of worker old"),
        (unlike, Code::FailedPrecondition, "model_revision"),
    ];
    for (first, code, text) in refusals {
        let status = soon(Rogue::open(&decode, first)).await.err().expect("refused");
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(text), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_twice_or_outside_abort_their_transfer() {
    type Expected = fn(&TransferError) -> bool;
    let cases: [([(u32, u32); 2], Expected); 4] = [
        ([(4, 0), (4, 0)], |error| {
            *error == TransferError::Duplicate { page: 4, layer: 0 }
        }),
        ([(4, 0), (3, 0)], |error| {
            matches!(error, TransferError::OutOfRange { page: 3, .. })
        }),
        ([(4, 0), (6, 0)], |error| {
            matches!(error, TransferError::OutOfRange { page: 6, .. })
        }),
        ([(4, 0), (4, LAYERS)], |error| {
            matches!(error, TransferError::OutOfRange { layer: LAYERS, .. })
        }),
    ];
    for (slices, expected) in cases {
        let (mut decode, mut rogue, mut data, sequence, grant) = linked().await;
        for (page, layer) in slices {
            data.write_all(&frame(sequence.id, page, layer))
                .await
                .expect("sent");
        }
        let error = failure(grant.complete()).await;
        assert!(expected(&error), "{error}");
        let abort = rogue.aborted().await;
        assert_eq!(abort.transfer_id, sequence.id.to_bytes());
        assert_eq!(abort.reason, error.to_string());
        // The link goes on, and slices of that transfer and of unknown ones are dropped.
        data.write_all(&frame(sequence.id, 5, 0)).await.expect("sent");
        data.write_all(&frame(TransferId(9), 5, 0)).await.expect("sent");
        eventually("both are counted", || {
            value(&decode.registry, "baton_kv_stray_slices_total", &[]) == 2.0
        })
        .await;
        drop(sequence);
        decode.assert_idle().await;
        assert_eq!(value(&decode.registry, "baton_kv_links_live", &["in"]), 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_cannot_write_into_pages_leased_to_another() {
    let (mut decode, _rogue, _data, sequence, grant) = linked().await;
    let other = Rogue::open(&decode, Up::Hello(hello("other")))
        .await
        .expect("opens");
    let mut data = other.connect().await;
    assert_eq!(data.read_u8().await.expect("answers"), 1);
    data.write_all(&frame(sequence.id, 4, 0)).await.expect("sent");
    eventually("it is counted", || {
        value(&decode.registry, "baton_kv_stray_slices_total", &[]) == 1.0
    })
    .await;
    let abort = TransferAbort {
        transfer_id: sequence.id.to_bytes(),
        reason: "not mine".into(),
    };
    other
        .up
        .send(LinkUp {
            message: Some(Up::Abort(abort)),
        })
        .await
        .expect("sent");
    // Messages are read in order: when the end of the link has been, so has the abort.
    drop(other);
    eventually("that link is closed", || {
        value(&decode.registry, "baton_kv_links_live", &["in"]) == 1.0
    })
    .await;
    assert_eq!(decode.inbound.live(), 1);
    drop((grant, sequence));
    decode.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_good_once() {
    let (_decode, rogue, ..) = linked().await;
    let mut again = rogue.connect().await;
    let mut answer = Vec::new();
    // End of stream or a reset, and not a byte.
    let _ = soon(again.read_to_end(&mut answer)).await;
    assert_eq!(answer, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_link_of_the_same_worker_ends_the_older() {
    let config = config(TransportChoice::Tcp);
    let mut decode = Decode::start(&config).await;
    let mut prefill = Prefill::start(&config);
    let worker_id = prefill.worker_id.clone();
    let hello_again = || Up::Hello(hello(&worker_id));
    let _older = Rogue::open(&decode, hello_again()).await.expect("opens");
    let _other = Rogue::open(&decode, Up::Hello(hello("other")))
        .await
        .expect("opens");
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 1);
    let grant = decode.grant(&prefill, &sequence);
    let _newer = Rogue::open(&decode, hello_again()).await.expect("opens");
    let error = failure(grant.complete()).await;
    assert!(
        matches!(&error, TransferError::LinkLost { reason, .. } if reason.contains("newer link")),
        "{error}"
    );
    eventually("the older link is closed", || {
        value(&decode.registry, "baton_kv_links_live", &["in"]) == 2.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_does_not_read_loses_its_link() {
    let config = TransferConfig {
        control_queue: 16,
        max_transfers: 1 << 20,
        ..config(TransportChoice::Tcp)
    };
    let mut decode = Decode::start(&config).await;
    let mut prefill = Prefill::start(&config);
    let _rogue = Rogue::open(&decode, Up::Hello(hello(&prefill.worker_id)))
        .await
        .expect("opens");
    let mut grants = Vec::new();
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 1);
    // HTTP/2 takes some messages before it pushes back.
    while value(&decode.registry, "baton_kv_links_live", &["in"]) > 0.0 {
        let pins = sequence.to.iter().map(baton_kvcache::MutablePage::pin).collect();
        let id = TransferId(u128::from(unique()));
        grants.push(decode.inbound.grant(&prefill.worker_id, id, 0, pins));
    }
    let error = failure(grants.swap_remove(0).complete()).await;
    assert!(
        matches!(&error, TransferError::LinkLost { reason, .. } if reason.contains("transfer.control_queue")),
        "{error}"
    );
    drop((grants, sequence));
    decode.assert_idle().await;
}
