//! A prefill worker that says what a test has it say, and never sends KV.

use std::{net::SocketAddr, pin::Pin};

use baton_proto::v1::{
    FirstToken, FirstTokens, PrefillCandidate, PrefillEvent, PrefillRequest, Started,
    prefill_event::Event,
    prefill_server::{Prefill, PrefillServer},
};
use futures::{Stream, StreamExt as _, stream};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, transport::Server};

/// One thing that it does.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    Started,
    /// The first token of choice 0.
    First(u32),
    Fail(Status),
    /// Says nothing more, and stays.
    Hang,
}

pub(crate) struct ScriptedPrefill {
    pub(crate) addr: SocketAddr,
    /// The requests that it got.
    pub(crate) requests: mpsc::Receiver<PrefillRequest>,
    /// One message for each stream that its caller let go.
    pub(crate) dropped: mpsc::Receiver<()>,
    _server: AbortOnDropHandle<()>,
}

struct Service {
    script: Vec<Line>,
    requests: mpsc::Sender<PrefillRequest>,
    dropped: mpsc::Sender<()>,
}

struct TellDropped(mpsc::Sender<()>);

impl ScriptedPrefill {
    pub(crate) async fn start(script: Vec<Line>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let (request_sender, requests) = mpsc::channel(16);
        let (dropped_sender, dropped) = mpsc::channel(16);
        let service = Service {
            script,
            requests: request_sender,
            dropped: dropped_sender,
        };
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = Server::builder().add_service(PrefillServer::new(service));
        let task = tokio::spawn(async move {
            server.serve_with_incoming(incoming).await.expect("serves");
        });
        Self {
            addr,
            requests,
            dropped,
            _server: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn candidate(&self) -> PrefillCandidate {
        PrefillCandidate {
            worker_id: "scripted".into(),
            addr: format!("http://{}", self.addr),
        }
    }
}

#[tonic::async_trait]
impl Prefill for Service {
    type RunStream = Pin<Box<dyn Stream<Item = Result<PrefillEvent, Status>> + Send>>;

    async fn run(&self, request: Request<PrefillRequest>) -> Result<Response<Self::RunStream>, Status> {
        let _ = self.requests.try_send(request.into_inner());
        if let Some(Line::Fail(status)) = self.script.first() {
            return Err(status.clone());
        }
        let tell = TellDropped(self.dropped.clone());
        let lines = stream::iter(self.script.clone()).then(move |line| {
            let _tell = &tell;
            say(line)
        });
        Ok(Response::new(Box::pin(lines)))
    }
}

impl Drop for TellDropped {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

async fn say(line: Line) -> Result<PrefillEvent, Status> {
    let event = match line {
        Line::Started => Event::Started(Started::default()),
        Line::First(id) => Event::FirstTokens(FirstTokens {
            tokens: vec![FirstToken {
                choice: 0,
                id,
                logprobs: None,
            }],
            ..FirstTokens::default()
        }),
        Line::Fail(status) => return Err(status),
        Line::Hang => std::future::pending().await,
    };
    Ok(PrefillEvent { event: Some(event) })
}
