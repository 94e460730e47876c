//! Instructions that are answered by the recorder: `rdtsc`, `rdtscp`, `cpuid`, those that are rewritten to be trapped, and calls of the
//! vsyscall page.

use std::io;

use guest::{GuestAddr, GuestMemory, Registers};
use iced_x86::Mnemonic;
use kernel::Call;
use ptrace::{PtraceEvent, Report, Running, Stopped};
use trace::{Data, Event, Fact, MemWrite, Stop, SyscallInfo, Trapped};

use crate::api::RecordError;
use crate::buffer;
use crate::exec;
use crate::point;
use crate::session::Core;
use crate::signal;
use crate::stop::{Next, StopError, check_alive, wait_one};
use crate::syscall;
use crate::task::{Resume, Task};
use crate::unrepeatable;

/// A trapped instruction, and its bytes.
pub(crate) type Instruction = (Trapped, Vec<u8>);

/// The trapped instruction at the pc, if it is one whose trap the guest did not ask for. It may have prefixes, which mean nothing.
pub(crate) fn trapped(core: &Core, task: &Task, regs: &Registers) -> Option<Instruction> {
    const LONGEST: usize = 15;
    let mut bytes = [0; LONGEST];
    let read = task.space.memory.read_some(regs.pc(), &mut bytes);
    let (mnemonic, len) = named(&bytes[..read]);
    let kind = match mnemonic {
        Mnemonic::Rdtsc if !task.guise.tsc_faults() => Trapped::Rdtsc,
        Mnemonic::Rdtscp if !task.guise.tsc_faults() => Trapped::Rdtscp,
        Mnemonic::Cpuid if core.cpuid.is_some() && !task.guise.cpuid_faults() => Trapped::Cpuid,
        _ => return unrepeatable::at(task, regs.pc()),
    };
    Some((kind, bytes[..len].to_vec()))
}

/// What an instruction is called, and how long it is. Mostly one of those that are trapped, as it is usually written: a program that meets
/// only these is spared the tables of the decoder, which cost a short one more than all of its traps.
fn named(bytes: &[u8]) -> (Mnemonic, usize) {
    const USUAL: [(&[u8], Mnemonic); 3] = [
        (&[0x0f, 0x31], Mnemonic::Rdtsc),
        (&[0x0f, 0x01, 0xf9], Mnemonic::Rdtscp),
        (&[0x0f, 0xa2], Mnemonic::Cpuid),
    ];
    let usual = USUAL.iter().find(|(code, _)| bytes.starts_with(code));
    usual.map_or_else(
        || {
            let instruction = unrepeatable::decoded(bytes);
            (instruction.mnemonic(), instruction.len())
        },
        |(code, mnemonic)| (*mnemonic, code.len()),
    )
}

/// Answers a trapped instruction. The guest never sees the signal.
pub(crate) fn on_trapped(
    core: &mut Core,
    task: &mut Task,
    mut stopped: Stopped,
    regs: Registers,
    (kind, bytes): Instruction,
) -> Result<Next, StopError> {
    let regs = buffer::at_reading(task, &regs, bytes.len())?.unwrap_or(regs);
    let before = syscall::outside_calls(&regs);
    let mut after = before;
    after.rip = after.rip.wrapping_add(bytes.len() as u64);
    answer(core, task, (kind, &bytes), &mut after)
        .map_err(|source| RecordError::System { what: "cannot read /dev/urandom", source })?;
    let stop = Stop::Instruction(kind);
    let maps = match kind {
        Trapped::Rdtsc | Trapped::Rdtscp => buffer::after_reading(core, task, before.rip)?,
        _ => Vec::new(),
    };
    let raw = Registers { rip: buffer::resume(task, before.rip).unwrap_or(after.rip), ..after };
    stopped.set_registers(&raw)?;
    core.sink.event(&Event {
        stop,
        after,
        maps,
        ..Event::in_place(task.id, task.space.id, before, Fact::Instruction)
    })?;
    task.goes_on(after, raw);
    let stopped = buffer::map(task, repair(task, stopped)?)?;
    // Where it goes on in instructions that were moved, a signal can only come behind those.
    if point::no_code_ran(task, &raw) {
        signal::raise_held(task);
    } else if !task.held.is_empty() && task.runs_to.is_none() {
        return point::on_interrupt(core, task, stopped);
    }
    Ok((stopped, Resume::Cont(0)))
}

