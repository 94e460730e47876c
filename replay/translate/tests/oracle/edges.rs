//! What a block does at its edges: limits, breakpoints, refusals, rewritten code, full logs, state images,
//! transactions.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use guest::GuestAddr;
use iced_x86::code_asm::*;
use translate::{
    BlockId, Branches, Bytes, CacheAddr, DEFAULT_LAYOUT, ExitKind, Mode, Refusal, Request, Signal, Special,
    Translated, lookup_slot, translate,
};

use crate::cache::Cache;
use crate::check::{MODES, check};
use crate::native::Outcome;
use crate::program::{Program, Random};
use crate::world::{CODE, COLD, DATA, HOT, LOG, LOW_CODE, World};

/// Translates `code` at [`CODE`] without running it.
fn block(code: &[u8], mode: Mode, limit: u32, breakpoints: &[u64]) -> Result<Translated, Refusal> {
    let breakpoints: BTreeSet<GuestAddr> = breakpoints.iter().map(|&pc| GuestAddr(pc)).collect();
    translate(&Request {
        pc: GuestAddr(CODE),
        code: &Bytes { start: GuestAddr(CODE), bytes: code },
        hot: CacheAddr(HOT),
        cold: CacheAddr(COLD),
        mode,
        id: BlockId(7),
        limit: NonZeroU32::new(limit),
        breakpoints: &breakpoints,
        search: None,
        self_check: false,
        layout: &DEFAULT_LAYOUT,
        branches: Branches::Uncounted,
        rtm: true,
        xsave_size: 832,
    })
}

#[test]
fn a_limit_is_exact() {
    let code = [0x90; 10];
    for limit in 1..=10 {
        for mode in MODES {
            let block = block(&code, mode, limit, &[]).unwrap();
            assert_eq!(block.instructions(), limit);
            let last = block.exits.last().unwrap();
            assert_eq!((last.kind, last.pc.0), (ExitKind::Budget, CODE + u64::from(limit)));
            assert!(block.links.is_empty());
        }
    }
}

#[test]
fn blocks_end_before_breakpoints() {
    // nop; nop; jmp -4
    let code = [0x90, 0x90, 0xEB, 0xFC];
    let found = block(&code, Mode::Plain, 0, &[CODE + 1]).unwrap();
    assert_eq!(found.instructions(), 1);
    assert!(found.exits.iter().any(|exit| exit.kind == ExitKind::Breakpoint && exit.pc.0 == CODE + 1));
    // Its own start does not count, except as the target of a branch.
    let found = block(&code, Mode::Plain, 0, &[CODE]).unwrap();
    assert_eq!(found.instructions(), 3);
    assert!(found.links.is_empty());
    assert!(found.exits.iter().any(|exit| exit.kind == ExitKind::Breakpoint && exit.pc.0 == CODE));
}

#[test]
fn what_is_not_run_is_named() {
    for (code, kind) in [
        (&[0x0F, 0x05][..], ExitKind::Syscall),
        (&[0xCD, 0x80], ExitKind::Syscall),
        (&[0x0F, 0x31], ExitKind::Special(Special::Rdtsc)),
        (&[0x0F, 0x01, 0xF9], ExitKind::Special(Special::Rdtscp)),
        (&[0x0F, 0xA2], ExitKind::Special(Special::Cpuid)),
        (&[0x0F, 0xC7, 0xF0], ExitKind::Special(Special::Rdrand)),
        (&[0xCC], ExitKind::Raises(Signal::Trap)),
        (&[0x0F, 0x0B], ExitKind::Raises(Signal::Illegal)),
        (&[0x06], ExitKind::Raises(Signal::Illegal)),
    ] {
        let found = block(code, Mode::Indexed, 0, &[]).unwrap();
        // Behind a system call or a reading that was prepared the guest goes on.
        let goes_on: Vec<u64> = found.links.iter().map(|link| link.target.0).collect();
        let prepared =
            matches!(kind, ExitKind::Syscall | ExitKind::Special(Special::Rdtsc | Special::Rdtscp));
        let after = if prepared { vec![CODE + code.len() as u64] } else { vec![] };
        assert_eq!(goes_on, after, "{code:x?}");
        let exits = 1 + after.len();
        assert_eq!(
            (found.exits.len(), found.exits[0].kind, found.instructions()),
            (exits, kind, 0),
            "{code:x?}"
        );
        assert_eq!(found.sources[0].len(), code.len() as u64);
    }
    for (code, name) in [
        (&[0xCD, 0x81][..], "int_imm8"),
        (&[0xCB], "retfd"),
        (&[0x66, 0xC3], "prefix"),
        (&[0x8E, 0xE0], "mov_sreg"),
    ] {
        match block(code, Mode::Plain, 0, &[]) {
            Err(Refusal::Unsupported { name: found, .. }) => {
                assert!(found.contains(name), "{found} for {name}")
            }
            other => panic!("{other:?} for {name}"),
        }
    }
    let cut = block(&[0x90, 0x48, 0x8B], Mode::Plain, 0, &[]).unwrap();
    assert_eq!(cut.links[0].target.0, CODE + 1);
    for begun in [
        &[0x48, 0x8B][..],
        &[0xC5],
        &[0xC5, 0xF8],
        &[0xC4, 0xE2, 0x79],
        &[0x62, 0xF1, 0x7C],
        &[0x8F, 0xE8],
        &[0x66],
        &[0xF3, 0x0F, 0x38],
        &[0x66, 0x0F, 0x3A],
    ] {
        assert_eq!(
            block(begun, Mode::Plain, 0, &[]),
            Err(Refusal::Unreadable { pc: GuestAddr(CODE), addr: GuestAddr(CODE + begun.len() as u64) }),
            "{begun:x?}"
        );
    }
}

