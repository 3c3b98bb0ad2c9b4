//! The task behind a sender's link: connects, shakes hands, sends slices in turns, hears grants and acknowledgements.

use std::{
    net::IpAddr,
    sync::{Arc, Weak},
};

use baton_kernels::kv::KvMemory;
use baton_proto::{
    PROTOCOL_VERSION, TransferId,
    v1::{
        LinkAccept, LinkDown, LinkHello, LinkUp, kv_link_client::KvLinkClient, link_down::Message, link_up,
    },
};
use futures::StreamExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufWriter},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status, Streaming,
    transport::{Endpoint, Uri},
};

use super::{
    LinkIdentity, Outbound, Sent, TransferConfig, TransferError, TransportChoice,
    config::split_host_port,
    frame::{ACCEPTED, LinkToken, encode_header, encode_preamble},
    local::LocalLink,
    metrics::EndMetrics,
    outbound_link::OutboundLink,
    sending::ReadySlice,
};

/// What a link's task needs beside the link.
pub(super) struct LinkClient {
    pub(super) link: Arc<OutboundLink>,
    pub(super) outbound: Weak<Outbound>,
    pub(super) memory: Arc<dyn KvMemory>,
    pub(super) config: TransferConfig,
    pub(super) metrics: EndMetrics,
}

/// The way for slices that both ends agreed on.
enum DataPath {
    Local(LocalLink),
    Tcp(OwnedReadHalf, BufWriter<OwnedWriteHalf>),
}

impl LinkClient {
    /// Runs until the link ends, and leaves no transfer behind.
    pub(super) async fn run(self, up: mpsc::Receiver<LinkUp>) {
        let closed = self.link.closed.clone();
        tokio::select! {
            () = closed.cancelled() => {}
            error = self.drive(up) => self.link.close(error),
        }
        if let Some(outbound) = self.outbound.upgrade() {
            outbound.forget(&self.link);
        }
        let reason = self.link.end_all();
        tracing::info!(peer = self.link.target.worker_id, %reason, "KV link to a decode worker ended");
    }

    async fn drive(&self, up: mpsc::Receiver<LinkUp>) -> TransferError {
        let opened = match timeout(self.config.connect_timeout(), self.open(up)).await {
            Ok(opened) => opened,
            Err(_) => Err(self.link.lost(format!(
                "not open after {} ms: see transfer.connect_timeout_ms",
                self.config.connect_timeout_ms
            ))),
        };
        let (down, data) = match opened {
            Ok(opened) => opened,
            Err(error) => return error,
        };
        self.metrics.links.inc();
        let error = self.serve(down, data).await;
        self.metrics.links.dec();
        error
    }

    async fn open(
        &self,
        up: mpsc::Receiver<LinkUp>,
    ) -> Result<(Streaming<LinkDown>, DataPath), TransferError> {
        let target = &self.link.target;
        let channel = Endpoint::from_shared(target.kv_link_addr.clone())
            .map_err(|error| {
                self.link
                    .lost(format!("{:?} is no address: {error}", target.kv_link_addr))
            })?
            .tcp_nodelay(true)
            .connect_timeout(self.config.connect_timeout())
            .http2_keep_alive_interval(self.config.keepalive())
            .keep_alive_timeout(self.config.keepalive())
            .keep_alive_while_idle(true)
            .connect()
            .await
            .map_err(|error| {
                let cause =
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                self.link
                    .lost(format!("cannot connect to {}: {cause}", target.kv_link_addr))
            })?;
        // HTTP/2 keeps a stream half open while its request goes on: it must end with the link.
        let up = ReceiverStream::new(up).take_until(self.link.closed.clone().cancelled_owned());
        let mut down = KvLinkClient::new(channel)
            .open(up)
            .await
            .map_err(|status| self.refused(&status))?
            .into_inner();
        let first = down.message().await.map_err(|status| self.refused(&status))?;
        let Some(Message::Accept(accept)) = first.and_then(|first| first.message) else {
            return Err(self
                .link
                .lost("the receiver did not answer LinkHello with LinkAccept"));
        };
        if accept.worker_id != target.worker_id {
            return Err(TransferError::Refused {
                peer: target.worker_id.clone(),
                reason: format!("{} is now worker {}", target.kv_link_addr, accept.worker_id),
            });
        }
        let data = self.open_data(&accept).await?;
        tracing::info!(
            peer = target.worker_id,
            transport = accept.transport,
            "KV link opened to a decode worker"
        );
        Ok((down, data))
    }

