//! Breakpoints, and watchpoints by the debug registers of the CPU.

use std::collections::BTreeSet;
use std::rc::Rc;

use guest::{GuestAddr, GuestRange};
use translate::Mode;

use crate::space::Space;
use crate::{HostError, RunError, Watch, WatchKind};

/// Number of debug registers that hold an address.
const SLOTS: usize = 4;

/// Watchpoints, and whether the debug registers hold them yet.
#[derive(Clone, Default, Debug)]
pub(crate) struct Watched {
    /// What each debug register watches, and the watch it belongs to.
    slots: Vec<(GuestRange, Watch)>,
    stale: bool,
}

impl Watched {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// The aligned pieces of 8, 4, 2 and 1 bytes that make up a range.
fn pieces(range: GuestRange) -> Vec<GuestRange> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    while at < range.end && pieces.len() <= SLOTS {
        let left = range.end.0 - at.0;
        let size =
            [8, 4, 2, 1].into_iter().find(|&size| at.0.is_multiple_of(size) && size <= left).unwrap_or(1);
        pieces.push(GuestRange::new(at, size));
        at = at.wrapping_add(size);
    }
    pieces
}

impl Space {
    /// Replaces the set of breakpoints. With any set, code runs in an exact mode.
    pub fn set_breakpoints(&mut self, at: &[GuestAddr]) {
        let new: BTreeSet<GuestAddr> = at.iter().copied().collect();
        let changed: BTreeSet<GuestAddr> = self.breakpoints.symmetric_difference(&new).copied().collect();
        self.drop_breakpoint_blocks(&changed);
        self.breakpoints = new;
    }

    /// Forgets the blocks that a change of breakpoints at `changed` makes wrong.
    pub(crate) fn drop_breakpoint_blocks(&mut self, changed: &BTreeSet<GuestAddr>) {
        if changed.is_empty() {
            return;
        }
        let code = Rc::make_mut(&mut self.code);
        if !self.snapshots.is_empty() {
            code.forget_suspended(&self.tables, &mut self.patches);
        }
        for mode in [Mode::Exact, Mode::IndexedExact] {
            let concerned = |block: &crate::Block| {
                let translated = &block.translated;
                translated.pcs.iter().any(|pc| changed.contains(pc))
                    || translated.exits.iter().any(|exit| changed.contains(&exit.pc))
                    || changed.contains(&translated.pc)
            };
            code.remove_if(mode, concerned, &self.tables, &mut self.patches);
        }
    }

    /// Replaces the set of watchpoints. With any set, code runs in [`Mode::Exact`], and nothing is logged.
    ///
    /// # Errors
    ///
    /// More bytes than four debug registers can cover.
    pub fn set_watchpoints(&mut self, watches: &[Watch]) -> Result<(), RunError> {
        let slots: Vec<(GuestRange, Watch)> = watches
            .iter()
            .flat_map(|watch| pieces(watch.range).into_iter().map(|piece| (piece, *watch)))
            .collect();
        if slots.len() > SLOTS {
            return Err(RunError::TooManyWatches);
        }
        self.watchpoints = Watched { slots, stale: true };
        Ok(())
    }

    /// Sees to it that the debug registers hold the watchpoints.
    pub(crate) fn arm_watchpoints(&mut self) -> Result<(), HostError> {
        if !std::mem::take(&mut self.watchpoints.stale) {
            return Ok(());
        }
        self.host.set_debug_register(7, 0)?;
        let mut control = 0;
        for (slot, (piece, watch)) in self.watchpoints.slots.iter().enumerate() {
            self.host.set_debug_register(slot, piece.start.0)?;
            let kind = match watch.kind {
                WatchKind::Write => 1,
                WatchKind::Access => 3,
            };
            let len = match piece.len() {
                1 => 0,
                2 => 1,
                4 => 3,
                _ => 2,
            };
            control |= 1 << (2 * slot) | (kind | len << 2) << (16 + 4 * slot);
        }
        self.host.set_debug_register(7, control)
    }

    /// Takes the debug registers out of force until they are armed again.
    pub(crate) fn disarm_watchpoints(&mut self) -> Result<(), HostError> {
        self.watchpoints.stale = true;
        self.host.set_debug_register(7, 0)
    }

    /// The watch that the last trap was for, if it was for one.
    pub(crate) fn watch_hit(&mut self) -> Result<Option<Watch>, HostError> {
        let status = self.host.debug_register(6)?;
        self.host.set_debug_register(6, 0)?;
        let mut slots = self.watchpoints.slots.iter().enumerate();
        Ok(slots.find(|(slot, _)| status >> slot & 1 != 0).map(|(_, (_, watch))| *watch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_covered_by_aligned_pieces() {
        #[track_caller]
        fn check(start: u64, len: u64, sizes: &[u64]) {
            let got: Vec<u64> =
                pieces(GuestRange::new(GuestAddr(start), len)).iter().map(|piece| piece.len()).collect();
            assert_eq!(got, sizes);
        }
        check(0x1000, 8, &[8]);
        check(0x1001, 1, &[1]);
        check(0x1003, 8, &[1, 4, 2, 1]);
        check(0x1000, 64, &[8; 5]);
    }
}
