//! From a space's log to granules.

use std::rc::Rc;
use std::sync::{PoisonError, RwLock};

use engine::Block;
use granule::{
    BlockEnd, BlockId, BlockInterner, BlockShape, Encoded, Encoder, Frames, RawGranule, StoreSize,
};
use guest::{EventId, GuestAddr, Moment, SpaceId, TaskId};
use translate::log::{BadLog, BlockLog, HEADER_BYTES, PARTIAL_PATH, Sink, walk};

use crate::error::FeedError;
use crate::shapes;

/// Instructions of a granule.
const TICKS: u64 = 2_000_000;
/// Most bytes that one takes before it is encoded.
const BYTES: usize = 24 << 20;

/// The dictionary that all workers fill.
pub(crate) type Dictionary = RwLock<BlockInterner>;

/// The number of a shape, given now if it is new.
fn intern(dictionary: &Dictionary, shape: &BlockShape) -> BlockId {
    dictionary.write().unwrap_or_else(PoisonError::into_inner).intern(shape)
}

/// What a log record of one path of a block means.
#[derive(Clone, Copy)]
struct Entry {
    block: BlockId,
    instructions: u32,
    /// Bytes behind the header, bulk contents aside.
    bytes: u32,
    kind: Kind,
    /// Whether the granule must not end behind it: what it leads to shows in the next block.
    joined: bool,
    /// Whether it has variable stores.
    variable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not looked at yet.
    New,
    /// Has no instruction.
    Empty,
    /// Says all by its record.
    Plain,
    /// Has variable stores, or ends before an instruction that translated code does not run.
    Rare,
}

const NEW: Entry =
    Entry { block: BlockId(0), instructions: 0, bytes: 0, kind: Kind::New, joined: false, variable: false };

/// The granule of a space that is being filled.
pub(crate) struct Feed {
    space: SpaceId,
    raw: RawGranule,
    frames: Frames,
    /// By the engine's block id: the first of its entries.
    first: Vec<u32>,
    entries: Vec<Entry>,
    blocks: Vec<Rc<Block>>,
    logs: Vec<BlockLog>,
    /// Where the last block stopped before an instruction that is not its own.
    stopped_at: Option<GuestAddr>,
    /// Whether the granule may end here.
    joined: bool,
    /// The moment of the next instruction, and whose.
    moment: Moment,
    task: TaskId,
    /// Until when nothing is taken in, since an earlier build did; the granule that waits meanwhile.
    skipping: Option<(Moment, RawGranule)>,
}

/// What a feed needs of its surroundings.
pub(crate) struct Tools<'a> {
    pub(crate) dictionary: &'a Dictionary,
    pub(crate) encoder: &'a mut Encoder,
    pub(crate) granules: &'a mut Vec<Encoded>,
}

impl Feed {
    /// Begins at `first_tick` of a space, with the call stacks in `frames`.
    pub(crate) fn new(space: SpaceId, first_tick: u64, frames: Frames) -> Self {
        let mut raw = RawGranule::new(space, first_tick);
        raw.go_on(&frames);
        Self {
            space,
            raw,
            frames,
            first: Vec::new(),
            entries: Vec::new(),
            blocks: Vec::new(),
            logs: Vec::new(),
            stopped_at: None,
            joined: false,
            moment: Moment(0),
            task: TaskId(0),
            skipping: None,
        }
    }

    /// Lets pass what runs before `moment`.
    pub(crate) fn skip_to(&mut self, moment: Moment) {
        let waiting = std::mem::replace(&mut self.raw, RawGranule::new(self.space, 0));
        self.skipping = Some((moment, waiting));
    }

    /// Ends the skipping if it is over.
    fn skipped(&mut self) {
        if let Some((_, waiting)) = self.skipping.take_if(|(until, _)| self.moment >= *until) {
            self.raw = waiting;
            self.raw.mark(self.moment, self.task);
        }
    }

    /// The call stacks at the end of the last granule.
    pub(crate) const fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The granule being filled.
    pub(crate) const fn raw(&mut self) -> &mut RawGranule {
        &mut self.raw
    }

    /// From now on `task` runs, at `moment`.
    pub(crate) fn mark(&mut self, moment: Moment, task: TaskId) {
        (self.moment, self.task) = (moment, task);
        self.raw.mark(moment, task);
    }

