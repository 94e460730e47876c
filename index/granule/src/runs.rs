//! A lazy walk over the executed blocks of a granule.

use std::ops::Range;
use std::sync::Arc;

use guest::{GuestAddr, GuestRange};

use crate::granule::{DecodeError, Granule};
use crate::shape::BlockId;

/// One execution of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The tick of its first instruction.
    pub tick: u64,
    /// Which block.
    pub block: BlockId,
}

/// A lazy walk over executed blocks.
pub struct Runs {
    granule: Arc<Granule>,
    wanted: Vec<bool>,
    ticks: Range<u64>,
    backwards: bool,
    position: usize,
    tick: u64,
}

impl Granule {
    /// Walks over the executions, in `ticks` at least in part, of blocks that have an instruction in `pcs`.
    pub fn executed(
        self: &Arc<Self>,
        pcs: Option<GuestRange>,
        ticks: Range<u64>,
        backwards: bool,
    ) -> Result<Runs, DecodeError> {
        let wants = |id| pcs.is_none_or(|pcs| self.table().get(id).is_some_and(|shape| shape.begins_in(pcs)));
        let wanted = self.layout().locals.iter().map(|local| wants(local.id)).collect();
        Ok(Runs {
            wanted,
            ticks,
            backwards,
            position: if backwards { self.sequence()?.len() } else { 0 },
            tick: if backwards { self.end_tick() } else { self.first_tick() },
            granule: Arc::clone(self),
        })
    }

    /// Every instruction that begins in `pcs` with how often it retires, block by block: only the head is needed.
    pub fn counts(&self, pcs: Option<GuestRange>, mut each: impl FnMut(GuestAddr, u64)) {
        for (id, times) in self.blocks() {
            let Some(shape) = self.table().get(id) else { continue };
            let wanted = shape.pcs().filter(|&pc| pcs.is_none_or(|pcs| pcs.contains(pc)));
            wanted.for_each(|pc| each(pc, u64::from(times)));
        }
    }

    /// Whether any block with an instruction in `pcs` runs in it: only the head is needed.
    pub fn runs_any(&self, pcs: GuestRange) -> bool {
        self.blocks().any(|(id, _)| self.table().get(id).is_some_and(|shape| shape.begins_in(pcs)))
    }
}

impl Runs {
    fn step(&mut self) -> Result<Option<BlockRun>, DecodeError> {
        let granule = Arc::clone(&self.granule);
        let sequence = granule.sequence()?;
        let locals = &granule.layout().locals;
        loop {
            let (local, tick) = if self.backwards {
                if self.tick <= self.ticks.start || self.position == 0 {
                    return Ok(None);
                }
                self.position -= 1;
                let local = sequence[self.position] as usize;
                self.tick -= u64::from(locals[local].instructions);
                (local, self.tick)
            } else {
                if self.tick >= self.ticks.end || self.position >= sequence.len() {
                    return Ok(None);
                }
                let local = sequence[self.position] as usize;
                self.position += 1;
                let tick = self.tick;
                self.tick += u64::from(locals[local].instructions);
                (local, tick)
            };
            let end = tick + u64::from(locals[local].instructions);
            if self.wanted[local] && tick < self.ticks.end && end > self.ticks.start {
                return Ok(Some(BlockRun { tick, block: locals[local].id }));
            }
        }
    }
}

impl Iterator for Runs {
    type Item = Result<BlockRun, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
