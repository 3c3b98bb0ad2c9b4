//! Page lifecycle, prefix index, leases, and the transports that move KV between workers.

pub mod pages;

pub use pages::PagePin;