    /// Takes in what `task` ran from `start` to `end`, on the way to `event`. [`Feed::learn`] comes first.
    pub(crate) fn take(
        &mut self,
        log: &[u8],
        (start, end, event): (Moment, Moment, EventId),
        task: TaskId,
        tools: &mut Tools<'_>,
    ) -> Result<(), FeedError> {
        self.mark(start, task);
        let space = self.space;
        let broken = |source| FeedError::Log { space, source };
        // What lies between `copied` and `at` is records that go into the granule as they are.
        let (mut at, mut copied) = (0, 0);
        while at < log.len() {
            let header = word(log, at).ok_or(broken(BadLog::Truncated { at }))?;
            let (id, path) = (header >> 4, header & 15);
            let fast = self.entry(id, path);
            let entry = match fast {
                Some(entry) if entry.kind != Kind::New => entry,
                _ if path == PARTIAL_PATH => {
                    self.raw.log(&log[copied..at]);
                    at += self.partial(&log[at..], id, event, tools)?;
                    copied = at;
                    continue;
                }
                _ => self.resolve((id, path), at, tools.dictionary)?,
            };
            if self.stopped_at.is_some() || entry.kind != Kind::Plain {
                self.raw.log(&log[copied..at]);
                at += self.rare(&log[at..], id, entry, tools)?;
                copied = at;
            } else {
                at += (HEADER_BYTES + entry.bytes) as usize;
                self.raw.block(entry.block, entry.instructions);
                self.moment.0 += u64::from(entry.instructions);
                self.joined = entry.joined;
            }
            if self.skipping.is_some() {
                self.raw.log(log.get(copied..at).ok_or(broken(BadLog::Truncated { at: copied }))?);
                copied = at;
                self.skipped();
            } else if !self.joined && (self.raw.ticks() >= TICKS || self.raw.bytes() + (at - copied) >= BYTES)
            {
                self.raw.log(log.get(copied..at).ok_or(broken(BadLog::Truncated { at: copied }))?);
                copied = at;
                self.seal(tools)?;
            }
        }
        self.raw.log(log.get(copied..at).ok_or(broken(BadLog::Truncated { at: copied }))?);
        self.catch_up(end, tools)
    }

    /// What was counted but not logged is an instruction that the supervisor answered at the end of the log.
    fn catch_up(&mut self, end: Moment, tools: &Tools<'_>) -> Result<(), FeedError> {
        if let Some(pc) = self.stopped_at.filter(|_| self.moment.0 + 1 == end.0) {
            self.system(pc, 2, tools.dictionary);
        }
        if self.moment != end {
            let logged = self.moment.0;
            return Err(FeedError::Count { space: self.space, logged, counted: end.0 });
        }
        Ok(())
    }

    /// One instruction ran that translated code did not run.
    pub(crate) fn system(&mut self, pc: GuestAddr, len: u8, dictionary: &Dictionary) {
        let block = intern(dictionary, &shapes::system(pc, len));
        self.raw.block(block, 1);
        self.raw.log_empty();
        self.moment.0 += 1;
        self.stopped_at = None;
        self.joined = false;
    }

    /// An event happens: what is executed next does not follow what was.
    pub(crate) const fn interrupt(&mut self) {
        self.stopped_at = None;
    }

    /// Encodes what there is; the next granule begins.
    pub(crate) fn seal(&mut self, tools: &mut Tools<'_>) -> Result<(), FeedError> {
        if self.raw.is_empty() {
            return Ok(());
        }
        let dictionary = tools.dictionary.read().unwrap_or_else(PoisonError::into_inner);
        let encoded = tools.encoder.encode(&self.raw, dictionary.table(), &mut self.frames);
        tools.granules.push(encoded.map_err(|source| FeedError::Encode { space: self.space, source })?);
        let tick = self.raw.tick();
        self.raw.restart(tick);
        self.raw.mark(self.moment, self.task);
        self.raw.go_on(&self.frames);
        Ok(())
    }

    /// Whether a granule may end here.
    pub(crate) const fn may_end(&self) -> bool {
        !self.joined
    }

    /// Takes in the blocks that were translated since.
    pub(crate) fn learn(&mut self, blocks: &[Rc<Block>]) {
        for block in &blocks[self.first.len().min(blocks.len())..] {
            self.first.push(self.entries.len() as u32);
            self.entries.resize(self.entries.len() + block.translated.paths.len(), NEW);
            self.logs.push(BlockLog::from(&block.translated));
            self.blocks.push(Rc::clone(block));
        }
    }

    #[inline]
    fn entry(&self, id: u32, path: u32) -> Option<Entry> {
        if path == PARTIAL_PATH {
            return None;
        }
        self.entries.get((*self.first.get(id as usize)? + path) as usize).copied()
    }

    #[cold]
    fn resolve(
        &mut self,
        (id, path): (u32, u32),
        at: usize,
        dictionary: &Dictionary,
    ) -> Result<Entry, FeedError> {
        let space = self.space;
        let unknown = |source| FeedError::Log { space, source };
        let block = self.blocks.get(id as usize).ok_or(unknown(BadLog::UnknownBlock { at, id }))?;
        let facts = block.translated.paths.get(path as usize);
        let facts = facts.ok_or(unknown(BadLog::UnknownPath { at, id, path }))?;
        let mut entry = Entry { bytes: facts.log_bytes, kind: Kind::Empty, ..NEW };
        if let Some(shape) = shapes::of_path(block, path as usize) {
            entry.block = intern(dictionary, &shape);
            entry.instructions = shape.instructions();
            let stops = matches!(facts.end, translate::Terminator::Stop { .. });
            entry.variable = shape.stores.iter().any(|store| store.size == StoreSize::Variable);
            entry.joined = matches!(shape.end, BlockEnd::Call | BlockEnd::Return | BlockEnd::IndirectJump);
            entry.kind = if entry.variable || stops { Kind::Rare } else { Kind::Plain };
        }
        let first = self.first[id as usize];
        self.entries[(first + path) as usize] = entry;
        Ok(entry)
    }

