//! What an executor remembers of each sequence between steps.

use std::sync::Arc;

use baton_kernels::sampling::{SamplingParams, TokenHistory};

use super::PlanError;
use crate::step::{Row, RowStart, SlotId, SlotOpen};

/// The open sequences by slot.
pub(super) struct Slots {
    slots: Vec<Option<Slot>>,
}

/// One sequence, as far as sampling and late-bound rows need it.
pub(super) struct Slot {
    pub(super) choice: u32,
    pub(super) sampling: Arc<SamplingParams>,
    pub(super) history: TokenHistory,
    /// Position after the slot's last row.
    end: Option<u32>,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        Self {
            slots: (0..count).map(|_| None).collect(),
        }
    }

    pub(super) fn open(&mut self, open: &SlotOpen) -> Result<(), PlanError> {
        let place = self
            .slots
            .get_mut(open.slot.0 as usize)
            .ok_or(PlanError::SlotNotOpen(open.slot.0))?;
        *place = Some(Slot {
            choice: open.choice,
            history: TokenHistory::new(&open.prompt, &open.output, &open.sampling),
            sampling: Arc::clone(&open.sampling),
            end: None,
        });
        Ok(())
    }

    pub(super) fn get(&self, slot: SlotId) -> Result<&Slot, PlanError> {
        self.slots
            .get(slot.0 as usize)
            .and_then(Option::as_ref)
            .ok_or(PlanError::SlotNotOpen(slot.0))
    }

    pub(super) fn get_mut(&mut self, slot: SlotId) -> Result<&mut Slot, PlanError> {
        self.slots
            .get_mut(slot.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(PlanError::SlotNotOpen(slot.0))
    }

    /// Position of the row's first token; the slot's next row starts after its last.
    pub(super) fn place(&mut self, row: &Row) -> Result<u32, PlanError> {
        let slot = self.get_mut(row.slot)?;
        let start = match row.start {
            RowStart::Known(start) => start,
            RowStart::AfterPrevious { at_most } => match slot.end {
                Some(end) if end <= at_most => end,
                end => {
                    return Err(PlanError::Start {
                        slot: row.slot.0,
                        end,
                        at_most,
                    });
                }
            },
        };
        slot.end = Some(start.saturating_add(row.query_len()));
        Ok(start)
    }
}
