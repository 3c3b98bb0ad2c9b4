//! Which slices of a transfer have been seen.

use std::ops::Range;

/// A set of (page, layer) pairs inside of a transfer's pages.
#[derive(Debug)]
pub(super) struct SliceSet {
    pages: Range<u32>,
    layers: u32,
    seen: Vec<u64>,
}

/// What [`SliceSet::insert`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    New,
    Before,
    OutOfRange,
}

impl SliceSet {
    pub(super) fn new(pages: Range<u32>, layers: u32) -> Self {
        let slices = pages.len() * layers as usize;
        Self {
            pages,
            layers,
            seen: vec![0; slices.div_ceil(64)],
        }
    }

    /// Slices in all, seen or not.
    pub(super) fn capacity(&self) -> usize {
        self.pages.len() * self.layers as usize
    }

    pub(super) fn insert(&mut self, page: u32, layer: u32) -> Seen {
        if !self.pages.contains(&page) || layer >= self.layers {
            return Seen::OutOfRange;
        }
        let index = (page - self.pages.start) as usize * self.layers as usize + layer as usize;
        let bit = 1 << (index % 64);
        let word = &mut self.seen[index / 64];
        if *word & bit != 0 {
            return Seen::Before;
        }
        *word |= bit;
        Seen::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slice_is_new_once_and_nothing_outside_is() {
        let mut set = SliceSet::new(3..20, 5);
        assert_eq!(set.capacity(), 85);
        for round in [Seen::New, Seen::Before] {
            for page in 3..20 {
                for layer in 0..5 {
                    assert_eq!(set.insert(page, layer), round);
                }
            }
        }
        for (page, layer) in [(2, 0), (20, 0), (3, 5), (u32::MAX, u32::MAX)] {
            assert_eq!(set.insert(page, layer), Seen::OutOfRange);
        }
    }
}
