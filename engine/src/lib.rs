//! Models, scheduler and executors: what turns requests into tokens on one device.

pub mod config;
pub mod cpu;
pub mod executor;
pub mod fake;
mod handle;
mod inbox;
pub mod load;
pub mod metrics;
pub mod model;
mod outbox;
pub mod request;
pub mod scheduler;
pub mod step;
mod thread;
mod turn;
pub mod weights;

pub use config::EngineConfig;
pub use handle::{EngineHandle, FirstToken, RequestHandle};
pub use load::{EngineLoad, PageLoad};
pub use metrics::EngineMetrics;
pub use thread::{BoxError, Engine, EngineError, EngineThread};
