//! The KV cache in pages: how a page is laid out, how values are quantized, and the memory that holds pages.

mod layout;
mod memory;

pub use layout::{KvDtype, KvLayout, KvPart, LayoutError};
pub use memory::{KvMemory, SliceError};

use serde::{Deserialize, Serialize};

/// Index of a page in a worker's KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageId(pub u32);
