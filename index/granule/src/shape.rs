//! What a basic block is to the index, and the table that numbers blocks. Knows nothing of translated code.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use guest::{GuestAddr, GuestRange};

use crate::wire::{Packer, Reader, WireError, put_signed, put_varint, unpack};

/// A block in the index's dictionary: dense, shared by all granules of an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct BlockId(pub u32);

impl BlockId {
    /// This id as an index into a vector that has one element per block.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How many bytes a store writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreSize {
    /// Always this many, 1 to 255.
    Fixed(u8),
    /// As many as each execution says (`rep movs`, masked stores, `xsave`); possibly none.
    Variable,
}

/// Where a store's address is found. Offsets are in bytes of the block's log record, behind its header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreAddress {
    /// The same every time.
    Fixed(u64),
    /// Eight bytes of the record.
    Logged {
        /// Where.
        at: u16,
    },
    /// At a distance from the address of an earlier store of the block, which is not `Derived` itself.
    Derived {
        /// Which store.
        store: u16,
        /// Added, wrapping.
        delta: i64,
    },
}

/// Where a store's value is found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreContents {
    /// The same every time: the low bytes of this number.
    Fixed(u64),
    /// In the record.
    Logged {
        /// Where.
        at: u16,
    },
}

/// One store of a block. For a variable one, address and contents say nothing: each execution brings its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoreShape {
    /// Which instruction of the block it belongs to, from 0.
    pub instruction: u16,
    /// How much it writes.
    pub size: StoreSize,
    /// Where its address is.
    pub address: StoreAddress,
    /// Where its value is.
    pub contents: StoreContents,
}

/// How a block ends: what its last instruction is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum BlockEnd {
    /// Anything that goes on at the next instruction, or a block that was left early by a fault.
    Fall = 0,
    /// A direct jump, conditional or not.
    Jump = 1,
    /// A jump through a register or memory.
    IndirectJump = 2,
    /// A direct or indirect call. Its last store is the return address.
    Call = 3,
    /// A return.
    Return = 4,
    /// An instruction that the kernel or the supervisor carried out (`syscall`, `rdtsc`, `cpuid`), alone in its block.
    System = 5,
}

impl BlockEnd {
    /// Whether the next block shows where it led: after calls, returns and jumps through registers or memory.
    pub const fn leads_on(self) -> bool {
        matches!(self, Self::Call | Self::Return | Self::IndirectJump)
    }

    fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            0 => Self::Fall,
            1 => Self::Jump,
            2 => Self::IndirectJump,
            3 => Self::Call,
            4 => Self::Return,
            5 => Self::System,
            _ => return None,
        })
    }
}

/// Where a block goes on elsewhere than behind its last instruction: a jump that the translator followed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seam {
    /// The instruction that lies elsewhere, by number.
    pub instruction: u16,
    /// Its address.
    pub pc: GuestAddr,
}

/// A run of instructions that was executed as a whole. Its identity is all of it: a block left early, or
/// changed code at the same place, is another block.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BlockShape {
    /// Address of its first instruction.
    pub pc: GuestAddr,
    /// Length of each instruction in bytes (1 to 15); that of a jump before a seam says nothing.
    pub lens: Box<[u8]>,
    /// Where it is not straight, by instruction.
    pub seams: Box<[Seam]>,
    /// Its stores in the order they happen.
    pub stores: Box<[StoreShape]>,
    /// Bytes of a log record behind its header.
    pub record: u16,
    /// How it ends.
    pub end: BlockEnd,
}

impl StoreShape {
    /// A store whose executions bring their own addresses and lengths.
    pub const fn variable(instruction: u16) -> Self {
        Self {
            instruction,
            size: StoreSize::Variable,
            address: StoreAddress::Logged { at: 0 },
            contents: StoreContents::Logged { at: 0 },
        }
    }

    /// Whether another store's address may be derived from this one's.
    const fn is_derivable(&self) -> bool {
        matches!(self.size, StoreSize::Fixed(_)) && !matches!(self.address, StoreAddress::Derived { .. })
    }
}

