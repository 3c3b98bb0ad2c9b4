//! The pages of one sequence, in order of position.

use baton_kernels::kv::PageId;
use baton_kvcache::{MutablePage, PagePin, PrefixIndex, SealedPage};
use baton_proto::BlockHash;

/// Page `i` holds positions `i * page_tokens ..`.
#[derive(Debug, Default)]
pub(super) struct BlockTable(Vec<Block>);

/// How a sequence holds one of its pages.
#[derive(Debug)]
enum Block {
    /// Full and final; other sequences may hold it too.
    Sealed(SealedPage),
    /// Only this sequence writes it.
    Mutable(MutablePage),
    /// The last, partial page of the sequence that this one forks from: to be copied before its first row.
    Borrowed(PagePin),
}

impl BlockTable {
    pub(super) fn cached(pages: Vec<SealedPage>) -> Self {
        Self(pages.into_iter().map(Block::Sealed).collect())
    }

    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn ids(&self) -> Vec<PageId> {
        self.0.iter().map(Block::id).collect()
    }

    pub(super) fn pins(&self, from: u32, to: u32) -> Vec<(u32, PagePin)> {
        (from..to)
            .map(|index| (index, self.0[index as usize].pin()))
            .collect()
    }

    pub(super) fn push(&mut self, page: MutablePage) {
        self.0.push(Block::Mutable(page));
    }

    /// Gives up the pages from `len` on.
    pub(super) fn truncate(&mut self, len: u32) {
        self.0.truncate(len as usize);
    }

    /// Only the first page that is not sealed can be borrowed.
    pub(super) fn has_borrowed(&self) -> bool {
        matches!(self.0.get(self.sealed() as usize), Some(Block::Borrowed(_)))
    }

    /// Puts a page of its own in the place of the borrowed one, if there is one, and returns that: its content is still
    /// to be copied.
    pub(super) fn replace_borrowed(&mut self, page: MutablePage) -> Option<PagePin> {
        let at = self.sealed() as usize;
        let block = self
            .0
            .get_mut(at)
            .filter(|block| matches!(block, Block::Borrowed(_)))?;
        match std::mem::replace(block, Block::Mutable(page)) {
            Block::Borrowed(pin) => Some(pin),
            Block::Sealed(_) | Block::Mutable(_) => None,
        }
    }

    /// How many of the leading pages are sealed; all others follow them.
    pub(super) fn sealed(&self) -> u32 {
        let last = self.0.iter().rposition(|block| matches!(block, Block::Sealed(_)));
        last.map_or(0, |last| last as u32 + 1)
    }

    /// Seals the pages that `hashes` names and that are not sealed yet, and offers them to the prefix index, which may
    /// give back an equal page that it has already.
    pub(super) fn seal(&mut self, hashes: &[BlockHash], index: &mut PrefixIndex) {
        let first = self.sealed() as usize;
        if first >= hashes.len() {
            return;
        }
        let rest = self.0.split_off(hashes.len().min(self.0.len()));
        for (offset, block) in self.0.split_off(first).into_iter().enumerate() {
            let position = first + offset;
            self.0.push(match block {
                Block::Mutable(page) => {
                    let parent = position.checked_sub(1).map(|parent| hashes[parent]);
                    Block::Sealed(index.insert(parent, page.seal(hashes[position])))
                }
                kept @ (Block::Sealed(_) | Block::Borrowed(_)) => kept,
            });
        }
        self.0.extend(rest);
    }

    /// The table of a sequence that continues after the first `positions` of this one: full pages shared, a partial
    /// page borrowed.
    pub(super) fn fork(&self, positions: u32, page_tokens: u32) -> Self {
        let used = positions.div_ceil(page_tokens) as usize;
        let share = |block: &Block| match block {
            Block::Sealed(page) => Block::Sealed(page.clone()),
            Block::Mutable(page) => Block::Borrowed(page.pin()),
            Block::Borrowed(pin) => Block::Borrowed(pin.clone()),
        };
        Self(self.0[..used.min(self.0.len())].iter().map(share).collect())
    }
}

impl Block {
    fn id(&self) -> PageId {
        match self {
            Self::Sealed(page) => page.id(),
            Self::Mutable(page) => page.id(),
            Self::Borrowed(pin) => pin.id(),
        }
    }

    fn pin(&self) -> PagePin {
        match self {
            Self::Sealed(page) => page.pin(),
            Self::Mutable(page) => page.pin(),
            Self::Borrowed(pin) => pin.clone(),
        }
    }
}
