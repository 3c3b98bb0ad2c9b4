//! Plans that cannot run.

use baton_kernels::{kv::SliceError, sampling::SampleError};

/// The scheduler planned something impossible: a defect, not a condition to recover from.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error("slot {0} is not open")]
    SlotNotOpen(u32),
    #[error("slot {0} has no output to continue from")]
    NoOutput(u32),
    #[error("a row of slot {0} has no tokens")]
    EmptyRow(u32),
    #[error("slot {slot} ends at {end:?}, its next row was planned to start at {at_most} or before")]
    Start {
        slot: u32,
        end: Option<u32>,
        at_most: u32,
    },
    #[error("token {token} is outside of the vocabulary of {vocab}")]
    Token { token: u32, vocab: u32 },
    #[error("a row ends at position {end}, beyond the context of {context}")]
    Context { end: u32, context: u32 },
    #[error("a row ends at position {end}, beyond its block table of {pages} pages")]
    Table { end: u32, pages: usize },
    #[error("page {page} is outside of a KV memory of {pages} pages")]
    Page { page: u32, pages: u32 },
    #[error(transparent)]
    Slice(#[from] SliceError),
    #[error("slot {slot}: {source}")]
    Sample { slot: u32, source: SampleError },
}