impl BlockShape {
    /// Number of instructions.
    pub fn instructions(&self) -> u32 {
        self.lens.len() as u32
    }

    /// The address of each instruction, in the order they ran.
    pub fn pcs(&self) -> impl Iterator<Item = GuestAddr> + '_ {
        let mut next = self.pc;
        let mut seams = self.seams.iter().peekable();
        (0u16..).zip(&self.lens).map(move |(index, &len)| {
            let here = seams.next_if(|seam| seam.instruction == index).map_or(next, |seam| seam.pc);
            next = here.wrapping_add(u64::from(len));
            here
        })
    }

    /// Whether an instruction of it begins in `range`.
    pub fn begins_in(&self, range: GuestRange) -> bool {
        self.pcs().any(|pc| range.contains(pc))
    }

    /// The address of its `index`-th instruction; the address past the end for the number of instructions.
    pub fn pc_of(&self, index: u32) -> GuestAddr {
        let seam = self.seams.iter().rev().find(|seam| {
            u32::from(seam.instruction) <= index && u32::from(seam.instruction) < self.instructions()
        });
        let (first, pc) = seam.map_or((0, self.pc), |seam| (usize::from(seam.instruction), seam.pc));
        let before = self.lens.iter().take(index as usize).skip(first).map(|&len| u64::from(len)).sum();
        pc.wrapping_add(before)
    }

    /// The address after its last instruction: what a call at its end pushes.
    pub fn end_pc(&self) -> GuestAddr {
        self.pc_of(self.instructions())
    }
}

/// All blocks of an index by number. Numbers are given on first sight and never change.
///
/// Blocks that were read stay packed until they are asked for with [`BlockTable::load`].
#[derive(Clone, Default, Debug)]
pub struct BlockTable {
    /// In the order of numbers.
    parts: Vec<Part>,
    len: usize,
}

/// Blocks with consecutive numbers.
#[derive(Clone, Debug)]
struct Part {
    first: usize,
    /// Empty for the part that new blocks are appended to.
    packed: Vec<u8>,
    bodies: OnceLock<Bodies>,
    shapes: Vec<OnceLock<Box<BlockShape>>>,
}

/// A part that is unpacked, and where the bytes of each of its blocks begin and end.
#[derive(Clone, Debug)]
struct Bodies {
    bytes: Vec<u8>,
    places: Vec<(GuestAddr, Range<usize>)>,
}

/// A table that is being filled: gives every new shape the next number.
#[derive(Clone, Default, Debug)]
pub struct BlockInterner {
    table: BlockTable,
    known: HashMap<BlockShape, BlockId>,
}

impl BlockInterner {
    /// Goes on after the blocks of `table`.
    pub fn new(table: BlockTable) -> Result<Self, WireError> {
        table.load((0..table.len as u32).map(BlockId))?;
        let known = table.shapes().cloned().zip((0..).map(BlockId)).collect();
        Ok(Self { table, known })
    }

    /// The blocks so far.
    pub const fn table(&self) -> &BlockTable {
        &self.table
    }

    /// The number of `shape`, given now if it is new.
    pub fn intern(&mut self, shape: &BlockShape) -> BlockId {
        if let Some(&id) = self.known.get(shape) {
            return id;
        }
        let id = self.table.push(shape.clone());
        self.known.insert(shape.clone(), id);
        id
    }
}

impl BlockTable {
    /// Number of blocks.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The shape of a block, if there is one with this number and it is loaded.
    pub fn get(&self, id: BlockId) -> Option<&BlockShape> {
        let part = self.part(id)?;
        part.shapes.get(id.index() - part.first)?.get().map(|shape| &**shape)
    }

    /// Makes sure that the blocks `ids` can be had with [`BlockTable::get`]. Numbers that there are not are passed over.
    pub fn load(&self, ids: impl IntoIterator<Item = BlockId>) -> Result<(), WireError> {
        let mut known = ids.into_iter().filter_map(|id| Some((self.part(id)?, id)));
        known.try_for_each(|(part, id)| part.load(id.index() - part.first))
    }

