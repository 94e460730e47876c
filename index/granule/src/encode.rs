//! From a filled granule to columns.

use guest::{Moment, SpaceId};

use crate::addresses::Address;
use crate::dictionary::{Layout, SlotAddress};
use crate::digest::{Digest, Digests};
use crate::frames::{Call, Flow, Frames, Pauses, Step, Turn, write_hints};
use crate::pages::{ByPage, PageMask};
use crate::raw::{HEADER, RawGranule};
use crate::scatter::Recipes;
use crate::shape::{BlockId, BlockShape, BlockTable, StoreShape};
use crate::values::{PIECE, Plan, write_chunk};
use crate::wire::{EFFORT, Packer, WireError, put_signed, put_varint};
use crate::{addresses, system};

/// The columns before the value pieces.
pub(crate) mod column {
    pub(crate) const HEAD: u32 = 0;
    pub(crate) const BLOCKS: u32 = 1;
    pub(crate) const ADDRESSES: u32 = 2;
    pub(crate) const RUNS: u32 = 3;
    pub(crate) const MARKS: u32 = 4;
    pub(crate) const SYSTEM: u32 = 5;
    pub(crate) const VALUES: u32 = 6;
}

/// Why a granule could not be encoded: all are mistakes of whoever filled it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// A block is not in the table.
    #[error("block {} is not in the table", block.0)]
    UnknownBlock {
        /// The block.
        block: BlockId,
    },
    /// The log does not hold exactly the records of the blocks.
    #[error("{found} bytes of log for blocks that have {expected}")]
    Log {
        /// Bytes that the blocks' records have.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// No mark lies at its beginning.
    #[error("the granule at tick {tick} does not begin with a mark")]
    Unmarked {
        /// Its first tick.
        tick: u64,
    },
    /// The layout or the compression failed.
    #[error("granule data")]
    Wire(#[from] WireError),
}

/// Which lines of a page of code a granule runs, and how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CodeUse {
    /// A bit for each 64-byte line of the page in which an executed instruction begins.
    pub lines: u64,
    /// Instructions retired in blocks that begin in the page.
    pub instructions: u64,
}

/// A granule, encoded.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// Whose.
    pub space: u32,
    /// Its first tick.
    pub first_tick: u64,
    /// Instructions in it.
    pub ticks: u64,
    /// The moment of the first thing that happened in it.
    pub first: Moment,
    /// The moment of its end: nothing in it happened later.
    pub last: Moment,
    /// Number of writes.
    pub writes: u64,
    /// Its columns, by number.
    pub columns: Vec<(u32, Vec<u8>)>,
    /// The pages it writes (address / 4096), ascending.
    pub pages: Vec<(u64, PageMask)>,
    /// The pages of code (pc / 4096) it runs, ascending.
    pub code: Vec<(u64, CodeUse)>,
    /// Functions that were entered in it and are in progress at its end.
    pub opened: Vec<Call>,
    /// Functions that were in progress at its beginning and were left in it.
    pub closed: Vec<Call>,
}

impl Encoded {
    /// Whose it is.
    pub const fn space(&self) -> SpaceId {
        SpaceId(self.space)
    }