/// The processor at hand may lack these: what is added to them is only read here.
#[test]
fn opmasks_are_logged() {
    let mut asm = CodeAssembler::new(64).unwrap();
    asm.vmovdqu8(zmmword_ptr(rdi).k3(), zmm17).unwrap();
    asm.vmovdqu32(ymmword_ptr(rsi + 64).k1(), ymm9).unwrap();
    asm.vmovdqu64(xmmword_ptr(rsi).k7(), xmm30).unwrap();
    asm.vmovdqu32(zmmword_ptr(rsi), zmm25).unwrap();
    let code = asm.assemble(CODE).unwrap();
    let found = block(&code, Mode::Indexed, 0, &[]).unwrap();
    assert_eq!((found.slots.len(), found.instructions()), (4, 4));
    let mut text = String::new();
    let mut decoder = iced_x86::Decoder::with_ip(64, &found.code, HOT, iced_x86::DecoderOptions::NONE);
    while decoder.can_decode() {
        text += &format!("{}\n", decoder.decode());
    }
    // In the log's own place: an operand that the guest's instruction does not have.
    for (register, mask) in [("zmm17", "kmovq"), ("ymm9", "kmovw"), ("xmm30", ",k7")] {
        let stores =
            text.lines().filter(|line| line.starts_with("vmovups") && line.ends_with(register)).count();
        assert!(stores == 1 && text.contains(mask), "{register} {mask}: {text}");
    }
}

#[test]
fn string_contents_that_do_not_fit_are_left_to_the_supervisor() {
    let world = World::new();
    let mut asm = CodeAssembler::new(64).unwrap();
    asm.lea(rdi, qword_ptr(rsp + 64)).unwrap();
    asm.mov(ecx, 100).unwrap();
    asm.rep().stosb().unwrap();
    asm.stc().unwrap();
    asm.lea(rdi, qword_ptr(rsp + 512)).unwrap();
    asm.mov(ecx, 10).unwrap();
    asm.rep().stosq().unwrap();
    asm.adc(rax, rbx).unwrap();
    asm.syscall().unwrap();
    let code = asm.assemble(CODE).unwrap();
    for seed in 1..20 {
        let program = Program::new(&world, &code, false, &mut Random::new(seed));
        crate::check::check_with(&world, &program, 30, &|cache| cache.bulk_limit = LOG + 40 * seed);
    }
}

#[test]
fn code_that_rewrites_itself_runs_as_rewritten() {
    let world = World::new();
    let mut asm = CodeAssembler::new(64).unwrap();
    let (mut top, mut patched) = (asm.create_label(), asm.create_label());
    asm.mov(ecx, 4).unwrap();
    asm.lea(rbx, ptr(patched)).unwrap();
    asm.set_label(&mut top).unwrap();
    asm.add(dword_ptr(rbx + 1), ecx).unwrap();
    asm.set_label(&mut patched).unwrap();
    asm.mov(eax, 0x1000).unwrap();
    asm.add(rdx, rax).unwrap();
    asm.dec(ecx).unwrap();
    asm.jne(top).unwrap();
    asm.syscall().unwrap();
    let code = asm.assemble(CODE).unwrap();
    let program = Program::new(&world, &code, false, &mut Random::new(3));
    let run = check(&world, &program, 100);
    assert_eq!((run.outcome, run.regs.rax), (Outcome::Stopped, 0x1000 + 4 + 3 + 2 + 1));
}

#[test]
fn state_images_show_the_guests_instruction_pointer() {
    let world = World::new();
    let mut asm = CodeAssembler::new(64).unwrap();
    asm.fninit().unwrap();
    asm.fld1().unwrap();
    asm.fnstenv(ptr(rsp)).unwrap();
    asm.syscall().unwrap();
    let code = asm.assemble(CODE).unwrap();
    let program = Program::new(&world, &code, false, &mut Random::new(1));
    for mode in MODES {
        // A switch of tasks between the two instructions loses the pointer on some processors.
        // Nor are the blocks linked the first time.
        let mut cache = Cache::new(&world, &program, mode);
        let shown = (0..20).any(|_| {
            let (run, _) = cache.run(100);
            let at = (program.regs.rsp - DATA) as usize + 12;
            run.memory[at..at + 4] == ((CODE + 2) as u32).to_le_bytes()
        });
        assert!(shown, "{mode:?}");
    }
}

