//! From the translator's blocks to the index's: one shape for each way through a block.

use engine::Block;
use granule::{BlockEnd, BlockShape, Seam, StoreAddress, StoreContents, StoreShape, StoreSize};
use guest::GuestAddr;
use translate::log::BlockLog;
use translate::{Address, Condition, Contents, Slot, Terminator};

/// Largest store that is not called variable.
const LARGEST_FIXED: u32 = 255;

/// A single instruction that something else than translated code carried out.
pub(crate) fn system(pc: GuestAddr, len: u8) -> BlockShape {
    BlockShape {
        pc,
        lens: Box::new([len]),
        seams: Box::new([]),
        stores: Box::new([]),
        record: 0,
        end: BlockEnd::System,
    }
}

/// The shape of a path through a block, or `None` for one without instructions.
pub(crate) fn of_path(block: &Block, number: usize) -> Option<BlockShape> {
    let translated = &block.translated;
    let path = translated.paths.get(number)?;
    if path.instructions == 0 {
        return None;
    }
    let end = end_of(path.end);
    let after = match path.end {
        Terminator::Fall { to } => Some(to),
        Terminator::Stop { at } => Some(at),
        Terminator::Conditional { fall, .. } => Some(fall),
        Terminator::Call { returns_to, .. } | Terminator::CallIndirect { returns_to } => Some(returns_to),
        Terminator::Jump { .. } | Terminator::JumpIndirect | Terminator::Return => None,
    };
    let slots = translated.slots.get(..path.slots as usize).unwrap_or_default();
    let lens = lens(block, path.instructions, after);
    let seams = seams(block, &lens);
    let record = path.log_bytes as u16;
    Some(BlockShape { pc: translated.pc, lens, seams, stores: stores(slots), record, end })
}

/// How a path through a block ends.
pub(crate) const fn end_of(end: Terminator) -> BlockEnd {
    match end {
        Terminator::Fall { .. } | Terminator::Stop { .. } => BlockEnd::Fall,
        Terminator::Jump { .. } | Terminator::Conditional { .. } => BlockEnd::Jump,
        Terminator::JumpIndirect => BlockEnd::IndirectJump,
        Terminator::Call { .. } | Terminator::CallIndirect { .. } => BlockEnd::Call,
        Terminator::Return => BlockEnd::Return,
    }
}

/// The shape of the first `instructions` of a block that a fault ended there, and the bytes of its record.
pub(crate) fn of_part(block: &Block, log: &BlockLog, instructions: u32) -> (Option<BlockShape>, u32) {
    let (slots, bytes) = log.part(instructions);
    // A string store that was interrupted has not retired but has stored: its instruction counts as executed by the
    // record that will complete it, the store here cannot be told from it. It belongs to a block of one instruction.
    if instructions == 0 {
        return (None, bytes);
    }
    let lens = lens(block, instructions, None);
    let shape = BlockShape {
        pc: block.translated.pc,
        seams: seams(block, &lens),
        lens,
        stores: stores(slots),
        record: bytes as u16,
        end: BlockEnd::Fall,
    };
    (Some(shape), bytes)
}

/// Lengths of the first `count` instructions, where the last one ends at `after` if that is known.
fn lens(block: &Block, count: u32, after: Option<GuestAddr>) -> Box<[u8]> {
    let pcs = &block.translated.pcs;
    let code_end = block.translated.sources.first().map_or(block.translated.pc, |range| range.end);
    let len = |index: usize| {
        let next = match after {
            Some(after) if index + 1 == count as usize => after,
            _ => pcs.get(index + 1).copied().unwrap_or(code_end),
        };
        next.0.wrapping_sub(pcs[index].0).clamp(1, 15) as u8
    };
    (0..(count as usize).min(pcs.len())).map(len).collect()
}

/// Where the block leads along jumps.
fn seams(block: &Block, lens: &[u8]) -> Box<[Seam]> {
    let pcs = &block.translated.pcs;
    let straight = |index: usize| pcs[index - 1].wrapping_add(u64::from(lens[index - 1])) == pcs[index];
    let bent = (1..lens.len()).filter(|&index| !straight(index));
    bent.map(|index| Seam { instruction: index as u16, pc: pcs[index] }).collect()
}

/// Whether each execution of a store brings its own address and length.
pub(crate) fn is_variable(slots: &[Slot], slot: &Slot) -> bool {
    let base_varies = match slot.address {
        Address::Derived { slot: base, .. } => {
            slots.get(base as usize).is_none_or(|base| is_variable(slots, base))
        }
        _ => false,
    };
    base_varies
        || slot.size == 0
        || slot.size > LARGEST_FIXED
        || slot.is_bulk()
        || slot.condition != Condition::Always
}

fn stores(slots: &[Slot]) -> Box<[StoreShape]> {
    slots.iter().map(|slot| store(slots, slot)).collect()
}

fn store(slots: &[Slot], slot: &Slot) -> StoreShape {
    let instruction = slot.instruction as u16;
    if is_variable(slots, slot) {
        return StoreShape::variable(instruction);
    }
    let address = match slot.address {
        Address::Fixed(addr) => StoreAddress::Fixed(addr),
        Address::Logged { at } => StoreAddress::Logged { at: at as u16 },
        Address::Derived { slot, delta } => StoreAddress::Derived { store: slot as u16, delta },
    };
    let contents = match slot.contents {
        Contents::Fixed(value) => StoreContents::Fixed(value),
        Contents::Logged { at } => StoreContents::Logged { at: at as u16 },
        Contents::String(_) | Contents::State(_) => return StoreShape::variable(instruction),
    };
    StoreShape { instruction, size: StoreSize::Fixed(slot.size as u8), address, contents }
}
