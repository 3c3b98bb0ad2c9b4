//! Which failures of a worker are answered by trying another.

use std::{error::Error as _, time::Duration};

use tonic::{Code, Status};

use crate::error::RequestError;

/// What a failure says about trying elsewhere. Only before the first byte: after it, every kind ends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The worker is at its limit.
    Busy,
    /// The worker, or the way to it, is gone.
    Lost,
    /// The worker drains or cannot serve this model: the registry's view was old.
    Unsuitable,
    /// The worker could not do what it should.
    Failed,
    /// The request cannot run anywhere.
    Refused,
    /// Its time is over.
    Deadline,
}

/// One failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub worker_id: String,
    pub detail: String,
}

/// Statuses that a worker sent. Those not listed are `Failed`.
const SENT: [(Code, FailureKind, &str); 7] = [
    (
        Code::ResourceExhausted,
        FailureKind::Busy,
        "its limit says nothing about other workers",
    ),
    (
        Code::Unavailable,
        FailureKind::Unsuitable,
        "it drains or goes down; others do not",
    ),
    (
        Code::NotFound,
        FailureKind::Unsuitable,
        "it serves another model than it joined with",
    ),
    (
        Code::FailedPrecondition,
        FailureKind::Unsuitable,
        "it differs in version or layout; others may not",
    ),
    (
        Code::InvalidArgument,
        FailureKind::Refused,
        "every worker would say the same",
    ),
    (
        Code::OutOfRange,
        FailureKind::Refused,
        "every worker would say the same",
    ),
    (
        Code::DeadlineExceeded,
        FailureKind::Deadline,
        "no time is left to try elsewhere",
    ),
];

/// Whether the next candidate is tried.
const RETRIED: [(FailureKind, bool, &str); 6] = [
    (FailureKind::Busy, true, "another may have room"),
    (
        FailureKind::Lost,
        true,
        "nothing reached the client, and a seeded request gives the same tokens elsewhere",
    ),
    (FailureKind::Unsuitable, true, "another may be suitable"),
    (
        FailureKind::Failed,
        true,
        "a fault of one machine; attempts are bounded in case it is the request's",
    ),
    (FailureKind::Refused, false, "the request is at fault"),
    (FailureKind::Deadline, false, "the client no longer waits"),
];

impl Failure {
    /// Classifies the status of a call to `worker_id`.
    #[must_use]
    pub fn of(worker_id: &str, status: &Status) -> Self {
        // A status with a source was made here, from what happened to the connection; the worker did not send it.
        let kind = if status.source().is_some() || status.code() == Code::Cancelled {
            FailureKind::Lost
        } else {
            SENT.iter()
                .find(|(code, ..)| *code == status.code())
                .map_or(FailureKind::Failed, |(_, kind, _)| *kind)
        };
        Self {
            kind,
            worker_id: worker_id.to_owned(),
            detail: if status.message().is_empty() {
                status.code().description().to_owned()
            } else {
                status.message().to_owned()
            },
        }
    }

    /// The stream ended before every answer had.
    #[must_use]
    pub fn cut_short(worker_id: &str) -> Self {
        Self {
            kind: FailureKind::Lost,
            worker_id: worker_id.to_owned(),
            detail: "its stream ended early".to_owned(),
        }
    }

    #[must_use]
    pub fn is_retried(&self) -> bool {
        RETRIED
            .iter()
            .any(|(kind, retried, _)| *kind == self.kind && *retried)
    }

    /// Label of `baton_router_retries_total`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.kind {
            FailureKind::Busy => "busy",
            FailureKind::Lost => "lost",
            FailureKind::Unsuitable => "unsuitable",
            FailureKind::Failed => "failed",
            FailureKind::Refused => "refused",
            FailureKind::Deadline => "deadline",
        }
    }

    /// What the client is told when no further worker is tried.
    #[must_use]
    pub fn into_request_error(self, deadline: Duration, retry_after: u64) -> RequestError {
        let Self {
            kind,
            worker_id,
            detail,
        } = self;
        match kind {
            FailureKind::Busy | FailureKind::Unsuitable => RequestError::WorkersBusy { detail, retry_after },
            FailureKind::Lost => RequestError::WorkerLost { worker_id, detail },
            FailureKind::Failed => RequestError::WorkerFailed { worker_id, detail },
            FailureKind::Refused => RequestError::WorkerRefused(detail),
            FailureKind::Deadline => RequestError::Deadline(deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_a_worker_are_told_from_a_lost_connection() {
        let of = |status: &Status| Failure::of("d0", status).kind;
        assert_eq!(of(&Status::resource_exhausted("full")), FailureKind::Busy);
        assert_eq!(of(&Status::unavailable("draining")), FailureKind::Unsuitable);
        assert_eq!(of(&Status::invalid_argument("bad")), FailureKind::Refused);
        assert_eq!(of(&Status::internal("executor")), FailureKind::Failed);
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert_eq!(of(&Status::from_error(Box::new(broken))), FailureKind::Lost);
    }

    #[test]
    fn every_kind_is_in_the_retry_table_once() {
        use FailureKind::{Busy, Deadline, Failed, Lost, Refused, Unsuitable};
        for kind in [Busy, Lost, Unsuitable, Failed, Refused, Deadline] {
            assert_eq!(RETRIED.iter().filter(|row| row.0 == kind).count(), 1, "{kind:?}");
        }
        assert!(Failure::cut_short("d0").is_retried());
    }
}
