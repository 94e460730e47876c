//! The common stubs that all blocks share.

use std::mem::offset_of;

use crate::calls;
use crate::emit::{Asm, Mem, R11, RAX, RCX, RDI, RDX, RSI};
use crate::generate::field;
use crate::layout::{CacheAddr, EXIT_SYSCALL, EnginePage, Layout, RUNTIME_BLOCK, RUNTIME_PAGE_SIZE};
use crate::refusal::Refusal;
use crate::search;

/// The common stubs for one layout. Place `code` at [`Layout::runtime`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runtime {
    /// Position-dependent code.
    pub code: Vec<u8>,
    /// What every free slot of the lookup table goes to: leaves with [`RuntimeExit::Miss`].
    pub miss: CacheAddr,
    /// Leaves with `exit_block` and `exit_index` as the block set them. Known to blocks by construction.
    pub exit: CacheAddr,
    /// The address of the `syscall` instruction of [`Runtime::exit`], that of [`Runtime::miss`], and that by which blocks leave at one of
    /// the guest's: rip at a seccomp stop is 2 more.
    pub syscalls: [CacheAddr; 3],
    /// Where words of memory are compared, and where a prepared call's are written.
    pub may_fault: [MayFault; 3],
}

/// A place in a common stub that accesses the guest's memory, which may not be there: where it is compared with
/// [`EnginePage::search`](crate::EnginePage::search), or written as a [`PreparedCall`](crate::PreparedCall) says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MayFault {
    /// Where the code begins that may fault.
    pub start: CacheAddr,
    /// Where it ends.
    pub end: CacheAddr,
    /// Where to go on after a fault, all registers as they are: leaves with [`ExitKind::Candidate`](crate::ExitKind::Candidate) if nothing
    /// else differs; or with [`ExitKind::Syscall`](crate::ExitKind::Syscall), the call not being made.
    pub fault: CacheAddr,
}

/// Exits of the common stubs, in [`exit_index`](crate::EnginePage::exit_index) when `exit_block` is
/// [`RUNTIME_BLOCK`](crate::RUNTIME_BLOCK).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RuntimeExit {
    /// An indirect branch to [`indirect_target`](crate::EnginePage::indirect_target) found no block. The branch has
    /// retired: go on at that address; unless it is not canonical (see
    /// [`Translated::indirect`](crate::Translated::indirect)).
    Miss = 0,
}

/// The common stubs. Arenas may lie further than 2 GiB from them, so code gets there through a table of addresses at
/// the start of the runtime page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stub {
    Exit = 0,
    Miss = 1,
    Bulk = 2,
    Search = 3,
    Call = 4,
}

impl Stub {
    /// Where it lies from the start of the page on.
    const fn offset(self) -> usize {
        [64, 128, 192, LOW_BITS + 256, 0xA00][self as usize]
    }

    fn address(self, layout: &Layout) -> CacheAddr {
        CacheAddr(u64::from(layout.runtime)).offset(self.offset() as u64)
    }
}

/// `jmp stub`, from anywhere.
pub(crate) fn jump(asm: &mut Asm, layout: &Layout, stub: Stub) {
    asm.mem(false, false, &[0xFF], 4, Mem::abs(layout.runtime + 8 * stub as u32), 0);
}

// Parameters of the bulk stub, in the engine page's scratch words.

/// The record's header.
pub(crate) const BULK_HEADER: usize = 0;
/// Where to go on.
pub(crate) const BULK_RETURN: usize = 1;
/// Where to go when the contents do not fit.
pub(crate) const BULK_FULL: usize = 2;
/// Bytes in an element.
pub(crate) const BULK_ELEMENT: usize = 3;

/// Generates the common stubs.
///
/// # Errors
///
/// [`Refusal::BadRequest`] when the layout reaches beyond 2 GiB or is not page aligned.
pub fn build_runtime(layout: &Layout) -> Result<Runtime, Refusal> {
    for start in [layout.page, layout.runtime, layout.table] {
        if start & 0xFFF != 0 || start > 0x7FF0_0000 {
            return Err(Refusal::BadRequest { what: "layout not page aligned below 2 GiB" });
        }
    }
    let mut asm = Asm::new(CacheAddr(u64::from(layout.runtime)));
    for stub in [Stub::Exit, Stub::Miss, Stub::Bulk, Stub::Search, Stub::Call] {
        asm.raw(&stub.address(layout).0.to_le_bytes());
    }
    pad(&mut asm, Stub::Exit.offset());
    let exit_syscall = exit_stub(layout, &mut asm);
    pad(&mut asm, Stub::Miss.offset());
    let miss_syscall = miss_stub(layout, &mut asm);
    pad(&mut asm, Stub::Bulk.offset());
    bulk_stub(layout, &mut asm);
    pad(&mut asm, LOW_BITS);
    for byte in 0..=u8::MAX {
        asm.raw(&[byte & 1]);
    }
    let [first, others] = search::stub(layout, &mut asm);
    pad(&mut asm, Stub::Call.offset());
    let (call_syscall, call) = calls::stub(layout, &mut asm);
    debug_assert!(asm.bytes.len() <= RUNTIME_PAGE_SIZE);
    Ok(Runtime {
        code: asm.bytes,
        miss: Stub::Miss.address(layout),
        exit: Stub::Exit.address(layout),
        syscalls: [exit_syscall, miss_syscall, call_syscall],
        may_fault: [first, others, call],
    })
}

/// Offset of a table that gives the lowest bit of a byte: without flags, it can be had in no other way.
const LOW_BITS: usize = 0x400;

