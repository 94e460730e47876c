//! A lazy walk over the writes of a granule, in the order they happened or backwards.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use guest::{EventId, GuestAddr, GuestRange, Moment, TaskId};

use crate::granule::{DecodeError, Granule};
use crate::raw::{SystemWrite, VariableRun};
use crate::shape::BlockId;

/// Who made a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// A store of an executed block.
    Store {
        /// Which block.
        block: BlockId,
        /// Which of its stores, from 0.
        store: u16,
        /// The address of the storing instruction.
        pc: GuestAddr,
    },
    /// The kernel, in an event.
    System {
        /// Which.
        event: EventId,
        /// When: may be before the moment of the write's tick.
        moment: Moment,
        /// Who ran.
        task: TaskId,
    },
}

/// One write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Write {
    /// The tick of its instruction; for the kernel's, the tick at which the event happened, before that tick's
    /// instruction.
    pub tick: u64,
    /// First byte written.
    pub addr: GuestAddr,
    /// Number of bytes, at least 1.
    pub len: u32,
    /// Who.
    pub origin: Origin,
    /// Where its value lies.
    pub(crate) place: Place,
}

/// Where a write's value lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Place {
    Fixed { slot: u32, k: u32 },
    Variable { bytes: u64 },
    System { bytes: u64 },
}

impl Write {
    /// The bytes written.
    pub fn range(&self) -> GuestRange {
        GuestRange::new(self.addr, u64::from(self.len))
    }
}

/// Which writes a walk gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteFilter {
    /// Only those that share a byte with this range.
    pub addrs: Option<GuestRange>,
    /// Only in these ticks.
    pub ticks: Range<u64>,
    /// Only by instructions in this range (which leaves the kernel out).
    pub pcs: Option<GuestRange>,
    /// The last first.
    pub backwards: bool,
}

impl Default for WriteFilter {
    fn default() -> Self {
        Self { addrs: None, ticks: 0..u64::MAX, pcs: None, backwards: false }
    }
}

impl WriteFilter {
    fn wants_addr(&self, addr: u64, len: u64) -> bool {
        self.addrs.is_none_or(|range| {
            let last = addr.wrapping_add(len - 1);
            addr < range.end.0 && last >= range.start.0
        })
    }

    fn wants_pc(&self, pc: GuestAddr) -> bool {
        self.pcs.is_none_or(|range| range.contains(pc))
    }
}

/// A lazy walk over a granule's writes.
pub struct Writes {
    granule: Arc<Granule>,
    filter: WriteFilter,
    /// By block: whether any of its executions can match.
    wanted: Vec<bool>,
    /// By block: executions that lie before the walk's position.
    seen: Vec<u32>,
    /// Position in the sequence of blocks: what lies before it is behind us (ahead of us, backwards).
    position: usize,
    /// The tick of `position`.
    tick: u64,
    /// The next of the kernel's writes, as `position`.
    system: usize,
    /// Writes found, the next one first.
    found: VecDeque<Write>,
    over: bool,
}

impl Granule {
    /// Walks over the writes that `filter` lets through.
    pub fn writes(self: &Arc<Self>, filter: WriteFilter) -> Result<Writes, DecodeError> {
        let wanted = self.wanted(&filter)?;
        let sequence = self.sequence()?;
        let system = self.system_writes()?.len();
        let back = filter.backwards;
        let seen = self.layout().locals.iter().map(|local| if back { local.count } else { 0 }).collect();
        Ok(Writes {
            wanted,
            seen,
            position: if back { sequence.len() } else { 0 },
            tick: if back { self.end_tick() } else { self.first_tick() },
            system: if back { system } else { 0 },
            found: VecDeque::new(),
            over: false,
            granule: Arc::clone(self),
            filter,
        })
    }

    /// Which blocks have an execution with a store that matches address and pc.
    fn wanted(&self, filter: &WriteFilter) -> Result<Vec<bool>, DecodeError> {
        let layout = self.layout();
        let mut wanted = vec![false; layout.locals.len()];
        let addresses = if layout.addresses > 0 { self.addresses()? } else { &[] };
        for slot in &layout.slots {
            let local = &layout.locals[slot.local as usize];
            if slot.size == 0 || wanted[slot.local as usize] || !self.wants_slot(filter, local.id, slot.store)
            {
                continue;
            }
            wanted[slot.local as usize] = match (filter.addrs, slot.address) {
                (None, _) => true,
                (Some(range), crate::dictionary::SlotAddress::Stream { base, delta, .. }) => {
                    let from = base as usize;
                    any_overlaps(&addresses[from..from + local.count as usize], delta, slot.size, range)
                }
                (Some(_), _) => filter.wants_addr(slot.address(addresses, 0), u64::from(slot.size)),
            };
        }
        let sequence = self.sequence()?;
        for run in self.runs()? {
            let number = sequence[run.position as usize];
            let id = layout.locals[number as usize].id;
            if filter.wants_addr(run.addr, u64::from(run.len)) && self.wants_slot(filter, id, run.store) {
                wanted[number as usize] = true;
            }
        }
        Ok(wanted)
    }

    fn wants_slot(&self, filter: &WriteFilter, id: BlockId, store: u16) -> bool {
        filter.pcs.is_none() || filter.wants_pc(self.store_pc(id, store))
    }

    fn store_pc(&self, id: BlockId, store: u16) -> GuestAddr {
        let shape = self.table().get(id);
        let pc = shape.and_then(|shape| {
            let store = shape.stores.get(usize::from(store))?;
            Some(shape.pc_of(u32::from(store.instruction)))
        });
        pc.unwrap_or_default()
    }
}

