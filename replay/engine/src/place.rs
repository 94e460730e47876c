//! Where the engine's own memory goes: out of the way of everything the guest ever maps. Plain arithmetic.

use guest::{GuestAddr, GuestRange};
use translate::{ENGINE_PAGE_SIZE, LOOKUP_TABLE_BYTES, Layout, Mode};

use crate::calls::CALLS_BYTES;
use crate::host::TASK_SIZE;

/// Space left below the topmost mapping of the guest, its stack, for growing.
const STACK_ROOM: u64 = 256 << 20;

/// The same where there is no more.
const LEAST_STACK_ROOM: u64 = 24 << 20;

/// Space left around all other mappings of the guest.
const CLEARANCE: u64 = 1 << 20;

/// How far translated code may lie from the code it mirrors: 2 GiB less some room for what that code addresses.
const REACH: u64 = (2 << 30) - (320 << 20);

/// Lowest address looked at: an ordinary user may map it (`vm.mmap_min_addr`), and the recorder's page is below.
const LOWEST: u64 = 0x2_0000;

/// Number of modes, each with a lookup table of its own.
pub(crate) const MODES: usize = 4;

/// A mode as an index.
pub(crate) const fn mode_index(mode: Mode) -> usize {
    match mode {
        Mode::Plain => 0,
        Mode::Exact => 1,
        Mode::Indexed => 2,
        Mode::IndexedExact => 3,
    }
}

/// The fixed memory of the engine, below 2 GiB: one region of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Low {
    start: u32,
}

impl Low {
    /// Size of the region in bytes.
    pub(crate) const SIZE: u64 = 0x1_0000 + (MODES * LOOKUP_TABLE_BYTES) as u64;

    /// The page shared with the supervisor.
    pub(crate) fn page(self) -> u32 {
        self.start
    }

    /// Prepared calls.
    pub(crate) fn calls(self) -> u32 {
        self.start + ENGINE_PAGE_SIZE as u32
    }

    /// The common stubs of translated code.
    pub(crate) fn runtime(self) -> u32 {
        self.calls() + CALLS_BYTES as u32
    }

    /// The page of the stub program, through which system calls are injected.
    pub(crate) fn stub(self) -> u32 {
        self.runtime() + 0x1000
    }

    /// A page for the arguments of injected system calls.
    pub(crate) fn scratch(self) -> u32 {
        self.runtime() + 0x2000
    }

    /// The lookup tables of all modes, one after the other.
    pub(crate) fn tables(self) -> u32 {
        self.start + 0x1_0000
    }

    /// What the translator is told for a mode.
    pub(crate) fn layout(self, mode: Mode) -> Layout {
        let table = self.tables() + (mode_index(mode) * LOOKUP_TABLE_BYTES) as u32;
        Layout { page: self.page(), runtime: self.runtime(), table }
    }
}

/// Which addresses are taken.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// What the guest uses, ascending, disjoint, with room around.
    guest: Vec<GuestRange>,
    /// The same with hardly any room.
    tight: Vec<GuestRange>,
    /// What the engine uses, ascending, disjoint.
    ours: Vec<GuestRange>,
}

impl Places {
    /// Nothing is ours yet.
    pub(crate) fn new(footprint: &[GuestRange]) -> Self {
        let guest = widened(footprint, STACK_ROOM, CLEARANCE);
        Self { guest, tight: widened(footprint, LEAST_STACK_ROOM, 0), ours: Vec::new() }
    }

    /// Whether the engine uses any of `range`.
    pub(crate) fn is_ours(&self, range: GuestRange) -> bool {
        self.ours.iter().any(|ours| ours.overlaps(range))
    }

    /// What the engine uses.
    pub(crate) fn ours(&self) -> &[GuestRange] {
        &self.ours
    }

    fn blocker(&self, range: GuestRange) -> Option<GuestRange> {
        let in_guest = self.guest.partition_point(|taken| taken.end <= range.start);
        let in_guest = self.guest.get(in_guest).filter(|taken| taken.overlaps(range));
        in_guest.or_else(|| self.ours.iter().find(|taken| taken.overlaps(range))).copied()
    }

    /// The same places, but close to the guest's.
    fn crowded(&self) -> Self {
        Self { guest: self.tight.clone(), tight: Vec::new(), ours: self.ours.clone() }
    }

    fn take(&mut self, range: GuestRange) -> u64 {
        let at = self.ours.partition_point(|ours| ours.start < range.start);
        self.ours.insert(at, range);
        range.start.0
    }

    /// The lowest free place in `from..to` for `size` bytes, at a multiple of `align`.
    fn upward(&self, from: u64, to: u64, size: u64, align: u64) -> Option<GuestRange> {
        let mut at = from.next_multiple_of(align);
        while at.checked_add(size).is_some_and(|end| end <= to) {
            let range = GuestRange::new(GuestAddr(at), size);
            match self.blocker(range) {
                None => return Some(range),
                Some(taken) => at = taken.end.0.checked_next_multiple_of(align)?,
            }
        }
        None
    }

    /// The highest free place in `from..to` for `size` bytes, at a multiple of `align`.
    fn downward(&self, from: u64, to: u64, size: u64, align: u64) -> Option<GuestRange> {
        let mut at = to.checked_sub(size)? / align * align;
        while at >= from {
            let range = GuestRange::new(GuestAddr(at), size);
            match self.blocker(range) {
                None => return Some(range),
                Some(taken) => at = taken.start.0.checked_sub(size)? / align * align,
            }
        }
        None
    }

