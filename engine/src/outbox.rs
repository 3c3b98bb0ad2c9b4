//! Events of one request on their way to its reader, who may be slow.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::mpsc::{self, error::TrySendError};

use crate::{handle::Envelope, inbox::RequestLink, request::EngineEvent};

/// Never blocks and never grows past the request's own output: what does not fit into the channel waits here, tokens of
/// one choice as one event.
pub(crate) struct Outbox {
    link: Arc<RequestLink>,
    channel: mpsc::Sender<Envelope>,
    pending: VecDeque<Envelope>,
}

/// Whether an outbox is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    Open,
    /// The last event has been sent, or nobody reads any more.
    Done,
}

impl Outbox {
    pub(crate) fn new(link: Arc<RequestLink>, channel: mpsc::Sender<Envelope>) -> Self {
        Self {
            link,
            channel,
            pending: VecDeque::new(),
        }
    }

    pub(crate) fn push(&mut self, envelope: Envelope) {
        if let Some(envelope) = self.coalesce(envelope) {
            self.pending.push_back(envelope);
        }
    }

    /// Sends as much as there is room for. Where there is none, the reader wakes the engine when it has made some.
    pub(crate) fn flush(&mut self) -> Flushed {
        while let Some(envelope) = self.pending.pop_front() {
            if envelope.lease.is_some_and(|lease| !self.link.is_current(lease)) {
                continue;
            }
            let last = envelope.last;
            let sent = self.channel.try_send(envelope).or_else(|error| match error {
                TrySendError::Full(envelope) => {
                    self.link.blocked.store(true, Ordering::Release);
                    // The reader may have made room just before it could see the mark.
                    self.channel.try_send(envelope)
                }
                closed @ TrySendError::Closed(_) => Err(closed),
            });
            match sent {
                Ok(()) if last => return Flushed::Done,
                Ok(()) => {}
                Err(TrySendError::Full(envelope)) => {
                    self.pending.push_front(envelope);
                    return Flushed::Open;
                }
                Err(TrySendError::Closed(_)) => return Flushed::Done,
            }
        }
        Flushed::Open
    }

    /// Adds tokens to those of the same choice that wait already; gives back what it could not.
    fn coalesce(&mut self, envelope: Envelope) -> Option<Envelope> {
        let Envelope { event, lease, last } = envelope;
        let EngineEvent::Tokens {
            choice,
            tokens,
            logprobs,
        } = event
        else {
            return Some(Envelope { event, lease, last });
        };
        for waiting in self.pending.iter_mut().rev() {
            match &mut waiting.event {
                EngineEvent::Tokens {
                    choice: same,
                    tokens: earlier,
                    logprobs: earlier_logprobs,
                } if *same == choice && !last => {
                    earlier.extend(tokens);
                    earlier_logprobs.extend(logprobs);
                    return None;
                }
                _ => {}
            }
        }
        let event = EngineEvent::Tokens {
            choice,
            tokens,
            logprobs,
        };
        Some(Envelope { event, lease, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::RequestKey;

    fn tokens(choice: u32, tokens: &[u32]) -> Envelope {
        Envelope {
            event: EngineEvent::Tokens {
                choice,
                tokens: tokens.to_vec(),
                logprobs: Vec::new(),
            },
            lease: None,
            last: false,
        }
    }

    fn received(channel: &mut mpsc::Receiver<Envelope>) -> Vec<(u32, Vec<u32>)> {
        let mut all = Vec::new();
        while let Ok(envelope) = channel.try_recv() {
            if let EngineEvent::Tokens { choice, tokens, .. } = envelope.event {
                all.push((choice, tokens));
            }
        }
        all
    }

    #[test]
    fn a_slow_reader_gets_all_tokens_in_fewer_events() {
        let (sender, mut receiver) = mpsc::channel(1);
        let link = Arc::new(RequestLink::new(RequestKey(1)));
        let mut outbox = Outbox::new(Arc::clone(&link), sender);
        for token in 0..4 {
            outbox.push(tokens(0, &[token]));
            outbox.push(tokens(1, &[10 + token]));
            assert_eq!(outbox.flush(), Flushed::Open);
        }
        assert!(
            link.blocked.load(Ordering::Acquire),
            "the reader is asked to wake the engine"
        );
        assert_eq!(received(&mut receiver), [(0, vec![0])]);
        outbox.flush();
        assert_eq!(received(&mut receiver), [(1, vec![10, 11, 12, 13])]);
        outbox.flush();
        assert_eq!(received(&mut receiver), [(0, vec![1, 2, 3])]);
    }

    #[test]
    fn a_lease_that_was_given_up_is_not_delivered() {
        let (sender, mut receiver) = mpsc::channel(4);
        let link = Arc::new(RequestLink::new(RequestKey(1)));
        let mut outbox = Outbox::new(Arc::clone(&link), sender);
        let lease = link.next_lease();
        let pages = Vec::new();
        let event = EngineEvent::Leased { first_page: 0, pages };
        outbox.push(Envelope {
            event,
            lease: Some(lease),
            last: false,
        });
        link.give_up_lease();
        outbox.flush();
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn is_done_after_the_last_event_or_when_nobody_reads() {
        let (sender, receiver) = mpsc::channel(4);
        let mut outbox = Outbox::new(Arc::new(RequestLink::new(RequestKey(1))), sender);
        outbox.push(Envelope {
            last: true,
            ..tokens(0, &[1])
        });
        assert_eq!(outbox.flush(), Flushed::Done);
        drop(receiver);
        outbox.push(tokens(0, &[1]));
        assert_eq!(outbox.flush(), Flushed::Done);
    }
}
