//! Models, scheduler and executors: what turns requests into tokens on one device.

pub mod executor;
pub mod request;
pub mod step;
