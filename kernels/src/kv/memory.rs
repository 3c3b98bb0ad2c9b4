//! Access to stored pages for whoever moves them.

use super::{KvLayout, PageId};

/// The pages of one worker, on whatever device they are.
///
/// Transports read and write slices while steps run on other pages. That no slice is read before it is written, nor
/// written while it is read, is the business of page leases; an implementation only keeps such a mistake from being
/// undefined behaviour.
pub trait KvMemory: Send + Sync {
    fn layout(&self) -> &KvLayout;

    /// Pages it holds.
    fn pages(&self) -> u32;

    /// Copies one slice into `out`, which is cleared first.
    ///
    /// # Errors
    /// [`SliceError`] where there is no such page or layer.
    fn read_slice(&self, page: PageId, layer: u32, out: &mut Vec<u8>) -> Result<(), SliceError>;

    /// Overwrites one slice.
    ///
    /// # Errors
    /// [`SliceError`] where there is no such page or layer, or `bytes` has another length than a slice.
    fn write_slice(&self, page: PageId, layer: u32, bytes: &[u8]) -> Result<(), SliceError>;
}

/// The slice does not exist, or is not of this length.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SliceError {
    #[error("page {page} layer {layer} is outside of a KV memory of {pages} pages and {layers} layers")]
    OutOfRange {
        page: u32,
        layer: u32,
        pages: u32,
        layers: usize,
    },
    #[error("a slice has {expected} bytes, found {found}")]
    Length { expected: usize, found: usize },
}
