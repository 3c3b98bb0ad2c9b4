//! A listener that bounds how many connections are open: more wait in the kernel's queue.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::serve::Listener;
use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tonic::transport::server::Connected;

#[derive(Debug)]
pub(crate) struct BoundedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

/// A connection with TCP_NODELAY, which makes room for another when it is dropped.
#[derive(Debug)]
pub(crate) struct BoundedConnection {
    stream: TcpStream,
    _permit: Option<OwnedSemaphorePermit>,
}

impl BoundedListener {
    pub(crate) async fn bind(addr: SocketAddr, connections: usize) -> io::Result<Self> {
        Ok(Self {
            listener: TcpListener::bind(addr).await?,
            permits: Arc::new(Semaphore::new(connections)),
        })
    }

    /// The connections as tonic takes them.
    pub(crate) fn into_stream(mut self) -> impl Stream<Item = io::Result<BoundedConnection>> + Send {
        async_stream::stream! {
            loop {
                yield Ok(Listener::accept(&mut self).await.0);
            }
        }
    }
}

impl Listener for BoundedListener {
    type Io = BoundedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedConnection, SocketAddr) {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        // axum's own listener logs and waits when the process is out of file descriptors.
        let (stream, addr) = Listener::accept(&mut self.listener).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%addr, "TCP_NODELAY: {error}");
        }
        (
            BoundedConnection {
                stream,
                _permit: permit,
            },
            addr,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected for BoundedConnection {
    type ConnectInfo = <TcpStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for BoundedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for BoundedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