    async fn open_data(&self, accept: &LinkAccept) -> Result<DataPath, TransferError> {
        let lost = |reason: String| self.link.lost(reason);
        let token = LinkToken::try_from(accept.link_token.as_slice())
            .map_err(|_| lost("the receiver's link token is not 16 bytes".to_owned()))?;
        match accept.transport.as_str() {
            "local" => LocalLink::take_up(&token)
                .map(DataPath::Local)
                .ok_or_else(|| lost("the receiver is not in this process".to_owned())),
            "tcp" => {
                let addr = reachable(&accept.data_addr, &self.link.target.kv_link_addr);
                let failed = |error| lost(format!("cannot open the data connection to {addr}: {error}"));
                let mut socket = TcpStream::connect(&addr).await.map_err(failed)?;
                socket.set_nodelay(true).map_err(failed)?;
                socket.write_all(&encode_preamble(&token)).await.map_err(failed)?;
                if socket.read_u8().await.map_err(failed)? != ACCEPTED {
                    return Err(lost(format!("{addr} does not speak the KV data protocol")));
                }
                let (reader, writer) = socket.into_split();
                let writer = BufWriter::with_capacity(self.config.buffer_bytes, writer);
                Ok(DataPath::Tcp(reader, writer))
            }
            other => Err(lost(format!(
                "the receiver chose transport {other:?}, which was not offered"
            ))),
        }
    }

    async fn serve(&self, down: Streaming<LinkDown>, data: DataPath) -> TransferError {
        let control = self.hear(down);
        tokio::pin!(control);
        let data_error = tokio::select! {
            error = &mut control => return error,
            error = self.send_all(data) => error,
        };
        // A receiver that closes a link says why on the control stream, which may come a little later.
        timeout(self.config.connect_timeout(), control)
            .await
            .unwrap_or(data_error)
    }

    async fn hear(&self, mut down: Streaming<LinkDown>) -> TransferError {
        loop {
            match down.message().await {
                Ok(Some(LinkDown { message })) => {
                    if let Err(bad) = self.handle(message) {
                        return self.link.lost(bad.to_string());
                    }
                }
                Ok(None) => return self.link.lost("the receiver closed the link"),
                Err(status) => return self.link.lost(status.message()),
            }
        }
    }

    fn handle(&self, message: Option<Message>) -> Result<(), baton_proto::transfer_id::BadTransferId> {
        match message {
            Some(Message::Grant(grant)) => {
                let transfer = TransferId::try_from(grant.transfer_id.as_slice())?;
                let Some(sending) = self.link.find(transfer) else {
                    // It ended before the receiver leased its pages: these must not wait until the lease expires.
                    self.link
                        .abort(transfer, "the sender knows no such transfer any more".to_owned());
                    return Ok(());
                };
                let leased = grant.first_page..grant.first_page.saturating_add(grant.page_count);
                match sending.grant(&leased) {
                    Ok(true) => self.link.queue(sending),
                    Ok(false) => {}
                    Err(mismatch) => self.link.end(&sending, Err(mismatch)),
                }
            }
            Some(Message::Abort(abort)) => {
                let transfer = TransferId::try_from(abort.transfer_id.as_slice())?;
                if let Some(sending) = self.link.find(transfer) {
                    let cause = TransferError::PeerAborted {
                        peer: self.link.target.worker_id.clone(),
                        reason: abort.reason,
                    };
                    self.link.end(&sending, Err(cause));
                }
            }
            Some(Message::Ack(ack)) => {
                let transfer = TransferId::try_from(ack.transfer_id.as_slice())?;
                if let Some(sending) = self.link.find(transfer) {
                    let sent = Sent {
                        bytes: ack.bytes,
                        seconds: sending.seconds(),
                    };
                    self.link.end(&sending, Ok(sent));
                }
            }
            // A second accept changes nothing; the rest is of a newer version.
            Some(Message::Accept(_)) | None => {}
        }
        Ok(())
    }

