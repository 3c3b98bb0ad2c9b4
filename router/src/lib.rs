//! The router: where text becomes tokens, requests become plans, and token streams become answers. See ARCHITECTURE.md.
//!
//! It never links kernels or engine: workers speak token ids only.

pub mod config;
mod connections;
pub mod error;
mod grpc;
mod http;
pub mod metrics;
pub mod pipeline;
pub mod policy;
pub mod registry;
mod server;
pub mod status;
pub mod text;
pub mod upstream;

pub use config::RouterConfig;
pub use error::{RequestError, RouterError};
pub use server::{Router, RunningRouter};
