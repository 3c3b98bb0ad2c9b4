//! The transport inside one process: a slice is delivered by a call.
//!
//! Sender and receiver find each other through a hub of the process. A sender that lives here is known by its worker id
//! and incarnation, so that a receiver can tell that `local` will work; the link's token then leads to the receiver.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;

use super::{
    Inbound, LinkIdentity,
    frame::{LinkToken, SliceName},
    inbound_link::InboundLink,
};

static HUB: LazyLock<Mutex<Hub>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Hub {
    /// Senders by worker id and incarnation, with how many there are.
    senders: HashMap<(String, u64), usize>,
    links: HashMap<LinkToken, LocalLink>,
}

/// A sender of this process, until dropped.
#[derive(Debug)]
pub(super) struct LocalSender(String, u64);

/// A link that a local sender may take up, until dropped.
#[derive(Debug)]
pub(super) struct LocalOffer(LinkToken);

/// The receiver's end, called by the sender.
#[derive(Clone, Debug)]
pub(super) struct LocalLink {
    inbound: Weak<Inbound>,
    link: Arc<InboundLink>,
}

// === impl LocalSender ===

impl LocalSender {
    pub(super) fn enter(identity: &LinkIdentity) -> Self {
        let key = (identity.worker_id.clone(), identity.incarnation);
        *HUB.lock().senders.entry(key.clone()).or_default() += 1;
        Self(key.0, key.1)
    }

    pub(super) fn lives_here(worker_id: &str, incarnation: u64) -> bool {
        HUB.lock()
            .senders
            .contains_key(&(worker_id.to_owned(), incarnation))
    }
}

impl Drop for LocalSender {
    fn drop(&mut self) {
        let key = (std::mem::take(&mut self.0), self.1);
        let mut hub = HUB.lock();
        if let Some(count) = hub.senders.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                hub.senders.remove(&key);
            }
        }
    }
}

// === impl LocalOffer ===

impl LocalOffer {
    pub(super) fn new(token: LinkToken, inbound: &Arc<Inbound>, link: &Arc<InboundLink>) -> Self {
        let offered = LocalLink {
            inbound: Arc::downgrade(inbound),
            link: Arc::clone(link),
        };
        HUB.lock().links.insert(token, offered);
        Self(token)
    }
}

impl Drop for LocalOffer {
    fn drop(&mut self) {
        let offered = HUB.lock().links.remove(&self.0);
        // Outside of the lock, as it may be the link's last holder.
        drop(offered);
    }
}

// === impl LocalLink ===

impl LocalLink {
    /// The receiver that offered this token, if it is in this process and the link still open.
    pub(super) fn take_up(token: &LinkToken) -> Option<Self> {
        HUB.lock().links.get(token).cloned()
    }

    /// False if the receiver is gone.
    pub(super) fn deliver(&self, name: SliceName, payload: &[u8]) -> bool {
        match self.inbound.upgrade() {
            Some(inbound) if !self.link.closed.is_cancelled() => {
                inbound.deliver(&self.link, name, payload);
                true
            }
            _ => false,
        }
    }
}
