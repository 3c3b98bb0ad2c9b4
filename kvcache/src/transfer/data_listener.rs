//! Where a decode worker receives KV over TCP.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Inbound, TransferError,
    config::split_host_port,
    frame::{
        ACCEPTED, BadFrame, HEADER_BYTES, LinkToken, PREAMBLE_BYTES, SliceName, decode_header,
        decode_preamble,
    },
    inbound_link::InboundLink,
};

/// Accepts data connections of links that expect one, until dropped.
#[derive(Debug)]
pub(super) struct DataListener {
    addr: SocketAddr,
    advertise: String,
    expected: Arc<Expected>,
    _stop: DropGuard,
}

/// A link that waits for its data connection, until dropped.
#[derive(Debug)]
pub(super) struct ExpectedConnection {
    token: LinkToken,
    expected: Weak<Expected>,
}

#[derive(Debug, Default)]
struct Expected(Mutex<HashMap<LinkToken, Arc<InboundLink>>>);

/// Why a data connection ended.
#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    #[error("the sender closed its data connection")]
    Closed,
    #[error("the data connection failed: {0}")]
    Io(std::io::Error),
    #[error("garbage on the data connection: {0}")]
    Garbage(#[from] BadFrame),
    #[error("damaged slice on the data connection, of an unknown transfer {0:?}")]
    Damaged(SliceName),
}

// === impl DataListener ===

impl DataListener {
    /// Binds and starts to accept. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(super) fn bind(inbound: &Arc<Inbound>) -> Result<Self, TransferError> {
        let config = inbound.config();
        config.validate()?;
        let listen: SocketAddr = config.data_listen.parse().map_err(|_| {
            baton_proto::InvalidConfig::new(
                "transfer.data_listen",
                &config.data_listen,
                "an IP address and port",
            )
        })?;
        let failed = |error: std::io::Error| TransferError::Listen {
            addr: listen,
            reason: error.to_string(),
        };
        let socket = std::net::TcpListener::bind(listen).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(socket).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let advertise = match split_host_port(&config.data_advertise) {
            None => addr.to_string(),
            Some((host, 0)) => format!("{host}:{}", addr.port()),
            Some(_) => config.data_advertise.clone(),
        };
        let expected = Arc::new(Expected::default());
        let stop = inbound.shutdown().child_token();
        tokio::spawn(accept(
            listener,
            Arc::clone(inbound),
            Arc::clone(&expected),
            stop.clone(),
        ));
        Ok(Self {
            addr,
            advertise,
            expected,
            _stop: stop.drop_guard(),
        })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What senders are told to connect to.
    pub(super) fn advertised(&self) -> &str {
        &self.advertise
    }

    /// Lets one connection with this token be the link's.
    pub(super) fn expect(&self, token: LinkToken, link: &Arc<InboundLink>) -> ExpectedConnection {
        self.expected.0.lock().insert(token, Arc::clone(link));
        ExpectedConnection {
            token,
            expected: Arc::downgrade(&self.expected),
        }
    }
}

impl Drop for ExpectedConnection {
    fn drop(&mut self) {
        if let Some(expected) = self.expected.upgrade() {
            let link = expected.0.lock().remove(&self.token);
            drop(link);
        }
    }
}

// === connections ===

async fn accept(
    listener: TcpListener,
    inbound: Arc<Inbound>,
    expected: Arc<Expected>,
    stop: CancellationToken,
) {
    // Strangers that have not shown a token yet are bounded too.
    let room = Arc::new(Semaphore::new(2 * inbound.config().max_links));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // As when out of file descriptors: give others a chance to close some.
                tracing::warn!(%error, "cannot accept a KV data connection");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            inbound.metrics().refused_connections.inc();
            tracing::warn!(%peer, "refused a KV data connection: too many are open, see transfer.max_links");
            continue;
        };
        let (inbound, expected, stop) = (Arc::clone(&inbound), Arc::clone(&expected), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = serve(socket, peer, &inbound, &expected) => {}
            }
            drop(permit);
        });
    }
}

async fn serve(mut socket: TcpStream, peer: SocketAddr, inbound: &Inbound, expected: &Expected) {
    let greeting = timeout(inbound.config().connect_timeout(), greet(&mut socket, expected)).await;
    let Ok(Some(link)) = greeting else {
        inbound.metrics().refused_connections.inc();
        tracing::warn!(%peer, "closed a data connection that did not present the token of an open KV link");
        return;
    };
    let error = tokio::select! {
        () = link.closed.cancelled() => return,
        error = receive(&mut socket, inbound, &link) => error,
    };
    if !matches!(error, ReceiveError::Closed) {
        inbound.metrics().refused_connections.inc();
        tracing::warn!(%peer, worker = link.peer, %error, "closed a KV data connection");
    }
    link.close(error.to_string());
}

async fn greet(socket: &mut TcpStream, expected: &Expected) -> Option<Arc<InboundLink>> {
    socket.set_nodelay(true).ok()?;
    let mut preamble = [0; PREAMBLE_BYTES];
    socket.read_exact(&mut preamble).await.ok()?;
    let token = decode_preamble(&preamble)?;
    let link = expected.0.lock().remove(&token)?;
    socket.write_all(&[ACCEPTED]).await.ok()?;
    Some(link)
}

async fn receive(socket: &mut TcpStream, inbound: &Inbound, link: &InboundLink) -> ReceiveError {
    let mut reader = BufReader::with_capacity(inbound.config().buffer_bytes, socket);
    let mut payload = vec![0; inbound.slice_bytes()];
    loop {
        let error = match receive_slice(&mut reader, &mut payload, inbound, link).await {
            Ok(()) => continue,
            Err(error) => error,
        };
        return match error {
            ReceiveError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                ReceiveError::Closed
            }
            other => other,
        };
    }
}

/// Reads one frame. Its length is checked before its payload is read, into memory that exists already.
async fn receive_slice(
    reader: &mut BufReader<&mut TcpStream>,
    payload: &mut [u8],
    inbound: &Inbound,
    link: &InboundLink,
) -> Result<(), ReceiveError> {
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).await.map_err(ReceiveError::Io)?;
    let header = decode_header(&header, payload.len())?;
    reader.read_exact(payload).await.map_err(ReceiveError::Io)?;
    if header.is_intact(payload) {
        inbound.deliver(link, header.name, payload);
    } else if !inbound.damaged(link, header.name) {
        // The damage may be in the id: some transfer of this link lacks a slice, and nobody can say which.
        return Err(ReceiveError::Damaged(header.name));
    }
    Ok(())
}
