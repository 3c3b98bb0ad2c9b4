//! What both kinds of worker share: identity, configuration, one port for gRPC and HTTP, membership in the routers'
//! registries, admission, liveness, and the meaning of wire messages in the engine's terms.
//!
//! A role starts with [`Worker::prepare`], adds its gRPC services to [`Worker::routes`], and ends in
//! [`Worker::serve`], which yields a [`RunningWorker`].

pub mod admission;
pub mod channels;
pub mod config;
pub mod identity;
pub mod intake;
pub mod liveness;
pub mod membership;
pub mod metrics;
pub mod random;
pub mod request;
pub mod status;
pub mod trace;
pub mod wire;

mod running;
mod server;
mod worker;

pub use admission::{Admission, Permit};
pub use channels::ChannelPool;
pub use config::WorkerConfig;
pub use identity::{Identity, ServedModel};
pub use intake::{Admitted, Intake};
pub use running::RunningWorker;
pub use status::ServeError;
pub use worker::{StartError, Worker, WorkerSetup};
