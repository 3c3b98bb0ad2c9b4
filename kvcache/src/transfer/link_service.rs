//! The gRPC service `KvLink` of a decode worker.

use std::{net::SocketAddr, pin::Pin, sync::Arc};

use baton_proto::{
    OLDEST_PROTOCOL_VERSION, TransferId,
    v1::{LinkAccept, LinkDown, LinkHello, LinkUp, kv_link_server::KvLink, link_up},
};
use futures::{Stream, StreamExt as _};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Inbound, LinkIdentity, TransferError, TransportChoice,
    data_listener::{DataListener, ExpectedConnection},
    frame::LinkToken,
    inbound_link::InboundLink,
    local::{LocalOffer, LocalSender},
};

/// Opens links for senders: handshake, choice of the transport, control messages. It owns the TCP listener for the KV
/// itself. Wrap it in `v1::kv_link_server::KvLinkServer`, and call [`Inbound::close`] when the server is to end.
#[derive(Debug)]
pub struct KvLinkService {
    inbound: Arc<Inbound>,
    identity: LinkIdentity,
    tcp: Option<DataListener>,
    room: Arc<Semaphore>,
}

/// How a link's KV travels, as long as the link is open.
#[derive(Debug)]
enum Transport {
    Local { _offer: LocalOffer },
    Tcp { _expected: ExpectedConnection },
}

// === impl KvLinkService ===

impl KvLinkService {
    /// Binds the data listener, unless the configuration allows `local` only. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// If the configuration is invalid or the address cannot be bound.
    pub fn new(inbound: Arc<Inbound>, identity: LinkIdentity) -> Result<Self, TransferError> {
        let tcp = match inbound.config().transport {
            TransportChoice::Local => None,
            TransportChoice::Auto | TransportChoice::Tcp => Some(DataListener::bind(&inbound)?),
        };
        let room = Arc::new(Semaphore::new(inbound.config().max_links));
        Ok(Self {
            inbound,
            identity,
            tcp,
            room,
        })
    }

    /// Where KV is received over TCP, if it is.
    #[must_use]
    pub fn data_addr(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(DataListener::addr)
    }

    fn check(&self, hello: &LinkHello) -> Result<(), Status> {
        if hello.protocol_version < OLDEST_PROTOCOL_VERSION {
            return Err(Status::failed_precondition(format!(
                "protocol_version {} of worker {} is too old: {OLDEST_PROTOCOL_VERSION} is the oldest that works",
                hello.protocol_version, hello.worker_id
            )));
        }
        let theirs = hello.fingerprint.clone().unwrap_or_default();
        self.identity
            .fingerprint
            .check_peer(&theirs)
            .map_err(|mismatch| Status::failed_precondition(mismatch.to_string()))
    }

    /// Takes the first of the sender's transports that works from here.
    fn choose_transport(
        &self,
        hello: &LinkHello,
        token: LinkToken,
        link: &Arc<InboundLink>,
    ) -> Option<(Transport, LinkAccept)> {
        let accept = |transport: &str, data_addr: &str| LinkAccept {
            transport: transport.to_owned(),
            data_addr: data_addr.to_owned(),
            link_token: token.to_vec(),
            worker_id: self.identity.worker_id.clone(),
            incarnation: self.identity.incarnation,
        };
        let local_allowed = self.inbound.config().transport != TransportChoice::Tcp
            && LocalSender::lives_here(&hello.worker_id, hello.incarnation);
        hello
            .transports
            .iter()
            .find_map(|offered| match (offered.as_str(), &self.tcp) {
                ("local", _) if local_allowed => Some((
                    Transport::Local {
                        _offer: LocalOffer::new(token, &self.inbound, link),
                    },
                    accept("local", ""),
                )),
                ("tcp", Some(tcp)) => Some((
                    Transport::Tcp {
                        _expected: tcp.expect(token, link),
                    },
                    accept("tcp", tcp.advertised()),
                )),
                _ => None,
            })
    }

