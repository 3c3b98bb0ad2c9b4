//! Read-only files as memory, for weights.

use std::{fs::File, io, ops::Deref, path::Path};

/// A file's bytes, read by the system when they are touched.
///
/// The file must not change while it is mapped: a checkpoint is replaced by renaming a new one into its place, never by
/// writing into it.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// # Errors
    /// Where the file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: The mapping is private and read-only, and its bytes are only ever read as plain numbers, which any bit
        // pattern is. What remains is the rule above, which whoever installs checkpoints keeps; no mapping can enforce it.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