/// Whether a write of `size` bytes at one of `addresses` (plus `delta`) shares a byte with `range`.
fn any_overlaps(addresses: &[u64], delta: i64, size: u8, range: GuestRange) -> bool {
    // addr < end and addr + size > start, as one comparison of addr + size - 1 - start.
    let reach = u64::from(size) - 1;
    let width = range.len().saturating_add(reach);
    let offset = reach.wrapping_sub(range.start.0).wrapping_add(delta as u64);
    addresses.iter().any(|&addr| addr.wrapping_add(offset) < width)
}

impl Writes {
    fn fill(&mut self) -> Result<(), DecodeError> {
        while self.found.is_empty() && !self.over {
            if self.filter.backwards { self.back()? } else { self.ahead()? }
        }
        Ok(())
    }

    /// One block onwards.
    fn ahead(&mut self) -> Result<(), DecodeError> {
        let granule = Arc::clone(&self.granule);
        let sequence = granule.sequence()?;
        let system = granule.system_writes()?;
        let layout = granule.layout();
        loop {
            while let Some(write) = system.get(self.system).filter(|write| write.tick <= self.tick) {
                self.system += 1;
                self.consider_system(write);
            }
            let Some(&number) = sequence.get(self.position).filter(|_| self.tick < self.filter.ticks.end)
            else {
                self.over = true;
                return Ok(());
            };
            let local = &layout.locals[number as usize];
            let k = self.seen[number as usize];
            self.seen[number as usize] = k + 1;
            let (position, tick) = (self.position, self.tick);
            self.position += 1;
            self.tick += u64::from(local.instructions);
            if self.wanted[number as usize] && self.tick > self.filter.ticks.start {
                self.block(number, position, k, tick)?;
            }
            if !self.found.is_empty() {
                return Ok(());
            }
        }
    }

    /// One block backwards.
    fn back(&mut self) -> Result<(), DecodeError> {
        let granule = Arc::clone(&self.granule);
        let sequence = granule.sequence()?;
        let system = granule.system_writes()?;
        let layout = granule.layout();
        loop {
            while let Some(at) = self.system.checked_sub(1).filter(|&at| system[at].tick >= self.tick) {
                self.system = at;
                self.consider_system(&system[at]);
            }
            if !self.found.is_empty() {
                return Ok(());
            }
            let before = self.position.checked_sub(1).filter(|_| self.tick > self.filter.ticks.start);
            let Some(position) = before else {
                self.over = true;
                return Ok(());
            };
            let number = sequence[position];
            let local = &layout.locals[number as usize];
            self.seen[number as usize] -= 1;
            self.position = position;
            self.tick -= u64::from(local.instructions);
            if self.wanted[number as usize] && self.tick < self.filter.ticks.end {
                self.block(number, position, self.seen[number as usize], self.tick)?;
                self.found.make_contiguous().reverse();
            }
        }
    }

    fn consider_system(&mut self, write: &SystemWrite) {
        let len = u64::from(write.len);
        if self.filter.pcs.is_some()
            || !self.filter.ticks.contains(&write.tick)
            || !self.filter.wants_addr(write.addr.0, len)
        {
            return;
        }
        self.found.push_back(Write {
            tick: write.tick,
            addr: write.addr,
            len: write.len,
            origin: Origin::System { event: write.event, moment: write.moment, task: write.task },
            place: Place::System { bytes: write.bytes },
        });
    }

    /// Finds the matching writes of the `k`-th execution of a block, in order.
    fn block(&mut self, number: u32, position: usize, k: u32, tick: u64) -> Result<(), DecodeError> {
        let granule = Arc::clone(&self.granule);
        let layout = granule.layout();
        let addresses = if layout.addresses > 0 { granule.addresses()? } else { &[] };
        let local = &layout.locals[number as usize];
        let runs: &[VariableRun] = if local.variable { runs_of(granule.runs()?, position) } else { &[] };
        let Some(shape) = granule.table().get(local.id) else { return Ok(()) };
        for (index, slot) in (local.first_slot..).zip(layout.slots_of(local)) {
            let instruction = u32::from(shape.stores[usize::from(slot.store)].instruction);
            let (pc, tick) = (shape.pc_of(instruction), tick + u64::from(instruction));
            if !self.filter.ticks.contains(&tick) || !self.filter.wants_pc(pc) {
                continue;
            }
            let origin = Origin::Store { block: local.id, store: slot.store, pc };
            let mut push = |addr: u64, len: u32, place| {
                if self.filter.wants_addr(addr, u64::from(len)) {
                    self.found.push_back(Write { tick, addr: GuestAddr(addr), len, origin, place });
                }
            };
            if slot.size > 0 {
                push(slot.address(addresses, k), u32::from(slot.size), Place::Fixed { slot: index, k });
            } else {
                for run in runs.iter().filter(|run| run.store == slot.store) {
                    push(run.addr, run.len, Place::Variable { bytes: run.bytes as u64 });
                }
            }
        }
        Ok(())
    }
}

/// The runs of the block at `position`.
fn runs_of(runs: &[VariableRun], position: usize) -> &[VariableRun] {
    let from = runs.partition_point(|run| (run.position as usize) < position);
    let to = runs.partition_point(|run| run.position as usize <= position);
    &runs[from..to]
}

impl Iterator for Writes {
    type Item = Result<Write, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            self.over = true;
            return Some(Err(error));
        }
        self.found.pop_front().map(Ok)
    }
}
