//! A prefill worker and a decode worker, as far as transfers see them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_kernels::kv::{HostKv, KvDtype, KvLayout, KvMemory, PageId};
use baton_kvcache::{
    MutablePage, PageAllocator, PagePin,
    transfer::{
        Inbound, InboundTransfer, KvLinkService, LinkIdentity, Outbound, OutboundTransfer, TransferConfig,
        TransferError, TransferMetrics, TransportChoice,
    },
};
use baton_proto::{
    TransferId,
    v1::{KvFingerprint, KvTarget, kv_link_server::KvLinkServer},
};
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;

pub(crate) const LAYERS: u32 = 3;
pub(crate) const POOL: u32 = 32;

pub(crate) struct Decode {
    pub(crate) inbound: Arc<Inbound>,
    pub(crate) memory: Arc<dyn KvMemory>,
    pub(crate) pages: PageAllocator,
    pub(crate) target: KvTarget,
    pub(crate) data_addr: Option<SocketAddr>,
    pub(crate) registry: Registry,
    pub(crate) server: Option<DropGuard>,
}

pub(crate) struct Prefill {
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) memory: Arc<dyn KvMemory>,
    pub(crate) pages: PageAllocator,
    pub(crate) worker_id: String,
    pub(crate) registry: Registry,
}

/// One sequence on both sides: pages on the prefill worker full of random bytes, and empty pages leased.
pub(crate) struct Sequence {
    pub(crate) id: TransferId,
    pub(crate) first_page: u32,
    pub(crate) from: Vec<MutablePage>,
    pub(crate) to: Vec<MutablePage>,
}

pub(crate) fn layout() -> KvLayout {
    KvLayout {
        dtype: KvDtype::Fp8E4m3,
        page_tokens: 16,
        layers: LAYERS as usize,
        kv_heads: 2,
        head_dim: 32,
    }
}

pub(crate) fn host_memory() -> Arc<dyn KvMemory> {
    Arc::new(HostKv::new(layout(), POOL).expect("a small memory"))
}

pub(crate) fn fingerprint() -> KvFingerprint {
    let layout = layout();
    KvFingerprint {
        model_revision: "test".into(),
        kv_dtype: layout.dtype.name().into(),
        page_tokens: layout.page_tokens as u32,
        layers: LAYERS,
        kv_heads: layout.kv_heads as u32,
        head_dim: layout.head_dim as u32,
        tensor_parallel: 1,
    }
}

pub(crate) fn config(transport: TransportChoice) -> TransferConfig {
    TransferConfig {
        transport,
        ..Default::default()
    }
}

/// A number that no other call returns, in any test of this process.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn identity(role: &str) -> LinkIdentity {
    let number = unique();
    LinkIdentity {
        worker_id: format!("{role}-{number}"),
        incarnation: number,
        fingerprint: fingerprint(),
    }
}

// === decode worker ===

impl Decode {
    pub(crate) async fn start(config: &TransferConfig) -> Self {
        Self::start_with(config, host_memory(), identity("decode")).await
    }

    pub(crate) async fn start_with(
        config: &TransferConfig,
        memory: Arc<dyn KvMemory>,
        identity: LinkIdentity,
    ) -> Self {
        let registry = Registry::new();
        let metrics = TransferMetrics::new(&registry).expect("a new registry");
        let inbound = Inbound::new(Arc::clone(&memory), config, &metrics);
        let service = KvLinkService::new(Arc::clone(&inbound), identity.clone()).expect("binds");
        let data_addr = service.data_addr();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let addr = listener.local_addr().expect("bound");
        let stop = CancellationToken::new();
        let serving = Server::builder()
            .add_service(KvLinkServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn({
            let stop = stop.clone();
            async move {
                // As if killed: connections break in the middle.
                tokio::select! {
                    () = stop.cancelled() => {}
                    served = serving => served.expect("serves"),
                }
            }
        });
        Self {
            inbound,
            memory,
            pages: PageAllocator::new(POOL),
            target: KvTarget {
                worker_id: identity.worker_id,
                kv_link_addr: format!("http://{addr}"),
            },
            data_addr,
            registry,
            server: Some(stop.drop_guard()),
        }
    }

    pub(crate) fn grant(&self, from: &Prefill, sequence: &Sequence) -> InboundTransfer {
        let pins = sequence.to.iter().map(MutablePage::pin).collect();
        self.inbound
            .grant(&from.worker_id, sequence.id, sequence.first_page, pins)
    }

    /// Nothing of any transfer is left. The test has dropped its sequences.
    pub(crate) async fn assert_idle(&mut self) {
        let Self { inbound, pages, .. } = self;
        eventually("the receiver holds nothing", || {
            pages.reclaim();
            pages.check().expect("pages add up");
            inbound.live() == 0 && pages.counts().free == POOL
        })
        .await;
        assert_eq!(value(&self.registry, "baton_kv_transfers_live", &["in"]), 0.0);
    }
}

// === prefill worker ===

impl Prefill {
    pub(crate) fn start(config: &TransferConfig) -> Self {
        Self::start_as(config, identity("prefill"))
    }