    /// Bytes of all columns.
    pub fn bytes(&self) -> u64 {
        self.columns.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

/// Encodes granules of one block table, which may grow. Keeps its buffers from one to the next.
pub struct Encoder {
    packer: Packer,
    /// By block number: how often it runs, then its local number. All zero between granules.
    counts: Vec<u32>,
    distinct: Vec<BlockId>,
    /// The granule's local numbers to those of the columns, which are in the order of block numbers.
    numbers: Vec<Number>,
    sequence: Vec<u32>,
    /// What may mean something to call stacks: local number, tick.
    turns: Vec<(u32, u64)>,
    /// Where each call pushed its return address, if it is not the same every time.
    pushed: Vec<u64>,
    digests: Digests,
    addresses: Vec<Address>,
    values: Vec<u8>,
    /// What is about to be packed.
    bytes: Vec<u8>,
    /// What a block writes at addresses that are not always the same.
    parts: Vec<Part>,
    pages: ByPage<PageMask>,
    code: ByPage<CodeUse>,
    blocks: Blocks,
}

/// A block by the granule's own local number.
#[derive(Clone, Copy, Debug)]
struct Number {
    local: u32,
    instructions: u16,
    leads_on: bool,
}

/// Bytes that each execution of a block writes: so many, from an address on that lies in the stream at `base`, plus something.
#[derive(Clone, Copy, Debug)]
struct Part {
    base: u32,
    from: u64,
    len: u64,
}

/// Adds a part, to one that it continues if there is one: registers are pushed one below the other.
fn add_part(parts: &mut Vec<Part>, part: Part) {
    for known in parts.iter_mut().filter(|known| known.base == part.base) {
        if part.from.wrapping_add(part.len) == known.from {
            (known.from, known.len) = (part.from, known.len + part.len);
            return;
        }
        if known.from.wrapping_add(known.len) == part.from {
            known.len += part.len;
            return;
        }
    }
    parts.push(part);
}

/// What follows from the blocks that run, by local number.
#[derive(Debug, Default)]
struct Blocks {
    layout: Layout,
    recipes: Recipes,
    steps: Vec<Step>,
}

impl Encoder {
    /// An encoder with empty buffers.
    pub fn new() -> Result<Self, WireError> {
        Ok(Self {
            packer: Packer::new()?,
            counts: Vec::new(),
            distinct: Vec::new(),
            numbers: Vec::new(),
            sequence: Vec::new(),
            turns: Vec::new(),
            pushed: Vec::new(),
            digests: Digests::default(),
            addresses: Vec::new(),
            values: Vec::new(),
            bytes: Vec::new(),
            parts: Vec::new(),
            pages: ByPage::default(),
            code: ByPage::default(),
            blocks: Blocks::default(),
        })
    }

    /// Encodes `raw`. `frames` are the call stacks at its beginning, and afterwards at its end.
    pub fn encode(
        &mut self,
        raw: &RawGranule,
        table: &BlockTable,
        frames: &mut Frames,
    ) -> Result<Encoded, EncodeError> {
        if raw.marks.all().first().is_none_or(|mark| mark.tick != raw.first_tick) {
            return Err(EncodeError::Unmarked { tick: raw.first_tick });
        }
        if let Err(error) = self.number_blocks(raw, table) {
            self.counts.clear();
            return Err(error);
        }
        self.scatter(raw);
        let mut encoded = Encoded {
            space: raw.space.0,
            first_tick: raw.first_tick,
            ticks: raw.ticks,
            first: begin(raw),
            last: raw.marks.moment(raw.tick()),
            writes: self.blocks.layout.writes + (raw.variable.len() + raw.system.len()) as u64,
            ..Encoded::default()
        };
        self.columns(raw, &mut encoded)?;
        self.summarise(raw, &mut encoded);
        let flow = Flow {
            steps: &self.blocks.steps,
            marks: &raw.marks,
            hints: &raw.hints,
            first_tick: raw.first_tick,
        };
        let (turns, mut calls) = (self.turns.iter().copied(), self.pushed.iter());
        let pushed = |_, step: &Step| {
            let moving = calls.next().copied().unwrap_or(0);
            if let SlotAddress::Stream { .. } = step.push() { moving } else { step.push().of(&[], 0) }
        };
        let closed = &mut encoded.closed;
        flow.follow(turns, pushed, frames, u64::MAX, &mut |call| {
            if call.crossed {
                closed.push(call);
            }
        });
        frames.cross(|call| encoded.opened.push(call));
        Ok(encoded)
    }

    /// Counts the blocks, numbers them, looks at each, and leaves `counts` with each block's local number.
    fn number_blocks(&mut self, raw: &RawGranule, table: &BlockTable) -> Result<(), EncodeError> {
        self.blocks.clear();
        self.code.clear();
        self.digests.learn(table).map_err(|block| EncodeError::UnknownBlock { block })?;
        self.counts.resize(table.len(), 0);
        self.distinct.clear();
        for (&id, &count) in raw.locals.iter().zip(&raw.counts).filter(|(_, count)| **count > 0) {
            let total = self.counts.get_mut(id.index()).ok_or(EncodeError::UnknownBlock { block: id })?;
            if *total == 0 {
                self.distinct.push(id);
            }
            *total += count;
        }
        // Blocks were numbered as they were first seen: those that run together have numbers near each other.
        self.distinct.sort_unstable();
        let mut expected = 0;
        for (local, &id) in self.distinct.iter().enumerate() {
            let digest = self.digests.get(id).ok_or(EncodeError::UnknownBlock { block: id })?;
            let count = std::mem::replace(&mut self.counts[id.index()], local as u32);
            expected += u64::from(count) * (HEADER as u64 + u64::from(digest.record));
            self.blocks.add(id, count, digest, self.digests.stores(digest))?;
            run_code(&mut self.code, digest, count, || table.get(id));
        }
        if expected != raw.log.len() as u64 {
            return Err(EncodeError::Log { expected, found: raw.log.len() as u64 });
        }
        Ok(())
    }

    /// Sorts addresses and values by slot.
    fn scatter(&mut self, raw: &RawGranule) {
        let counts = &mut self.counts;
        let steps = &self.blocks.steps;
        self.numbers.clear();
        self.numbers.extend(raw.locals.iter().map(|id| {
            let local = counts.get(id.index()).copied().unwrap_or(0);
            let turn = steps.get(local as usize).map(Step::turn);
            let instructions = turn.map_or(0, |turn| turn.instructions as u16);
            Number { local, instructions, leads_on: turn.is_some_and(Turn::leads_on) }
        }));
        self.distinct.iter().for_each(|id| counts[id.index()] = 0);
        self.order(raw);
        self.addresses.resize(self.blocks.layout.addresses as usize, Address::default());
        let (addresses, values, pushed) = (&mut self.addresses, &mut self.values, &mut self.pushed);
        self.blocks.recipes.scatter(&self.sequence, &raw.log, addresses, values, pushed);
    }

    /// Puts local numbers in the order they ran, and those that may mean something to call stacks with their ticks.
    fn order(&mut self, raw: &RawGranule) {
        let len = raw.sequence.len();
        self.sequence.resize(len, 0);
        self.turns.resize(len, (0, 0));
        let mut pauses = Pauses::new(&raw.marks, &raw.hints);
        let (mut tick, mut pause, mut wanted, mut turns) = (raw.first_tick, raw.first_tick, true, 0);
        for (to, &from) in self.sequence.iter_mut().zip(&raw.sequence) {
            let Number { local, instructions, leads_on } = self.numbers[from as usize];
            *to = local;
            if tick >= pause {
                pause = pauses.after(tick);
                wanted = true;
            }
            self.turns[turns] = (local, tick);
            turns += usize::from(wanted | leads_on);
            wanted = leads_on;
            tick += u64::from(instructions);
        }
        self.turns.truncate(turns);
    }

    fn columns(&mut self, raw: &RawGranule, encoded: &mut Encoded) -> Result<(), EncodeError> {
        let layout = &self.blocks.layout;
        let mut codings = Vec::new();
        self.bytes.clear();
        addresses::write(layout, &self.addresses, &mut codings, &mut self.bytes);
        let addresses = self.packer.pack(&self.bytes)?;
        encoded.columns.push((column::HEAD, self.packer.pack(&head(raw, layout, &codings))?));
        let moving = !self.bytes.is_empty();
        let bytes = &mut self.bytes;
        write_sequence(&self.sequence, layout.locals.len(), bytes);
        encoded.columns.push((column::BLOCKS, self.packer.pack_at(EFFORT, bytes)?));
        if moving {
            encoded.columns.push((column::ADDRESSES, addresses));
        }
        let mut put = |number: u32, bytes: &[u8]| -> Result<(), EncodeError> {
            encoded.columns.push((number, self.packer.pack(bytes)?));
            Ok(())
        };
        bytes.clear();
        if !raw.variable.is_empty() {
            system::write_runs(bytes, &raw.variable);
            put(column::RUNS, bytes)?;
        }
        bytes.clear();
        raw.marks.write(bytes);
        write_hints(bytes, &raw.hints, &raw.marks);
        put(column::MARKS, bytes)?;
        if !raw.system.is_empty() {
            bytes.clear();
            system::write_system(bytes, &raw.system, &raw.marks);
            put(column::SYSTEM, bytes)?;
        }
        self.pieces(raw, encoded)
    }

    fn pieces(&mut self, raw: &RawGranule, encoded: &mut Encoded) -> Result<(), EncodeError> {
        let layout = &self.blocks.layout;
        let plan = Plan::new(layout);
        let piece = &mut self.bytes;
        piece.clear();
        let mut number = 0;
        let mut starts = self.blocks.recipes.value_starts().iter();
        let mut values = 0;
        for chunk in &plan.chunks {
            if chunk.first == 0 {
                values = starts.next().map_or(0, |&start| start as usize);
            }
            if chunk.piece != number {
                encoded.columns.push((column::VALUES + number, self.packer.pack(piece)?));
                piece.clear();
                number = chunk.piece;
            }
            let size = usize::from(layout.slots[chunk.slot as usize].size);
            let start = values + chunk.first as usize * size;
            write_chunk(&self.values[start..start + chunk.count as usize * size], size, piece);
        }
        if plan.pieces > 0 {
            encoded.columns.push((column::VALUES + number, self.packer.pack(piece)?));
        }
        for (index, bytes) in raw.bulk.chunks(PIECE).enumerate() {
            encoded.columns.push((column::VALUES + plan.pieces + index as u32, self.packer.pack(bytes)?));
        }
        let first = column::VALUES + plan.pieces + raw.bulk.len().div_ceil(PIECE) as u32;
        for (index, bytes) in raw.system_bytes.chunks(PIECE).enumerate() {
            encoded.columns.push((first + index as u32, self.packer.pack(bytes)?));
        }
        Ok(())
    }

    /// The pages written and the code run.
    fn summarise(&mut self, raw: &RawGranule, encoded: &mut Encoded) {
        let layout = &self.blocks.layout;
        self.pages.clear();
        for local in &layout.locals {
            self.parts.clear();
            for slot in layout.slots_of(local) {
                let len = u64::from(slot.size);
                match slot.address {
                    SlotAddress::Variable => {}
                    SlotAddress::Fixed(addr) => self.pages.add(addr, len),
                    SlotAddress::Stream { base, delta, .. } => {
                        add_part(&mut self.parts, Part { base, from: delta as u64, len });
                    }
                }
            }
            for part in &self.parts {
                for addr in &self.addresses[part.base as usize..(part.base + local.count) as usize] {
                    self.pages.add(addr.here.wrapping_add(part.from), part.len);
                }
            }
        }
        raw.variable.iter().for_each(|run| self.pages.add(run.addr, u64::from(run.len)));
        raw.system.iter().for_each(|write| self.pages.add(write.addr.0, u64::from(write.len)));
        encoded.pages = self.pages.sorted();

        encoded.code = self.code.sorted();
    }
}

impl Blocks {
    fn clear(&mut self) {
        self.layout.clear();
        self.recipes.clear();
        self.steps.clear();
    }

    /// Adds a block that runs `count` times.
    fn add(
        &mut self,
        id: BlockId,
        count: u32,
        digest: &Digest,
        stores: &[StoreShape],
    ) -> Result<(), WireError> {
        self.layout.add(id, count, digest.turn.instructions, stores)?;
        let slots = self.layout.locals.last().map_or(&[][..], |local| self.layout.slots_of(local));
        self.steps.push(Step::new(digest.turn, slots));
        self.recipes.add(slots, stores, digest, count)
    }
}

/// Adds the lines that a block runs `count` times to those of its pages.
fn run_code<'a>(
    code: &mut ByPage<CodeUse>,
    digest: &Digest,
    count: u32,
    shape: impl Fn() -> Option<&'a BlockShape>,
) {
    let used = code.of(digest.turn.pc.0 >> 12);
    used.instructions += u64::from(count) * u64::from(digest.turn.instructions);
    used.lines |= digest.lines;
    if digest.lines == 0 {
        let pcs = shape().into_iter().flat_map(BlockShape::pcs);
        pcs.for_each(|pc| code.of(pc.0 >> 12).lines |= 1 << (pc.page_offset() >> 6));
    }
}

/// The moment of the first thing that happened: the kernel may have written before the moment of the first tick.
fn begin(raw: &RawGranule) -> Moment {
    let first = raw.marks.moment(raw.first_tick);
    raw.system.first().map_or(first, |write| write.moment.min(first))
}

/// The granule's place, its blocks with their counts, how its addresses are coded, how many bulk bytes it has.
fn head(raw: &RawGranule, layout: &Layout, codings: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, raw.first_tick);
    put_varint(&mut out, raw.ticks);
    put_varint(&mut out, raw.bulk.len() as u64);
    put_varint(&mut out, raw.system_bytes.len() as u64);
    put_varint(&mut out, layout.locals.len() as u64);
    let mut last = 0i64;
    for local in &layout.locals {
        put_signed(&mut out, i64::from(local.id.0) - last);
        last = i64::from(local.id.0);
    }
    layout.locals.iter().for_each(|local| put_varint(&mut out, u64::from(local.count)));
    out.extend_from_slice(codings);
    out
}

/// Two bytes a block, or four where there are more than two can tell apart.
fn write_sequence(sequence: &[u32], blocks: usize, out: &mut Vec<u8>) {
    if blocks <= 1 << 16 {
        out.resize(sequence.len() * 2, 0);
        for (bytes, &local) in out.chunks_exact_mut(2).zip(sequence) {
            bytes.copy_from_slice(&(local as u16).to_le_bytes());
        }
    } else {
        out.resize(sequence.len() * 4, 0);
        for (bytes, &local) in out.chunks_exact_mut(4).zip(sequence) {
            bytes.copy_from_slice(&local.to_le_bytes());
        }
    }
}
