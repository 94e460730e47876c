//! From a filled granule to columns.

use guest::{Moment, SpaceId};

use crate::dictionary::{Layout, Slot, SlotAddress, SlotValue};
use crate::frames::{Call, Flow, Frames, Step, write_hints};
use crate::pages::{ByPage, PageMask};
use crate::raw::{HEADER, RawGranule};
use crate::shape::{BlockId, BlockShape, BlockTable, StoreAddress, StoreContents, StoreShape};
use crate::values::{PIECE, Plan, write_chunk};
use crate::wire::{Packer, WireError, put_signed, put_varint};
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

/// Encodes granules. Keeps its buffers from one to the next.
pub struct Encoder {
    packer: Packer,
    /// By block number: how often it runs, then its local number. All zero between granules.
    counts: Vec<u32>,
    distinct: Vec<BlockId>,
    sequence: Vec<u32>,
    addresses: Vec<u64>,
    before: Vec<u64>,
    values: Vec<u8>,
    pages: ByPage<PageMask>,
    code: ByPage<CodeUse>,
    blocks: Blocks,
}

/// What follows from the blocks that run, by local number.
#[derive(Debug, Default)]
struct Blocks {
    layout: Layout,
    records: Vec<Record>,
    ops: Vec<Op>,
    steps: Vec<Step>,
}

/// What to do for a store of a record.
#[derive(Clone, Copy, Debug)]
enum Op {
    Address { at: u16, base: u32 },
    Derived { base: u32, delta: i64 },
    Value { at: u16, size: u8, base: u64 },
}

/// A block's record: what to take from it.
#[derive(Clone, Copy, Debug)]
struct Record {
    first: u32,
    ops: u32,
    bytes: u32,
}