    /// A record that needs more than being copied. Returns its length.
    fn rare(&mut self, record: &[u8], id: u32, entry: Entry, tools: &Tools<'_>) -> Result<usize, FeedError> {
        let space = self.space;
        let truncated = || FeedError::Log { space, source: BadLog::Truncated { at: 0 } };
        let fixed = (HEADER_BYTES + entry.bytes) as usize;
        let mut len = fixed;
        let block = Rc::clone(self.blocks.get(id as usize).ok_or_else(truncated)?);
        let slots = &block.translated.slots;
        if slots.first().is_some_and(translate::Slot::is_bulk) && entry.bytes >= 20 {
            len += (word(record, HEADER_BYTES as usize + 16).ok_or_else(truncated)? as usize)
                .next_multiple_of(4);
        }
        let record = record.get(..len).ok_or_else(truncated)?;
        if entry.kind == Kind::Empty {
            return Ok(len);
        }
        let pc = block.translated.pc;
        if let Some(stopped) = self.stopped_at.take().filter(|&stopped| stopped != pc) {
            let gap = pc.0.wrapping_sub(stopped.0);
            self.system(stopped, gap.clamp(1, 15) as u8, tools.dictionary);
        }
        self.raw.block(entry.block, entry.instructions);
        self.moment.0 += u64::from(entry.instructions);
        self.joined = entry.joined;
        self.raw.log(&record[..fixed]);
        if entry.variable {
            self.variable(record, &block)?;
        }
        let path = block.translated.paths.get((word(record, 0).unwrap_or(0) & 15) as usize);
        if let Some(translate::Terminator::Stop { at }) = path.map(|path| path.end) {
            self.stopped_at = Some(at);
        }
        Ok(len)
    }

    /// The runs of the variable stores of a record.
    fn variable(&mut self, record: &[u8], block: &Block) -> Result<(), FeedError> {
        let slots = &block.translated.slots;
        let mut runs = VariableRuns { raw: &mut self.raw, slots };
        walk(record, &self.logs, &mut runs).map_err(|source| FeedError::Log { space: self.space, source })
    }

    /// The record of a block that a fault ended. Returns its length.
    fn partial(
        &mut self,
        record: &[u8],
        id: u32,
        event: EventId,
        tools: &Tools<'_>,
    ) -> Result<usize, FeedError> {
        let space = self.space;
        let broken = |source| FeedError::Log { space, source };
        let truncated = || broken(BadLog::Truncated { at: 0 });
        let instructions = word(record, 4).ok_or_else(truncated)?;
        let block = self.blocks.get(id as usize).ok_or(broken(BadLog::UnknownBlock { at: 0, id }))?;
        let block = Rc::clone(block);
        let (shape, bytes) = shapes::of_part(&block, &self.logs[id as usize], instructions);
        let mut len = 8 + bytes as usize;
        let bulk = block.translated.slots.first().is_some_and(translate::Slot::is_bulk);
        if bulk && bytes >= 20 {
            len += (word(record, 8 + 16).ok_or_else(truncated)? as usize).next_multiple_of(4);
        }
        let record = record.get(..len).ok_or_else(truncated)?;
        let pc = block.translated.pc;
        if let Some(stopped) = self.stopped_at.take().filter(|&stopped| stopped != pc) {
            let gap = pc.0.wrapping_sub(stopped.0);
            self.system(stopped, gap.clamp(1, 15) as u8, tools.dictionary);
        }
        self.joined = false;
        match shape {
            Some(shape) => {
                self.raw.block(intern(tools.dictionary, &shape), shape.instructions());
                self.moment.0 += u64::from(shape.instructions());
                self.raw.log(&record[4..8 + bytes as usize]);
                self.variable(record, &block)?;
            }
            // A string store that a fault interrupted stored without retiring: the fault's event is who wrote.
            None => {
                let mut runs = Interrupted { raw: &mut self.raw, event };
                walk(record, &self.logs, &mut runs).map_err(broken)?;
            }
        }
        Ok(len)
    }
}

/// Hands the runs of variable stores to a granule.
struct VariableRuns<'a> {
    raw: &'a mut RawGranule,
    slots: &'a [translate::Slot],
}

impl Sink for VariableRuns<'_> {
    fn block(&mut self, _id: translate::BlockId, _path: u32, _instructions: u32) {}

    fn store(&mut self, slot: u32, addr: GuestAddr, bytes: &[u8]) {
        if self.slots.get(slot as usize).is_some_and(|facts| shapes::is_variable(self.slots, facts)) {
            self.raw.variable(slot as u16, addr, bytes);
        }
    }
}

/// Hands the stores of an interrupted instruction to a granule.
struct Interrupted<'a> {
    raw: &'a mut RawGranule,
    event: EventId,
}

impl Sink for Interrupted<'_> {
    fn block(&mut self, _id: translate::BlockId, _path: u32, _instructions: u32) {}

    fn store(&mut self, _slot: u32, addr: GuestAddr, bytes: &[u8]) {
        self.raw.system(self.event, addr, bytes);
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
