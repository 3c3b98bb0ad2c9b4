//! Which full pages are cached, by the hash of everything up to their end.
//!
//! The index holds pages without making them busy. A page that nobody else holds is *idle*; an idle page without cached
//! children can be evicted, least recently used first. A page counts as used while anybody holds it, so its age is the
//! time since its last holder let go.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use baton_kernels::kv::PageId;
use baton_proto::BlockHash;

use crate::pages::{CachedPage, PageAllocator, Pool, SealedPage};

/// Block hash to sealed page, with the tree of parents.
///
/// Every operation costs O(log pages) for each page that it returns, inserts, releases, or finds idle since the last.
#[derive(Debug)]
pub struct PrefixIndex {
    pool: Arc<Pool>,
    by_hash: HashMap<BlockHash, PageId>,
    /// By page id.
    nodes: Vec<Option<Node>>,
    /// Idle pages without children, by age: the first is evicted first.
    leaves: BTreeSet<(Age, PageId)>,
    idle: usize,
    clock: Age,
    counters: PrefixCounters,
    /// Kept between calls for its capacity.
    scratch: Vec<PageId>,
}

/// Pages since the index was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounters {
    /// Pages that lookups found.
    pub hits: u64,
    /// Pages that lookups asked for and did not find.
    pub misses: u64,
    pub evictions: u64,
}

/// Logical time: grows by one with each page that falls idle.
type Age = u64;

#[derive(Debug)]
struct Node {
    page: CachedPage,
    parent: Option<PageId>,
    children: u32,
    idle_since: Option<Age>,
}

// === impl PrefixIndex ===

impl PrefixIndex {
    /// An empty index of pages from this allocator.
    #[must_use]
    pub fn new(pages: &PageAllocator) -> Self {
        let pool = Arc::clone(pages.pool());
        let total = pool.total() as usize;
        Self {
            by_hash: HashMap::with_capacity(total),
            nodes: std::iter::repeat_with(|| None).take(total).collect(),
            leaves: BTreeSet::new(),
            idle: 0,
            clock: 0,
            counters: PrefixCounters::default(),
            scratch: Vec::with_capacity(total),
            pool,
        }
    }

    /// The pages of the longest cached prefix of this chain of blocks.
    pub fn lookup(&mut self, chain: &[BlockHash]) -> Vec<SealedPage> {
        self.note_idle();
        let mut found = Vec::new();
        for hash in chain {
            let Some(page) = self.by_hash.get(hash).copied() else {
                break;
            };
            found.push(self.open(page));
        }
        self.counters.hits += found.len() as u64;
        self.counters.misses += (chain.len() - found.len()) as u64;
        found
    }

    /// How many pages [`PrefixIndex::lookup`] would find, without using or counting them.
    #[must_use]
    pub fn matched(&self, chain: &[BlockHash]) -> usize {
        chain
            .iter()
            .take_while(|hash| self.by_hash.contains_key(hash))
            .count()
    }

    /// Caches a page whose block follows `parent` (none: the first of a sequence), and returns the page to go on with:
    /// if the block is cached already, the cached one, so that equal content is kept once.
    ///
    /// A page whose parent is not cached could never be found; it is handed back uncached.
    pub fn insert(&mut self, parent: Option<BlockHash>, page: SealedPage) -> SealedPage {
        self.note_idle();
        if let Some(existing) = self.by_hash.get(&page.hash()).copied() {
            return self.open(existing);
        }
        let parent = match parent {
            None => None,
            Some(hash) => match self.by_hash.get(&hash).copied() {
                None => return page,
                found => found,
            },
        };
        if let Some(parent) = parent {
            self.node_mut(parent).children += 1;
            self.refresh_leaf(parent);
        }
        self.by_hash.insert(page.hash(), page.id());
        self.nodes[page.id().0 as usize] = Some(Node {
            page: CachedPage::new(&page),
            parent,
            children: 0,
            idle_since: None,
        });
        page
    }

    /// Releases up to `count` pages that nobody else holds, least recently used leaves first. They are free after the
    /// allocator has reclaimed them.
    pub fn evict(&mut self, count: usize) -> usize {
        self.note_idle();
        let mut released = 0;
        while released < count {
            let Some((_, page)) = self.leaves.pop_first() else {
                break;
            };
            self.remove(page);
            released += 1;
        }
        self.counters.evictions += released as u64;
        released
    }

    /// Cached pages that nobody else holds. All of them can be evicted if whoever holds a page holds its ancestors
    /// too, as block tables do.
    pub fn idle(&mut self) -> usize {
        self.note_idle();
        self.idle
    }

    /// Cached pages, held by others or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    #[must_use]
    pub fn counters(&self) -> PrefixCounters {
        self.counters
    }

    /// Takes in which pages fell idle since the last operation.
    fn note_idle(&mut self) {
        let mut fallen = std::mem::take(&mut self.scratch);
        self.pool.take_idle(&mut fallen);
        for page in fallen.drain(..) {
            // Since the notice, the page may have been opened again, or evicted and reused.
            let Some(node) = &mut self.nodes[page.0 as usize] else {
                continue;
            };
            if node.idle_since.is_some() || !node.page.is_idle() {
                continue;
            }
            self.clock += 1;
            node.idle_since = Some(self.clock);
            self.idle += 1;
            if node.children == 0 {
                self.leaves.insert((self.clock, page));
            }
        }
        self.scratch = fallen;
    }

    fn open(&mut self, page: PageId) -> SealedPage {
        let node = self.node_mut(page);
        let handle = node.page.open();
        if let Some(age) = node.idle_since.take() {
            self.idle -= 1;
            self.leaves.remove(&(age, page));
        }
        handle
    }

    /// Removes an idle leaf that is already out of `leaves`.
    fn remove(&mut self, page: PageId) {
        let Some(node) = self.nodes[page.0 as usize].take() else {
            return;
        };
        self.idle -= 1;
        self.by_hash.remove(&node.page.hash());
        if let Some(parent) = node.parent {
            self.node_mut(parent).children -= 1;
            self.refresh_leaf(parent);
        }
    }

    /// Makes `leaves` agree with the page's number of children.
    fn refresh_leaf(&mut self, page: PageId) {
        let node = self.node_mut(page);
        let (children, idle_since) = (node.children, node.idle_since);
        if let Some(age) = idle_since {
            if children == 0 {
                self.leaves.insert((age, page));
            } else {
                self.leaves.remove(&(age, page));
            }
        }
    }

    fn node_mut(&mut self, page: PageId) -> &mut Node {
        self.nodes[page.0 as usize]
            .as_mut()
            .expect("pages in by_hash and parents of cached pages have a node")
    }
}
