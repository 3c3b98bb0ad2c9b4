//! Page lifecycle, prefix index, leases, and the transports that move KV between workers.

pub mod pages;
pub mod prefix;
pub mod transfer;

pub use pages::{MutablePage, PageAllocator, PageCounts, PagePin, SealedPage};
pub use prefix::PrefixIndex;
