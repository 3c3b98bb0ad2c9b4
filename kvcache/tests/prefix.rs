//! The prefix index against a model: a map from paths to pages, with ages, that evicts by looking at everything.

use std::collections::BTreeMap;

use baton_kernels::kv::PageId;
use baton_kvcache::{PageAllocator, PrefixIndex, SealedPage};
use baton_proto::BlockHash;
use proptest::prelude::*;

const PAGES: u32 = 10;

/// The blocks from the start of a sequence: what a block hash names.
type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Op {
    /// A sequence runs: takes what is cached, computes and caches the rest, and holds all of it.
    Run(Path),
    /// The same without looking up first: all of its pages are computed again.
    RunBlind(Path),
    End {
        at: usize,
        front_first: bool,
    },
    Evict(usize),
    Step,
}

#[derive(Debug)]
struct Cached {
    page: PageId,
    /// When its last holder let go.
    age: u64,
}

#[derive(Debug)]
struct World {
    pages: PageAllocator,
    index: PrefixIndex,
    sequences: Vec<Vec<(Path, SealedPage)>>,
    model: BTreeMap<Path, Cached>,
    clock: u64,
    step: u64,
    evictions: u64,
}

fn hash(path: &[u8]) -> BlockHash {
    BlockHash(
        path.iter()
            .fold(1, |hash, block| hash * 1009 + u128::from(*block) + 1),
    )
}

fn prefixes(path: &[u8]) -> impl Iterator<Item = Path> + '_ {
    (1..=path.len()).map(|length| path[..length].to_vec())
}

fn chain(path: &[u8]) -> Vec<BlockHash> {
    prefixes(path).map(|prefix| hash(&prefix)).collect()
}

impl World {
    fn new() -> Self {
        let pages = PageAllocator::new(PAGES);
        Self {
            index: PrefixIndex::new(&pages),
            pages,
            sequences: Vec::new(),
            model: BTreeMap::new(),
            clock: 0,
            step: 0,
            evictions: 0,
        }
    }