    async fn send_all(&self, data: DataPath) -> TransferError {
        let mut payload = Vec::with_capacity(self.memory.layout().slice_bytes());
        match data {
            DataPath::Local(receiver) => loop {
                let slice = self.link.next().await;
                if self.read(&slice, &mut payload) {
                    if !receiver.deliver(slice.name, &payload) {
                        return self.link.lost("the receiver is gone");
                    }
                    self.metrics.moved(payload.len());
                }
                drop(slice);
                // Nothing above waits for a socket: let control messages and other tasks have their turn.
                tokio::task::yield_now().await;
            },
            DataPath::Tcp(mut reader, mut writer) => {
                let closed = reader.read_u8();
                tokio::pin!(closed);
                loop {
                    let step = async {
                        match self.link.try_next() {
                            Some(slice) => self.write(slice, &mut payload, &mut writer).await,
                            None => self.idle(&mut writer).await,
                        }
                    };
                    let error = tokio::select! {
                        step = step => match step {
                            Ok(()) => continue,
                            Err(error) => error,
                        },
                        _ = &mut closed => return self.link.lost("the receiver closed the data connection"),
                    };
                    return self.link.lost(format!("cannot send: {error}"));
                }
            }
        }
    }

    async fn write(
        &self,
        slice: ReadySlice,
        payload: &mut Vec<u8>,
        writer: &mut BufWriter<OwnedWriteHalf>,
    ) -> std::io::Result<()> {
        if !self.read(&slice, payload) {
            return Ok(());
        }
        let header = encode_header(slice.name, payload);
        // The bytes are copied: the page may be reused from here on, if the transfer is aborted.
        drop(slice);
        self.in_time(async {
            writer.write_all(&header).await?;
            writer.write_all(payload).await
        })
        .await?;
        self.metrics.moved(payload.len());
        Ok(())
    }

    /// Nothing is ready: flushes what is buffered, and waits until something is.
    async fn idle(&self, writer: &mut BufWriter<OwnedWriteHalf>) -> std::io::Result<()> {
        if !writer.buffer().is_empty() {
            self.in_time(writer.flush()).await?;
        }
        self.link.wait_for_work().await;
        Ok(())
    }

    /// A receiver that takes no bytes for the lease timeout is as good as gone.
    async fn in_time(&self, write: impl Future<Output = std::io::Result<()>>) -> std::io::Result<()> {
        timeout(self.config.lease_timeout(), write).await?
    }

    /// Reads a slice from KV memory. If that fails, its transfer ends.
    fn read(&self, slice: &ReadySlice, payload: &mut Vec<u8>) -> bool {
        let read = self.memory.read_slice(slice.pin.id(), slice.name.layer, payload);
        if let Err(error) = &read
            && let Some(sending) = self.link.find(slice.name.transfer)
        {
            self.link
                .end(&sending, Err(TransferError::Memory(error.to_string())));
        }
        read.is_ok()
    }

    fn refused(&self, status: &Status) -> TransferError {
        match status.code() {
            Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::InvalidArgument
            | Code::Unimplemented => TransferError::Refused {
                peer: self.link.target.worker_id.clone(),
                reason: status.message().to_owned(),
            },
            _ => self.link.lost(status.message()),
        }
    }
}

/// The first message of a link.
pub(super) fn hello(identity: &LinkIdentity, transport: TransportChoice) -> LinkUp {
    let transports: &[&str] = match transport {
        TransportChoice::Auto => &["local", "tcp"],
        TransportChoice::Tcp => &["tcp"],
        TransportChoice::Local => &["local"],
    };
    LinkUp {
        message: Some(link_up::Message::Hello(LinkHello {
            worker_id: identity.worker_id.clone(),
            incarnation: identity.incarnation,
            protocol_version: PROTOCOL_VERSION,
            fingerprint: Some(identity.fingerprint.clone()),
            transports: transports.iter().map(|name| (*name).to_owned()).collect(),
        })),
    }
}

/// A receiver that listens on every interface advertises an unspecified address: then it is reached where its link is.
fn reachable(data_addr: &str, kv_link_addr: &str) -> String {
    let Some((host, port)) = split_host_port(data_addr) else {
        return data_addr.to_owned();
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let unspecified = bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    let link_host = kv_link_addr
        .parse::<Uri>()
        .ok()
        .and_then(|uri| uri.host().map(ToOwned::to_owned));
    match link_host {
        Some(link_host) if unspecified => format!("{link_host}:{port}"),
        _ => data_addr.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_data_address_becomes_the_links_host() {
        assert_eq!(reachable("0.0.0.0:7", "http://10.1.2.3:50051"), "10.1.2.3:7");
        assert_eq!(reachable("[::]:7", "http://[fd00::1]:50051"), "[fd00::1]:7");
        assert_eq!(reachable("10.9.9.9:7", "http://10.1.2.3:50051"), "10.9.9.9:7");
        assert_eq!(
            reachable("data.example:7", "http://10.1.2.3:50051"),
            "data.example:7"
        );
    }
}
