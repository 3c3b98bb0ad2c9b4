//! What callers leave for the engine thread. Bounded: new requests by `max_waiting`, everything else by the number of
//! open requests, because each keeps at most one entry, whose intents collapse.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::Thread,
};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    handle::{Envelope, FirstToken},
    request::RequestError,
    scheduler::{CheckedRequest, RequestKey},
};

/// The engine thread's side and the callers' side meet here.
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// To wake.
    thread: Thread,
}

/// Everything that arrived since the last look.
#[derive(Default)]
pub(crate) struct Arrivals {
    pub(crate) submissions: VecDeque<Submission>,
    pub(crate) touched: Vec<Arc<RequestLink>>,
    pub(crate) draining: bool,
    pub(crate) stopping: bool,
}

/// An accepted request on its way to the scheduler.
pub(crate) struct Submission {
    pub(crate) request: CheckedRequest,
    pub(crate) link: Arc<RequestLink>,
    pub(crate) events: mpsc::Sender<Envelope>,
}

/// What a [`RequestHandle`](crate::RequestHandle) shares with the engine thread.
pub(crate) struct RequestLink {
    pub(crate) key: RequestKey,
    controls: Mutex<Controls>,
    touched: AtomicBool,
    /// Events did not fit into the channel: the reader wakes the engine when it has made room.
    pub(crate) blocked: AtomicBool,
    /// Number of the last lease asked for, and whether it has been given up.
    lease: AtomicU64,
}

/// The intents of a request's owner that the engine has not seen yet. A lease that is given up before the engine saw it
/// leaves nothing behind, so one release and one next intent are all that can be pending.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    pub(crate) cancelled: bool,
    pub(crate) release: bool,
    pub(crate) next: Option<Intent>,
}

#[derive(Debug)]
pub(crate) enum Intent {
    Lease(u64),
    Adopt(Vec<FirstToken>),
    PrefillHere,
}

#[derive(Default)]
struct State {
    arrivals: Arrivals,
    /// Requests that wait in the scheduler, as of the engine's last look.
    waiting: usize,
    closed: Option<RequestError>,
}

impl Inbox {
    pub(crate) fn new(thread: Thread) -> Self {
        Self {
            state: Mutex::default(),
            thread,
        }
    }

    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }

    /// # Errors
    /// [`RequestError::QueueFull`], [`RequestError::Draining`], [`RequestError::EngineStopped`].
    pub(crate) fn submit(&self, submission: Submission, max_waiting: usize) -> Result<(), RequestError> {
        {
            let mut state = self.state.lock();
            if let Some(closed) = &state.closed {
                return Err(closed.clone());
            }
            if state.arrivals.draining {
                return Err(RequestError::Draining);
            }
            let waiting = state.waiting + state.arrivals.submissions.len();
            if waiting >= max_waiting {
                return Err(RequestError::QueueFull { waiting });
            }
            state.arrivals.submissions.push_back(submission);
        }
        self.wake();
        Ok(())
    }

    /// Changes a request's pending intents and tells the engine to look at them.
    pub(crate) fn touch(&self, link: &Arc<RequestLink>, change: impl FnOnce(&mut Controls)) {
        change(&mut link.controls.lock());
        if !link.touched.swap(true, Ordering::AcqRel) {
            self.state.lock().arrivals.touched.push(Arc::clone(link));
        }
        self.wake();
    }

    pub(crate) fn drain(&self) {
        self.state.lock().arrivals.draining = true;
        self.wake();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.state.lock().arrivals.draining
    }

    pub(crate) fn stop(&self) {
        self.state.lock().arrivals.stopping = true;
        self.wake();
    }

    /// What arrived. Submissions count as waiting until [`Inbox::set_waiting`] says better.
    pub(crate) fn take(&self) -> Arrivals {
        let mut state = self.state.lock();
        state.waiting += state.arrivals.submissions.len();
        Arrivals {
            submissions: mem::take(&mut state.arrivals.submissions),
            touched: mem::take(&mut state.arrivals.touched),
            draining: state.arrivals.draining,
            stopping: state.arrivals.stopping,
        }
    }

    pub(crate) fn set_waiting(&self, waiting: usize) {
        self.state.lock().waiting = waiting;
    }

    /// Refuses everything from now on, for this reason; what had arrived is handed back.
    pub(crate) fn close(&self, reason: RequestError) -> Arrivals {
        self.state.lock().closed = Some(reason);
        self.take()
    }
}

impl RequestLink {
    pub(crate) fn new(key: RequestKey) -> Self {
        Self {
            key,
            controls: Mutex::default(),
            touched: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            lease: AtomicU64::new(0),
        }
    }

    /// The pending intents, which are the engine's from now on.
    pub(crate) fn take(&self) -> Controls {
        // First the flag: an intent that comes in between is found twice rather than never.
        self.touched.store(false, Ordering::Release);
        mem::take(&mut self.controls.lock())
    }

    /// Numbers a new lease. Even numbers stand for "none is wanted".
    pub(crate) fn next_lease(&self) -> u64 {
        let next = (self.lease.load(Ordering::Acquire) | 1) + 2;
        self.lease.store(next, Ordering::Release);
        next
    }

    /// From now on events of the last lease are stale.
    pub(crate) fn give_up_lease(&self) {
        let last = self.lease.load(Ordering::Acquire);
        self.lease.store((last | 1) + 1, Ordering::Release);
    }

    pub(crate) fn is_current(&self, lease: u64) -> bool {
        self.lease.load(Ordering::Acquire) == lease
    }
}
