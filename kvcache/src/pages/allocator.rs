//! Which pages are free, and when a returned page becomes free again.

use std::{collections::VecDeque, sync::Arc};

use baton_kernels::kv::PageId;

use super::{MutablePage, Pool};

/// Owns the free list of one KV memory. One thread owns it; the handles it gives out may be dropped anywhere.
#[derive(Debug)]
pub struct PageAllocator {
    pool: Arc<Pool>,
    free: Vec<PageId>,
    /// Fences never decrease from front to back.
    retiring: VecDeque<Retiring>,
    last_submitted: u64,
    last_completed: u64,
    /// Kept between calls of `reclaim` for its capacity.
    scratch: Vec<PageId>,
}

/// Pages by state. Pages whose last handle is gone but that wait for [`PageAllocator::reclaim`] count as retiring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    pub free: u32,
    pub mutable: u32,
    /// Those that only the prefix index holds included.
    pub sealed: u32,
    pub retiring: u32,
    pub total: u32,
}

/// The pages do not add up, which means a defect in this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageImbalance {
    #[error("pages do not add up: {0:?}")]
    Sum(PageCounts),
    #[error("page {0:?} is twice in the free, retiring and returned pages")]
    Twice(PageId),
}

/// A page that steps up to `fence` may still read or write.
#[derive(Clone, Copy, Debug)]
struct Retiring {
    fence: u64,
    page: PageId,
}

// === impl PageAllocator ===

impl PageAllocator {
    /// All of `0..total` are free.
    #[must_use]
    pub fn new(total: u32) -> Self {
        Self {
            pool: Pool::new(total),
            free: (0..total).rev().map(PageId).collect(),
            retiring: VecDeque::with_capacity(total as usize),
            last_submitted: 0,
            last_completed: 0,
            scratch: Vec::with_capacity(total as usize),
        }
    }

    /// `wake` is called, on whatever thread drops a page's last handle, when there is something to reclaim or to evict
    /// where there was nothing. Its owner then need not look at intervals.
    pub fn wake_on_return(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.pool.wake_on_return(Box::new(wake));
    }

    /// A free page, or none: then reclaim, evict from the prefix index, or wait.
    pub fn alloc(&mut self) -> Option<MutablePage> {
        self.free.pop().map(|page| MutablePage::open(page, &self.pool))
    }

    /// Steps up to `step` are submitted: a page that is returned from now on may be named by them.
    ///
    /// Call it before handles that the step names can be dropped.
    pub fn submitted(&mut self, step: u64) {
        self.last_submitted = self.last_submitted.max(step);
    }

    /// Steps up to `step` are completed: pages that only they named are free.
    pub fn completed(&mut self, step: u64) {
        self.last_completed = self.last_completed.max(step);
        while let Some(first) = self.retiring.front() {
            if first.fence > self.last_completed {
                break;
            }
            self.free.push(first.page);
            self.retiring.pop_front();
        }
    }

    /// Gives every page whose last handle is gone its fence, and frees those that no unfinished step can name.
    /// Returns how many pages that were.
    pub fn reclaim(&mut self) -> usize {
        self.pool.take_returned(&mut self.scratch);
        let found = self.scratch.len();
        for page in self.scratch.drain(..) {
            if self.last_submitted <= self.last_completed {
                self.free.push(page);
            } else {
                self.retiring.push_back(Retiring {
                    fence: self.last_submitted,
                    page,
                });
            }
        }
        found
    }

    #[must_use]
    pub fn counts(&self) -> PageCounts {
        let in_use = self.pool.in_use();
        PageCounts {
            free: self.free.len() as u32,
            mutable: in_use.mutable,
            sealed: in_use.sealed,
            retiring: self.retiring.len() as u32 + in_use.returned,
            total: self.pool.total(),
        }
    }

    /// Whether `free + mutable + sealed + retiring == total` and no page is listed twice. Linear in the pages: for
    /// tests and idle moments.
    ///
    /// # Errors
    /// [`PageImbalance`] if not.
    pub fn check(&self) -> Result<(), PageImbalance> {
        let counts = self.counts();
        let sum = u64::from(counts.free)
            + u64::from(counts.mutable)
            + u64::from(counts.sealed)
            + u64::from(counts.retiring);
        if sum != u64::from(counts.total) {
            return Err(PageImbalance::Sum(counts));
        }
        let mut listed = vec![false; counts.total as usize];
        let mut twice = None;
        let mut visit = |page: PageId| {
            if std::mem::replace(&mut listed[page.0 as usize], true) {
                twice = Some(page);
            }
        };
        self.free.iter().for_each(|page| visit(*page));
        self.retiring.iter().for_each(|retiring| visit(retiring.page));
        self.pool.for_each_returned(visit);
        twice.map_or(Ok(()), |page| Err(PageImbalance::Twice(page)))
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}
