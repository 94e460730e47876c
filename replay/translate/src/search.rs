//! Comparing the guest's state, before one instruction, with one that is looked for. Nothing of the guest's changes by it.
//!
//! A register that probably differs is compared in place, two more aside, none of which touches flags; only then a common stub
//! saves the flags and compares everything.

use std::mem::offset_of;

use iced_x86::{InstructionInfoFactory, OpAccess};

use crate::block::ExitKind;
use crate::emit::{Asm, Mem, RAX, RCX, RDX, RSP, gpr};
use crate::generate::{Generator, field};
use crate::layout::{CacheAddr, EnginePage, Layout, SEARCH_WORDS, SearchPage};
use crate::plan::{Plan, is_write};
use crate::runtime::{self, Comparison, Stub, spill_slot};

/// Registers compared before the flags are saved.
const FIRST: usize = 3;

/// `jrcxz` over the jump that follows it.
const SKIP_IF_EQUAL: [u8; 2] = [0xE3, 5];

fn word(layout: &Layout, offset: usize) -> Mem {
    field(layout, offset_of!(EnginePage, search) + offset)
}

fn element(layout: &Layout, offset: usize, index: usize) -> Mem {
    word(layout, offset + 8 * index)
}

/// Leaves 0 in rcx if a register is equal. The guest's rcx is in the engine page.
fn compare_register(asm: &mut Asm, layout: &Layout, register: u8) {
    let negated = element(layout, offset_of!(SearchPage, negated), usize::from(register));
    let sum = |other| Mem { index: Some(other), ..Mem::at(RCX, 0) };
    if register == RCX {
        let (rcx, rdx) = (spill_slot(layout, RCX), spill_slot(layout, RDX));
        asm.store(rdx, RDX);
        asm.load(RCX, rcx);
        asm.load(RDX, negated);
        asm.lea(RCX, sum(RDX));
        asm.load(RDX, rdx);
        return;
    }
    asm.load(RCX, negated);
    match register {
        // No index.
        RSP => asm.lea(RCX, Mem { index: Some(RCX), ..Mem::at(RSP, 0) }),
        _ => asm.lea(RCX, sum(register)),
    }
}

/// The registers that most probably differ from one pass to the next.
fn telling(plan: &Plan) -> [u8; FIRST] {
    let mut scores = [0u8; 16];
    let mut factory = InstructionInfoFactory::new();
    for step in &plan.steps {
        for used in factory.info(&step.instr).used_registers() {
            let Some(register) = gpr(used.register()).filter(|_| is_write(used.access())) else { continue };
            let score = match used.access() {
                _ if register == RSP => 1,
                // It steps.
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => 3,
                _ => 2,
            };
            let known = &mut scores[usize::from(register)];
            *known = score.max(*known);
        }
    }
    let mut registers: Vec<u8> = (0..16).collect();
    // rcx is dearer to compare.
    registers.sort_by_key(|&register| {
        let score = scores[usize::from(register)];
        (std::cmp::Reverse(score), register == RCX, register)
    });
    [registers[0], registers[1], registers[2]]
}

impl Generator<'_> {
    /// Before the step at `position`: compares, if this is the place.
    pub(crate) fn compare(&mut self, plan: &Plan, position: usize) {
        let Some(step) = plan.steps.get(position) else { return };
        let settled = position == 0 && self.request.limit.is_some();
        if self.request.search != Some(step.pc) || settled {
            return;
        }
        let layout = self.request.layout;
        let [first, others @ ..] = telling(plan);
        let keeps = self.spilled.contains(RCX);
        if !keeps {
            self.spill(RCX);
        }
        compare_register(&mut self.hot, layout, first);
        let aside = self.cold.here();
        self.hot.raw(&[0xE3, 2, 0xEB, 5]); // jrcxz over the short jump over the jump
        self.hot.jump(aside);
        let resume = self.hot.here();
        if !keeps {
            self.unspill(RCX);
        }
        for register in others {
            compare_register(&mut self.cold, layout, register);
            self.cold.raw(&SKIP_IF_EQUAL);
            self.cold.jump(resume);
        }
        // The rest takes these addresses from memory.
        self.cold.lea(RCX, Mem::rip(resume.0));
        self.cold.store(word(layout, offset_of!(SearchPage, resume)), RCX);
        let lea = self.cold.bytes.len();
        self.cold.lea(RCX, Mem::rip(resume.0));
        let next = self.cold.bytes.len();
        self.cold.store(word(layout, offset_of!(SearchPage, found)), RCX);
        runtime::jump(&mut self.cold, layout, Stub::Search);
        let distance = (self.cold.bytes.len() - next) as u32;
        debug_assert_eq!(next - lea, 7);
        self.cold.bytes[next - 4..next].copy_from_slice(&distance.to_le_bytes());
        self.cold.load(RCX, spill_slot(layout, RCX));
        let unretired = self.subtracted as i32 - self.retired as i32;
        self.exit_here(ExitKind::Candidate { unretired }, step.pc);
    }
}

/// `cmp reg, [mem]; jne to`
fn differs(asm: &mut Asm, register: u8, mem: Mem, to: CacheAddr) {
    asm.mem(true, false, &[0x3B], register, mem, 0);
    asm.jump_if(5, to);
}

/// The common stub: compares everything but the guest's rcx' place, which is the engine page.
pub(crate) fn stub(layout: &Layout, asm: &mut Asm) -> Comparison {
    let rax = spill_slot(layout, RAX);
    let rcx = spill_slot(layout, RCX);
    let saved = field(layout, offset_of!(EnginePage, scratch));
    // Entered here; the ends lie before what jumps to them.
    let begin = asm.bytes.len();
    let start = asm.here();
    asm.jump(start);
    let [differ, equal] = [offset_of!(SearchPage, resume), offset_of!(SearchPage, found)].map(|to| {
        let at = asm.here();
        asm.load(RAX, saved);
        asm.raw(&[0x04, 0x7F, 0x9E]); // add al, 0x7f; sahf
        asm.load(RAX, rax);
        asm.mem(false, false, &[0xFF], 4, word(layout, to), 0); // jmp [to]
        at
    });
    let distance = (asm.bytes.len() - begin - 5) as u32;
    asm.bytes[begin + 1..begin + 5].copy_from_slice(&distance.to_le_bytes());
    asm.store(rax, RAX);
    asm.raw(&[0x9F, 0x0F, 0x90, 0xC0]); // lahf; seto al
    asm.store(saved, RAX);
    asm.raw(&[0x0F, 0xB7, 0xC0]); // movzx eax, ax
    differs(asm, RAX, word(layout, offset_of!(SearchPage, flags)), differ);
    for register in 0..16u8 {
        let mem = element(layout, offset_of!(SearchPage, registers), usize::from(register));
        let at = match register {
            RAX => {
                asm.load(RAX, rax);
                RAX
            }
            RCX => {
                asm.load(RCX, rcx);
                RCX
            }
            other => other,
        };
        differs(asm, at, mem, differ);
    }
    let start = asm.here();
    for index in 0..SEARCH_WORDS {
        asm.load(RCX, element(layout, offset_of!(SearchPage, addresses), index));
        asm.raw(&[0x48, 0x85, 0xC9]); // test rcx, rcx
        asm.jump_if(4, equal);
        asm.load(RCX, Mem::at(RCX, 0));
        differs(asm, RCX, element(layout, offset_of!(SearchPage, words), index), differ);
    }
    let end = asm.here();
    asm.jump(equal);
    Comparison { start, end, fault: equal }
}
