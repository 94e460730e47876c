//! Calls that are prepared, and readings of the time stamp counter: where the guest comes to such an instruction and the next one fits, what
//! it did is put back in the cache, and the guest goes on without leaving.
//!
//! A block that ends before one jumps to a common stub with a descriptor of its own: the address after the instruction, and
//! where in the block to go on.

use std::mem::offset_of;

use guest::GuestAddr;

use crate::block::{ExitKind, Special};
use crate::emit::{Asm, Mem, R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP};
use crate::generate::{Generator, field};
use crate::layout::{CacheAddr, EnginePage, Layout};
use crate::runtime::{self, MayFault, Stub, land, leave, short, spill_slot};

/// A call and what it did, or a reading. What it wrote follows: for each piece a [`PreparedPiece`] and the bytes, filled up to whole words; then one of no
/// bytes. Plain data that the supervisor puts; 8-byte aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PreparedCall {
    /// Where the next one lies; 0 after the last.
    pub next: u64,
    /// The address after the instruction; of a reading, [`after_reading`] of that.
    pub after: u64,
    /// The low half of rax.
    pub number: u32,
    /// How many of the arguments are compared.
    pub compared: u32,
    /// The arguments. Of a reading, which has none: what rdx holds afterwards, and rcx, if that is read as well.
    pub args: [u64; 6],
    /// What rax holds afterwards.
    pub result: u64,
    /// [`EnginePage::counter`] when it was made: set by the stub.
    pub counter: i64,
    /// [`EnginePage::log_next`], likewise.
    pub log_next: u64,
}

/// Where a call wrote so many bytes, which follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PreparedPiece {
    /// Where.
    pub to: u64,
    /// How many bytes.
    pub len: u64,
}

/// Of addresses after instructions that read the time stamp counter.
const READING: u64 = 1 << 63;
/// Of those among them that read the processor, too.
const BOTH: u64 = 1 << 62;

/// Tells an instruction that reads the time stamp counter, alone or with the processor's number, from a call.
pub const fn after_reading(after: GuestAddr, both: bool) -> u64 {
    after.0 | READING | if both { BOTH } else { 0 }
}

/// Offsets in a descriptor.
const AFTER: i32 = 0;
const RESUME: i32 = 8;

/// Arguments in order.
const ARGUMENTS: [u8; 6] = [RDI, RSI, RDX, R10, R8, R9];

impl Generator<'_> {
    /// The block's end before an instruction that may be prepared, after which the guest goes on at `next`. False of others.
    pub(crate) fn prepared(&mut self, kind: ExitKind, pc: GuestAddr, next: GuestAddr) -> bool {
        let after = match kind {
            ExitKind::Syscall => next.0,
            ExitKind::Special(Special::Rdtsc) => after_reading(next, false),
            ExitKind::Special(Special::Rdtscp) => after_reading(next, true),
            _ => return false,
        };
        let descriptor = self.cold.constant(after);
        let resume = self.cold.constant(0);
        let stub = self.cold.here();
        self.name_exit(kind, pc);
        let slot = self.spill_slot(RCX);
        self.cold.store(slot, RCX);
        self.cold.lea(RCX, Mem::rip(descriptor.0));
        runtime::jump(&mut self.cold, self.request.layout, Stub::Call);
        self.hot.jump(stub);
        self.mark(next);
        let at = (resume.0 - self.cold.base.0) as usize;
        self.cold.bytes[at..at + 8].copy_from_slice(&self.hot.here().0.to_le_bytes());
        self.jump_to(next);
        true
    }
}

fn word(layout: &Layout, index: usize) -> Mem {
    field(layout, offset_of!(EnginePage, scratch) + 8 * index)
}

/// A field of the call that rcx points to.
fn of_call(offset: usize) -> Mem {
    Mem::at(RCX, offset as i32)
}

/// A field of the piece that rsi points to.
fn of_piece(offset: usize) -> Mem {
    Mem::at(RSI, offset as i32)
}

/// A stack of the stub's own, for flags: the end of some scratch words.
fn stack(layout: &Layout, asm: &mut Asm) {
    asm.set(RSP, u64::from(layout.page) + (offset_of!(EnginePage, scratch) + 8 * 16) as u64);
}

/// The guest's flags, in r11, and its rsp, into their places.
fn restore_flags(layout: &Layout, asm: &mut Asm) {
    stack(layout, asm);
    asm.raw(&[0x41, 0x53, 0x9D]); // push r11; popfq
    asm.load(RSP, spill_slot(layout, RSP));
}

