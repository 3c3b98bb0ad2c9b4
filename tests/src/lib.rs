//! What tests of the whole system share: a system in this process, with the bundled model and real sockets, and clients
//! of its two front doors.

mod client;
mod system;

pub use client::{Answer, Prompt};
pub use system::{System, SystemOptions, Topology};
