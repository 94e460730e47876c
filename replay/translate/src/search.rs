//! Comparing the guest's state, before one instruction, with one that is looked for. Nothing of the guest's changes by it.
//!
//! A register that probably differs is compared in place, two more aside, none of which touches flags; only then a common stub
//! saves the flags and compares everything.

use std::mem::offset_of;

use iced_x86::{InstructionInfoFactory, OpAccess};

use crate::block::ExitKind;
use crate::class::Kind;
use crate::emit::{Asm, Mem, RAX, RCX, RDX, RSP, gpr};
use crate::generate::{Generator, field};
use crate::layout::{CacheAddr, EnginePage, Layout, SEARCH_WORDS, SearchPage};
use crate::plan::{Plan, Step, is_write};
use crate::request::Request;
use crate::runtime::{self, MayFault, Stub, land, short, spill_slot};

/// Registers compared before the flags are saved.
const FIRST: usize = 3;

/// `jrcxz` over a short jump over the jump that follows it.
const UNLESS_EQUAL: [u8; 4] = [0xE3, 2, 0xEB, 5];

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
    // rcx can be compared where it is.
    registers.sort_by_key(|&register| {
        let score = scores[usize::from(register)];
        (std::cmp::Reverse(score), register != RCX, register)
    });
    [registers[0], registers[1], registers[2]]
}

/// Whether the guest's rcx stays away all through a block that compares, so that nothing waits for it. Not where other code of ours
/// takes it.
pub(crate) fn keeps_rcx_away(request: &Request<'_>, plan: &Plan) -> bool {
    let compares = plan.steps.iter().any(|step| request.searches(step.pc));
    let plain = |step: &Step| !matches!(step.kind, Kind::State(_) | Kind::Transaction(_));
    compares && !request.mode.logs() && plan.steps.iter().all(plain) && !plan.uses_rcx()
}

impl Generator<'_> {
    /// Before the step at `position`: compares, if this is the place.
    pub(crate) fn compare(&mut self, plan: &Plan, position: usize) {
        let Some(step) = plan.steps.get(position) else { return };
        let Some(search) = self.request.search.filter(|search| search.pc == step.pc) else { return };
        if position == 0 && self.request.limit.is_some() {
            return;
        }
        let layout = self.request.layout;
        let [first, others @ ..] = telling(plan);
        let constant = i32::try_from(search.rcx as i64).ok().filter(|&value| value != i32::MIN);
        let aside = match constant.filter(|_| first == RCX && !self.spilled.contains(RCX)) {
            Some(value) => self.compare_rcx(value),
            None => self.compare_first(first, position),
        };
        for register in others {
            compare_register(&mut self.cold, layout, register);
            self.cold.raw(&SKIP_IF_EQUAL);
            self.cold.jump(aside);
        }
        // The rest takes these addresses from memory.
        self.cold.lea(RCX, Mem::rip(aside.0));
        self.cold.store(word(layout, offset_of!(SearchPage, resume)), RCX);
        self.cold.lea(RCX, Mem::rip(aside.0));
        let found = self.cold.bytes.len();
        self.cold.store(word(layout, offset_of!(SearchPage, found)), RCX);
        runtime::jump(&mut self.cold, layout, Stub::Search);
        let distance = (self.cold.bytes.len() - found) as u32;
        self.cold.bytes[found - 4..found].copy_from_slice(&distance.to_le_bytes());
        self.cold.load(RCX, spill_slot(layout, RCX));
        let unretired = self.subtracted as i32 - self.retired as i32;
        self.exit_here(ExitKind::Candidate { unretired }, step.pc);
    }

    /// Compares a register in place. Cold code goes on where it is equal, the guest's rcx being in the engine page; where to go when
    /// another one differs.
    fn compare_first(&mut self, register: u8, position: usize) -> CacheAddr {
        let away = self.spilled.contains(RCX);
        if !away {
            self.spill(RCX);
        }
        compare_register(&mut self.hot, self.request.layout, register);
        let aside = self.cold.here();
        self.hot.raw(&UNLESS_EQUAL);
        self.hot.jump(aside);
        let resume = self.hot.here();
        // At the block's start, counting brings it back.
        if !away && !self.keeps_rcx_away && position > 0 {
            self.unspill(RCX);
        }
        resume
    }

    /// The same for rcx itself, which never leaves its place.
    fn compare_rcx(&mut self, value: i32) -> CacheAddr {
        let slot = spill_slot(self.request.layout, RCX);
        self.hot.lea(RCX, Mem::at(RCX, -value));
        let over = self.hot.bytes.len() + UNLESS_EQUAL.len() + 5;
        self.hot.raw(&UNLESS_EQUAL);
        let site = self.hot.jump(self.hot.base);
        debug_assert_eq!(over, self.hot.bytes.len());
        self.hot.lea(RCX, Mem::at(RCX, value));
        let resume = self.cold.here();
        self.cold.load(RCX, slot);
        self.cold.jump(self.hot.here());
        let aside = self.cold.here();
        let distance = aside.0.wrapping_sub(site.0 + 4) as u32;
        self.hot.bytes[over - 4..over].copy_from_slice(&distance.to_le_bytes());
        self.cold.lea(RCX, Mem::at(RCX, value));
        self.cold.store(slot, RCX);
        resume
    }
}

