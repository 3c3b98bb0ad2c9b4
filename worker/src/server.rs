//! One port for gRPC (HTTP/2 with prior knowledge) and plain HTTP/1.1.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use prometheus::IntGauge;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// How long a failing `accept` (out of file descriptors, mostly) pauses before the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// A silent HTTP/2 peer is asked whether it is there, so that a lost one's requests are cancelled.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Streams on top of the requests that one connection can carry: health, reflection, membership, links.
const SPARE_STREAMS: u32 = 64;

/// What the listener may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    pub(crate) connections: usize,
    /// Requests that one connection may multiplex. Not smaller than what admission lets in: a refusal tells the caller
    /// more than a stream that does not open.
    pub(crate) requests: u32,
}

/// A listener that serves. Dropping it closes every connection at once.
#[derive(Debug)]
pub(crate) struct Server {
    addr: SocketAddr,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Server {
    pub(crate) fn start(
        listener: TcpListener,
        router: Router,
        limits: ServerLimits,
        open: IntGauge,
    ) -> io::Result<Self> {
        let addr = listener.local_addr()?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept_loop(listener, router, limits, open, stop.clone()));
        Ok(Self {
            addr,
            stop,
            task: AbortOnDropHandle::new(task),
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting, lets calls in progress finish within `grace`, then closes what is left.
    pub(crate) async fn shutdown(self, grace: Duration) {
        self.stop.cancel();
        // Err is the timeout: dropping the task closes the connections.
        let _ = tokio::time::timeout(grace, self.task).await;
    }
}

async fn accept_loop(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    open: IntGauge,
    stop: CancellationToken,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(limits.requests.saturating_add(SPARE_STREAMS));
    let room = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let (stream, permit) = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &room) => accepted,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = builder
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        let connection = graceful.watch(connection);
        let open = open.clone();
        connections.spawn(async move {
            open.inc();
            let _open = scopeguard(move || open.dec());
            // A connection ends with an error when its peer vanishes; there is nobody to tell.
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// The next connection that there is room for.
async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let permit = Arc::clone(room).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Tokens are small: waiting to fill a segment would add to every gap between them.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(error = %error, "TCP_NODELAY could not be set");
                }
                return (stream, permit);
            }
            Err(error) => {
                tracing::warn!(error = %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Runs `end` when dropped, also when the task is aborted.
fn scopeguard(end: impl Fn()) -> impl Drop {
    struct Guard<F: Fn()>(F);
    impl<F: Fn()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(end)
}
