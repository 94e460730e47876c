//! What each instruction wrote, found by decoding it before it runs and looking at memory after.

use std::collections::BTreeMap;

use guest::{GuestAddr, GuestMemory, Registers};
use iced_x86::{Instruction, MemorySize};
use iced_x86::{InstructionInfoFactory, InstructionInfoOptions, OpAccess, Register, UsedMemory};
use trace::Event;

use crate::stepper::Visitor;
use crate::stub::Stub;

/// A byte written at a moment: its value after, and whether the instruction surely wrote it (a `cmpxchg` that fails does not
/// change what it "writes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Byte {
    /// The value afterwards.
    pub value: u8,
    /// Whether it was written for certain.
    pub sure: bool,
    /// The program counter of the instruction that wrote it, the syscall's for kernel writes.
    pub pc: u64,
}

/// Every byte that was written, by moment and address. Small runs only.
#[derive(Debug)]
pub struct Stores {
    /// (moment of the instruction, address) to the byte.
    pub bytes: BTreeMap<(u64, u64), Byte>,
    pending: Vec<(u64, usize, bool)>,
    factory: InstructionInfoFactory,
    /// Instructions whose operand size the decoder does not know (xsave and its kin): their moments.
    pub unsized_at: Vec<u64>,
}

impl Default for Stores {
    fn default() -> Self {
        Self {
            bytes: BTreeMap::new(),
            pending: Vec::new(),
            factory: InstructionInfoFactory::new(),
            unsized_at: Vec::new(),
        }
    }
}

/// The direction flag.
const DIRECTION: u64 = 1 << 10;

fn value_of(regs: &Registers, register: Register) -> Option<u64> {
    let base = match register {
        Register::None | Register::CS | Register::DS | Register::ES | Register::SS => return Some(0),
        Register::FS => return Some(regs.fs_base),
        Register::GS => return Some(regs.gs_base),
        Register::RIP => return Some(regs.rip),
        other => other,
    };
    let full = Some(base.full_register()).filter(|register| register.is_gpr64())?;
    let full = regs.general(full.number() as u8);
    Some(match base.size() {
        4 => full & 0xffff_ffff,
        2 => full & 0xffff,
        _ => full,
    })
}

fn address(memory: &UsedMemory, regs: &Registers) -> Option<u64> {
    memory.virtual_address(0, |register, _, _| value_of(regs, register))
}

impl Stores {
    /// `instruction` is about to run at `count`: one iteration of it, if it repeats, or with `whole` all of them.
    pub fn expect(&mut self, count: u64, regs: &Registers, instruction: &Instruction, whole: bool) {
        self.pending.clear();
        let info = self.factory.info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
        // A repeated string instruction with a zero count touches nothing.
        let repeating = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if repeating && instruction.is_string_instruction() && regs.rcx == 0 {
            return;
        }
        for used in info.used_memory() {
            let sure = match used.access() {
                OpAccess::Write | OpAccess::ReadWrite => true,
                OpAccess::CondWrite | OpAccess::ReadCondWrite => false,
                _ => continue,
            };
            // One step of a repeated string instruction is one element, which the decoder leaves open.
            let one = if instruction.is_string_instruction() {
                instruction.memory_size()
            } else {
                used.memory_size()
            };
            let size = one.size();
            if size == 0 || one == MemorySize::Unknown {
                self.unsized_at.push(count);
                continue;
            }
            if let Some(addr) = address(used, regs) {
                // `rep` makes the decoder call the access conditional; the count decides, and it is not zero.
                let times =
                    if whole && repeating && instruction.is_string_instruction() { regs.rcx } else { 1 };
                let down = regs.eflags & DIRECTION != 0;
                let step = if down { (size as u64).wrapping_neg() } else { size as u64 };
                for at in 0..times {
                    let addr = addr.wrapping_add(at.wrapping_mul(step));
                    self.pending.push((addr, size, sure || repeating));
                }
            }
        }
    }

    /// It has run.
    pub fn ran(&mut self, count: u64, instruction: &Instruction, memory: &dyn GuestMemory) {
        for (addr, size, sure) in std::mem::take(&mut self.pending) {
            let mut bytes = vec![0; size];
            if memory.read(GuestAddr(addr), &mut bytes).is_err() {
                continue;
            }
            for (i, value) in bytes.into_iter().enumerate() {
                let byte = Byte { value, sure, pc: instruction.ip() };
                self.bytes.insert((count, addr.wrapping_add(i as u64)), byte);
            }
        }
    }
}

impl Visitor for Stores {
    fn before(&mut self, count: u64, regs: &Registers, instruction: &Instruction, _: &mut Stub) {
        self.expect(count, regs, instruction, false);
    }

    fn after(&mut self, count: u64, _: &Registers, instruction: &Instruction, stub: &mut Stub) {
        self.ran(count, instruction, stub.memory());
    }

    fn event(&mut self, count: u64, event: &Event, stub: &mut Stub) {
        for write in &event.writes {
            let Ok(bytes) = stub.memory().read_vec(write.addr, write.data.len()) else { continue };
            for (i, value) in bytes.into_iter().enumerate() {
                let byte = Byte { value, sure: true, pc: event.before.rip };
                self.bytes.insert((count, write.addr.0.wrapping_add(i as u64)), byte);
            }
        }
    }
}