    /// Takes the engine's fixed region.
    pub(crate) fn take_low(&mut self) -> Option<Low> {
        let end = 0x7fff_0000;
        // Without clearance if need be: nothing of the guest's grows there but its heap, and that is in the footprint.
        let range = self.upward(LOWEST, end, Low::SIZE, 0x1_0000);
        let range = range.or_else(|| self.crowded().upward(LOWEST, end, Low::SIZE, 0x1_0000))?;
        Some(Low { start: self.take(range) as u32 })
    }

    /// Takes bytes for translated code within reach of `pc`, as near as can be: the first of `sizes` for which there is room.
    pub(crate) fn take_near(&mut self, pc: GuestAddr, sizes: &[u64]) -> Option<(u64, u64)> {
        let roomy = sizes.iter().find_map(|&size| Some((self.near(pc, size)?, size)));
        let (range, size) = roomy.or_else(|| {
            let crowded = self.crowded();
            sizes.iter().find_map(|&size| Some((crowded.near(pc, size)?, size)))
        })?;
        Some((self.take(range), size))
    }

    fn near(&self, pc: GuestAddr, size: u64) -> Option<GuestRange> {
        let (low, high) = (pc.0.saturating_sub(REACH).max(LOWEST), pc.0.saturating_add(REACH).min(TASK_SIZE));
        let align = 1 << 16;
        let below = self.downward(low, pc.0, size, align);
        let above = self.upward(pc.0, high, size, align);
        match (below, above) {
            (Some(below), Some(above)) => {
                let nearer_below = pc.0 - below.start.0 <= above.end.0 - pc.0;
                Some(if nearer_below { below } else { above })
            }
            (one, other) => one.or(other),
        }
    }

    /// Takes `size` bytes anywhere.
    pub(crate) fn take_any(&mut self, size: u64) -> Option<u64> {
        let range = self.upward(0x1000_0000_0000, TASK_SIZE, size, 1 << 16);
        let range = range.or_else(|| self.upward(1 << 32, TASK_SIZE, size, 1 << 16))?;
        Some(self.take(range))
    }
}

/// A footprint in order, disjoint, with `stack_room` below the stack and `clearance` around everything else.
fn widened(footprint: &[GuestRange], stack_room: u64, clearance: u64) -> Vec<GuestRange> {
    let top = footprint.iter().map(|range| range.end).filter(|end| end.0 <= TASK_SIZE).max();
    let mut wide: Vec<GuestRange> = footprint
        .iter()
        .filter(|range| !range.is_empty())
        .map(|range| {
            let is_stack = Some(range.end) == top && range.end.0 > TASK_SIZE / 2;
            let below = if is_stack { stack_room } else { clearance };
            let start = GuestAddr(range.start.page().0.saturating_sub(below));
            GuestRange { start, end: GuestAddr(range.end.0.saturating_add(clearance)).page_up() }
        })
        .collect();
    wide.sort_unstable();
    let mut merged: Vec<GuestRange> = Vec::with_capacity(wide.len());
    for range in wide {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Whether code at `pc` can be mirrored by `size` bytes at `arena`.
pub(crate) fn in_reach(pc: GuestAddr, arena: u64, size: u64) -> bool {
    let end = arena + size;
    (if arena > pc.0 { end - pc.0 } else { pc.0 - arena }) <= REACH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> GuestRange {
        GuestRange { start: GuestAddr(start), end: GuestAddr(end) }
    }

    #[test]
    fn low_memory_avoids_the_program() {
        assert_eq!(Places::new(&[range(0x40_0000, 0x50_0000)]).take_low().unwrap().page(), 0x2_0000);
        let low = Places::new(&[range(0x1_0000, 0x50_0000)]).take_low().unwrap();
        assert_eq!(low.page(), 0x60_0000);
        assert!(Places::new(&[range(0, 0x8010_0000)]).take_low().is_none());
        // Crowded: the clearance gives way.
        let tight = [range(0x30_0000, 0x4000_0000), range(0x4000_0000, 0x8000_0000)];
        assert_eq!(Places::new(&tight).take_low().unwrap().page(), 0x2_0000);
    }

    #[test]
    fn code_goes_near_and_clear_of_the_stack() {
        let pie = range(0x5555_5555_4000, 0x5555_5560_0000);
        let lib = range(0x7fff_f7c0_0000, 0x7fff_f7ff_f000);
        let stack = range(0x7fff_fffd_e000, 0x7fff_ffff_f000);
        let mut places = Places::new(&[pie, lib, stack]);
        let sizes = [64 << 20, 8 << 20];
        let (at, size) = places.take_near(GuestAddr(0x7fff_f7d0_0000), &sizes).unwrap();
        assert!(at + size <= lib.start.0, "{at:#x}");
        assert!(size == sizes[0] && in_reach(lib.start, at, size));
        let (second, _) = places.take_near(GuestAddr(0x7fff_f7d0_0000), &sizes).unwrap();
        assert!(second != at && in_reach(lib.start, second, size));
        assert!(places.is_ours(range(at, at + 1)));
        assert!(in_reach(pie.start, places.take_near(pie.start, &sizes).unwrap().0, size));
    }

    #[test]
    fn code_finds_room_between_libraries_and_stack() {
        let all = range(0x2000_0000_0000, 0x7fff_f7ff_f000);
        let stack = range(0x7fff_fffd_e000, 0x7fff_ffff_f000);
        let mut places = Places::new(&[all, stack]);
        let (at, size) = places.take_near(GuestAddr(0x7fff_f7d0_0000), &[256 << 20, 32 << 20]).unwrap();
        assert!(size == 32 << 20 && at >= all.end.0 && at + size + LEAST_STACK_ROOM <= stack.start.0);
    }
}