    fn is_held(&self, path: &[u8]) -> bool {
        self.sequences.iter().flatten().any(|(held, _)| held == path)
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Run(path) => {
                let cached = prefixes(&path)
                    .take_while(|it| self.model.contains_key(it))
                    .count();
                let before = self.index.counters();
                assert_eq!(self.index.matched(&chain(&path)), cached);
                let found = self.index.lookup(&chain(&path));
                assert_eq!(found.len(), cached);
                assert_eq!(self.index.counters().hits - before.hits, cached as u64);
                assert_eq!(
                    self.index.counters().misses - before.misses,
                    (path.len() - cached) as u64
                );
                for (prefix, page) in prefixes(&path).zip(&found) {
                    assert_eq!(page.id(), self.model[&prefix].page);
                    assert_eq!(page.hash(), hash(&prefix));
                }
                self.sequences.push(prefixes(&path).zip(found).collect());
                self.compute(&path, cached);
            }
            Op::RunBlind(path) => {
                self.sequences.push(Vec::new());
                self.compute(&path, 0);
            }
            Op::End { at, front_first } => {
                if self.sequences.is_empty() {
                    return;
                }
                let mut ended = self.sequences.swap_remove(at % self.sequences.len());
                if !front_first {
                    ended.reverse();
                }
                for (path, page) in ended {
                    drop(page);
                    // The rest of this sequence holds other paths.
                    if !self.is_held(&path) {
                        self.clock += 1;
                        self.model.get_mut(&path).expect("held pages stay cached").age = self.clock;
                    }
                }
            }
            Op::Evict(count) => {
                let expected = self.evict_model(count);
                assert_eq!(self.index.evict(count), expected);
            }
            Op::Step => {
                self.step += 1;
                self.pages.submitted(self.step);
                self.pages.reclaim();
                self.pages.completed(self.step);
            }
        }
    }

    /// Computes the pages from `from` on for the newest sequence, as far as memory allows.
    fn compute(&mut self, path: &[u8], from: usize) {
        for length in from + 1..=path.len() {
            self.pages.reclaim();
            let page = self.pages.alloc().or_else(|| {
                let expected = self.evict_model(1);
                assert_eq!(self.index.evict(1), expected);
                self.pages.reclaim();
                self.pages.alloc()
            });
            let Some(page) = page else {
                return;
            };
            let cached = self.model.values().any(|cached| cached.page == page.id());
            assert!(!cached, "{:?} is cached", page.id());
            let prefix = path[..length].to_vec();
            let parent = (length > 1).then(|| hash(&path[..length - 1]));
            let id = page.id();
            let page = self.index.insert(parent, page.seal(hash(&prefix)));
            match self.model.get(&prefix) {
                Some(cached) => assert_eq!(page.id(), cached.page, "equal content is kept once"),
                None => {
                    assert_eq!(page.id(), id);
                    self.model.insert(prefix.clone(), Cached { page: id, age: 0 });
                }
            }
            self.sequences
                .last_mut()
                .expect("just pushed")
                .push((prefix, page));
        }
    }

    fn evict_model(&mut self, count: usize) -> usize {
        for evicted in 0..count {
            let leaf = |path: &Path| {
                !self
                    .model
                    .keys()
                    .any(|other| other.len() > path.len() && other.starts_with(path))
            };
            let oldest = self
                .model
                .iter()
                .filter(|(path, _)| leaf(path) && !self.is_held(path))
                .min_by_key(|(_, cached)| cached.age)
                .map(|(path, _)| path.clone());
            let Some(oldest) = oldest else {
                return evicted;
            };
            self.model.remove(&oldest);
            self.evictions += 1;
        }
        count
    }

    fn check(&mut self) {
        self.pages.check().expect("pages add up");
        assert_eq!(self.index.len(), self.model.len());
        for path in self.model.keys() {
            assert_eq!(self.index.matched(&[hash(path)]), 1, "{path:?} is cached");
        }
        let idle = self.model.keys().filter(|path| !self.is_held(path)).count();
        assert_eq!(self.index.idle(), idle);
        assert_eq!(self.pages.counts().sealed as usize, self.model.len());
        assert_eq!(self.index.counters().evictions, self.evictions);
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let path = || prop::collection::vec(0..3u8, 1..5);
    let op = prop_oneof![
        5 => path().prop_map(Op::Run),
        2 => path().prop_map(Op::RunBlind),
        5 => (0..64usize, any::<bool>()).prop_map(|(at, front_first)| Op::End { at, front_first }),
        2 => (1..4usize).prop_map(Op::Evict),
        2 => Just(Op::Step),
    ];
    prop::collection::vec(op, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn agrees_with_the_model(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
        while !world.sequences.is_empty() {
            world.apply(Op::End { at: 0, front_first: true });
        }
        world.check();
        let cached = world.model.len();
        prop_assert_eq!(world.index.idle(), cached);
        prop_assert_eq!(world.index.evict(usize::MAX), cached);
        world.pages.reclaim();
        prop_assert_eq!(world.pages.counts().free, PAGES);
    }
}

#[test]
fn a_page_whose_parent_is_not_cached_is_handed_back() {
    let mut pages = PageAllocator::new(2);
    let mut index = PrefixIndex::new(&pages);
    let page = pages.alloc().expect("free").seal(hash(&[0, 1]));
    let page = index.insert(Some(hash(&[0])), page);
    assert!(index.is_empty());
    drop(page);
    pages.reclaim();
    assert_eq!(pages.counts().free, 2);
}

#[test]
fn pages_let_go_on_other_threads_become_idle() {
    let mut pages = PageAllocator::new(64);
    let mut index = PrefixIndex::new(&pages);
    let mut parent = None;
    let held: Vec<_> = (0..64)
        .map(|block| {
            let hash = BlockHash(block);
            let page = pages.alloc().expect("free").seal(hash);
            let page = index.insert(parent, page);
            parent = Some(hash);
            page
        })
        .collect();
    assert_eq!(index.evict(64), 0);
    std::thread::scope(|scope| {
        for page in held {
            scope.spawn(move || drop(page));
        }
    });
    assert_eq!(index.idle(), 64);
    assert_eq!(index.evict(64), 64);
    pages.reclaim();
    assert_eq!(pages.counts().free, 64);
}
