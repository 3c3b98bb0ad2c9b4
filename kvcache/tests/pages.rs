//! The page lifecycle against a model that remembers everything: no page is handed out while a handle, a pin or an
//! unfinished step names it, and pages always add up.

use std::collections::{BTreeMap, BTreeSet};

use baton_kvcache::{MutablePage, PageAllocator, PageCounts, PagePin, SealedPage};
use baton_proto::BlockHash;
use proptest::prelude::*;

const PAGES: u32 = 6;

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc,
    Seal(usize),
    Clone(usize),
    Pin(usize),
    Drop(usize),
    DropElsewhere(usize),
    Submit,
    Complete,
    Reclaim,
}

#[derive(Debug)]
enum Handle {
    Mutable(MutablePage),
    Sealed(SealedPage),
    Pin(PagePin),
}

#[derive(Debug)]
struct World {
    pages: PageAllocator,
    handles: Vec<Handle>,
    /// Pages that were sealed since they left the free list.
    sealed: BTreeSet<u32>,
    /// Unfinished steps and the pages they name.
    steps: BTreeMap<u64, BTreeSet<u32>>,
    next_step: u64,
}

impl Handle {
    fn page(&self) -> u32 {
        match self {
            Self::Mutable(page) => page.id().0,
            Self::Sealed(page) => page.id().0,
            Self::Pin(pin) => pin.id().0,
        }
    }
}

impl World {
    fn new() -> Self {
        Self {
            pages: PageAllocator::new(PAGES),
            handles: Vec::new(),
            sealed: BTreeSet::new(),
            steps: BTreeMap::new(),
            next_step: 1,
        }
    }

    fn held(&self) -> BTreeSet<u32> {
        self.handles.iter().map(Handle::page).collect()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc => {
                if let Some(page) = self.pages.alloc() {
                    let id = page.id().0;
                    assert!(!self.held().contains(&id), "page {id} is still held");
                    for (step, named) in &self.steps {
                        assert!(
                            !named.contains(&id),
                            "page {id} is named by unfinished step {step}"
                        );
                    }
                    self.sealed.remove(&id);
                    self.handles.push(Handle::Mutable(page));
                }
            }
            Op::Seal(at) => self.change(at, |handle| match handle {
                Handle::Mutable(page) => {
                    let hash = BlockHash(u128::from(page.id().0));
                    vec![Handle::Sealed(page.seal(hash))]
                }
                other => vec![other],
            }),
            Op::Clone(at) => self.change(at, |handle| match handle {
                Handle::Sealed(page) => vec![Handle::Sealed(page.clone()), Handle::Sealed(page)],
                Handle::Pin(pin) => vec![Handle::Pin(pin.clone()), Handle::Pin(pin)],
                mutable @ Handle::Mutable(_) => vec![mutable],
            }),
            Op::Pin(at) => self.change(at, |handle| {
                let pin = match &handle {
                    Handle::Mutable(page) => page.pin(),
                    Handle::Sealed(page) => page.pin(),
                    Handle::Pin(pin) => pin.clone(),
                };
                vec![handle, Handle::Pin(pin)]
            }),
            Op::Drop(at) => self.change(at, |_| Vec::new()),
            Op::DropElsewhere(at) => self.change(at, |handle| {
                std::thread::spawn(move || drop(handle)).join().expect("drops");
                Vec::new()
            }),
            Op::Submit => {
                self.steps.insert(self.next_step, self.held());
                self.pages.submitted(self.next_step);
                self.next_step += 1;
            }
            Op::Complete => {
                if let Some((step, _)) = self.steps.pop_first() {
                    self.pages.completed(step);
                }
            }
            Op::Reclaim => {
                self.pages.reclaim();
            }
        }
    }

    fn change(&mut self, at: usize, change: impl FnOnce(Handle) -> Vec<Handle>) {
        if !self.handles.is_empty() {
            let handle = self.handles.swap_remove(at % self.handles.len());
            let page = handle.page();
            let after = change(handle);
            if after.iter().any(|handle| matches!(handle, Handle::Sealed(_))) {
                self.sealed.insert(page);
            }
            self.handles.extend(after);
        }
    }

    fn check(&self) {
        self.pages.check().expect("pages add up");
        let held = self.held();
        let sealed = held.intersection(&self.sealed).count() as u32;
        let counts = self.pages.counts();
        assert_eq!(counts.sealed, sealed);
        assert_eq!(counts.mutable, held.len() as u32 - sealed);
        assert_eq!(counts.free + counts.retiring, PAGES - held.len() as u32);
        for handle in &self.handles {
            if let Handle::Sealed(page) = handle {
                let holders = self
                    .handles
                    .iter()
                    .filter(|other| other.page() == page.id().0)
                    .count();
                assert_eq!(page.holders(), holders);
            }
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = 0..64usize;
    let op = prop_oneof![
        4 => Just(Op::Alloc),
        2 => at.clone().prop_map(Op::Seal),
        1 => at.clone().prop_map(Op::Clone),
        1 => at.clone().prop_map(Op::Pin),
        4 => at.clone().prop_map(Op::Drop),
        1 => at.prop_map(Op::DropElsewhere),
        2 => Just(Op::Submit),
        2 => Just(Op::Complete),
        3 => Just(Op::Reclaim),
    ];
    prop::collection::vec(op, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn no_page_is_reused_early_or_lost(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
        // Everything ends: everything comes back.
        world.handles.clear();
        world.pages.reclaim();
        while !world.steps.is_empty() {
            world.apply(Op::Complete);
        }
        world.check();
        prop_assert_eq!(
            world.pages.counts(),
            PageCounts { free: PAGES, total: PAGES, ..Default::default() }
        );
    }
}

#[test]
fn a_returned_page_waits_for_the_last_step_submitted_before_it_was_reclaimed() {
    let mut pages = PageAllocator::new(1);
    let page = pages.alloc().expect("a free page");
    assert!(pages.alloc().is_none());
    pages.submitted(1);
    pages.submitted(2);
    drop(page);
    assert_eq!(pages.counts().retiring, 1);
    assert_eq!(pages.reclaim(), 1);
    pages.completed(1);
    assert!(pages.alloc().is_none(), "step 2 may still write it");
    pages.completed(2);
    assert!(pages.alloc().is_some());
}

#[test]
fn a_pin_outlives_the_writer() {
    let mut pages = PageAllocator::new(1);
    let page = pages.alloc().expect("a free page");
    let pin = page.pin();
    drop(page);
    pages.reclaim();
    assert!(pages.alloc().is_none());
    assert_eq!(pages.counts().mutable, 1);
    drop(pin);
    pages.reclaim();
    assert!(pages.alloc().is_some());
}