/// The lowest bit of the byte in `register`, as an operand.
pub(crate) fn low_bit(layout: &Layout, register: u8) -> Mem {
    Mem::at(register, (layout.runtime as usize + LOW_BITS) as i32)
}

fn pad(asm: &mut Asm, to: usize) {
    debug_assert!(asm.bytes.len() <= to);
    asm.bytes.resize(to, 0xCC);
}

pub(crate) fn spill_slot(layout: &Layout, register: u8) -> Mem {
    field(layout, offset_of!(EnginePage, spill) + 8 * register as usize)
}

pub(crate) fn leave(asm: &mut Asm) -> CacheAddr {
    asm.set(RAX, u64::from(EXIT_SYSCALL));
    let at = asm.here();
    asm.raw(&[0x0F, 0x05, 0x0F, 0x0B]); // syscall; ud2: nobody comes back here
    at
}

fn exit_stub(layout: &Layout, asm: &mut Asm) -> CacheAddr {
    for register in [RAX, RCX, R11] {
        asm.store(spill_slot(layout, register), register);
    }
    leave(asm)
}

/// The guest's rcx is in the engine page already.
fn miss_stub(layout: &Layout, asm: &mut Asm) -> CacheAddr {
    for register in [RAX, R11] {
        asm.store(spill_slot(layout, register), register);
    }
    asm.store_imm32(field(layout, offset_of!(EnginePage, exit_block)), RUNTIME_BLOCK);
    asm.store_imm8(field(layout, offset_of!(EnginePage, exit_index)), RuntimeExit::Miss as u8);
    leave(asm)
}

/// Appends the record of a string store that ended at rdi, and its contents. Changes nothing the guest sees.
fn bulk_stub(layout: &Layout, asm: &mut Asm) {
    let word = |i: usize| field(layout, offset_of!(EnginePage, scratch) + 8 * i);
    let (flags, saved, target, next) = (word(4), [5, 6, 7, 8, 9].map(word), word(10), word(11));
    let start = field(layout, offset_of!(EnginePage, bulk_start));
    let log_next = field(layout, offset_of!(EnginePage, log_next));
    let limit = field(layout, offset_of!(EnginePage, log_bulk_limit));
    let registers = [RAX, RCX, RDX, RSI, RDI];
    for (slot, register) in saved.into_iter().zip(registers) {
        asm.store(slot, register);
    }
    asm.raw(&[0x9F, 0x0F, 0x90, 0xC0]); // lahf; seto al
    asm.store(flags, RAX);
    // rcx: bytes stored; rsi: the first of them; edx: whether the direction flag is set
    asm.load(RSI, start);
    asm.raw(&[0x31, 0xD2]); // xor edx, edx
    asm.copy(RCX, RDI);
    asm.raw(&[0x48, 0x29, 0xF1]); // sub rcx, rsi
    let forward = short(asm, 0x79); // jns
    asm.raw(&[0x48, 0xF7, 0xD9]); // neg rcx
    asm.load32(RSI, word(BULK_ELEMENT));
    asm.raw(&[0x48, 0x01, 0xFE]); // add rsi, rdi
    asm.raw(&[0xFC, 0xFF, 0xC2]); // cld; inc edx
    land(asm, forward);
    // rax: the end of the record
    asm.load(RDI, log_next);
    asm.lea(RAX, Mem::at(RCX, 24 + 3));
    asm.raw(&[0x48, 0x83, 0xE0, 0xFC]); // and rax, -4
    asm.raw(&[0x48, 0x01, 0xF8]); // add rax, rdi
    let wraps = short(asm, 0x72); // jc
    asm.mem(true, false, &[0x3B], RAX, limit, 0); // cmp rax, [limit]
    let full = short(asm, 0x77); // ja
    asm.store(next, RAX);
    asm.load32(RAX, word(BULK_HEADER));
    asm.store_sized(Mem::at(RDI, 0), RAX, 4);
    asm.load(RAX, start);
    asm.store(Mem::at(RDI, 4), RAX);
    asm.load(RAX, saved[4]);
    asm.store(Mem::at(RDI, 12), RAX);
    asm.store_sized(Mem::at(RDI, 20), RCX, 4);
    asm.lea(RDI, Mem::at(RDI, 24));
    asm.raw(&[0xF3, 0xA4]); // rep movsb
    asm.load(RAX, next);
    asm.store(log_next, RAX);
    asm.load(RAX, word(BULK_RETURN));
    let done = short(asm, 0xEB);
    land(asm, wraps);
    land(asm, full);
    asm.load(RAX, word(BULK_FULL));
    land(asm, done);
    asm.store(target, RAX);
    asm.raw(&[0x85, 0xD2]); // test edx, edx
    let upward = short(asm, 0x74); // jz
    asm.raw(&[0xFD]); // std
    land(asm, upward);
    asm.load(RAX, flags);
    asm.raw(&[0x04, 0x7F, 0x9E]); // add al, 0x7f; sahf
    for (slot, register) in saved.into_iter().zip(registers) {
        asm.load(register, slot);
    }
    asm.mem(false, false, &[0xFF], 4, target, 0); // jmp [target]
}

/// A short jump by opcode, to be landed later.
pub(crate) fn short(asm: &mut Asm, opcode: u8) -> usize {
    asm.raw(&[opcode, 0]);
    asm.bytes.len()
}

pub(crate) fn land(asm: &mut Asm, from: usize) {
    let distance = asm.bytes.len() - from;
    debug_assert!(distance < 128);
    asm.bytes[from - 1] = distance as u8;
}
