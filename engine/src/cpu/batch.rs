//! A step's rows as the flat arrays that the forward pass runs over.

use baton_kernels::kv::PageId;

use super::{PlanError, slots::Slots};
use crate::step::{Row, RowTokens, SlotId};

/// All rows' tokens behind each other. Kept between steps, so that its memory is too.
#[derive(Default)]
pub(super) struct Batch {
    /// Token ids.
    pub(super) tokens: Vec<u32>,
    /// Each token's position in its sequence.
    pub(super) positions: Vec<u32>,
    pub(super) rows: Vec<BatchRow>,
    /// Which logits are wanted: those of each sampling row's last token.
    pub(super) logit_tokens: Vec<LogitToken>,
    /// Who samples: a slot, and the index in `logit_tokens` of the logits that it samples from.
    pub(super) samples: Vec<(SlotId, usize)>,
    pages: Vec<PageId>,
}

/// One row of a [`Batch`].
#[derive(Clone, Copy)]
pub(super) struct BatchRow {
    /// Index of its first token in the batch.
    pub(super) first: usize,
    /// Its tokens.
    pub(super) len: usize,
    /// Position of its first token.
    pub(super) start: u32,
    /// Where its block table starts in `pages`, and how many pages it has.
    table: (usize, usize),
}

/// A token whose logits are wanted.
#[derive(Clone, Copy)]
pub(super) struct LogitToken {
    /// Its index in the batch.
    pub(super) token: usize,
    /// Its row.
    pub(super) row: usize,
}

/// What every row must respect.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) vocab: u32,
    pub(super) context_tokens: u32,
    pub(super) pages: u32,
    pub(super) page_tokens: usize,
}

impl Batch {
    /// Replaces the batch by these rows, resolving what only the executor knows.
    pub(super) fn fill(&mut self, rows: &[Row], slots: &mut Slots, bounds: Bounds) -> Result<(), PlanError> {
        self.tokens.clear();
        self.positions.clear();
        self.rows.clear();
        self.logit_tokens.clear();
        self.samples.clear();
        self.pages.clear();
        for row in rows {
            self.push(row, slots, bounds)?;
        }
        Ok(())
    }

    /// The block table of a row.
    pub(super) fn table(&self, row: &BatchRow) -> &[PageId] {
        &self.pages[row.table.0..][..row.table.1]
    }

    fn push(&mut self, row: &Row, slots: &mut Slots, bounds: Bounds) -> Result<(), PlanError> {
        let first = self.tokens.len();
        match &row.tokens {
            RowTokens::Host(tokens) => self.tokens.extend_from_slice(tokens),
            RowTokens::LastOutput => {
                let last = slots.get(row.slot)?.history.output().last();
                self.tokens.push(*last.ok_or(PlanError::NoOutput(row.slot.0))?);
            }
        }
        let len = self.tokens.len() - first;
        if len == 0 {
            return Err(PlanError::EmptyRow(row.slot.0));
        }
        if let Some(token) = self.tokens[first..].iter().find(|token| **token >= bounds.vocab) {
            return Err(PlanError::Token {
                token: *token,
                vocab: bounds.vocab,
            });
        }
        let start = slots.place(row)?;
        let end = start.saturating_add(len as u32);
        if end > bounds.context_tokens {
            return Err(PlanError::Context {
                end,
                context: bounds.context_tokens,
            });
        }
        if row.pages.len() * bounds.page_tokens < end as usize {
            return Err(PlanError::Table {
                end,
                pages: row.pages.len(),
            });
        }
        if let Some(page) = row.pages.iter().find(|page| page.0 >= bounds.pages) {
            return Err(PlanError::Page {
                page: page.0,
                pages: bounds.pages,
            });
        }
        self.positions.extend(start..end);
        self.rows.push(BatchRow {
            first,
            len,
            start,
            table: (self.pages.len(), row.pages.len()),
        });
        self.pages.extend_from_slice(&row.pages);
        if !row.sample.is_empty() {
            let logits = self.logit_tokens.len();
            self.logit_tokens.push(LogitToken {
                token: first + len - 1,
                row: self.rows.len() - 1,
            });
            self.samples.extend(row.sample.iter().map(|slot| (*slot, logits)));
        }
        Ok(())
    }
}