/// `cmp reg, [mem]; jne to`
fn differs(asm: &mut Asm, register: u8, mem: Mem, to: CacheAddr) {
    asm.mem(true, false, &[0x3B], register, mem, 0);
    asm.jump_if(5, to);
}

/// The common stub: compares everything, the first word first, as it tells most where no register does. The guest's rcx is in the
/// engine page.
pub(crate) fn stub(layout: &Layout, asm: &mut Asm) -> [MayFault; 2] {
    let [rax, rcx, rdx] = [RAX, RCX, RDX].map(|register| spill_slot(layout, register));
    let saved = field(layout, offset_of!(EnginePage, scratch));
    let address = |index| element(layout, offset_of!(SearchPage, addresses), index);
    asm.load(RCX, address(0));
    let none = short(asm, 0xE3); // jrcxz
    let one = asm.here();
    asm.load(RCX, Mem::at(RCX, 0));
    let after = asm.here();
    asm.store(rdx, RDX);
    asm.load(RDX, word(layout, offset_of!(SearchPage, first)));
    asm.lea(RCX, Mem { index: Some(RDX), ..Mem::at(RCX, 0) });
    asm.load(RDX, rdx);
    let equal = short(asm, 0xE3); // jrcxz
    asm.mem(false, false, &[0xFF], 4, word(layout, offset_of!(SearchPage, resume)), 0); // jmp [resume]
    land(asm, none);
    land(asm, equal);
    let first = MayFault { start: one, end: after, fault: asm.here() };
    let over = short(asm, 0xEB);
    let [differ, equal] = [offset_of!(SearchPage, resume), offset_of!(SearchPage, found)].map(|to| {
        let at = asm.here();
        asm.load(RAX, saved);
        asm.raw(&[0x04, 0x7F, 0x9E]); // add al, 0x7f; sahf
        asm.load(RAX, rax);
        asm.mem(false, false, &[0xFF], 4, word(layout, to), 0); // jmp [to]
        at
    });
    land(asm, over);
    asm.store(rax, RAX);
    asm.raw(&[0x9F, 0x0F, 0x90, 0xC0]); // lahf; seto al
    asm.store(saved, RAX);
    asm.raw(&[0x0F, 0xB7, 0xC0]); // movzx eax, ax
    differs(asm, RAX, word(layout, offset_of!(SearchPage, flags)), differ);
    asm.load(RAX, rax);
    asm.load(RCX, rcx);
    for register in 0..16u8 {
        let value = element(layout, offset_of!(SearchPage, registers), usize::from(register));
        differs(asm, register, value, differ);
    }
    let start = asm.here();
    for index in 0..SEARCH_WORDS {
        asm.load(RCX, address(index));
        asm.raw(&[0x48, 0x85, 0xC9]); // test rcx, rcx
        asm.jump_if(4, equal);
        asm.load(RCX, Mem::at(RCX, 0));
        differs(asm, RCX, element(layout, offset_of!(SearchPage, words), index), differ);
    }
    let end = asm.here();
    asm.jump(equal);
    [first, MayFault { start, end, fault: equal }]
}
