//! KV pages in the memory of the host.

use std::{
    alloc::{self, Layout},
    ops::Deref,
    ptr::NonNull,
    slice,
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{KvDtype, KvLayout, KvMemory, KvPart, LayoutError, PageId, SliceError, codec};

/// Alignment of every slice.
const ALIGN: usize = 128;

/// Pages for one worker without a GPU.
///
/// Each (page, layer) slice has its own lock: a transport can read one while a step writes another. Memory is zero at
/// first, and the system provides it only when it is written.
pub struct HostKv {
    layout: KvLayout,
    slice_bytes: usize,
    pages: u32,
    memory: ZeroedMemory,
    /// `[page][layer]`; a slice is touched only under its lock.
    locks: Vec<RwLock<()>>,
}

/// No KV memory of that shape.
#[derive(Debug, thiserror::Error)]
pub enum HostKvError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("a KV memory needs at least one page")]
    NoPages,
    #[error("{pages} KV pages of {page_bytes} bytes do not fit in memory; configure fewer pages")]
    OutOfMemory { pages: u32, page_bytes: usize },
}

/// The bytes of one slice, locked for reading.
pub struct SliceRef<'a> {
    bytes: &'a [u8],
    _lock: RwLockReadGuard<'a, ()>,
}

impl HostKv {
    /// Memory for `pages` pages.
    ///
    /// # Errors
    /// [`HostKvError`] where the layout is not valid or the memory is not there.
    pub fn new(layout: KvLayout, pages: u32) -> Result<Self, HostKvError> {
        layout.validate()?;
        if pages == 0 {
            return Err(HostKvError::NoPages);
        }
        let too_large = || HostKvError::OutOfMemory {
            pages,
            page_bytes: layout.page_bytes(),
        };
        let slices = (pages as usize)
            .checked_mul(layout.layers)
            .ok_or_else(too_large)?;
        let slice_bytes = layout.slice_bytes();
        let bytes = slices.checked_mul(slice_bytes).ok_or_else(too_large)?;
        let memory = ZeroedMemory::new(bytes).ok_or_else(too_large)?;
        let mut locks = Vec::new();
        locks.try_reserve_exact(slices).map_err(|_| too_large())?;
        locks.resize_with(slices, || RwLock::new(()));
        Ok(Self {
            layout,
            slice_bytes,
            pages,
            memory,
            locks,
        })
    }

