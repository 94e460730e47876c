//! What a basic block is to the index, and the table that numbers blocks. Knows nothing of translated code.

use std::collections::HashMap;

use guest::{GuestAddr, GuestRange};

use crate::wire::{Reader, WireError, put_signed, put_varint};

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

/// One store of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoreShape {
    /// Which instruction of the block it belongs to, from 0.
    pub instruction: u16,
    /// How much it writes.
    pub size: StoreSize,
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

/// A straight run of instructions that was executed as a whole. Its identity is all of it: a block left early, or
/// changed code at the same place, is another block.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BlockShape {
    /// Address of its first instruction.
    pub pc: GuestAddr,
    /// Length of each instruction in bytes (1 to 15).
    pub lens: Box<[u8]>,
    /// Its stores in the order they happen.
    pub stores: Box<[StoreShape]>,
    /// How it ends.
    pub end: BlockEnd,
}

impl BlockShape {
    /// Number of instructions.
    pub fn instructions(&self) -> u32 {
        self.lens.len() as u32
    }

    /// The addresses its code occupies.
    pub fn code(&self) -> GuestRange {
        GuestRange::new(self.pc, self.lens.iter().map(|&len| u64::from(len)).sum())
    }

    /// The address of its `index`-th instruction; the address past the end for the number of instructions.
    pub fn pc_of(&self, index: u32) -> GuestAddr {
        let before = self.lens.iter().take(index as usize).map(|&len| u64::from(len)).sum();
        self.pc.wrapping_add(before)
    }

    /// The address after its last instruction: what a call at its end pushes.
    pub fn end_pc(&self) -> GuestAddr {
        self.pc_of(self.instructions())
    }
}

/// All blocks of an index by number. Numbers are given on first sight and never change.
#[derive(Clone, Default, Debug)]
pub struct BlockTable {
    shapes: Vec<BlockShape>,
    known: HashMap<BlockShape, BlockId>,
}

impl BlockTable {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// The shape of a block, if there is one with this number.
    pub fn get(&self, id: BlockId) -> Option<&BlockShape> {
        self.shapes.get(id.index())
    }

    /// All shapes by number.
    pub fn shapes(&self) -> &[BlockShape] {
        &self.shapes
    }

    /// The number of `shape`, given now if it is new.
    pub fn intern(&mut self, shape: &BlockShape) -> BlockId {
        if let Some(&id) = self.known.get(shape) {
            return id;
        }
        let id = BlockId(self.shapes.len() as u32);
        self.shapes.push(shape.clone());
        self.known.insert(shape.clone(), id);
        id
    }

    /// The blocks from number `first` on, as bytes.
    pub fn write_from(&self, first: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let shapes = self.shapes.get(first..).unwrap_or_default();
        put_varint(&mut out, shapes.len() as u64);
        let mut last = 0u64;
        for shape in shapes {
            put_signed(&mut out, shape.pc.0.wrapping_sub(last) as i64);
            last = shape.pc.0;
            put_varint(&mut out, (shape.lens.len() as u64) << 3 | shape.end as u64);
            out.extend_from_slice(&shape.lens);
            put_varint(&mut out, shape.stores.len() as u64);
            for store in &shape.stores {
                put_varint(&mut out, u64::from(store.instruction));
                out.push(match store.size {
                    StoreSize::Fixed(size) => size,
                    StoreSize::Variable => 0,
                });
            }
        }
        out
    }

    /// Appends blocks that [`BlockTable::write_from`] wrote, which get the next numbers.
    pub fn read_more(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let mut reader = Reader::new(bytes);
        let count = reader.varint()?;
        let mut last = 0u64;
        for _ in 0..count {
            last = last.wrapping_add(reader.signed()? as u64);
            let head = reader.varint()?;
            let end = BlockEnd::from_code(head & 7).ok_or(WireError::Invalid { what: "block end" })?;
            let lens: Box<[u8]> = reader.take((head >> 3) as usize)?.into();
            let mut stores = Vec::new();
            for _ in 0..reader.count(2)? {
                let instruction = reader.varint()?;
                if instruction >= lens.len() as u64 {
                    return Err(WireError::Invalid { what: "store of a block" });
                }
                let size = match reader.byte()? {
                    0 => StoreSize::Variable,
                    size => StoreSize::Fixed(size),
                };
                stores.push(StoreShape { instruction: instruction as u16, size });
            }
            let shape = BlockShape { pc: GuestAddr(last), lens, stores: stores.into(), end };
            let id = BlockId(self.shapes.len() as u32);
            self.known.insert(shape.clone(), id);
            self.shapes.push(shape);
        }
        reader.finish()
    }
}
