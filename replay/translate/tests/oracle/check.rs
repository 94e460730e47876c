//! One program, all modes, all comparisons.

use guest::GuestAddr;
use iced_x86::Mnemonic;
use translate::log::{Sink, walk};
use translate::{Branches, Mode};

use crate::cache::{Cache, Flags, comparable};
use crate::native::{self, Conditional, Outcome, Run, Step};
use crate::program::Program;
use crate::world::{CODE, CODE_LEN, DATA, DATA_LEN, LOW_CODE, World, is_arena};

pub(crate) const MODES: [Mode; 4] = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];

/// Bits of the flags register that are compared: the arithmetic ones and DF. (RF is the debugger's.)
const FLAGS: u64 = 0xCD5;

/// Runs `program` natively for at most `limit` instructions, and translated in every mode; panics on a difference.
#[track_caller]
pub(crate) fn check(world: &World, program: &Program, limit: u64) -> Run {
    check_with(world, program, limit, &|_| ())
}

/// The same with a cache set up in some way.
#[track_caller]
pub(crate) fn check_with(
    world: &World,
    program: &Program,
    limit: u64,
    set_up: &dyn Fn(&mut Cache<'_>),
) -> Run {
    let mut trace = Vec::new();
    let expected = native::run(world, program, limit, &mut trace);
    // At any time: it may be put back.
    let rewritten = trace.iter().any(|step| step.rewritten);
    for mode in MODES {
        let mut cache = Cache::new(world, program, mode);
        cache.self_check = rewritten;
        // What is counted besides is to make no difference, so each kind of it has a share of the programs.
        cache.branches =
            [Branches::Uncounted, Branches::Jcc, Branches::All][(trace.len() + program.code.len()) % 3];
        set_up(&mut cache);
        check_mode(world, program, cache, rewritten, &expected, &trace);
    }
    expected
}

#[track_caller]
fn check_mode(
    world: &World,
    program: &Program,
    mut cache: Cache<'_>,
    rewritten: bool,
    expected: &Run,
    trace: &[Step],
) {
    let mode = cache.mode;
    // Where the native run ended by itself, there is budget left over.
    let budget = expected.count + if expected.outcome == Outcome::Budget { 0 } else { 1000 };
    let (actual, flags) = cache.run(budget);
    // With alignment checks on, which a `popf` reached by chance can turn on, the log's own stores fault. The engine
    // steps over them, nobody here.
    const AC: u64 = 0x4_0000;
    if mode.logs() && expected.regs.eflags & AC != 0 {
        return;
    }
    if cache.gave_up {
        return;
    }
    let context = || format!("{mode:?} of {} steps of {}", expected.count, describe(program));
    assert_eq!(actual.outcome, expected.outcome, "{:x?} for {:x?} {}", actual.regs, expected.regs, context());
    assert_eq!(actual.count, expected.count, "count, {}", context());
    let counted = trace.iter().filter(|step| match cache.branches {
        Branches::Uncounted => false,
        Branches::Jcc => step.branch == Conditional::Jcc,
        Branches::All => step.branch != Conditional::No,
    });
    assert_eq!(world.page().branches, counted.count() as u64, "{:?}, {}", cache.branches, context());
    let (mut left, mut right) = (actual.regs, expected.regs);
    if flags == Flags::Unknown {
        left.eflags = 0;
        right.eflags = 0;
    }
    left.eflags &= FLAGS;
    right.eflags &= FLAGS;
    if mode.exact() && flags == Flags::Unknown && actual.outcome != Outcome::Fault(libc::SIGSEGV) {
        panic!("flags not exact, {}", context());
    }
    assert!(left == right, "registers, {}\n{}", context(), differences(&left, &right));
    if let Some(at) = (0..DATA_LEN).find(|&i| actual.memory[i] != expected.memory[i]) {
        panic!(
            "memory at {:#x}: {:#x} for {:#x}, {}",
            DATA + at as u64,
            actual.memory[at],
            expected.memory[at],
            context()
        );
    }
    let (left, right) = (comparable(&actual.xstate), comparable(&expected.xstate));
    if let Some(at) = (0..left.len()).find(|&i| left[i] != right[i]) {
        panic!("extended state at {at}: {:#x} for {:#x}, {}", left[at], right[at], context());
    }
    // Stores to code lie outside the memory that is compared.
    if mode.logs() && !rewritten {
        check_log(program, &cache, expected, trace, &context);
    }
}

/// Rows of a log.
#[derive(Default)]
struct Rows {
    blocks: Vec<(u32, u32)>,
    stores: Vec<(usize, u32, u64, Vec<u8>)>,
}

impl Sink for Rows {
    fn block(&mut self, id: translate::BlockId, _path: u32, instructions: u32) {
        self.blocks.push((id.0, instructions));
    }

    fn store(&mut self, slot: u32, addr: GuestAddr, bytes: &[u8]) {
        self.stores.push((self.blocks.len() - 1, slot, addr.0, bytes.to_vec()));
    }
}

/// The log must give exactly the native sequence of instructions, and its stores, applied one instruction after the
/// other to the initial memory, must give the native memory after each.
#[track_caller]
fn check_log(
    program: &Program,
    cache: &Cache<'_>,
    expected: &Run,
    trace: &[Step],
    context: &dyn Fn() -> String,
) {
    let mut rows = Rows::default();
    if let Err(bad) = walk(&cache.log, &cache.block_logs(), &mut rows) {
        panic!("{bad}, {}", context());
    }
    if rows.stores.iter().any(|row| is_arena(row.2)) {
        // By chance the program stored where the cache lies.
        return;
    }
    let mut memory = program.memory.clone();
    let mut step = 0;
    let mut stores = rows.stores.iter().peekable();
    for (position, &(id, instructions)) in rows.blocks.iter().enumerate() {
        let block = &cache.blocks[id as usize];
        for instruction in 0..instructions {
            let native = trace.get(step).unwrap_or_else(|| panic!("more blocks than steps, {}", context()));
            assert_eq!(native.pc, block.pcs[instruction as usize].0, "pc of step {step}, {}", context());
            while let Some((_, _, addr, bytes)) = stores
                .next_if(|row| row.0 == position && block.slots[row.1 as usize].instruction == instruction)
            {
                apply(&mut memory, *addr, bytes, context);
            }
            if let Some(at) = (0..DATA_LEN).find(|&i| memory[i] != native.memory[i]) {
                panic!(
                    "logged memory at {:#x} after step {step} at {:#x}: {:#x} for {:#x}, {}",
                    DATA + at as u64,
                    native.pc,
                    memory[at],
                    native.memory[at],
                    context()
                );
            }
            step += 1;
        }
        // A string store that a fault interrupted.
        while let Some((_, _, addr, bytes)) = stores.next_if(|row| row.0 == position) {
            assert!(matches!(expected.outcome, Outcome::Fault(_)), "a store of nothing, {}", context());
            apply(&mut memory, *addr, bytes, context);
        }
    }
    assert_eq!(step, trace.len(), "steps in the log, {}", context());
    assert!(stores.next().is_none(), "stores left over, {}", context());
    // An `enter` that faults has stored nevertheless, and is not logged.
    let entered =
        expected.outcome != Outcome::Budget && program.mnemonic_at(expected.regs.rip) == Mnemonic::Enter;
    assert!(entered || memory == expected.memory, "logged memory at the end, {}", context());
}

#[track_caller]
fn apply(memory: &mut [u8], addr: u64, bytes: &[u8], context: &dyn Fn() -> String) {
    if [CODE, LOW_CODE].iter().any(|&code| addr.wrapping_sub(code) < CODE_LEN as u64) {
        // Only what was there already, or the program would count as rewritten.
        return;
    }
    let Some(at) = addr.checked_sub(DATA).filter(|&at| at as usize + bytes.len() <= DATA_LEN) else {
        panic!("a store of {} bytes at {addr:#x}, {}", bytes.len(), context());
    };
    memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

fn differences(left: &guest::Registers, right: &guest::Registers) -> String {
    guest::Registers::NAMES
        .iter()
        .zip(left.to_words().iter().zip(right.to_words()))
        .filter(|(_, (l, r))| **l != *r)
        .map(|(name, (l, r))| format!("{name}: {l:#x} for {r:#x}\n"))
        .collect()
}

/// A program as text.
pub(crate) fn describe(program: &Program) -> String {
    let base = program.code_base();
    let mut text = format!("{:02x?}\n", program.code);
    let mut decoder = iced_x86::Decoder::with_ip(64, &program.code, base, iced_x86::DecoderOptions::NONE);
    while decoder.can_decode() {
        let instr = decoder.decode();
        text.push_str(&format!("  {:#x}: {instr}\n", instr.ip()));
    }
    text.push_str(&format!("{:x?}", program.regs));
    text
}
