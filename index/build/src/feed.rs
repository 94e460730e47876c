//! From a space's log to granules.

use std::rc::Rc;
use std::sync::{PoisonError, RwLock};

use engine::Block;
use granule::{BlockId, BlockInterner, BlockShape, Encoded, Encoder, Frames, RawGranule, StoreSize};
use guest::{EventId, GuestAddr, Moment, SpaceId, TaskId};
use translate::log::{BadLog, BlockLog, HEADER_BYTES, Header, PARTIAL_PATH, Sink, walk};

use crate::error::FeedError;
use crate::shapes;

/// Instructions of a granule. Each block that it runs is looked at once however often it runs; a question decodes all of it.
const TICKS: u64 = 6_000_000;
/// Most bytes that one takes before it is encoded.
const BYTES: usize = 32 << 20;

/// The dictionary that all workers fill.
pub(crate) type Dictionary = RwLock<BlockInterner>;

/// The number of a shape, given now if it is new.
fn intern(dictionary: &Dictionary, shape: &BlockShape) -> BlockId {
    dictionary.write().unwrap_or_else(PoisonError::into_inner).intern(shape)
}

/// What a log record of one path of a block means. Small: a program runs thousands of paths in turn.
#[derive(Clone, Copy)]
struct Entry {
    /// The block's number in the granule that `granule` tells.
    local: u32,
    /// In which granule `local` holds. 0 for none.
    granule: u32,
    shape: BlockId,
    instructions: u16,
    /// Four-byte words behind the header, of plain ones.
    words: u8,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not looked at yet.
    New,
    /// Has no instruction.
    Empty,
    /// Says all by its record.
    Plain,
    /// The same, and what it leads to shows in the next block: the granule must not end behind it.
    Joined,
    /// Is too long to be plain.
    Long,
    /// Ends before an instruction that translated code does not run.
    Stops,
    /// Has variable stores.
    Variable,
}

const NEW: Entry =
    Entry { local: 0, granule: 0, shape: BlockId(0), instructions: 0, words: 0, kind: Kind::New };

impl Entry {
    const fn says_all(self) -> bool {
        matches!(self.kind, Kind::Plain | Kind::Joined)
    }
}

/// The next records. Their entries lie all over memory: they are fetched side by side, not when the one before is done with.
struct Ahead {
    count: usize,
    places: [u32; Self::MOST],
    entries: [Entry; Self::MOST],
}

impl Ahead {
    const MOST: usize = 32;

    const fn new() -> Self {
        Self { count: 0, places: [0; Self::MOST], entries: [NEW; Self::MOST] }
    }

    /// Fetches the entries of records from `at` on, as far as it is known where they are.
    #[inline]
    fn look(&mut self, log: &[u8], mut at: usize, first: &[u32], entries: &[Entry]) {
        self.count = 0;
        for place in &mut self.places {
            let Some(header) = word(log, at).map(Header).filter(|header| header.path() != PARTIAL_PATH)
            else {
                break;
            };
            let Some(&first) = first.get(header.id() as usize) else { break };
            *place = first + header.path();
            self.count += 1;
            let Some(len) = header.record_bytes() else { break };
            at += len;
        }
        for (entry, &place) in self.entries.iter_mut().zip(&self.places[..self.count]) {
            *entry = entries.get(place as usize).copied().unwrap_or(NEW);
        }
    }
}