/// The common stub: makes the next call if it is this one, else leaves as a block's exit does. rcx holds the descriptor, the guest's
/// is in the engine page. Returns where its `syscall` instruction is, and where it writes to the guest's memory.
pub(crate) fn stub(layout: &Layout, asm: &mut Asm) -> (CacheAddr, MayFault) {
    let [descriptor, call] = [0, 1].map(|index| word(layout, index));
    let [rax, rsi, rdi, rsp, r11] = [RAX, RSI, RDI, RSP, R11].map(|register| spill_slot(layout, register));
    let calls = field(layout, offset_of!(EnginePage, calls));
    asm.store(rax, RAX);
    asm.store(r11, R11);
    asm.store(descriptor, RCX);
    asm.load(RCX, calls);
    let some = {
        asm.raw(&[0xE3, 2]); // jrcxz over the jump
        short(asm, 0xEB)
    };
    let none = asm.here();
    let syscall = leave(asm);
    land(asm, some);
    asm.store(rsp, RSP);
    stack(layout, asm);
    asm.raw(&[0x9C, 0x41, 0x5B]); // pushfq; pop r11
    asm.load(RSP, rsp);
    let over = short(asm, 0xEB);
    let fault = asm.here();
    asm.load(RSI, rsi);
    asm.load(RDI, rdi);
    let differ = asm.here();
    restore_flags(layout, asm);
    asm.jump(none);
    land(asm, over);
    let reading = compare(layout, asm, differ);
    asm.load(RAX, of_call(size_of::<PreparedCall>() + offset_of!(PreparedPiece, len)));
    asm.raw(&[0x48, 0x85, 0xC0]); // test rax, rax
    let nothing = short(asm, 0x74); // jz
    asm.store(rsi, RSI);
    asm.store(rdi, RDI);
    asm.store(call, RCX);
    asm.lea(RSI, of_call(size_of::<PreparedCall>()));
    asm.raw(&[0xFC]); // cld
    let piece = asm.here();
    asm.load(RDI, of_piece(offset_of!(PreparedPiece, to)));
    asm.load(RCX, of_piece(offset_of!(PreparedPiece, len)));
    asm.raw(&[0xE3, 2]); // jrcxz over the jump
    let some = short(asm, 0xEB);
    let last = short(asm, 0xEB);
    land(asm, some);
    asm.lea(RSI, of_piece(size_of::<PreparedPiece>()));
    let start = asm.here();
    asm.raw(&[0xF3, 0xA4]); // rep movsb
    let end = asm.here();
    asm.lea(RSI, of_piece(7));
    asm.raw(&[0x48, 0x83, 0xE6, 0xF8]); // and rsi, -8
    asm.jump(piece);
    land(asm, last);
    asm.load(RSI, rsi);
    asm.load(RDI, rdi);
    asm.load(RCX, call);
    land(asm, nothing);
    note(layout, asm);
    restore_flags(layout, asm);
    asm.load(RAX, of_call(offset_of!(PreparedCall, result)));
    asm.load(RCX, of_call(offset_of!(PreparedCall, after)));
    go_on(layout, asm);
    land_near(asm, reading);
    read(layout, asm);
    (syscall, MayFault { start, end, fault })
}

/// Notes that the instruction has run that rcx points to, and where to go on.
fn note(layout: &Layout, asm: &mut Asm) {
    let [descriptor, resume] = [0, 2].map(|index| word(layout, index));
    let calls = field(layout, offset_of!(EnginePage, calls));
    for (from, to) in [
        (field(layout, offset_of!(EnginePage, counter)), of_call(offset_of!(PreparedCall, counter))),
        (field(layout, offset_of!(EnginePage, log_next)), of_call(offset_of!(PreparedCall, log_next))),
        (of_call(offset_of!(PreparedCall, next)), calls),
    ] {
        asm.load(RAX, from);
        asm.store(to, RAX);
    }
    asm.load(RAX, descriptor);
    asm.load(RAX, Mem::at(RAX, RESUME));
    asm.store(resume, RAX);
}

fn go_on(layout: &Layout, asm: &mut Asm) {
    asm.mem(false, false, &[0xFF], 4, word(layout, 2), 0); // jmp [resume]
}

/// What the reading that rcx points to leaves in registers: all others, and the flags, are as they were.
fn read(layout: &Layout, asm: &mut Asm) {
    note(layout, asm);
    asm.load(RDX, of_call(offset_of!(PreparedCall, args)));
    asm.load(RAX, of_call(offset_of!(PreparedCall, after)));
    asm.raw(&[0x48, 0x0F, 0xBA, 0xE0, BOTH.ilog2() as u8]); // bt rax, ..
    let alone = short(asm, 0x73); // jnc
    asm.load(RAX, of_call(offset_of!(PreparedCall, args) + 8));
    asm.store(spill_slot(layout, RCX), RAX);
    land(asm, alone);
    asm.load(RAX, of_call(offset_of!(PreparedCall, result)));
    restore_flags(layout, asm);
    asm.load(R11, spill_slot(layout, R11));
    asm.load(RCX, spill_slot(layout, RCX));
    go_on(layout, asm);
}

/// Goes to `differ` unless the guest is at the call that rcx points to. At a reading, takes a jump that is to be landed.
fn compare(layout: &Layout, asm: &mut Asm, differ: CacheAddr) -> usize {
    asm.load(RAX, word(layout, 0));
    asm.load(RAX, Mem::at(RAX, AFTER));
    asm.mem(true, false, &[0x3B], RAX, of_call(offset_of!(PreparedCall, after)), 0); // cmp rax, [..]
    asm.jump_if(5, differ);
    asm.raw(&[0x48, 0x85, 0xC0]); // test rax, rax
    let call = short(asm, 0x79); // jns
    let reading = near(asm);
    land(asm, call);
    asm.load(RAX, spill_slot(layout, RAX));
    asm.mem(false, false, &[0x3B], RAX, of_call(offset_of!(PreparedCall, number)), 0); // cmp eax, [..]
    asm.jump_if(5, differ);
    asm.load32(RAX, of_call(offset_of!(PreparedCall, compared)));
    let mut done = Vec::new();
    for (index, register) in ARGUMENTS.into_iter().enumerate() {
        asm.raw(&[0xFF, 0xC8]); // dec eax
        done.push(short(asm, 0x78)); // js
        asm.mem(true, false, &[0x3B], register, of_call(offset_of!(PreparedCall, args) + 8 * index), 0);
        asm.jump_if(5, differ);
    }
    for from in done {
        land(asm, from);
    }
    reading
}

/// A jump, to be landed later.
fn near(asm: &mut Asm) -> usize {
    asm.raw(&[0xE9, 0, 0, 0, 0]);
    asm.bytes.len()
}

fn land_near(asm: &mut Asm, from: usize) {
    let distance = (asm.bytes.len() - from) as u32;
    asm.bytes[from - 4..from].copy_from_slice(&distance.to_le_bytes());
}