    /// All shapes by number, where they are loaded.
    pub fn shapes(&self) -> impl Iterator<Item = &BlockShape> {
        let cells = self.parts.iter().flat_map(|part| &part.shapes);
        cells.filter_map(|cell| cell.get().map(|shape| &**shape))
    }

    fn part(&self, id: BlockId) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.first <= id.index());
        self.parts.get(after.checked_sub(1)?)
    }

    fn push(&mut self, shape: BlockShape) -> BlockId {
        let id = BlockId(self.len as u32);
        if self.parts.last().is_none_or(|part| !part.packed.is_empty()) {
            self.parts.push(Part::new(self.len, 0, Vec::new()));
        }
        if let Some(part) = self.parts.last_mut() {
            part.shapes.push(OnceLock::from(Box::new(shape)));
        }
        self.len += 1;
        id
    }

    /// The blocks from number `first` on, which must be loaded, as bytes: how many, the distance of each one's address from
    /// the one before, the length of each one's body, the bodies.
    pub fn write_from(&self, first: usize) -> Result<Vec<u8>, WireError> {
        let mut out = Vec::new();
        put_varint(&mut out, self.len.saturating_sub(first) as u64);
        let (mut lens, mut bodies) = (Vec::new(), Vec::new());
        let mut last = 0u64;
        for number in first..self.len {
            let shape =
                self.get(BlockId(number as u32)).ok_or(WireError::Invalid { what: "block number" })?;
            put_signed(&mut out, shape.pc.0.wrapping_sub(last) as i64);
            last = shape.pc.0;
            let before = bodies.len();
            write_body(&mut bodies, shape);
            put_varint(&mut lens, (bodies.len() - before) as u64);
        }
        out.extend_from_slice(&lens);
        out.extend_from_slice(&bodies);
        Packer::new()?.pack(&out)
    }

    /// Appends the `count` blocks that [`BlockTable::write_from`] wrote, which get the next numbers. They are looked at when
    /// they are loaded.
    pub fn append(&mut self, count: usize, packed: Vec<u8>) {
        if count > 0 {
            self.parts.push(Part::new(self.len, count, packed));
            self.len += count;
        }
    }
}

impl Part {
    fn new(first: usize, count: usize, packed: Vec<u8>) -> Self {
        let shapes = std::iter::repeat_with(OnceLock::new).take(count).collect();
        Self { first, packed, bodies: OnceLock::new(), shapes }
    }

    fn load(&self, index: usize) -> Result<(), WireError> {
        let Some(cell) = self.shapes.get(index).filter(|cell| cell.get().is_none()) else { return Ok(()) };
        if self.bodies.get().is_none() {
            let bodies = Bodies::read(&self.packed, self.shapes.len())?;
            self.bodies.get_or_init(|| bodies);
        }
        let Some(bodies) = self.bodies.get() else { return Ok(()) };
        let (pc, place) = bodies.places.get(index).ok_or(WireError::Short)?;
        let mut reader = Reader::new(bodies.bytes.get(place.clone()).ok_or(WireError::Short)?);
        let shape = read_body(&mut reader, *pc)?;
        reader.finish()?;
        cell.get_or_init(|| Box::new(shape));
        Ok(())
    }
}

impl Bodies {
    fn read(packed: &[u8], count: usize) -> Result<Self, WireError> {
        let bytes = unpack(packed)?;
        let mut reader = Reader::new(&bytes);
        if reader.count(3)? != count {
            return Err(WireError::Invalid { what: "number of blocks" });
        }
        let mut places = Vec::with_capacity(count);
        let mut pc = GuestAddr(0);
        for _ in 0..count {
            pc = pc.wrapping_add(reader.signed()? as u64);
            places.push((pc, 0..0));
        }
        let mut end = 0usize;
        for (_, place) in &mut places {
            let start = end;
            let len = usize::try_from(reader.varint()?).map_err(|_| WireError::Short)?;
            end = end.checked_add(len).ok_or(WireError::Short)?;
            *place = start..end;
        }
        let bodies = reader.left();
        if end != bodies {
            return Err(WireError::Invalid { what: "length of a block" });
        }
        let first = bytes.len() - bodies;
        places.iter_mut().for_each(|(_, place)| *place = place.start + first..place.end + first);
        Ok(Self { bytes, places })
    }
}

