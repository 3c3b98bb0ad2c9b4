//! The handles that keep a page from reuse.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use baton_kernels::kv::PageId;
use baton_proto::BlockHash;

use super::Pool;

/// The one handle through which a page may be written.
#[derive(Debug)]
pub struct MutablePage(Arc<Hold>);

/// A full page that will not change any more.
#[derive(Clone, Debug)]
pub struct SealedPage {
    hold: Arc<Hold>,
    hash: BlockHash,
}

/// Keeps a page from reuse without a right to write it.
#[derive(Clone, Debug)]
pub struct PagePin(Arc<Hold>);

/// The prefix index's own hold of a sealed page, which is not counted among the holders that make it busy.
#[derive(Debug)]
pub(crate) struct CachedPage {
    tenure: Arc<Tenure>,
    hold: Weak<Hold>,
    hash: BlockHash,
}

/// Shared by all handles of one page; its end tells the prefix index.
#[derive(Debug)]
struct Hold {
    tenure: Arc<Tenure>,
}

/// One stay of a page outside the free list; its end queues the page for its fence.
#[derive(Debug)]
struct Tenure {
    page: PageId,
    pool: Arc<Pool>,
    sealed: AtomicBool,
    cached: AtomicBool,
}

// === impl MutablePage ===

impl MutablePage {
    /// Only the allocator calls this, with a page that it took from its free list.
    pub(super) fn open(page: PageId, pool: &Arc<Pool>) -> Self {
        pool.opened();
        Self(Arc::new(Hold {
            tenure: Arc::new(Tenure {
                page,
                pool: Arc::clone(pool),
                sealed: AtomicBool::new(false),
                cached: AtomicBool::new(false),
            }),
        }))
    }

    #[must_use]
    pub fn id(&self) -> PageId {
        self.0.tenure.page
    }

    #[must_use]
    pub fn pin(&self) -> PagePin {
        PagePin(Arc::clone(&self.0))
    }

    /// Ends writing. The page is full and its content is what `hash` names.
    #[must_use]
    pub fn seal(self, hash: BlockHash) -> SealedPage {
        self.0.tenure.sealed.store(true, Ordering::Release);
        self.0.tenure.pool.sealed();
        SealedPage { hold: self.0, hash }
    }
}

// === impl SealedPage ===

impl SealedPage {
    #[must_use]
    pub fn id(&self) -> PageId {
        self.hold.tenure.page
    }

    #[must_use]
    pub fn hash(&self) -> BlockHash {
        self.hash
    }

    #[must_use]
    pub fn pin(&self) -> PagePin {
        PagePin(Arc::clone(&self.hold))
    }

    /// Handles and pins of this page, this one included and the prefix index not.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.hold)
    }
}

// === impl PagePin ===

impl PagePin {
    #[must_use]
    pub fn id(&self) -> PageId {
        self.0.tenure.page
    }
}

// === impl CachedPage ===

impl CachedPage {
    pub(crate) fn new(page: &SealedPage) -> Self {
        let tenure = Arc::clone(&page.hold.tenure);
        tenure.cached.store(true, Ordering::Release);
        Self {
            tenure,
            hold: Arc::downgrade(&page.hold),
            hash: page.hash,
        }
    }

    pub(crate) fn hash(&self) -> BlockHash {
        self.hash
    }

    /// A handle for somebody else, which makes the page busy.
    pub(crate) fn open(&mut self) -> SealedPage {
        let hold = self.hold.upgrade().unwrap_or_else(|| {
            let hold = Arc::new(Hold {
                tenure: Arc::clone(&self.tenure),
            });
            self.hold = Arc::downgrade(&hold);
            hold
        });
        SealedPage {
            hold,
            hash: self.hash,
        }
    }

    /// Whether nobody else holds the page. Once true it stays true until [`CachedPage::open`].
    pub(crate) fn is_idle(&self) -> bool {
        self.hold.strong_count() == 0
    }
}

// === ends ===

impl Drop for Hold {
    fn drop(&mut self) {
        if self.tenure.cached.load(Ordering::Acquire) {
            self.tenure.pool.maybe_idle(self.tenure.page);
        }
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        let sealed = *self.sealed.get_mut();
        self.pool.returned(self.page, sealed);
    }
}
