//! Pages and their lifecycle: `Free -> Mutable -> Sealed -> Retiring(fence) -> Free`.
//!
//! A page out of the free list is held by handles that count themselves: one [`MutablePage`] that may write, later any
//! number of [`SealedPage`]s that may not, and [`PagePin`]s that only keep it from reuse. Dropping the last of them, on
//! any thread, queues the page. The owner of the [`PageAllocator`] then gives it a fence, the last step submitted so
//! far, and the page is free when that step has completed. Nothing else frees a page, so none is freed twice.

mod allocator;
mod handles;
mod pool;

pub use allocator::{PageAllocator, PageCounts, PageImbalance};
pub use handles::{MutablePage, PagePin, SealedPage};

pub(crate) use handles::CachedPage;
pub(crate) use pool::Pool;
