//! Instructions that are answered by the recorder: `rdtsc`, `rdtscp`, and calls of the vsyscall page.

use guest::{GuestAddr, Registers};
use ptrace::Stopped;
use trace::{Event, Fact, Stop, Trapped};

use crate::exec;
use crate::session::Core;
use crate::stop::{Next, StopError};
use crate::task::{Resume, Task};

/// The trapped instruction at the pc, if it is one.
pub(crate) fn trapped(task: &Task, regs: &Registers) -> Option<Trapped> {
    let mut bytes = [0; 3];
    let memory = &task.space.memory;
    let read = memory.read_some(regs.pc(), &mut bytes);
    match bytes[..read] {
        [0x0f, 0x31, ..] => Some(Trapped::Rdtsc),
        [0x0f, 0x01, 0xf9] => Some(Trapped::Rdtscp),
        _ => None,
    }
}

/// Answers a trapped instruction. The guest never sees the signal.
pub(crate) fn on_trapped(
    core: &mut Core,
    task: &mut Task,
    mut stopped: Stopped,
    regs: Registers,
    kind: Trapped,
) -> Result<Next, StopError> {
    const RESUME_FLAG: u64 = 1 << 16;
    let before = Registers { orig_rax: u64::MAX, eflags: regs.eflags & !RESUME_FLAG, ..regs };
    let mut after = before;
    let (length, tsc, aux) = answer(kind);
    after.rip = after.rip.wrapping_add(length);
    after.rax = tsc & 0xffff_ffff;
    after.rdx = tsc >> 32;
    if let Some(aux) = aux {
        after.rcx = u64::from(aux);
    }
    stopped.set_registers(&after)?;
    core.sink.event(&Event {
        task: task.id,
        space: task.space.id,
        stop: Stop::Instruction(kind),
        before,
        after,
        xstate: None,
        maps: Vec::new(),
        writes: Vec::new(),
        fact: Fact::Instruction,
    })?;
    task.after = after;
    task.raw = after;
    let stopped = repair(task, stopped)?;
    Ok((stopped, Resume::Cont(0)))
}

/// Length of the instruction, time stamp, and `TSC_AUX` where it is given.
fn answer(kind: Trapped) -> (u64, u64, Option<u32>) {
    match kind {
        Trapped::Rdtsc | Trapped::Cpuid => (2, time_stamp().0, None),
        Trapped::Rdtscp => {
            let (tsc, aux) = time_stamp();
            (3, tsc, Some(aux))
        }
    }
}

#[expect(unsafe_code, reason = "rdtscp is an unsafe intrinsic")]
fn time_stamp() -> (u64, u32) {
    let mut aux = 0;
    // SAFETY: every x86-64 processor that Linux 6.18 runs on with a usable TSC has rdtscp; it only stores to `aux`.
    let tsc = unsafe { std::arch::x86_64::__rdtscp(&mut aux) };
    (tsc, aux)
}

/// A trap is a forced SIGSEGV: where that is blocked or ignored, the kernel unblocks it and forgets the action. Puts
/// both back.
fn repair(task: &Task, stopped: Stopped) -> Result<Stopped, StopError> {
    let shadow = task.segv;
    if !shadow.blocked && !shadow.ignored() {
        return Ok(stopped);
    }
    let scratch = GuestAddr(abi::PAGE + SCRATCH);
    let memory = &task.space.memory;
    memory.write(scratch, &shadow.action)?;
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

const VSYSCALL_PAGE: u64 = 0xffff_ffff_ff60_0000;

/// Whether a stop at a call's entry is the kernel's emulation of the vsyscall page.
pub(crate) fn is_vsyscall(regs: &Registers) -> bool {
    GuestAddr(regs.rip).page().0 == VSYSCALL_PAGE
}

/// A call of the vsyscall page.
pub(crate) fn on_vsyscall(
    _core: &mut Core,
    _task: &mut Task,
    _stopped: Stopped,
    regs: Registers,
) -> Result<Next, StopError> {
    Err(StopError::Refused(format!("a call of the vsyscall page at {:#x} is not supported", regs.rip)))
}
