//! The native side: single steps, with the memory after each.

use guest::Registers;
use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};
use translate::{Class, classify};

use crate::program::Program;
use crate::world::{CODE_LEN, DATA, DATA_LEN, Stop, World, XState};

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// So many instructions have run.
    Budget,
    /// Before an instruction that nobody runs.
    Stopped,
    /// By a signal that the instruction at rip raised.
    Fault(i32),
}

/// A finished run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) regs: Registers,
    pub(crate) xstate: XState,
    pub(crate) memory: Vec<u8>,
    /// Instructions retired.
    pub(crate) count: u64,
}

/// Kinds of conditional branches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Conditional {
    No,
    Jcc,
    /// `loop`, `jrcxz` and the like.
    Old,
}

/// What each native instruction did.
pub(crate) struct Step {
    pub(crate) pc: u64,
    pub(crate) branch: Conditional,
    /// Guest memory after it.
    pub(crate) memory: Vec<u8>,
    /// Whether the code is then not what it was at first.
    pub(crate) rewritten: bool,
}

/// Whether the instruction at `pc` is one before which both sides stop.
fn is_stop(world: &World, program: &Program, pc: u64) -> bool {
    let code = program.code_base();
    if pc < code || pc >= code + CODE_LEN as u64 {
        return false;
    }
    let bytes = world.bytes(pc, ((code + CODE_LEN as u64 - pc) as usize).min(15));
    let mut decoder = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE);
    let instr = decoder.decode();
    match instr.code() {
        Code::INVALID => false,
        // With an operand size prefix, of which processors think differently.
        code if classify(code) == Class::Branch && is_narrow(&bytes[..instr.len()]) => true,
        code => classify(code) == Class::Refuse || (classify(code) == Class::Emulate && !is_run(code)),
    }
}

fn is_narrow(bytes: &[u8]) -> bool {
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF0 | 0xF2 | 0xF3);
    let prefixes = &bytes[..bytes.iter().position(|byte| !is_prefix(byte)).unwrap_or(0)];
    // A REX prefix counts only right before the opcode.
    prefixes.contains(&0x66) && prefixes.last().is_none_or(|byte| byte & 0xF8 != 0x48)
}

/// Instructions of class `Emulate` that the processor runs after all.
fn is_run(code: Code) -> bool {
    let name = format!("{code:?}");
    // Undefined without transactional memory: they fault.
    let is_undefined = ["Xbegin", "Xend", "Xabort", "Xtest"].iter().any(|prefix| name.starts_with(prefix));
    if is_undefined && !crate::cache::has_rtm() {
        return true;
    }
    ["Fnstenv", "Fnsave", "Fxsave", "Xsave", "Wrfsbase", "Wrgsbase", "Ud0", "Ud1", "Ud2"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || code.is_privileged()
}

/// Runs natively for at most `limit` instructions.
pub(crate) fn run(world: &World, program: &Program, limit: u64, trace: &mut Vec<Step>) -> Run {
    program.load(world);
    world.set_xstate(&program.xstate);
    world.set_registers(&program.regs);
    let mut regs = program.regs;
    let mut count = 0;
    let mut first = true;
    let code = program.padded_code();
    let outcome = loop {
        if count == limit {
            break Outcome::Budget;
        }
        if is_stop(world, program, regs.rip) {
            break Outcome::Stopped;
        }
        let before = regs;
        let branch = conditional(world, regs.rip);
        let stop = if is_kernels(world, regs.rip) { world.step_over(regs.rip) } else { world.step() };
        regs = world.registers();
        match stop {
            Stop::Signal(libc::SIGTRAP) => {}
            Stop::Signal(signal) => break Outcome::Fault(signal),
            Stop::Syscall => panic!("a system call at {:#x}", regs.rip),
        }
        // The first step after a system call stop reports before anything has run.
        let seen = Registers { orig_rax: before.orig_rax, eflags: before.eflags, ..regs };
        if std::mem::take(&mut first) && seen == before {
            continue;
        }
        if is_repeating(world, before.rip, &before, &regs) {
            continue;
        }
        hide_trap_flag(world, before.rip, &regs);
        count += 1;
        let rewritten = world.bytes(program.code_base(), CODE_LEN) != code;
        let memory = world.bytes(DATA, DATA_LEN).to_vec();
        trace.push(Step { pc: before.rip, branch, memory, rewritten });
    };
    regs.orig_rax = 0;
    Run { outcome, regs, xstate: world.xstate(), memory: world.bytes(DATA, DATA_LEN).to_vec(), count }
}

/// Whether the kernel may do an instruction for the processor: it then also runs the next one, single-stepped or not.
fn is_kernels(world: &World, pc: u64) -> bool {
    let Some(bytes) = world.readable(pc, 15) else { return false };
    let mnemonic = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode().mnemonic();
    matches!(mnemonic, Mnemonic::Sldt | Mnemonic::Str | Mnemonic::Smsw)
}

/// By the opcode alone (Intel SDM, volume 2, appendix A).
fn conditional(world: &World, pc: u64) -> Conditional {
    let readable = (1..=15).rev().find_map(|len| world.readable(pc, len));
    let Some(bytes) = readable else { return Conditional::No };
    let is_prefix = |byte: &&u8| matches!(**byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF0 | 0xF2 | 0xF3);
    match bytes[bytes.iter().take_while(is_prefix).count()..] {
        [0x70..=0x7F, ..] | [0x0F, 0x80..=0x8F, ..] => Conditional::Jcc,
        [0xE0..=0xE3, ..] => Conditional::Old,
        _ => Conditional::No,
    }
}

/// `pushf` shows that it is single-stepped.
fn hide_trap_flag(world: &World, pc: u64, after: &Registers) {
    let Some(bytes) = world.readable(pc, 15) else { return };
    let mnemonic = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode().mnemonic();
    if matches!(mnemonic, Mnemonic::Pushf | Mnemonic::Pushfq)
        && let Some(flags) = world.readable(after.rsp, 2)
    {
        flags[1] &= !1;
    }
}

/// Whether the step was an iteration of a repeated string instruction that is not over: single steps stop at each.
fn is_repeating(world: &World, pc: u64, before: &Registers, after: &Registers) -> bool {
    if after.rip != pc || before.rcx == after.rcx {
        return false;
    }
    let bytes = world.bytes(pc, 2);
    let mut decoder =
        Decoder::with_ip(64, world.bytes(pc, 15.min(bytes.len() + 13)), pc, DecoderOptions::NONE);
    decoder.decode().is_string_instruction()
}