    pub(crate) fn start_as(config: &TransferConfig, identity: LinkIdentity) -> Self {
        let memory = host_memory();
        let registry = Registry::new();
        let metrics = TransferMetrics::new(&registry).expect("a new registry");
        Self {
            worker_id: identity.worker_id.clone(),
            outbound: Outbound::new(Arc::clone(&memory), identity, config, &metrics),
            memory,
            pages: PageAllocator::new(POOL),
            registry,
        }
    }

    pub(crate) fn send(&self, to: &Decode, sequence: &Sequence) -> OutboundTransfer {
        self.outbound.start(
            &to.target,
            sequence.id,
            sequence.first_page,
            sequence.first_page + sequence.from.len() as u32,
        )
    }

    pub(crate) async fn assert_idle(&mut self) {
        let Self { outbound, pages, .. } = self;
        eventually("the sender holds nothing", || {
            pages.reclaim();
            pages.check().expect("pages add up");
            outbound.live() == 0 && pages.counts().free == POOL
        })
        .await;
        assert_eq!(value(&self.registry, "baton_kv_transfers_live", &["out"]), 0.0);
    }
}

// === sequences ===

impl Sequence {
    pub(crate) fn new(from: &mut Prefill, to: &mut Decode, first_page: u32, pages: u32) -> Self {
        let id = TransferId(u128::from(unique()) << 64 | 7);
        let allocate =
            |pool: &mut PageAllocator| (0..pages).map(|_| pool.alloc().expect("a free page")).collect();
        let sequence = Self {
            id,
            first_page,
            from: allocate(&mut from.pages),
            to: allocate(&mut to.pages),
        };
        for page in &sequence.from {
            for layer in 0..LAYERS {
                from.memory
                    .write_slice(page.id(), layer, &noise(unique()))
                    .expect("in range");
            }
        }
        sequence
    }

    /// A layer of all pages, as the engine would name it.
    pub(crate) fn layer(&self) -> Vec<(u32, PagePin)> {
        (self.first_page..)
            .zip(self.from.iter().map(MutablePage::pin))
            .collect()
    }

    /// Some slices of a layer.
    pub(crate) fn page(&self, index: usize) -> [(u32, PagePin); 1] {
        [(self.first_page + index as u32, self.from[index].pin())]
    }

    pub(crate) fn slices(&self) -> u64 {
        self.from.len() as u64 * u64::from(LAYERS)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.slices() * layout().slice_bytes() as u64
    }

    pub(crate) fn assert_arrived(&self, from: &Prefill, to: &Decode) {
        for (sent, received) in self.from.iter().zip(&self.to) {
            for layer in 0..LAYERS {
                assert_eq!(
                    read(&*from.memory, sent.id(), layer),
                    read(&*to.memory, received.id(), layer),
                    "layer {layer} of {:?}",
                    sent.id()
                );
            }
        }
    }
}

pub(crate) fn read(memory: &dyn KvMemory, page: PageId, layer: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    memory.read_slice(page, layer, &mut bytes).expect("in range");
    bytes
}

fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = layout().slice_bytes();
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(bytes)
    .collect()
}

// === waiting and reading ===

/// Waits for what has no event of its own; fails after ten seconds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// Ends with the result, or fails after ten seconds.
pub(crate) async fn soon<T>(result: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), result)
        .await
        .expect("within ten seconds")
}

pub(crate) async fn failure<T: std::fmt::Debug>(
    result: impl Future<Output = Result<T, TransferError>>,
) -> TransferError {
    soon(result).await.expect_err("the transfer failed")
}

/// Sum of the counters or gauges with these label values.
pub(crate) fn value(registry: &Registry, name: &str, labels: &[&str]) -> f64 {
    registry
        .gather()
        .iter()
        .filter(|family| family.name() == name)
        .flat_map(|family| family.get_metric())
        .filter(|metric| {
            labels
                .iter()
                .all(|label| metric.get_label().iter().any(|pair| pair.value() == *label))
        })
        .map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value())
        .sum()
}