impl Encoder {
    /// An encoder with empty buffers.
    pub fn new() -> Result<Self, WireError> {
        Ok(Self {
            packer: Packer::new()?,
            counts: Vec::new(),
            distinct: Vec::new(),
            sequence: Vec::new(),
            addresses: Vec::new(),
            before: Vec::new(),
            values: Vec::new(),
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
            sequence: &self.sequence,
            addresses: &self.addresses,
            marks: &raw.marks,
            hints: &raw.hints,
            first_tick: raw.first_tick,
        };
        let closed = &mut encoded.closed;
        flow.follow(frames, u64::MAX, &mut |call| {
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
        self.counts.resize(table.len(), 0);
        self.distinct.clear();
        for &block in &raw.blocks {
            let unknown = EncodeError::UnknownBlock { block: BlockId(block) };
            let count = self.counts.get_mut(block as usize).ok_or(unknown)?;
            if *count == 0 {
                self.distinct.push(BlockId(block));
            }
            *count += 1;
        }
        // Blocks were numbered as they were first seen: those that run together have numbers near each other.
        self.distinct.sort_unstable();
        let mut expected = 0;
        for (local, &id) in self.distinct.iter().enumerate() {
            let shape = table.get(id).ok_or(EncodeError::UnknownBlock { block: id })?;
            let count = std::mem::replace(&mut self.counts[id.index()], local as u32);
            expected += u64::from(count) * (HEADER as u64 + u64::from(shape.record));
            self.blocks.add(id, count, shape)?;
            run_code(&mut self.code, shape, count);
        }
        if expected != raw.log.len() as u64 {
            return Err(EncodeError::Log { expected, found: raw.log.len() as u64 });
        }
        Ok(())
    }

    /// Sorts addresses and values by slot.
    fn scatter(&mut self, raw: &RawGranule) {
        let Blocks { layout, records, ops, .. } = &self.blocks;
        self.sequence.clear();
        self.sequence.extend(raw.blocks.iter().map(|&block| self.counts[block as usize]));
        self.distinct.iter().for_each(|id| self.counts[id.index()] = 0);
        self.addresses.resize(layout.addresses as usize, 0);
        self.before.resize(layout.addresses as usize, 0);
        self.values.resize(layout.value_bytes as usize, 0);
        let (addresses, befores) = (self.addresses.as_mut_slice(), self.before.as_mut_slice());
        let values = self.values.as_mut_slice();
        let mut seen = vec![0u32; records.len()];
        let mut log = raw.log.as_slice();
        let mut before = 0u64;
        for &local in &self.sequence {
            let record = records[local as usize];
            let (bytes, rest) = log.split_at(HEADER + record.bytes as usize);
            log = rest;
            if record.ops == 0 {
                continue;
            }
            let bytes = &bytes[HEADER..];
            let k = seen[local as usize];
            seen[local as usize] = k + 1;
            let first = record.first as usize;
            for op in &ops[first..first + record.ops as usize] {
                match *op {
                    Op::Address { at, base } => {
                        let slot = (base + k) as usize;
                        let addr = word(bytes, usize::from(at));
                        addresses[slot] = addr;
                        befores[slot] = before;
                        before = addr;
                    }
                    Op::Derived { base, delta } => {
                        before = addresses[(base + k) as usize].wrapping_add(delta as u64);
                    }
                    Op::Value { at, size, base } => copy(bytes, at, size, base, k, values),
                }
            }
        }
    }

    fn columns(&mut self, raw: &RawGranule, encoded: &mut Encoded) -> Result<(), EncodeError> {
        let layout = &self.blocks.layout;
        let mut codings = Vec::new();
        let mut addresses = Vec::with_capacity(self.addresses.len() * 2);
        addresses::write(layout, &self.addresses, &self.before, &mut codings, &mut addresses);
        let mut put = |number: u32, bytes: &[u8]| -> Result<(), EncodeError> {
            encoded.columns.push((number, self.packer.pack(bytes)?));
            Ok(())
        };
        put(column::HEAD, &head(raw, layout, &codings))?;
        put(column::BLOCKS, &sequence_bytes(&self.sequence, layout.locals.len()))?;
        if !addresses.is_empty() {
            put(column::ADDRESSES, &addresses)?;
        }
        let mut bytes = Vec::new();
        if !raw.variable.is_empty() {
            system::write_runs(&mut bytes, &raw.variable);
            put(column::RUNS, &bytes)?;
        }
        bytes.clear();
        raw.marks.write(&mut bytes);
        write_hints(&mut bytes, &raw.hints, &raw.marks);
        put(column::MARKS, &bytes)?;
        if !raw.system.is_empty() {
            bytes.clear();
            system::write_system(&mut bytes, &raw.system, &raw.marks);
            put(column::SYSTEM, &bytes)?;
        }
        self.pieces(raw, encoded)
    }

    fn pieces(&mut self, raw: &RawGranule, encoded: &mut Encoded) -> Result<(), EncodeError> {
        let layout = &self.blocks.layout;
        let plan = Plan::new(layout);
        let mut piece = Vec::with_capacity(PIECE);
        let mut number = 0;
        for chunk in &plan.chunks {
            if chunk.piece != number {
                encoded.columns.push((column::VALUES + number, self.packer.pack(&piece)?));
                piece.clear();
                number = chunk.piece;
            }
            let slot = &layout.slots[chunk.slot as usize];
            let SlotValue::Stream(base) = slot.value else { continue };
            let size = usize::from(slot.size);
            let start = base as usize + chunk.first as usize * size;
            write_chunk(&self.values[start..start + chunk.count as usize * size], size, &mut piece);
        }
        if plan.pieces > 0 {
            encoded.columns.push((column::VALUES + number, self.packer.pack(&piece)?));
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
        for slot in &layout.slots {
            let size = u64::from(slot.size);
            match slot.address {
                SlotAddress::Variable => {}
                SlotAddress::Fixed(addr) => self.pages.add(addr, size),
                SlotAddress::Stream { base, delta, .. } => {
                    let count = layout.locals[slot.local as usize].count;
                    for &addr in &self.addresses[base as usize..(base + count) as usize] {
                        self.pages.add(addr.wrapping_add(delta as u64), size);
                    }
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
        self.records.clear();
        self.ops.clear();
        self.steps.clear();
    }

    /// Adds a block that runs `count` times.
    fn add(&mut self, id: BlockId, count: u32, shape: &BlockShape) -> Result<(), WireError> {
        self.layout.add(id, count, shape)?;
        let slots = self.layout.locals.last().map_or(&[][..], |local| self.layout.slots_of(local));
        self.steps.push(Step::new(shape, slots));
        let first = self.ops.len();
        compile(slots, &shape.stores, &mut self.ops);
        let ops = (self.ops.len() - first) as u32;
        self.records.push(Record { first: first as u32, ops, bytes: u32::from(shape.record) });
        Ok(())
    }
}

/// Adds the lines that a block runs `count` times to those of its pages.
fn run_code(code: &mut ByPage<CodeUse>, shape: &BlockShape, count: u32) {
    code.of(shape.pc.0 >> 12).instructions += u64::from(count) * u64::from(shape.instructions());
    let last = shape.pc_of(shape.instructions().saturating_sub(1));
    if shape.seams.is_empty() && last.0 >> 12 == shape.pc.0 >> 12 {
        // No instruction is longer than a line: one begins in each line between.
        let (from, to) = (shape.pc.page_offset() >> 6, last.page_offset() >> 6);
        code.of(last.0 >> 12).lines |= (u64::MAX >> (63 - to)) & (u64::MAX << from);
    } else {
        shape.pcs().for_each(|pc| code.of(pc.0 >> 12).lines |= 1 << (pc.page_offset() >> 6));
    }
}

/// The moment of the first thing that happened: the kernel may have written before the moment of the first tick.
fn begin(raw: &RawGranule) -> Moment {
    let first = raw.marks.moment(raw.first_tick);
    raw.system.first().map_or(first, |write| write.moment.min(first))
}

/// Appends what to do for the stores of a block.
fn compile(slots: &[Slot], stores: &[StoreShape], ops: &mut Vec<Op>) {
    for (slot, store) in slots.iter().zip(stores) {
        match (slot.address, store.address) {
            (SlotAddress::Stream { base, owns: true, .. }, StoreAddress::Logged { at }) => {
                ops.push(Op::Address { at, base });
            }
            (SlotAddress::Stream { base, delta, .. }, _) => ops.push(Op::Derived { base, delta }),
            (SlotAddress::Fixed(_) | SlotAddress::Variable, _) => {}
        }
        if let (SlotValue::Stream(base), StoreContents::Logged { at }) = (slot.value, store.contents) {
            ops.push(Op::Value { at, size: slot.size, base });
        }
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[inline]
fn copy(bytes: &[u8], at: u16, size: u8, base: u64, k: u32, values: &mut [u8]) {
    fn fixed<const N: usize>(bytes: &[u8], at: usize, base: u64, k: u32, values: &mut [u8]) {
        let to = base as usize + k as usize * N;
        values[to..to + N].copy_from_slice(&bytes[at..at + N]);
    }
    let at = usize::from(at);
    match size {
        8 => fixed::<8>(bytes, at, base, k, values),
        4 => fixed::<4>(bytes, at, base, k, values),
        1 => fixed::<1>(bytes, at, base, k, values),
        2 => fixed::<2>(bytes, at, base, k, values),
        16 => fixed::<16>(bytes, at, base, k, values),
        32 => fixed::<32>(bytes, at, base, k, values),
        64 => fixed::<64>(bytes, at, base, k, values),
        size => {
            let size = usize::from(size);
            let to = base as usize + k as usize * size;
            values[to..to + size].copy_from_slice(&bytes[at..at + size]);
        }
    }
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
fn sequence_bytes(sequence: &[u32], blocks: usize) -> Vec<u8> {
    if blocks <= 1 << 16 {
        let mut out = vec![0; sequence.len() * 2];
        for (bytes, &local) in out.chunks_exact_mut(2).zip(sequence) {
            bytes.copy_from_slice(&(local as u16).to_le_bytes());
        }
        out
    } else {
        let mut out = vec![0; sequence.len() * 4];
        for (bytes, &local) in out.chunks_exact_mut(4).zip(sequence) {
            bytes.copy_from_slice(&local.to_le_bytes());
        }
        out
    }
}
