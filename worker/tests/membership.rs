//! Membership against a router that listens on a real port.

use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use baton_proto::v1::{
    Directive, Drain, Welcome, WorkerHello, WorkerLoad, WorkerReport, directive,
    registry_server::{Registry, RegistryServer},
    worker_report::Report,
};
use baton_worker::{
    membership::{Member, MembershipConfig, join},
    metrics::WorkerMetrics,
};
use futures::{Stream, StreamExt as _, stream};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Server};

const PATIENCE: Duration = Duration::from_secs(10);

/// Writes down what workers say, and answers with what it is given.
struct Router {
    reports: mpsc::Sender<Report>,
    refuse: bool,
    directives: Vec<directive::Directive>,
    /// Ends the router and all its streams.
    stop: CancellationToken,
}

impl Router {
    fn new(reports: &mpsc::Sender<Report>) -> Self {
        Self {
            reports: reports.clone(),
            refuse: false,
            directives: Vec::new(),
            stop: CancellationToken::new(),
        }
    }
}

#[tonic::async_trait]
impl Registry for Router {
    type JoinStream = Pin<Box<dyn Stream<Item = Result<Directive, Status>> + Send>>;

    async fn join(
        &self,
        request: Request<Streaming<WorkerReport>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        let mut up = request.into_inner();
        let reports = self.reports.clone();
        if self.refuse {
            let first = up.message().await?.and_then(|report| report.report);
            reports
                .send(first.expect("a hello"))
                .await
                .expect("the test listens");
            return Err(Status::failed_precondition("protocol version 0 is too old"));
        }
        let recorder = tokio::spawn(async move {
            while let Ok(Some(WorkerReport { report: Some(report) })) = up.message().await {
                if reports.send(report).await.is_err() {
                    return;
                }
            }
        });
        let welcome = directive::Directive::Welcome(Welcome {
            router_id: "r0".into(),
            protocol_version: 1,
        });
        let said: Vec<_> = std::iter::once(welcome)
            .chain(self.directives.clone())
            .map(|directive| {
                Ok(Directive {
                    directive: Some(directive),
                })
            })
            .collect();
        // The stream stays open as long as the worker's does.
        let stop = self.stop.clone();
        let open = stream::once(async move {
            tokio::select! {
                _ = recorder => {}
                () = stop.cancelled() => {}
            }
            Err(Status::unavailable("gone"))
        });
        Ok(Response::new(Box::pin(stream::iter(said).chain(open))))
    }
}

async fn serve(router: Router, addr: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(addr).await.expect("the port is free");
    let bound = listener.local_addr().expect("bound");
    let stop = router.stop.clone();
    let server = Server::builder().add_service(RegistryServer::new(router));
    let task = tokio::spawn(async move {
        server
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled_owned())
            .await
            .expect("serves");
    });
    (bound, task)
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

struct Worker {
    load: watch::Sender<WorkerLoad>,
    draining: Arc<watch::Sender<bool>>,
    metrics: WorkerMetrics,
    _membership: tokio_util::task::AbortOnDropHandle<()>,
}

fn worker(router: SocketAddr) -> Worker {
    let (load, loads) = watch::channel(WorkerLoad::default());
    let draining = Arc::new(watch::Sender::new(false));
    let metrics = WorkerMetrics::new(&prometheus::Registry::new()).expect("names are free");
    let door = Arc::clone(&draining);
    let member = Member {
        hello: WorkerHello {
            worker_id: "w0".into(),
            ..WorkerHello::default()
        },
        load: loads,
        draining: draining.subscribe(),
        on_drain: Arc::new(move |grace| {
            assert_eq!(grace, Duration::from_secs(3));
            door.send_replace(true);
        }),
        metrics: metrics.clone(),
    };
    let config = MembershipConfig {
        routers: vec![router.to_string()],
        resolve_every: Duration::from_secs(60),
        report_max: Duration::from_millis(50),
    };
    Worker {
        load,
        draining,
        metrics,
        _membership: join(config, member),
    }
}

/// Reports until one satisfies `wanted`.
async fn heard(reports: &mut mpsc::Receiver<Report>, wanted: impl Fn(&Report) -> bool) -> Report {
    tokio::time::timeout(PATIENCE, async {
        loop {
            let report = reports.recv().await.expect("the router runs");
            if wanted(&report) {
                return report;
            }
        }
    })
    .await
    .expect("the report comes in time")
}

fn is_hello(report: &Report) -> bool {
    matches!(report, Report::Hello(hello) if hello.worker_id == "w0")
}

#[tokio::test]
async fn says_hello_first_reports_loads_and_joins_a_restarted_router_again() {
    let (sender, mut reports) = mpsc::channel(64);
    let router = Router::new(&sender);
    let stop = router.stop.clone();
    let (addr, first) = serve(router, any_port()).await;
    let worker = worker(addr);
    assert!(
        is_hello(&heard(&mut reports, |_| true).await),
        "hello comes first"
    );
    assert_eq!(
        heard(&mut reports, |_| true).await,
        Report::Load(WorkerLoad::default())
    );
    assert_eq!(
        heard(&mut reports, |_| true).await,
        Report::Load(WorkerLoad::default()),
        "an unchanged load is repeated"
    );
    let busy = WorkerLoad {
        running: 3,
        ..WorkerLoad::default()
    };
    worker.load.send_replace(busy);
    heard(&mut reports, |report| *report == Report::Load(busy)).await;
    assert_eq!(worker.metrics.routers.get(), 1);

    stop.cancel();
    first.await.expect("the router ends");
    let (_, _second) = serve(Router::new(&sender), addr).await;
    heard(&mut reports, is_hello).await;
    assert_eq!(
        heard(&mut reports, |_| true).await,
        Report::Load(busy),
        "everything is said anew"
    );
}

#[tokio::test]
async fn drains_when_a_router_says_so_and_tells_it() {
    let (sender, mut reports) = mpsc::channel(64);
    let drain = directive::Directive::Drain(Drain { grace_seconds: 3.0 });
    let (addr, _server) = serve(
        Router {
            directives: vec![drain],
            ..Router::new(&sender)
        },
        any_port(),
    )
    .await;
    let worker = worker(addr);
    heard(&mut reports, |report| matches!(report, Report::Leaving(_))).await;
    assert!(*worker.draining.borrow());
}

#[tokio::test]
async fn a_refused_worker_keeps_trying() {
    let (sender, mut reports) = mpsc::channel(64);
    let (addr, _server) = serve(
        Router {
            refuse: true,
            ..Router::new(&sender)
        },
        any_port(),
    )
    .await;
    let worker = worker(addr);
    for _ in 0..3 {
        heard(&mut reports, is_hello).await;
    }
    assert_eq!(worker.metrics.routers.get(), 0);
}