#[test]
fn the_dynamic_linkers_images_need_no_supervisor() {
    let world = World::new();
    let mut asm = CodeAssembler::new(64).unwrap();
    asm.and(rsp, -64).unwrap();
    asm.mov(eax, 6).unwrap();
    asm.xor(edx, edx).unwrap();
    asm.xsavec(ptr(rsp)).unwrap();
    asm.mov(eax, 7).unwrap();
    asm.xsavec(ptr(rsp)).unwrap();
    asm.syscall().unwrap();
    let code = asm.assemble(CODE).unwrap();
    let program = Program::new(&world, &code, false, &mut Random::new(1));
    let mut cache = Cache::new(&world, &program, Mode::Plain);
    cache.run(100);
    let linking = cache.stops;
    cache.run(100);
    // The second image holds x87 state, if the random state does.
    assert!(cache.stops - linking <= 2, "{} after {linking}", cache.stops);
}

/// Functions whose addresses share a slot of the lookup table.
#[test]
fn chains_lead_to_the_right_block() {
    const AT: u64 = 0x80;
    assert_eq!(lookup_slot(GuestAddr(CODE + AT)), lookup_slot(GuestAddr(LOW_CODE + AT)));
    let world = World::new();
    let mut asm = CodeAssembler::new(64).unwrap();
    asm.mov(rbx, CODE + AT).unwrap();
    asm.mov(rcx, LOW_CODE + AT).unwrap();
    for target in [rbx, rcx, rbx, rbx, rcx, rcx] {
        asm.stc().unwrap();
        asm.call(target).unwrap();
    }
    asm.syscall().unwrap();
    let mut code = asm.assemble(CODE).unwrap();
    code.resize(AT as usize, 0x90);
    code.extend([0x48, 0x83, 0xD0, 0x01, 0xC3]); // adc rax, 1; ret
    let other = [0x48, 0x83, 0xD2, 0x05, 0xC3]; // adc rdx, 5; ret
    world.bytes(LOW_CODE + AT, other.len()).copy_from_slice(&other);
    for seed in 1..4 {
        let program = Program::new(&world, &code, false, &mut Random::new(seed));
        let run = crate::check::check_with(&world, &program, 100, &|cache| cache.code = vec![CODE, LOW_CODE]);
        assert_eq!(run.outcome, Outcome::Stopped);
        assert_eq!(run.regs.rdx, program.regs.rdx.wrapping_add(18));
    }
}

#[test]
fn transactions_abort() {
    let world = World::new();
    let mut asm = CodeAssembler::new(64).unwrap();
    let mut fallback = asm.create_label();
    asm.mov(eax, -1).unwrap();
    asm.xbegin(fallback).unwrap();
    asm.mov(ebx, 1).unwrap();
    asm.syscall().unwrap();
    asm.set_label(&mut fallback).unwrap();
    asm.mov(ebx, 2).unwrap();
    asm.stc().unwrap();
    asm.mov(rdx, rax).unwrap();
    asm.xtest().unwrap();
    asm.xabort(3).unwrap();
    asm.pushfq().unwrap();
    asm.pop(rdx).unwrap();
    asm.xend().unwrap();
    let code = asm.assemble(CODE).unwrap();
    let program = Program::new(&world, &code, false, &mut Random::new(1));
    for mode in MODES {
        let mut cache = Cache::new(&world, &program, mode);
        cache.rtm = true;
        let (run, _) = cache.run(100);
        assert_eq!((run.outcome, run.count), (Outcome::Fault(libc::SIGSEGV), 9));
        assert_eq!((run.regs.rax, run.regs.rbx, run.regs.rdx & 0x8D5), (0, 2, 0x40));
    }
}

#[test]
fn without_transactional_memory_its_instructions_are_undefined() {
    for code in [&[0xC7, 0xF8, 0, 0, 0, 0][..], &[0x0F, 0x01, 0xD5], &[0x0F, 0x01, 0xD6], &[0xC6, 0xF8, 3]] {
        let world = World::new();
        let code = [&[0x90], code].concat();
        let program = Program::new(&world, &code, false, &mut Random::new(1));
        for mode in MODES {
            let mut cache = Cache::new(&world, &program, mode);
            cache.rtm = false;
            let (run, _) = cache.run(100);
            assert_eq!((run.outcome, run.count), (Outcome::Fault(libc::SIGILL), 1), "{code:x?}");
        }
    }
}