    /// Bytes of all pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.locks.len() * self.slice_bytes
    }

    /// Stores one token: `keys` and `values` are `[kv_heads][head_dim]`, rounded to the layout's dtype.
    ///
    /// FP8 as [`codec`] has it; bf16 to nearest even; f32 exactly. Nothing else in the slice changes.
    ///
    /// # Errors
    /// [`SliceError`] where there is no such page or layer.
    ///
    /// # Panics
    /// Where `token_in_page` is not in the page, or `keys` or `values` have another length.
    pub fn append(
        &self,
        page: PageId,
        layer: u32,
        token_in_page: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), SliceError> {
        let (heads, dim) = (self.layout.kv_heads, self.layout.head_dim);
        assert!(
            token_in_page < self.layout.page_tokens,
            "the token is in the page"
        );
        assert_eq!(keys.len(), heads * dim, "keys are [kv_heads][head_dim]");
        assert_eq!(values.len(), heads * dim, "values are [kv_heads][head_dim]");
        let index = self.index(page, layer)?;
        let mut slice = self.write(index);
        for (part, vectors) in [(KvPart::Key, keys), (KvPart::Value, values)] {
            for (head, vector) in vectors.chunks_exact(dim).enumerate() {
                let at = self.layout.vector_offset(part, head, token_in_page);
                let bytes = &mut slice.bytes_mut()[at..at + dim * self.layout.dtype.bytes()];
                match self.layout.dtype {
                    KvDtype::Fp8E4m3 => {
                        let scale = codec::quantize(vector, bytes);
                        let scale_at = self.layout.scale_offset(part, head, token_in_page);
                        slice.bytes_mut()[scale_at] = scale;
                    }
                    KvDtype::Bf16 => {
                        for (out, &v) in bytes.chunks_exact_mut(2).zip(vector) {
                            out.copy_from_slice(&half::bf16::from_f32(v).to_le_bytes());
                        }
                    }
                    KvDtype::F32 => {
                        for (out, v) in bytes.chunks_exact_mut(4).zip(vector) {
                            out.copy_from_slice(&v.to_le_bytes());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies all layers of one page over another.
    ///
    /// # Errors
    /// [`SliceError`] where there is no such page.
    pub fn copy_page(&self, from: PageId, to: PageId) -> Result<(), SliceError> {
        for layer in 0..self.layout.layers as u32 {
            let (source, target) = (self.index(from, layer)?, self.index(to, layer)?);
            if source != target {
                // One lock at a time, through a buffer that is one slice: two at once could wait for each other.
                let copy = self.read(source).to_vec();
                self.write(target).bytes_mut().copy_from_slice(&copy);
            }
        }
        Ok(())
    }

    /// One slice, locked for reading until the result is dropped.
    ///
    /// # Errors
    /// [`SliceError`] where there is no such page or layer.
    pub fn slice(&self, page: PageId, layer: u32) -> Result<SliceRef<'_>, SliceError> {
        Ok(self.read(self.index(page, layer)?))
    }

    fn index(&self, page: PageId, layer: u32) -> Result<usize, SliceError> {
        if page.0 >= self.pages || layer as usize >= self.layout.layers {
            return Err(SliceError::OutOfRange {
                page: page.0,
                layer,
                pages: self.pages,
                layers: self.layout.layers,
            });
        }
        Ok(page.0 as usize * self.layout.layers + layer as usize)
    }

    fn read(&self, index: usize) -> SliceRef<'_> {
        let lock = self.locks[index].read();
        // SAFETY: `index` is below the number of locks, so the slice lies in `memory`, which lives as long as `self` and
        // is initialized. The read lock, kept beside the reference, excludes `SliceMut` for this slice, and slices do
        // not overlap.
        let bytes = unsafe {
            slice::from_raw_parts(
                self.memory.start.as_ptr().add(index * self.slice_bytes),
                self.slice_bytes,
            )
        };
        SliceRef { bytes, _lock: lock }
    }

    fn write(&self, index: usize) -> SliceMut<'_> {
        let lock = self.locks[index].write();
        // SAFETY: as in `read`; the write lock excludes every other reference to this slice.
        let bytes = unsafe {
            slice::from_raw_parts_mut(
                self.memory.start.as_ptr().add(index * self.slice_bytes),
                self.slice_bytes,
            )
        };
        SliceMut { bytes, _lock: lock }
    }
}

impl KvMemory for HostKv {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn pages(&self) -> u32 {
        self.pages
    }

    fn read_slice(&self, page: PageId, layer: u32, out: &mut Vec<u8>) -> Result<(), SliceError> {
        let slice = self.slice(page, layer)?;
        out.clear();
        out.extend_from_slice(&slice);
        Ok(())
    }

    fn write_slice(&self, page: PageId, layer: u32, bytes: &[u8]) -> Result<(), SliceError> {
        let index = self.index(page, layer)?;
        if bytes.len() != self.slice_bytes {
            return Err(SliceError::Length {
                expected: self.slice_bytes,
                found: bytes.len(),
            });
        }
        self.write(index).bytes_mut().copy_from_slice(bytes);
        Ok(())
    }
}

impl std::fmt::Debug for HostKv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostKv")
            .field("layout", &self.layout)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

impl Deref for SliceRef<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// The bytes of one slice, locked for writing.
struct SliceMut<'a> {
    bytes: &'a mut [u8],
    _lock: RwLockWriteGuard<'a, ()>,
}

impl SliceMut<'_> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// Zeroed bytes, aligned for slices, that cost nothing until they are touched.
struct ZeroedMemory {
    start: NonNull<u8>,
    layout: Layout,
}

impl ZeroedMemory {
    /// `None` where the system has not that much, or `bytes` is 0.
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGN)
            .ok()
            .filter(|l| l.size() > 0)?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }
}

impl Drop for ZeroedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

// SAFETY: plain bytes; `HostKv` hands out references only under the locks of their slices.
unsafe impl Send for ZeroedMemory {}
// SAFETY: as above.
unsafe impl Sync for ZeroedMemory {}

#[cfg(test)]
mod tests;
