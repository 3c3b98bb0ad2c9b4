//! Prefill and decode workers together, over real sockets in one process.

mod cancel;
mod equality;
mod failure;
mod fleet;
mod limits;
mod prefill;