fn write_body(out: &mut Vec<u8>, shape: &BlockShape) {
    put_varint(out, (shape.lens.len() as u64) << 3 | shape.end as u64);
    out.extend_from_slice(&shape.lens);
    put_varint(out, shape.seams.len() as u64);
    for seam in &shape.seams {
        put_varint(out, u64::from(seam.instruction));
        put_signed(out, seam.pc.0.wrapping_sub(shape.pc.0) as i64);
    }
    put_varint(out, u64::from(shape.record));
    put_varint(out, shape.stores.len() as u64);
    shape.stores.iter().for_each(|store| write_store(out, store));
}

fn read_body(reader: &mut Reader<'_>, pc: GuestAddr) -> Result<BlockShape, WireError> {
    let head = reader.varint()?;
    let end = BlockEnd::from_code(head & 7).ok_or(WireError::Invalid { what: "block end" })?;
    let lens: Box<[u8]> = reader.take((head >> 3) as usize)?.into();
    if lens.is_empty() {
        return Err(WireError::Invalid { what: "block without instructions" });
    }
    let mut seams = Vec::new();
    for _ in 0..reader.count(2)? {
        let instruction = narrow(reader.varint()?)?;
        seams.push(Seam { instruction, pc: pc.wrapping_add(reader.signed()? as u64) });
    }
    let record = narrow(reader.varint()?)?;
    let mut stores = Vec::new();
    for _ in 0..reader.count(2)? {
        stores.push(read_store(reader, lens.len(), record, &stores)?);
    }
    Ok(BlockShape { pc, lens, seams: seams.into(), stores: stores.into(), record, end })
}

fn write_store(out: &mut Vec<u8>, store: &StoreShape) {
    put_varint(out, u64::from(store.instruction));
    out.push(match store.size {
        StoreSize::Fixed(size) => size,
        StoreSize::Variable => return out.push(0),
    });
    match store.address {
        StoreAddress::Logged { at } => put_varint(out, u64::from(at) << 2),
        StoreAddress::Fixed(addr) => {
            put_varint(out, 1);
            out.extend_from_slice(&addr.to_le_bytes());
        }
        StoreAddress::Derived { store, delta } => {
            put_varint(out, u64::from(store) << 2 | 2);
            put_signed(out, delta);
        }
    }
    match store.contents {
        StoreContents::Logged { at } => put_varint(out, u64::from(at) << 1),
        StoreContents::Fixed(value) => {
            put_varint(out, 1);
            put_varint(out, value);
        }
    }
}

fn read_store(
    reader: &mut Reader<'_>,
    instructions: usize,
    record: u16,
    earlier: &[StoreShape],
) -> Result<StoreShape, WireError> {
    const INVALID: WireError = WireError::Invalid { what: "store of a block" };
    let instruction = narrow(reader.varint()?)?;
    if usize::from(instruction) >= instructions {
        return Err(INVALID);
    }
    let within = |at: u16, len: u16| at.checked_add(len).is_some_and(|end| end <= record);
    let size = match reader.byte()? {
        0 => return Ok(StoreShape::variable(instruction)),
        size => size,
    };
    let word = reader.varint()?;
    let address = match (word & 3, narrow(word >> 2)?) {
        (0, at) if within(at, 8) => StoreAddress::Logged { at },
        (1, 0) => StoreAddress::Fixed(reader.u64()?),
        (2, store) => match earlier.get(usize::from(store)) {
            Some(base) if base.is_derivable() => StoreAddress::Derived { store, delta: reader.signed()? },
            _ => return Err(INVALID),
        },
        _ => return Err(INVALID),
    };
    let word = reader.varint()?;
    let contents = match (word & 1, narrow(word >> 1)?) {
        (0, at) if within(at, u16::from(size)) => StoreContents::Logged { at },
        (1, 0) => StoreContents::Fixed(reader.varint()?),
        _ => return Err(INVALID),
    };
    Ok(StoreShape { instruction, size: StoreSize::Fixed(size), address, contents })
}

