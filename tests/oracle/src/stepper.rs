//! A recording of one task walked natively: its image is loaded into an empty process and every instruction is run by
//! `PTRACE_SINGLESTEP`; what the kernel did is put in from the events. Counts, registers and memory at every instruction
//! are the CPU's own.

use std::io;
use std::path::Path;

use guest::{EventId, Registers};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use trace::{Event, Fact, Moments, Stop, Trace};

use crate::stub::Stub;

/// What is told of each step of the walk. All callbacks see the process stopped.
pub trait Visitor {
    /// About to run `instruction` natively; `count` instructions have retired.
    fn before(&mut self, _count: u64, _regs: &Registers, _instruction: &Instruction, _stub: &mut Stub) {}
    /// The instruction (or one iteration of a `rep`) has run.
    fn after(&mut self, _count: u64, _regs: &Registers, _instruction: &Instruction, _stub: &mut Stub) {}
    /// An event was put in; `count` is that of its instruction.
    fn event(&mut self, _count: u64, _event: &Event, _stub: &mut Stub) {}
}

/// How a walk ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walked {
    /// Instructions retired, as `Moment` counts them.
    pub count: u64,
    /// Events put in.
    pub events: u64,
}

/// Registers that can be compared at a stop: those the CPU leaves alone on the way into the kernel.
fn comparable(regs: &Registers, stop: Stop) -> Registers {
    let mut regs = Registers { orig_rax: 0, ..*regs };
    // RF and TF belong to stepping.
    regs.eflags &= !0x1_0100;
    if stop == Stop::Syscall {
        regs.rcx = 0;
        regs.r11 = 0;
    }
    if regs.pc().is_vsyscall_entry() {
        regs.rax = 0;
    }
    regs
}

fn ends_at(regs: &Registers, instruction: &Instruction, stop: Stop) -> bool {
    if regs.pc().is_vsyscall_entry() {
        return true;
    }
    let by_code = match stop {
        Stop::Syscall | Stop::Buffered | Stop::Narrow => is_call(instruction),
        Stop::Instruction(_) | Stop::BufferedInstruction(_) => {
            matches!(instruction.code(), Code::Rdtsc | Code::Rdtscp | Code::Cpuid)
        }
        Stop::Fault | Stop::None | Stop::Point => false,
    };
    by_code && regs.rip == instruction.ip()
}

/// Whether an instruction makes a system call.
fn is_call(instruction: &Instruction) -> bool {
    instruction.code() == Code::Syscall
        || instruction.code() == Code::Int_imm8 && instruction.immediate8() == 0x80
}

/// Walks a recording whose only task never spawns or execs again, telling `visitor` of each step.
pub fn walk(trace: &Trace, scratch_dir: &Path, visitor: &mut dyn Visitor) -> io::Result<Walked> {
    let events: Vec<Event> = trace
        .events()
        .map(|next| next.map(|(_, event)| event))
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    let mut stub = Stub::start(scratch_dir)?;
    let moments = Moments::load(trace).map_err(io::Error::other)?;
    let mut count = 0;
    for (at, event) in events.iter().enumerate() {
        if matches!(event.fact, Fact::Spawn(_)) || (at > 0 && matches!(event.fact, Fact::Exec(_))) {
            return Err(io::Error::other("the stepper walks one task and one image"));
        }
        // Registers alone do not tell an execution point, so it is where a replay says, if it has these registers.
        let point = moments.as_ref().filter(|_| event.stop == Stop::Point);
        let point = point.map(|moments| moments.end(EventId(at as u64)).0);
        let event = &run_to(trace, (event, point), &mut count, &mut stub, visitor)?;
        put_in(trace, event, &mut stub)?;
        visitor.event(count, event, &mut stub);
        let entered = matches!(event.fact, Fact::SyscallEnter(_));
        let left = matches!(event.fact, Fact::SyscallLeave(_));
        let retired = matches!(event.stop, Stop::Syscall | Stop::Instruction(_)) && !entered;
        count += u64::from(retired || left);
    }
    Ok(Walked { count, events: events.len() as u64 })
}

