//! KV memory in which every position holds a digest of the tokens up to it.

use baton_kernels::kv::{KvDtype, KvLayout, KvMemory, PageId, SliceError};
use parking_lot::Mutex;

/// Eight bytes for each token of a slice.
#[derive(Debug)]
pub struct FakeKv {
    layout: KvLayout,
    pages: u32,
    /// `[page][layer][token]`
    cells: Mutex<Vec<u64>>,
}

impl FakeKv {
    pub(super) fn new(pages: u32, layers: u32, page_tokens: usize) -> Self {
        // One key and one value of four bytes each make up a cell.
        let layout = KvLayout {
            dtype: KvDtype::F32,
            page_tokens,
            layers: layers as usize,
            kv_heads: 1,
            head_dim: 1,
        };
        Self {
            layout,
            pages,
            cells: Mutex::new(vec![0; pages as usize * layers as usize * page_tokens]),
        }
    }

    pub(super) fn read(&self, page: PageId, layer: u32, token: usize) -> u64 {
        self.cells.lock()[self.first_cell(page, layer) + token]
    }

    pub(super) fn write(&self, page: PageId, layer: u32, token: usize, value: u64) {
        let cell = self.first_cell(page, layer) + token;
        self.cells.lock()[cell] = value;
    }

    pub(super) fn copy(&self, from: PageId, to: PageId) {
        let cells = self.layout.layers * self.layout.page_tokens;
        let (from, to) = (self.first_cell(from, 0), self.first_cell(to, 0));
        self.cells.lock().copy_within(from..from + cells, to);
    }

    fn first_cell(&self, page: PageId, layer: u32) -> usize {
        (page.0 as usize * self.layout.layers + layer as usize) * self.layout.page_tokens
    }

    fn check(&self, page: PageId, layer: u32) -> Result<(), SliceError> {
        if page.0 < self.pages && (layer as usize) < self.layout.layers {
            return Ok(());
        }
        Err(SliceError::OutOfRange {
            page: page.0,
            layer,
            pages: self.pages,
            layers: self.layout.layers,
        })
    }
}

impl KvMemory for FakeKv {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn pages(&self) -> u32 {
        self.pages
    }

    fn read_slice(&self, page: PageId, layer: u32, out: &mut Vec<u8>) -> Result<(), SliceError> {
        self.check(page, layer)?;
        out.clear();
        let first = self.first_cell(page, layer);
        let cells = self.cells.lock();
        for cell in &cells[first..first + self.layout.page_tokens] {
            out.extend_from_slice(&cell.to_le_bytes());
        }
        out.resize(self.layout.slice_bytes(), 0);
        Ok(())
    }

    fn write_slice(&self, page: PageId, layer: u32, bytes: &[u8]) -> Result<(), SliceError> {
        self.check(page, layer)?;
        let expected = self.layout.slice_bytes();
        if bytes.len() != expected {
            return Err(SliceError::Length {
                expected,
                found: bytes.len(),
            });
        }
        let first = self.first_cell(page, layer);
        let mut cells = self.cells.lock();
        for (cell, bytes) in cells[first..first + self.layout.page_tokens]
            .iter_mut()
            .zip(bytes.chunks_exact(8))
        {
            *cell = bytes
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte));
        }
        Ok(())
    }
}
