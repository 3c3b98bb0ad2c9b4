//! Pages and their lifecycle.

use std::sync::Arc;

use baton_kernels::kv::PageId;

/// Keeps a page from reuse without a right to write it.
#[derive(Clone, Debug)]
pub struct PagePin(Arc<PageId>);

impl PagePin {
    #[must_use]
    pub fn id(&self) -> PageId {
        *self.0
    }
}
