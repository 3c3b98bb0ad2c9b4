//! The KV cache in pages: how a page is laid out, how values are quantized, and the memory that holds pages.

pub mod codec;
mod host;
mod layout;
mod memory;

pub use host::{HostKv, HostKvError, SliceRef};
pub use layout::{KvDtype, KvLayout, KvPart, LayoutError};
pub use memory::{KvMemory, SliceError};

use serde::{Deserialize, Serialize};

/// Index of a page in a worker's KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageId(pub u32);
