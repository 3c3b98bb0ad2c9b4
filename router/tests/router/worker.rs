//! A decode worker that follows a script, in a runtime of its own, so that killing it closes its sockets as the death of
//! a process does.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use baton_proto::{
    PROTOCOL_VERSION,
    v1::{
        Accepted, Capacity, DecodeEvent, DecodeRequest, FinishReason, Finished, KvFingerprint, Prefilled,
        Tokens, WorkerHello, WorkerReport, WorkerRole,
        decode_event::Event,
        decode_server::{Decode, DecodeServer},
        registry_client::RegistryClient,
        worker_report::Report,
    },
};
use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{Notify, Semaphore, mpsc},
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, metadata::MetadataMap, transport::Server};

/// What a worker does with a request, step by step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Say(Event),
    /// Waits for a permit, then goes on.
    Wait(Arc<Semaphore>),
    /// Ends the call with an error.
    Fail(Status),
    /// Ends the stream as if all had been said.
    Stop,
    /// Never goes on.
    Hang,
}

pub(crate) type Script = Arc<dyn Fn(&DecodeRequest) -> Vec<Step> + Send + Sync>;

pub(crate) struct FakeWorker {
    pub(crate) seen: Arc<Seen>,
    runtime: Option<Runtime>,
}

/// What the worker has seen of its router.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) requests: Mutex<Vec<(DecodeRequest, MetadataMap)>>,
    /// Calls that ended before their script did.
    pub(crate) cancelled: AtomicUsize,
    pub(crate) changed: Notify,
}

impl FakeWorker {
    /// A decode worker with the usual introduction.
    pub(crate) async fn join(router: SocketAddr, worker_id: &str, script: Script) -> Self {
        Self::join_as(router, hello(worker_id), script).await
    }

    /// Serves `Decode` and joins the router; the address in `hello` is filled in.
    pub(crate) async fn join_as(router: SocketAddr, mut hello: WorkerHello, script: Script) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("runtime of a worker");
        let seen = Arc::new(Seen::default());
        let service = Scripted {
            worker_id: hello.worker_id.clone(),
            script,
            seen: Arc::clone(&seen),
        };
        let (reports, outbox) = mpsc::channel(8);
        let (joined, join) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            hello.addr = format!("http://{}", listener.local_addr().expect("bound"));
            tokio::spawn(
                Server::builder()
                    .add_service(DecodeServer::new(service))
                    .serve_with_incoming(TcpListenerStream::new(listener)),
            );
            let hello = WorkerReport {
                report: Some(Report::Hello(hello)),
            };
            reports.send(hello).await.expect("outbox is open");
            let mut client = RegistryClient::connect(format!("http://{router}"))
                .await
                .expect("router listens");
            let mut directives = client
                .join(ReceiverStream::new(outbox))
                .await
                .expect("is let in")
                .into_inner();
            directives.next().await.expect("a welcome").expect("a welcome");
            joined.send(()).expect("the test waits");
            // Holds the stay until the runtime ends.
            while let Some(Ok(_)) = directives.next().await {}
        });
        join.await.expect("worker joins");
        Self {
            seen,
            runtime: Some(runtime),
        }
    }

    /// Dies as a process does: every socket closes, nothing is said.
    pub(crate) fn kill(mut self) -> Arc<Seen> {
        self.runtime.take().expect("alive").shutdown_background();
        Arc::clone(&self.seen)
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Seen {
    /// The request number `index`, once it has arrived.
    pub(crate) async fn request(&self, index: usize) -> DecodeRequest {
        self.until(|seen| {
            seen.requests
                .lock()
                .get(index)
                .map(|(request, _)| request.clone())
        })
        .await
    }

    pub(crate) async fn cancelled(&self, count: usize) {
        self.until(|seen| (seen.cancelled.load(Ordering::SeqCst) >= count).then_some(()))
            .await;
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().len()
    }

    async fn until<T>(&self, found: impl Fn(&Self) -> Option<T>) -> T {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(value) = found(self) {
                    return value;
                }
                changed.await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), wait)
            .await
            .expect("the worker sees it in time")
    }
}

pub(crate) fn hello(worker_id: &str) -> WorkerHello {
    WorkerHello {
        worker_id: worker_id.into(),
        incarnation: u64::from(std::process::id()),
        protocol_version: PROTOCOL_VERSION,
        version: "test".into(),
        role: WorkerRole::Decode.into(),
        model: "tiny".into(),
        addr: "http://127.0.0.1:9".into(),
        fingerprint: Some(KvFingerprint::default()),
        capacity: Some(Capacity {
            max_running: 8,
            max_waiting: 8,
            context_tokens: 512,
            total_pages: 100,
            page_tokens: 16,
        }),
        device: "script".into(),
    }
}

pub(crate) fn accepted(worker_id: &str) -> Step {
    Step::Say(Event::Accepted(Accepted {
        worker_id: worker_id.into(),
    }))
}

pub(crate) fn prefilled(worker_id: &str, cached_tokens: u32) -> Step {
    Step::Say(Event::Prefilled(Prefilled {
        worker_id: worker_id.into(),
        cached_tokens,
        ..Default::default()
    }))
}

pub(crate) fn tokens(choice: u32, ids: &[u32]) -> Step {
    Step::Say(Event::Tokens(Tokens {
        choice,
        ids: ids.to_vec(),
        ..Default::default()
    }))
}

pub(crate) fn finished(choice: u32, reason: FinishReason) -> Step {
    Step::Say(Event::Finished(Finished {
        choice,
        reason: reason.into(),
        stop_token_id: None,
    }))
}

struct Scripted {
    worker_id: String,
    script: Script,
    seen: Arc<Seen>,
}

/// Counts a call that is dropped before its script has ended.
struct Call {
    seen: Arc<Seen>,
    ended: bool,
}

impl Call {
    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.seen.cancelled.fetch_add(1, Ordering::SeqCst);
        }
        self.seen.changed.notify_waiters();
    }
}

#[tonic::async_trait]
impl Decode for Scripted {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<DecodeEvent, Status>> + Send>>;

    async fn generate(
        &self,
        request: Request<DecodeRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let metadata = request.metadata().clone();
        let request = request.into_inner();
        let mut steps = (self.script)(&request);
        self.seen.requests.lock().push((request, metadata));
        self.seen.changed.notify_waiters();
        if let Some(Step::Fail(status)) = steps.first() {
            return Err(status.clone());
        }
        steps.insert(0, accepted(&self.worker_id));
        let call = Call {
            seen: Arc::clone(&self.seen),
            ended: false,
        };
        Ok(Response::new(Box::pin(async_stream::stream! {
            for step in steps {
                match step {
                    Step::Say(event) => yield Ok(DecodeEvent { event: Some(event) }),
                    Step::Wait(gate) => gate.acquire().await.expect("open").forget(),
                    Step::Fail(status) => {
                        call.end();
                        yield Err(status);
                        return;
                    }
                    Step::Stop => break,
                    Step::Hang => std::future::pending().await,
                }
            }
            call.end();
        })))
    }
}
