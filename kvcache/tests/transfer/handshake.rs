//! Links that must not open, and those that open again.

use baton_kvcache::transfer::{TransferConfig, TransferError, TransportChoice};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::world::{
    Decode, LAYERS, Prefill, Sequence, config, eventually, failure, host_memory, identity, soon, value,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_fingerprint_is_refused_by_name() {
    let config = config(TransportChoice::Auto);
    let mut decode = Decode::start(&config).await;
    let mut other = identity("prefill");
    other.fingerprint.page_tokens = 64;
    let mut prefill = Prefill::start_as(&config, other);
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 2);
    let sending = prefill.send(&decode, &sequence);
    sending.sink().ready(0, &sequence.layer());
    let error = failure(sending.complete()).await;
    assert!(matches!(error, TransferError::Refused { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&decode.target.worker_id), "{text}");
    assert!(
        text.contains("page_tokens is 16 here and 64 at the peer"),
        "{text}"
    );
    assert_eq!(
        value(
            &prefill.registry,
            "baton_kv_transfer_aborts_total",
            &["out", "refused"]
        ),
        1.0
    );
    drop(sequence);
    decode.assert_idle().await;
    prefill.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transport_in_common_is_refused() {
    let mut decode = Decode::start(&config(TransportChoice::Local)).await;
    let mut prefill = Prefill::start(&config(TransportChoice::Tcp));
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 1);
    let text = failure(prefill.send(&decode, &sequence).complete())
        .await
        .to_string();
    assert!(text.contains("no KV transport in common"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_now_another_worker_is_refused() {
    let config = config(TransportChoice::Tcp);
    let mut decode = Decode::start(&config).await;
    let mut prefill = Prefill::start(&config);
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 1);
    let now = std::mem::replace(&mut decode.target.worker_id, "decode-gone".into());
    let text = failure(prefill.send(&decode, &sequence).complete())
        .await
        .to_string();
    assert!(text.contains(&format!("is now worker {now}")), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_receiver_refuses_links() {
    let config = TransferConfig {
        max_links: 1,
        ..config(TransportChoice::Tcp)
    };
    let mut decode = Decode::start(&config).await;
    let (mut first, mut second) = (Prefill::start(&config), Prefill::start(&config));
    let sequence = Sequence::new(&mut first, &mut decode, 0, 1);
    let sending = first.send(&decode, &sequence);
    eventually("the first link is open", || {
        value(&first.registry, "baton_kv_links_live", &["out"]) == 1.0
    })
    .await;
    let other = Sequence::new(&mut second, &mut decode, 0, 1);
    let text = failure(second.send(&decode, &other).complete()).await.to_string();
    assert!(text.contains("transfer.max_links"), "{text}");
    drop((sending, sequence, other));
    decode.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_connection_without_the_token_is_closed() {
    let decode = Decode::start(&config(TransportChoice::Tcp)).await;
    for greeting in [
        b"BKL1 not the token..".as_slice(),
        b"GET / HTTP/1.1\r\nHost: x\r\n",
    ] {
        let mut stranger = TcpStream::connect(decode.data_addr.expect("listens"))
            .await
            .expect("connects");
        stranger.write_all(greeting).await.expect("takes bytes");
        let mut answer = Vec::new();
        // End of stream or a reset, and not a byte.
        let _ = soon(stranger.read_to_end(&mut answer)).await;
        assert_eq!(answer, b"");
    }
    eventually("both are counted", || {
        value(&decode.registry, "baton_kv_refused_connections_total", &[]) == 2.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_link_opens_again_for_the_next_transfer() {
    for transport in [TransportChoice::Tcp, TransportChoice::Local] {
        let config = config(transport);
        let decode_identity = identity("decode");
        let mut decode = Decode::start_with(&config, host_memory(), decode_identity.clone()).await;
        let mut prefill = Prefill::start(&config);
        let sequence = Sequence::new(&mut prefill, &mut decode, 0, 2);
        let sending = prefill.send(&decode, &sequence);
        let grant = decode.grant(&prefill, &sequence);
        sending.sink().ready(0, &sequence.layer());
        eventually("a layer has arrived", || {
            value(&decode.registry, "baton_kv_transfer_slices_total", &["in"]) == 2.0
        })
        .await;
        // The receiver's process ends.
        decode.inbound.close();
        drop(decode.server.take());
        let error = failure(sending.complete()).await;
        assert!(matches!(error, TransferError::LinkLost { .. }), "{error}");
        assert!(matches!(
            failure(grant.complete()).await,
            TransferError::LinkLost { .. }
        ));
        drop(sequence);
        decode.assert_idle().await;
        prefill.assert_idle().await;
        // It is started again, elsewhere, under its name.
        let mut decode = Decode::start_with(&config, host_memory(), decode_identity).await;
        let sequence = Sequence::new(&mut prefill, &mut decode, 0, 2);
        let (sending, grant) = (
            prefill.send(&decode, &sequence),
            decode.grant(&prefill, &sequence),
        );
        for layer in 0..LAYERS {
            sending.sink().ready(layer, &sequence.layer());
        }
        let (sent, received) = soon(async { tokio::join!(sending.complete(), grant.complete()) }).await;
        assert_eq!(sent.expect("sent").bytes, received.expect("received").bytes);
        sequence.assert_arrived(&prefill, &decode);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_a_lost_link() {
    let config = config(TransportChoice::Tcp);
    let mut decode = Decode::start(&config).await;
    let mut prefill = Prefill::start(&config);
    let sequence = Sequence::new(&mut prefill, &mut decode, 0, 1);
    let vacant = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("binds");
    decode.target.kv_link_addr = format!("http://{vacant}");
    let text = failure(prefill.send(&decode, &sequence).complete())
        .await
        .to_string();
    assert!(
        text.contains(&format!("cannot connect to http://{vacant}")),
        "{text}"
    );
    drop(sequence);
    prefill.assert_idle().await;
}