fn put_in(trace: &Trace, event: &Event, stub: &mut Stub) -> io::Result<()> {
    for op in &event.maps {
        stub.apply(op, trace)?;
    }
    for write in &event.writes {
        let bytes = trace.data(&write.data).map_err(io::Error::other)?;
        stub.memory().write(write.addr, &bytes).map_err(|e| io::Error::other(e.to_string()))?;
    }
    let after = Registers { orig_rax: u64::MAX, ..event.after };
    stub.tracee().set_registers(&after).map_err(io::Error::other)?;
    if let Some(xstate) = &event.xstate {
        stub.tracee().set_xstate(xstate).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Decodes the instruction at `regs.rip` as it is in memory now.
pub fn decode(stub: &Stub, regs: &Registers) -> Instruction {
    let mut bytes = [0; 15];
    let got = stub.memory().read_some(regs.pc(), &mut bytes);
    let mut decoder = Decoder::with_ip(64, &bytes[..got], regs.rip, DecoderOptions::NONE);
    decoder.decode()
}

fn run_to(
    trace: &Trace,
    (event, point): (&Event, Option<u64>),
    count: &mut u64,
    stub: &mut Stub,
    visitor: &mut dyn Visitor,
) -> io::Result<Event> {
    if matches!(event.stop, Stop::None) {
        return Ok(event.clone());
    }
    loop {
        let regs = stub.tracee().registers().map_err(io::Error::other)?;
        let instruction = decode(stub, &regs);
        if ends_at(&regs, &instruction, event.stop) || point == Some(*count) {
            let noted = (event.before.rip, event.before.rax as u32);
            let reads = matches!(event.stop, Stop::BufferedInstruction(_));
            if reads && noted.0 != regs.rip
                || event.stop == Stop::Buffered && noted != (regs.rip, regs.rax as u32)
            {
                return Err(io::Error::other(format!("{noted:x?} was recorded, {:#x} reached", regs.rip)));
            }
            let event = event.clone().completed(&regs);
            return same(&regs, &event, *count).map(|()| event);
        }
        if instruction.code() == Code::Cpuid && !trace.header().machine.cpuid_trapped {
            answer_cpuid(trace, stub, &regs, &instruction)?;
            *count += 1;
            continue;
        }
        if is_call(&instruction) || matches!(instruction.code(), Code::Rdtsc | Code::Rdtscp | Code::Cpuid) {
            let what = format!(
                "{:?} at {:#x} after {count} instructions has no event",
                instruction.code(),
                regs.rip
            );
            return Err(io::Error::other(what));
        }
        visitor.before(*count, &regs, &instruction, stub);
        if let Some(signo) = stub.step()? {
            if event.stop == Stop::Fault {
                let regs = stub.tracee().registers().map_err(io::Error::other)?;
                return same(&regs, event, *count).map(|()| event.clone());
            }
            let what = format!("signal {signo} at {:#x} after {count} instructions has no event", regs.rip);
            return Err(io::Error::other(what));
        }
        let now = stub.tracee().registers().map_err(io::Error::other)?;
        visitor.after(*count, &now, &instruction, stub);
        // A single step of a repeated string instruction is one iteration; it retires when the pc moves on.
        let repeating = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        *count += u64::from(!(repeating && instruction.is_string_instruction() && now.rip == regs.rip));
    }
}

fn same(regs: &Registers, event: &Event, count: u64) -> io::Result<()> {
    let (got, want) = (comparable(regs, event.stop), comparable(&event.before, event.stop));
    if got == want {
        return Ok(());
    }
    let mut what =
        format!("registers differ from the recording's after {count} instructions at {:#x}:", regs.rip);
    for (i, (g, w)) in got.to_words().iter().zip(want.to_words()).enumerate() {
        if *g != w {
            what += &format!(" {}={g:#x} (recorded {w:#x})", Registers::NAMES[i]);
        }
    }
    Err(io::Error::other(what))
}

fn answer_cpuid(
    trace: &Trace,
    stub: &mut Stub,
    regs: &Registers,
    instruction: &Instruction,
) -> io::Result<()> {
    let (leaf, subleaf) = (regs.rax as u32, regs.rcx as u32);
    let answer = trace.header().machine.cpuid(leaf, subleaf);
    let answer =
        answer.ok_or_else(|| io::Error::other(format!("no cpuid row for {leaf:#x}/{subleaf:#x}")))?;
    let [eax, ebx, ecx, edx] = answer.map(u64::from);
    let after = Registers { rax: eax, rbx: ebx, rcx: ecx, rdx: edx, rip: instruction.next_ip(), ..*regs };
    stub.tracee().set_registers(&after).map_err(io::Error::other)
}

/// A hash of some bytes (FNV-1a).
pub fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
