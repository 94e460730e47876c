//! A granule while it is being filled: log records as they come, and what lies between them.

use guest::{EventId, GuestAddr, Moment, SpaceId, TaskId};

use crate::frames::{Frames, Hint, HintKind};
use crate::marks::{Mark, Marks};
use crate::shape::BlockId;

/// Bytes of a log record's header.
pub(crate) const HEADER: usize = 4;

/// One run of bytes that a variable store wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariableRun {
    /// Position of the block in the granule's sequence.
    pub(crate) position: u32,
    pub(crate) store: u16,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// Where its bytes begin in [`RawGranule::bulk`].
    pub(crate) bytes: usize,
}

/// What the kernel wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemWrite {
    /// The tick at which it did, before that tick's instruction.
    pub tick: u64,
    /// First byte written.
    pub addr: GuestAddr,
    /// Number of bytes, at least 1.
    pub len: u32,
    /// In which event.
    pub event: EventId,
    /// When. (Another task may run from this very tick on, at a later moment.)
    pub moment: Moment,
    /// Who ran.
    pub task: TaskId,
    /// Where its bytes begin among all the kernel wrote in the granule.
    pub(crate) bytes: u64,
}

/// A granule while it is being filled. Reused from granule to granule, so that filling allocates nothing.
#[derive(Debug)]
pub struct RawGranule {
    pub(crate) space: SpaceId,
    pub(crate) first_tick: u64,
    pub(crate) ticks: u64,
    /// The blocks by local number. One can have several.
    pub(crate) locals: Vec<BlockId>,
    /// How often each runs, by local number.
    pub(crate) counts: Vec<u32>,
    /// Local numbers in the order they ran.
    pub(crate) sequence: Vec<u32>,
    pub(crate) log: Vec<u8>,
    pub(crate) variable: Vec<VariableRun>,
    pub(crate) bulk: Vec<u8>,
    pub(crate) system: Vec<SystemWrite>,
    pub(crate) system_bytes: Vec<u8>,
    pub(crate) marks: Marks,
    pub(crate) hints: Vec<Hint>,
}

impl RawGranule {
    /// An empty one that begins at `first_tick` of `space`.
    pub fn new(space: SpaceId, first_tick: u64) -> Self {
        Self {
            space,
            first_tick,
            ticks: 0,
            locals: Vec::new(),
            counts: Vec::new(),
            sequence: Vec::new(),
            log: Vec::new(),
            variable: Vec::new(),
            bulk: Vec::new(),
            system: Vec::new(),
            system_bytes: Vec::new(),
            marks: Marks::default(),
            hints: Vec::new(),
        }
    }

    /// Empties it, to begin at `first_tick`.
    pub fn restart(&mut self, first_tick: u64) {
        self.first_tick = first_tick;
        self.ticks = 0;
        self.locals.clear();
        self.counts.clear();
        self.sequence.clear();
        self.log.clear();
        self.variable.clear();
        self.bulk.clear();
        self.system.clear();
        self.system_bytes.clear();
        self.marks.clear();
        self.hints.clear();
    }

    /// The tick of the next instruction.
    pub const fn tick(&self) -> u64 {
        self.first_tick + self.ticks
    }

    /// Instructions so far.
    pub const fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Whether nothing happened in it.
    pub fn is_empty(&self) -> bool {
        self.sequence.is_empty() && self.system.is_empty()
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.log.len() + self.bulk.len() + self.system_bytes.len() + self.sequence.len() * 4
    }

    /// From now on `task` runs, at `moment`.
    pub fn mark(&mut self, moment: Moment, task: TaskId) {
        let tick = self.tick();
        self.marks.push(Mark { tick, moment, task });
    }

    /// A number for `block`, good until the granule is emptied. Who runs a block often keeps it for [`RawGranule::run`].
    pub fn local(&mut self, block: BlockId) -> u32 {
        self.locals.push(block);
        self.counts.push(0);
        self.locals.len() as u32 - 1
    }

    /// The block that [`RawGranule::local`] numbered so ran its `instructions` instructions. Its record follows with
    /// [`RawGranule::log`], in the order of blocks.
    #[inline]
    pub fn run(&mut self, local: u32, instructions: u32) {
        self.counts[local as usize] += 1;
        self.sequence.push(local);
        self.ticks += u64::from(instructions);
    }

    /// The same of a block that has no number.
    pub fn block(&mut self, block: BlockId, instructions: u32) {
        let local = self.local(block);
        self.run(local, instructions);
    }

    /// Records of blocks, one after the other: four bytes of header, then as many as the block's shape says.
    #[inline]
    pub fn log(&mut self, records: &[u8]) {
        self.log.extend_from_slice(records);
    }

    /// An empty record, for a block that has no store.
    pub fn log_empty(&mut self) {
        self.log.extend_from_slice(&[0; HEADER]);
    }

    /// The variable store `store` of the last block wrote `bytes` at `addr`. Runs come in the order of stores; one
    /// without bytes is none.
    pub fn variable(&mut self, store: u16, addr: GuestAddr, bytes: &[u8]) {
        if bytes.is_empty() || self.sequence.is_empty() {
            return;
        }
        let position = self.sequence.len() as u32 - 1;
        let at = self.bulk.len();
        self.bulk.extend_from_slice(bytes);
        self.variable.push(VariableRun { position, store, addr: addr.0, len: bytes.len() as u32, bytes: at });
    }

    /// The kernel wrote `bytes` at `addr` in `event`.
    pub fn system(&mut self, event: EventId, addr: GuestAddr, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let tick = self.tick();
        let write = SystemWrite {
            tick,
            addr,
            len: bytes.len() as u32,
            event,
            moment: self.marks.moment(tick),
            task: self.marks.at(tick).task,
            bytes: self.system_bytes.len() as u64,
        };
        self.system.push(write);
        self.system_bytes.extend_from_slice(bytes);
    }

    /// What happened, now, to the running task's call stack other than by calls and returns.
    pub fn hint(&mut self, kind: HintKind) {
        let tick = self.tick();
        let (moment, task) = (self.marks.moment(tick), self.marks.at(tick).task);
        self.hints.push(Hint { tick, moment, task, kind });
    }

    /// What tasks are in the middle of where it begins, by what the last one left in `frames`.
    pub fn go_on(&mut self, frames: &Frames) {
        let (tick, moment) = (self.first_tick, self.marks.moment(self.first_tick));
        let hint = |(task, unfinished)| Hint { tick, moment, task, kind: HintKind::GoOn(unfinished) };
        self.hints.extend(frames.unfinished().map(hint));
    }
}
