//! What handles on any thread share with the allocator and the prefix index.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use baton_kernels::kv::PageId;
use parking_lot::Mutex;

/// The meeting place of handles, dropped anywhere, and their two owners.
///
/// Each page is at most once in each queue, so both are bounded by the number of pages.
pub(crate) struct Pool {
    total: u32,
    state: Mutex<PoolState>,
    /// Called when a queue is no longer empty.
    wake: OnceLock<Wake>,
}

type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Debug)]
struct PoolState {
    mutable: u32,
    sealed: u32,
    /// Nobody holds these any more; they wait for their fence.
    returned: Vec<PageId>,
    /// The prefix index may be the only holder of these.
    idle: Vec<PageId>,
    idle_queued: Vec<bool>,
}

/// Pages that are not free, as the pool counts them.
#[derive(Clone, Copy, Debug)]
pub(super) struct InUse {
    pub(super) mutable: u32,
    pub(super) sealed: u32,
    pub(super) returned: u32,
}

impl Pool {
    pub(super) fn new(total: u32) -> Arc<Self> {
        Arc::new(Self {
            total,
            state: Mutex::new(PoolState {
                mutable: 0,
                sealed: 0,
                returned: Vec::with_capacity(total as usize),
                idle: Vec::with_capacity(total as usize),
                idle_queued: vec![false; total as usize],
            }),
            wake: OnceLock::new(),
        })
    }

    pub(super) fn wake_on_return(&self, wake: Wake) {
        // The first stays: an allocator has one owner.
        let _ = self.wake.set(wake);
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn in_use(&self) -> InUse {
        let state = self.state.lock();
        InUse {
            mutable: state.mutable,
            sealed: state.sealed,
            returned: state.returned.len() as u32,
        }
    }

    pub(super) fn opened(&self) {
        self.state.lock().mutable += 1;
    }

    pub(super) fn sealed(&self) {
        let mut state = self.state.lock();
        state.mutable -= 1;
        state.sealed += 1;
    }

    pub(super) fn returned(&self, page: PageId, sealed: bool) {
        let mut state = self.state.lock();
        if sealed {
            state.sealed -= 1;
        } else {
            state.mutable -= 1;
        }
        state.returned.push(page);
        let first = state.returned.len() == 1;
        drop(state);
        if first {
            self.wake();
        }
    }

    pub(super) fn take_returned(&self, into: &mut Vec<PageId>) {
        into.append(&mut self.state.lock().returned);
    }

    pub(super) fn for_each_returned(&self, mut visit: impl FnMut(PageId)) {
        self.state.lock().returned.iter().for_each(|page| visit(*page));
    }

    pub(super) fn maybe_idle(&self, page: PageId) {
        let mut state = self.state.lock();
        if !state.idle_queued[page.0 as usize] {
            state.idle_queued[page.0 as usize] = true;
            state.idle.push(page);
            let first = state.idle.len() == 1;
            drop(state);
            if first {
                self.wake();
            }
        }
    }

    /// Pages whose last holder beside the prefix index let go, in that order. A page may have found a new holder since.
    pub(crate) fn take_idle(&self, into: &mut Vec<PageId>) {
        let mut state = self.state.lock();
        let PoolState {
            idle, idle_queued, ..
        } = &mut *state;
        for page in idle.drain(..) {
            idle_queued[page.0 as usize] = false;
            into.push(page);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("total", &self.total)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
