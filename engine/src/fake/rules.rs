//! What a plan must obey. A plan that breaks a rule stops the fake with a sentence that says which.

use std::collections::{HashMap, HashSet};

use baton_kernels::kv::PageId;

use super::{history::History, model::Digest};
use crate::{
    executor::ExecutorLimits,
    step::{Row, RowStart, RowTokens, SlotId, StepPlan},
};

/// A row as the device would run it.
#[derive(Debug)]
pub(super) struct ResolvedRow {
    pub(super) slot: SlotId,
    pub(super) pages: Vec<PageId>,
    pub(super) start: u32,
    /// Digest up to each position that it writes, from `start` on; none where drafted tokens were rejected.
    pub(super) written: Vec<Option<Digest>>,
    pub(super) sample: Vec<SlotId>,
    /// Tokens that each slot samples.
    pub(super) yields: u32,
}

/// What the rules know beside the plan.
pub(super) struct Rules<'a> {
    pub(super) limits: &'a ExecutorLimits,
    pub(super) page_tokens: u32,
    pub(super) slots: &'a HashMap<SlotId, History>,
}

macro_rules! require {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err(format!($($reason)+));
        }
    };
}

impl Rules<'_> {
    /// The slots must have been opened already.
    pub(super) fn resolve(
        &self,
        plan: &StepPlan,
        yields: impl Fn(&History) -> u32,
    ) -> Result<Vec<ResolvedRow>, String> {
        require!(!plan.rows.is_empty(), "a step without rows");
        let rows = plan
            .rows
            .iter()
            .map(|row| self.row(row, &yields))
            .collect::<Result<Vec<_>, _>>()?;
        let mut slots = HashSet::new();
        let mut samplers = HashSet::new();
        for row in &rows {
            require!(slots.insert(row.slot), "{:?} has two rows in a step", row.slot);
            for slot in &row.sample {
                require!(samplers.insert(*slot), "{slot:?} samples twice in a step");
            }
        }
        self.pages(plan, &rows)?;
        Ok(rows)
    }

    /// Pages are in range, nobody else's table names a page that a row writes, copies do not meet.
    fn pages(&self, plan: &StepPlan, rows: &[ResolvedRow]) -> Result<(), String> {
        let named = plan.copies.iter().flat_map(|copy| [copy.from, copy.to]);
        let tables = rows.iter().flat_map(|row| row.pages.iter().copied());
        for page in named.chain(tables) {
            require!(page.0 < self.limits.pages, "{page:?} is out of range");
        }
        let mut writers: HashMap<PageId, SlotId> = HashMap::new();
        for row in rows {
            let first = (row.start / self.page_tokens) as usize;
            let last = ((row.start + row.written.len() as u32 - 1) / self.page_tokens) as usize;
            for page in &row.pages[first..=last] {
                if let Some(other) = writers.insert(*page, row.slot) {
                    return Err(format!("{:?} and {other:?} both write {page:?}", row.slot));
                }
            }
        }
        for row in rows {
            let mut seen = HashSet::new();
            for page in &row.pages {
                require!(
                    seen.insert(*page),
                    "{:?} has {page:?} twice in its table",
                    row.slot
                );
                let writer = writers.get(page).copied().unwrap_or(row.slot);
                require!(writer == row.slot, "{writer:?} writes {page:?} of {:?}", row.slot);
            }
        }
        let mut targets = HashSet::new();
        for copy in &plan.copies {
            require!(targets.insert(copy.to), "{:?} is copied onto twice", copy.to);
            require!(copy.from != copy.to, "{:?} is copied onto itself", copy.to);
            require!(
                writers.contains_key(&copy.to),
                "{:?} is copied onto and not written",
                copy.to
            );
        }
        let chained = plan.copies.iter().any(|copy| targets.contains(&copy.from));
        require!(!chained, "a copy's source is another's target");
        Ok(())
    }

    fn row(&self, row: &Row, yields: &impl Fn(&History) -> u32) -> Result<ResolvedRow, String> {
        let slot = row.slot;
        let history = self.history(slot)?;
        let start = match row.start {
            RowStart::Known(start) => start,
            RowStart::AfterPrevious { at_most } => {
                let end = history.row_end().ok_or(format!("{slot:?} has no previous row"))?;
                require!(
                    end <= at_most,
                    "{slot:?} starts at {end}, planned at most {at_most}"
                );
                end
            }
        };
        let drafts = self.limits.tokens_per_sample - 1;
        let context = self.limits.context_tokens;
        let len = history.len();
        let (reach, written, yields) = match &row.tokens {
            RowTokens::Host(tokens) => {
                let end = start + tokens.len() as u32;
                require!(!tokens.is_empty(), "{slot:?} has an empty row");
                require!(end <= len, "{slot:?} runs to {end}, and has {len} tokens");
                let own = history.tokens(start, end);
                require!(
                    own == *tokens,
                    "{slot:?} runs {tokens:?} at {start}, its tokens are {own:?}"
                );
                let written = (start..end)
                    .map(|position| Some(history.digest(position)))
                    .collect();
                require!(
                    row.sample.is_empty() || end == len,
                    "{slot:?} samples in the middle of its tokens"
                );
                (end, written, 1)
            }
            RowTokens::LastOutput => {
                require!(history.has_output(), "{slot:?} has no output to go on from");
                require!(
                    start + 1 == len,
                    "{slot:?} goes on at {start}, its last token is at {}",
                    len - 1
                );
                require!(
                    row.sample == [slot],
                    "{slot:?} decodes and samples for {:?}",
                    row.sample
                );
                let at_most = match row.start {
                    RowStart::Known(start) => start,
                    RowStart::AfterPrevious { at_most } => at_most,
                };
                let reach = (at_most + drafts + 1).min(context);
                let most = (reach - start).min(drafts + 1);
                let yields = yields(history).clamp(1, most);
                (reach, self.decoded(row, history, yields, most), yields)
            }
        };
        require!(
            reach <= context,
            "{slot:?} reaches {reach} of a context of {context}"
        );
        let covered = row.pages.len() as u32 * self.page_tokens;
        require!(reach <= covered, "{slot:?} reaches {reach}, its table {covered}");
        for other in &row.sample {
            let other_history = self.history(*other)?;
            let same = other_history.len() == len && other_history.digest(len - 1) == history.digest(len - 1);
            require!(
                same,
                "{other:?} samples from the logits of {slot:?}, whose tokens differ"
            );
        }
        Ok(ResolvedRow {
            slot,
            pages: row.pages.clone(),
            start,
            written,
            sample: row.sample.clone(),
            yields,
        })
    }

    /// The last token and the drafts after it, as far as they will be accepted; the KV of the rest is worthless.
    fn decoded(&self, row: &Row, history: &History, yields: u32, most: u32) -> Vec<Option<Digest>> {
        let last = history.len() - 1;
        let mut digests = vec![Some(history.digest(last))];
        let accepted = history.peek(yields.saturating_sub(1));
        digests.extend(accepted.into_iter().map(Some));
        digests.resize(most as usize, None);
        let covered = row.pages.len() as u32 * self.page_tokens;
        digests.truncate(covered.saturating_sub(last).max(1) as usize);
        digests
    }

    fn history(&self, slot: SlotId) -> Result<&History, String> {
        self.slots.get(&slot).ok_or(format!("{slot:?} was never opened"))
    }
}
