//! A TCP proxy in front of a data listener, to damage what passes.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// What happens to the sender's bytes of the first connection; later ones pass unharmed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// Flips the lowest bit of the byte at this offset.
    Flip(usize),
    /// Writes text in place of the bytes from this offset on.
    Garbage(usize),
    /// Closes after so many bytes.
    Cut(usize),
}

pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    target: Arc<OnceLock<SocketAddr>>,
}

impl Proxy {
    pub(crate) async fn start(harm: Harm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let addr = listener.local_addr().expect("bound");
        let target = Arc::new(OnceLock::new());
        tokio::spawn({
            let target = Arc::clone(&target);
            async move {
                let mut harm = Some(harm);
                while let Ok((sender, _)) = listener.accept().await {
                    let to = *target.get().expect("aimed before anybody connects");
                    let receiver = TcpStream::connect(to).await.expect("the receiver listens");
                    tokio::spawn(pass(sender, receiver, harm.take()));
                }
            }
        });
        Self { addr, target }
    }

    pub(crate) fn aim(&self, target: Option<SocketAddr>) {
        self.target
            .set(target.expect("the receiver has a data listener"))
            .expect("aimed once");
    }
}

async fn pass(sender: TcpStream, receiver: TcpStream, harm: Option<Harm>) {
    let (mut from_sender, mut to_sender) = sender.into_split();
    let (mut from_receiver, mut to_receiver) = receiver.into_split();
    let back = tokio::spawn(async move {
        // Ends with either socket.
        let _ = tokio::io::copy(&mut from_receiver, &mut to_sender).await;
    });
    let mut buffer = vec![0; 1000];
    let mut passed = 0;
    while let Ok(length @ 1..) = from_sender.read(&mut buffer).await {
        let bytes = &mut buffer[..length];
        match harm {
            Some(Harm::Flip(at)) if (passed..passed + length).contains(&at) => bytes[at - passed] ^= 1,
            Some(Harm::Garbage(at)) if passed + length > at => {
                bytes[at.saturating_sub(passed)..].fill(b'?');
            }
            Some(Harm::Cut(at)) if passed + length > at => break,
            _ => {}
        }
        passed += length;
        if to_receiver.write_all(bytes).await.is_err() {
            break;
        }
    }
    back.abort();
}
