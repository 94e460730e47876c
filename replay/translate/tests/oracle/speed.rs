//! What it costs: ratios to the same code run natively, side by side, in processor time. `BACKSTORY_SPEED=n` makes
//! the runs n times longer; without it they only show that nothing is grossly slow.

use std::collections::BTreeSet;

use guest::GuestAddr;
use iced_x86::code_asm::*;
use translate::log::{MAX_BYTES_PER_INSTRUCTION, Sink, walk};
use translate::{BlockId, Branches, Bytes, CacheAddr, DEFAULT_LAYOUT, Mode, Request, translate};

use crate::cache::Cache;
use crate::check::MODES;
use crate::program::{Program, Random};
use crate::world::{CODE, COLD, HOT, LOG_LEN, World, own_cpu_time};

/// The budget for which the log has room.
const SLICE: u64 = LOG_LEN as u64 / 2 / MAX_BYTES_PER_INSTRUCTION;

fn rounds() -> u32 {
    std::env::var("BACKSTORY_SPEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

type Build = fn(&mut CodeAssembler, u32) -> Result<(), iced_x86::IcedError>;

/// A loop of one block with a store.
fn tight(asm: &mut CodeAssembler, rounds: u32) -> Result<(), iced_x86::IcedError> {
    let mut top = asm.create_label();
    asm.mov(ecx, rounds * 1_000_000)?;
    asm.xor(eax, eax)?;
    asm.set_label(&mut top)?;
    asm.add(rax, rcx)?;
    asm.mov(qword_ptr(rsp - 64), rax)?;
    asm.dec(ecx)?;
    asm.jne(top)
}

/// Calls and returns, two to three per ten instructions.
fn fib(asm: &mut CodeAssembler, rounds: u32) -> Result<(), iced_x86::IcedError> {
    let (mut function, mut again, mut small) = (asm.create_label(), asm.create_label(), asm.create_label());
    asm.mov(r12d, rounds)?;
    asm.set_label(&mut again)?;
    asm.mov(edi, 22)?;
    asm.call(function)?;
    asm.dec(r12d)?;
    asm.jne(again)?;
    asm.syscall()?;
    asm.set_label(&mut function)?;
    asm.mov(eax, edi)?;
    asm.cmp(edi, 2)?;
    asm.jb(small)?;
    asm.push(rbx)?;
    asm.push(rbp)?;
    asm.mov(ebx, edi)?;
    asm.lea(edi, dword_ptr(rbx - 1))?;
    asm.call(function)?;
    asm.mov(ebp, eax)?;
    asm.lea(edi, dword_ptr(rbx - 2))?;
    asm.call(function)?;
    asm.add(eax, ebp)?;
    asm.pop(rbp)?;
    asm.pop(rbx)?;
    asm.set_label(&mut small)?;
    asm.ret()
}

/// Branches that go either way, by chance.
fn branchy(asm: &mut CodeAssembler, rounds: u32) -> Result<(), iced_x86::IcedError> {
    let (mut top, mut odd, mut high, mut next) =
        (asm.create_label(), asm.create_label(), asm.create_label(), asm.create_label());
    asm.mov(ecx, rounds * 300_000)?;
    asm.mov(eax, 12345)?;
    asm.set_label(&mut top)?;
    asm.imul_3(eax, eax, 1_103_515_245)?;
    asm.add(eax, 12345)?;
    asm.test(eax, 0x10000)?;
    asm.jne(odd)?;
    asm.add(rbx, rax)?;
    asm.mov(qword_ptr(rsp - 32), rbx)?;
    asm.jmp(next)?;
    asm.set_label(&mut odd)?;
    asm.xor(rbx, rax)?;
    asm.test(eax, 0x70_0000)?;
    asm.je(high)?;
    asm.mov(dword_ptr(rsp - 16), eax)?;
    asm.set_label(&mut high)?;
    asm.lea(rdx, qword_ptr(rbx + rax * 2))?;
    asm.set_label(&mut next)?;
    asm.dec(ecx)?;
    asm.jne(top)
}

/// A dispatch loop through a table of addresses, as interpreters have.
fn dispatch(asm: &mut CodeAssembler, rounds: u32) -> Result<(), iced_x86::IcedError> {
    let (mut top, mut end) = (asm.create_label(), asm.create_label());
    let mut cases: [CodeLabel; 4] = std::array::from_fn(|_| asm.create_label());
    for (i, case) in cases.iter().enumerate() {
        asm.lea(rax, ptr(*case))?;
        asm.mov(qword_ptr(rsp - 128 + 8 * i as i32), rax)?;
    }
    asm.mov(r14d, rounds * 300_000)?;
    asm.set_label(&mut top)?;
    asm.dec(r14d)?;
    asm.je(end)?;
    asm.mov(eax, r14d)?;
    asm.shr(eax, 2)?;
    asm.xor(eax, r14d)?;
    asm.and(eax, 3)?;
    asm.jmp(qword_ptr(rsp + rax * 8 - 128))?;
    for (i, case) in cases.iter_mut().enumerate() {
        asm.set_label(case)?;
        asm.add(rbx, i as i32)?;
        asm.inc(qword_ptr(rsp - 16))?;
        asm.jmp(top)?;
    }
    asm.set_label(&mut end)?;
    asm.nop()
}

#[test]
fn ratios_to_native() {
    let world = World::new();
    let programs: [(&str, Build); 4] =
        [("tight", tight), ("fib", fib), ("branchy", branchy), ("dispatch", dispatch)];
    for (name, build) in programs {
        let mut asm = CodeAssembler::new(64).unwrap();
        build(&mut asm, rounds()).unwrap();
        asm.syscall().unwrap();
        let code = asm.assemble(CODE).unwrap();
        let program = Program::new(&world, &code, false, &mut Random::new(1));
        let native = native_seconds(&world, &program);
        let mut line = format!("{name:9} native {native:.3}s");
        let counted =
            MODES.map(|mode| (mode, Branches::Uncounted)).into_iter().chain([(Mode::Plain, Branches::All)]);
        for (mode, branches) in counted {
            let mut cache = Cache::new(&world, &program, mode);
            cache.branches = branches;
            cache.refill = Some(if mode.logs() { SLICE } else { 1 << 30 });
            let before = world.cpu_time();
            let (run, _) = cache.run(1);
            let seconds = (world.cpu_time() - before).as_secs_f64();
            let name = if branches == Branches::Uncounted { "" } else { " and branches" };
            let speed = run.count as f64 / seconds / 1e6;
            line += &format!("  {mode:?}{name} x{:.2} ({speed:.0} M/s)", seconds / native);
        }
        println!("{line}");
    }
}

fn native_seconds(world: &World, program: &Program) -> f64 {
    program.load(world);
    world.set_xstate(&program.xstate);
    world.set_registers(&program.regs);
    let before = world.cpu_time();
    world.run();
    (world.cpu_time() - before).as_secs_f64()
}

/// Counts.
#[derive(Default)]
struct Totals {
    blocks: u64,
    bytes: u64,
}

impl Sink for Totals {
    fn block(&mut self, _id: translate::BlockId, _path: u32, instructions: u32) {
        self.blocks += u64::from(instructions != 0);
    }

    fn store(&mut self, _slot: u32, _addr: guest::GuestAddr, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
    }
}

#[test]
fn walking_a_log() {
    let world = World::new();
    let mut asm = CodeAssembler::new(64).unwrap();
    fib(&mut asm, 1).unwrap();
    let code = asm.assemble(CODE).unwrap();
    let program = Program::new(&world, &code, false, &mut Random::new(1));
    let mut cache = Cache::new(&world, &program, Mode::Indexed);
    cache.run(SLICE);
    let blocks = cache.block_logs();
    let mut totals = Totals::default();
    let start = own_cpu_time();
    for _ in 0..20 {
        walk(&cache.log, &blocks, &mut totals).unwrap();
    }
    let seconds = (own_cpu_time() - start).as_secs_f64();
    println!(
        "{:.1} M blocks/s, {:.1} bytes of log per instruction",
        totals.blocks as f64 / seconds / 1e6,
        cache.log.len() as f64 / SLICE as f64
    );
    assert!(totals.blocks > 0 && totals.bytes > 0);
}

/// Real code: this test's own, block after block.
#[test]
fn translating() {
    let file = std::fs::read("/proc/self/exe").unwrap();
    let entry = u64::from_le_bytes(file[24..32].try_into().unwrap());
    let bytes = &file[(entry & !0xFFF) as usize..][..200_000 * rounds().min(4) as usize];
    for mode in MODES {
        let (mut blocks, mut instructions, mut code, mut cold) = (0u32, 0u64, 0usize, 0usize);
        let start = own_cpu_time();
        let mut pc = CODE;
        while pc < CODE + bytes.len() as u64 - 64 {
            let request = Request {
                pc: GuestAddr(pc),
                code: &Bytes { start: GuestAddr(CODE), bytes },
                hot: CacheAddr(HOT),
                cold: CacheAddr(COLD),
                mode,
                id: BlockId(blocks),
                limit: None,
                breakpoints: &BTreeSet::new(),
                search: None,
                self_check: false,
                layout: &DEFAULT_LAYOUT,
                branches: Branches::Uncounted,
                rtm: true,
                xsave_size: 832,
            };
            let Ok(block) = translate(&request) else {
                pc += 1;
                continue;
            };
            blocks += 1;
            instructions += u64::from(block.instructions());
            code += block.code.len();
            cold += block.cold.len();
            pc = block.sources[0].end.0.max(pc + 1);
        }
        let micros = (own_cpu_time() - start).as_secs_f64() * 1e6;
        println!(
            "{mode:?}: {blocks} blocks of {:.1} instructions in {:.2} us each; {:.0} bytes hot, {:.0} cold",
            instructions as f64 / f64::from(blocks),
            micros / f64::from(blocks),
            code as f64 / f64::from(blocks),
            cold as f64 / f64::from(blocks)
        );
        assert!(blocks > 1000);
    }
}