/// Puts into the registers what the instruction would.
fn answer(
    core: &mut Core,
    task: &Task,
    (kind, bytes): (Trapped, &[u8]),
    regs: &mut Registers,
) -> io::Result<()> {
    match kind {
        Trapped::Cpuid => {
            let (leaf, subleaf) = (regs.rax as u32, regs.rcx as u32);
            let result =
                core.cpuid.as_ref().and_then(|machine| machine.cpuid(leaf, subleaf)).unwrap_or_default();
            [regs.rax, regs.rbx, regs.rcx, regs.rdx] = result.map(u64::from);
        }
        Trapped::Rdtsc | Trapped::Rdtscp => {
            let (tsc, aux) = core.stamps.now(buffer::told(task));
            regs.rax = tsc & 0xffff_ffff;
            regs.rdx = tsc >> 32;
            if kind == Trapped::Rdtscp {
                regs.rcx = u64::from(aux);
            }
        }
        Trapped::Rdpid => unrepeatable::put(core.stamps.now(0).1.into(), bytes, regs),
        Trapped::Rdrand | Trapped::Rdseed => unrepeatable::draw(bytes, regs)?,
    }
    Ok(())
}

/// A trap is a forced SIGSEGV: where that is blocked or ignored, the kernel unblocks it and forgets the action. Puts
/// both back.
fn repair(task: &Task, stopped: Stopped) -> Result<Stopped, StopError> {
    let shadow = &task.segv;
    if !shadow.blocked && !shadow.ignored() {
        return Ok(stopped);
    }
    let scratch = GuestAddr(abi::PAGE + SCRATCH);
    let memory = &task.space.memory;
    memory.write(scratch, &shadow.action.get())?;
    let args = [libc::SIGSEGV as u64, scratch.0, 0, 8, 0, 0];
    let mask = stopped.signal_mask()?;
    let nr = libc::SYS_rt_sigaction as u64;
    let (mut stopped, result) = exec::make_call(stopped, GuestAddr(abi::SYSCALL), nr, args)?;
    memory.write(scratch, &[0xcc; 32])?;
    if result != 0 {
        return Err(StopError::bug(format!("the action of SIGSEGV cannot be put back: {result}")));
    }
    if shadow.blocked {
        stopped.set_signal_mask(mask | 1 << (libc::SIGSEGV - 1))?;
    }
    Ok(stopped)
}

/// Offset in the page of ours at which a structure lies for the time of a call.
const SCRATCH: u64 = 0x800;

/// Whether a stop at a call's entry is the kernel's emulation of the vsyscall page.
pub(crate) fn is_vsyscall(regs: &Registers) -> bool {
    regs.pc().is_vsyscall_entry()
}

/// A call of the vsyscall page. The kernel performs it, returns to the caller and stops no tracer there, so it is asked to.
pub(crate) fn on_vsyscall(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    regs: Registers,
) -> Result<Next, StopError> {
    let (nr, args) = (regs.orig_rax as u32, regs.syscall_args());
    let before = Registers { rax: u64::from(nr), rcx: 0, r11: 0, orig_rax: 0, ..regs };
    let call = Call::enter(nr, args, &task.space.memory);
    let tid = stopped.tid();
    check_alive(tid)?;
    Running::assume(tid).interrupt()?;
    stopped.cont(0)?;
    let stopped = match wait_one(tid)? {
        Report::Event(PtraceEvent::Stop, stopped) => stopped,
        report => return Err(StopError::Instead(report)),
    };
    let raw = stopped.registers()?;
    if is_vsyscall(&raw) {
        // A pointer was bad: the page's own instructions would have faulted, and a SIGSEGV comes next.
        return Ok((stopped, Resume::Cont(0)));
    }
    let result = raw.rax as i64;
    let ranges = kernel::effects(&call.returned(result), &task.space.memory)
        .map_err(|error| StopError::bug(format!("a call of the vsyscall page: {error}")))?;
    let mut writes = Vec::new();
    for range in ranges {
        let bytes = task.space.memory.read_vec(range.start, range.len() as usize)?;
        writes.push(MemWrite { addr: range.start, data: Data::Inline(bytes) });
    }
    let after = Registers { orig_rax: u64::MAX, ..raw };
    let info = SyscallInfo { nr, args, result: Some(result), output: None, output_crc: 0 };
    core.sink.event(&Event {
        task: task.id,
        space: task.space.id,
        stop: Stop::Syscall,
        before,
        after,
        xstate: None,
        maps: Vec::new(),
        writes,
        fact: Fact::Syscall(info),
    })?;
    task.goes_on(after, raw);
    Ok((stopped, Resume::Cont(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_is_called_as_the_decoder_does() {
        let all: [&[u8]; 8] = [
            &[0x0f, 0x31],
            &[0x0f, 0x01, 0xf9],
            &[0x0f, 0xa2],
            &[0xf3, 0x0f, 0x31],
            &[0x48, 0x0f, 0xa2],
            &[0x0f, 0x01, 0xf8],
            &[0x0f, 0x01],
            &[],
        ];
        for bytes in all {
            let padded = [bytes, &[0x90; 8][..if bytes.len() < 2 { 0 } else { 8 }]].concat();
            let instruction = unrepeatable::decoded(&padded);
            assert_eq!(named(&padded), (instruction.mnemonic(), instruction.len()), "{bytes:x?}");
        }
    }
}