/// The granule of a space that is being filled.
pub(crate) struct Feed {
    space: SpaceId,
    raw: RawGranule,
    frames: Frames,
    /// By the engine's block id: the first of its entries.
    first: Vec<u32>,
    entries: Vec<Entry>,
    /// The number of the granule that is being filled: `local`s of others mean nothing.
    granule: u32,
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
            granule: 1,
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
        self.granule += 1;
        self.skipping = Some((moment, waiting));
    }

    /// Ends the skipping if it is over.
    fn skipped(&mut self) {
        if let Some((_, waiting)) = self.skipping.take_if(|(until, _)| self.moment >= *until) {
            self.raw = waiting;
            self.granule += 1;
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
        loop {
            at = self.plain(log, at, copied);
            if self.skipping.is_none() && self.is_full(at - copied) {
                self.raw.log(log.get(copied..at).ok_or(broken(BadLog::Truncated { at: copied }))?);
                copied = at;
                self.seal(tools)?;
            } else if at >= log.len() {
                break;
            } else {
                self.raw.log(&log[copied..at]);
                at += self.single(&log[at..], at, event, tools)?;
                copied = at;
                self.skipped();
            }
        }
        self.raw.log(log.get(copied..at).ok_or(broken(BadLog::Truncated { at: copied }))?);
        self.catch_up(end, tools)
    }

    /// Takes in records from `at` on that say all by themselves, until the granule may end. They are copied later, from `copied` on.
    /// Returns where the next one begins.
    fn plain(&mut self, log: &[u8], mut at: usize, copied: usize) -> usize {
        if self.stopped_at.is_some() || self.skipping.is_some() {
            return at;
        }
        let most = TICKS.saturating_sub(self.raw.ticks());
        let end = log.len().min((copied + BYTES).saturating_sub(self.raw.bytes()));
        let mut ticks = 0;
        let mut ahead = Ahead::new();
        'all: loop {
            ahead.look(log, at, &self.first, &self.entries);
            if ahead.count == 0 {
                break;
            }
            for (&index, &(mut entry)) in ahead.places[..ahead.count].iter().zip(&ahead.entries) {
                let wanted = self.joined || (ticks < most && at < end);
                if !wanted || !entry.says_all() {
                    break 'all;
                }
                if entry.granule != self.granule {
                    entry.local = self.number(index as usize);
                }
                at += HEADER_BYTES as usize + 4 * usize::from(entry.words);
                self.raw.run(entry.local, u32::from(entry.instructions));
                ticks += u64::from(entry.instructions);
                self.joined = entry.kind == Kind::Joined;
            }
        }
        self.moment.0 += ticks;
        at
    }

    /// Whether the granule ends here, `bytes` of the log being yet to be copied.
    fn is_full(&self, bytes: usize) -> bool {
        !self.joined && (self.raw.ticks() >= TICKS || self.raw.bytes() + bytes >= BYTES)
    }

    /// Takes in the record at the front of `log`, which lies at `at`, whatever it is. Returns its length.
    fn single(
        &mut self,
        log: &[u8],
        at: usize,
        event: EventId,
        tools: &mut Tools<'_>,
    ) -> Result<usize, FeedError> {
        let truncated = FeedError::Log { space: self.space, source: BadLog::Truncated { at } };
        let header = Header(word(log, 0).ok_or(truncated)?);
        if header.path() == PARTIAL_PATH {
            return self.partial(log, header.id(), event, tools);
        }
        let known = self.index(header).and_then(|index| self.entries.get(index));
        if known.is_none_or(|entry| entry.kind == Kind::New) {
            self.resolve(header, at, tools.dictionary)?;
        }
        self.whole(log, header, tools)
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
        self.granule += 1;
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

    /// Where the entry of a path lies.
    #[inline]
    fn index(&self, header: Header) -> Option<usize> {
        Some((*self.first.get(header.id() as usize)? + header.path()) as usize)
    }

    /// Finds out what the records of a path mean.
    fn resolve(&mut self, header: Header, at: usize, dictionary: &Dictionary) -> Result<(), FeedError> {
        let (id, path) = (header.id(), header.path());
        let space = self.space;
        let unknown = |source| FeedError::Log { space, source };
        let block = self.blocks.get(id as usize).ok_or(unknown(BadLog::UnknownBlock { at, id }))?;
        let facts = block.translated.paths.get(path as usize);
        let facts = facts.ok_or(unknown(BadLog::UnknownPath { at, id, path }))?;
        let index = self.first[id as usize] as usize + path as usize;
        let mut entry = Entry { kind: Kind::Empty, ..NEW };
        if let Some(shape) = shapes::of_path(block, path as usize) {
            entry.shape = intern(dictionary, &shape);
            entry.instructions = shape.instructions() as u16;
            let words = u8::try_from(facts.log_bytes / 4).ok();
            entry.words = words.unwrap_or(0);
            let variable = shape.stores.iter().any(|store| store.size == StoreSize::Variable);
            entry.kind = match facts.end {
                _ if variable => Kind::Variable,
                translate::Terminator::Stop { .. } => Kind::Stops,
                _ if words.is_none() => Kind::Long,
                _ if shape.end.leads_on() => Kind::Joined,
                _ => Kind::Plain,
            };
        }
        self.entries[index] = entry;
        Ok(())
    }

    /// A record of a block that was run as a whole. Returns its length.
    fn whole(&mut self, record: &[u8], header: Header, tools: &Tools<'_>) -> Result<usize, FeedError> {
        let space = self.space;
        let truncated = || FeedError::Log { space, source: BadLog::Truncated { at: 0 } };
        let index = self.index(header).ok_or_else(truncated)?;
        let entry = *self.entries.get(index).ok_or_else(truncated)?;
        let block = Rc::clone(self.blocks.get(header.id() as usize).ok_or_else(truncated)?);
        let path = *block.translated.paths.get(header.path() as usize).ok_or_else(truncated)?;
        let fixed = (HEADER_BYTES + path.log_bytes) as usize;
        let mut len = fixed;
        let slots = &block.translated.slots;
        if slots.first().is_some_and(translate::Slot::is_bulk) && path.log_bytes >= 20 {
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
        let local = self.number(index);
        self.raw.run(local, u32::from(entry.instructions));
        self.moment.0 += u64::from(entry.instructions);
        self.joined = shapes::end_of(path.end).leads_on();
        self.raw.log(&record[..fixed]);
        if entry.kind == Kind::Variable {
            self.variable(record, slots)?;
        }
        if let translate::Terminator::Stop { at } = path.end {
            self.stopped_at = Some(at);
        }
        Ok(len)
    }

    /// The number of an entry's block in the granule.
    fn number(&mut self, index: usize) -> u32 {
        let entry = &mut self.entries[index];
        if entry.granule != self.granule {
            (entry.local, entry.granule) = (self.raw.local(entry.shape), self.granule);
        }
        entry.local
    }

    /// The runs of the variable stores of a record.
    fn variable(&mut self, record: &[u8], slots: &[translate::Slot]) -> Result<(), FeedError> {
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
        let log = &self.logs[id as usize];
        let (shape, bytes) = shapes::of_part(&block, log, instructions);
        let slots = &block.translated.slots;
        let retired = slots.partition_point(|slot| slot.instruction < instructions);
        let mut len = 8 + log.begun(instructions).1 as usize;
        let bulk = slots.first().is_some_and(translate::Slot::is_bulk);
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
        if let Some(shape) = shape {
            self.raw.block(intern(tools.dictionary, &shape), shape.instructions());
            self.moment.0 += u64::from(shape.instructions());
            self.raw.log(&record[4..8 + bytes as usize]);
            self.variable(record, &slots[..retired])?;
        }
        // A string store or a scatter that a fault interrupted stored without retiring: the fault's event is who wrote.
        let mut runs = Interrupted { raw: &mut self.raw, event, from: retired as u32 };
        walk(record, &self.logs, &mut runs).map_err(broken)?;
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
    /// The first slot of that instruction.
    from: u32,
}

impl Sink for Interrupted<'_> {
    fn block(&mut self, _id: translate::BlockId, _path: u32, _instructions: u32) {}

    fn store(&mut self, slot: u32, addr: GuestAddr, bytes: &[u8]) {
        if slot >= self.from {
            self.raw.system(self.event, addr, bytes);
        }
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