    async fn open_link(&self, mut up: Streaming<LinkUp>) -> Result<DownStream, Status> {
        if self.inbound.shutdown().is_cancelled() {
            return Err(Status::unavailable("this worker is shutting down"));
        }
        let room = Arc::clone(&self.room).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted("this worker has as many KV links as transfer.max_links allows")
        })?;
        let first = timeout(self.inbound.config().connect_timeout(), up.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no LinkHello within transfer.connect_timeout_ms"))??;
        let Some(link_up::Message::Hello(hello)) = first.and_then(|first| first.message) else {
            return Err(Status::invalid_argument(
                "the first message of a KV link is LinkHello",
            ));
        };
        self.check(&hello)?;

        let (control, down) = mpsc::channel(self.inbound.config().control_queue);
        let link = Arc::new(InboundLink::new(
            self.inbound.next_link_serial(),
            hello.worker_id.clone(),
            self.inbound.shutdown().child_token(),
            control,
        ));
        let mut token = LinkToken::default();
        getrandom::fill(&mut token).map_err(|error| Status::internal(format!("no random token: {error}")))?;
        let (transport, accept) = self.choose_transport(&hello, token, &link).ok_or_else(|| {
            Status::failed_precondition(format!(
                "no KV transport in common: the sender offers {:?}, and transfer.transport is {:?} here",
                hello.transports,
                self.inbound.config().transport
            ))
        })?;
        tracing::info!(
            peer = hello.worker_id,
            transport = accept.transport,
            "KV link opened by a prefill worker"
        );
        link.accept(accept);
        self.inbound.link_opened(&link);
        tokio::spawn(read_control(
            up,
            Arc::clone(&self.inbound),
            Arc::clone(&link),
            transport,
            room,
        ));
        Ok(down_stream(down, link))
    }
}

type DownStream = Pin<Box<dyn Stream<Item = Result<LinkDown, Status>> + Send>>;

#[tonic::async_trait]
impl KvLink for KvLinkService {
    type OpenStream = DownStream;

    async fn open(&self, request: Request<Streaming<LinkUp>>) -> Result<Response<DownStream>, Status> {
        let opened = self.open_link(request.into_inner()).await;
        if let Err(refusal) = &opened {
            self.inbound.metrics().refused_connections.inc();
            tracing::warn!(reason = refusal.message(), "refused a KV link");
        }
        opened.map(Response::new)
    }
}

/// What the sender reads: control messages, and why the link was closed.
fn down_stream(down: mpsc::Receiver<Result<LinkDown, Status>>, link: Arc<InboundLink>) -> DownStream {
    let closed = link.closed.clone().cancelled_owned();
    let last = futures::stream::once(async move { Err(Status::aborted(link.reason())) });
    Box::pin(ReceiverStream::new(down).take_until(closed).chain(last))
}

/// Owns the link: when this ends, so do the link's transfers.
async fn read_control(
    mut up: Streaming<LinkUp>,
    inbound: Arc<Inbound>,
    link: Arc<InboundLink>,
    transport: Transport,
    room: OwnedSemaphorePermit,
) {
    loop {
        let message = tokio::select! {
            () = link.closed.cancelled() => break,
            message = up.message() => message,
        };
        match message {
            Ok(Some(LinkUp { message })) => handle(&inbound, &link, message),
            Ok(None) => link.close("the sender closed the link"),
            Err(status) => link.close(format!("the sender is gone: {}", status.message())),
        }
    }
    drop(transport);
    inbound.link_closed(&link);
    drop(room);
    tracing::info!(peer = link.peer, reason = link.reason(), "KV link closed");
}

fn handle(inbound: &Inbound, link: &InboundLink, message: Option<link_up::Message>) {
    match message {
        Some(link_up::Message::Abort(abort)) => match TransferId::try_from(abort.transfer_id.as_slice()) {
            Ok(transfer) => inbound.aborted_by_peer(link, transfer, abort.reason),
            Err(bad) => link.close(bad.to_string()),
        },
        Some(link_up::Message::Hello(_)) => link.close("LinkHello twice"),
        // Of a newer version.
        None => {}
    }
}