fn narrow(value: u64) -> Result<u16, WireError> {
    u16::try_from(value).map_err(|_| WireError::Invalid { what: "number in a block" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_numbers() {
        let shape = |pc, end| BlockShape {
            pc: GuestAddr(pc),
            lens: Box::new([1, 15, 3]),
            seams: Box::new([]),
            stores: Box::new([
                StoreShape {
                    instruction: 0,
                    size: StoreSize::Fixed(64),
                    address: StoreAddress::Logged { at: 0 },
                    contents: StoreContents::Logged { at: 8 },
                },
                StoreShape::variable(2),
                StoreShape {
                    instruction: 2,
                    size: StoreSize::Fixed(8),
                    address: StoreAddress::Derived { store: 0, delta: -8 },
                    contents: StoreContents::Fixed(u64::MAX),
                },
            ]),
            record: 72,
            end,
        };
        let mut interner = BlockInterner::default();
        let first = interner.intern(&shape(0x40_0000, BlockEnd::Call));
        let second = interner.intern(&shape(0x40_0000, BlockEnd::Return));
        let third = interner.intern(&shape(u64::MAX - 3, BlockEnd::Call));
        assert_eq!(interner.intern(&shape(0x40_0000, BlockEnd::Call)), first);
        assert_eq!([first, second, third], [BlockId(0), BlockId(1), BlockId(2)]);

        let packed = interner.table().write_from(0).unwrap();
        let mut read = BlockTable::default();
        read.append(3, packed.clone());
        assert_eq!(read.get(BlockId(1)), None);
        read.load([BlockId(1), BlockId(77)]).unwrap();
        assert_eq!(read.get(BlockId(1)), interner.table().get(BlockId(1)));
        assert_eq!(read.get(BlockId(0)), None);
        for (count, packed) in [(3, &packed[..9]), (2, &packed[..])] {
            let mut damaged = BlockTable::default();
            damaged.append(count, packed.to_vec());
            assert!(damaged.load([BlockId(0)]).is_err());
            assert_eq!(damaged.get(BlockId(0)), None);
        }
        let mut again = BlockInterner::new(read).unwrap();
        assert!(again.table().shapes().eq(interner.table().shapes()));
        assert_eq!(again.intern(&shape(0x40_0000, BlockEnd::Return)), second);
        assert_eq!(again.table().get(BlockId(0)).unwrap().pc_of(2), GuestAddr(0x40_0010));
        assert_eq!(again.table().get(BlockId(0)).unwrap().end_pc(), GuestAddr(0x40_0013));
    }

    #[test]
    fn a_block_may_lead_along_jumps() {
        let shape = BlockShape {
            pc: GuestAddr(0x1000),
            lens: Box::new([3, 2, 4, 1]),
            seams: Box::new([Seam { instruction: 2, pc: GuestAddr(0x800) }]),
            stores: Box::new([]),
            record: 0,
            end: BlockEnd::Call,
        };
        let pcs = [0x1000, 0x1003, 0x800, 0x804].map(GuestAddr);
        assert_eq!(shape.pcs().collect::<Vec<_>>(), pcs);
        assert_eq!([0, 1, 2, 3].map(|index| shape.pc_of(index)), pcs);
        assert_eq!(shape.end_pc(), GuestAddr(0x805));
        assert!(shape.begins_in(GuestRange::new(GuestAddr(0x804), 1)));
        assert!(!shape.begins_in(GuestRange::new(GuestAddr(0x1005), 4)));
        let mut interner = BlockInterner::default();
        interner.intern(&shape);
        let mut read = BlockTable::default();
        read.append(1, interner.table().write_from(0).unwrap());
        read.load([BlockId(0)]).unwrap();
        assert!(read.shapes().eq([&shape]));
    }
}
