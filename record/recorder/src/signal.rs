//! Signals: where they landed, what they did, and which must wait for a better moment.
//!
//! A signal on the way out of a system call, or raised by an instruction, has a place that a replay reaches by running. One
//! that comes at an arbitrary instruction and has a handler is held back and raised again at the task's next system call, or at an
//! execution point when none comes soon; one that kills comes at an execution point at once.
#![expect(unsafe_code, reason = "tgkill(2)")]

use guest::{GuestAddr, GuestMemory, Registers};
use ptrace::{HostTid, Report, Stopped};
use trace::{Event, Fact, MemWrite, SignalAction, SignalInfo, Stop, SyscallInfo};

use crate::session::Core;
use crate::sink::Ended;
use crate::stop::{Next, StopError, as_it_stood, check_alive, wait_one};
use crate::task::{Held, Resume, Task, same_place};
use crate::{buffer, exec, ignored, image, narrow, point, procfs, ptracing, seccomp, syscall, trap};

/// What the kernel will do with a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Disposition {
    Handler,
    Ignored,
    Stops,
    Kills,
}

/// Where a signal landed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// No user code ran since the task's last event.
    AfterEvent,
    /// At an instruction that raised it; the registers are those before that instruction.
    Fault(Box<Registers>),
    /// Somewhere in user code.
    Anywhere,
}

/// The `int` at an offset of a `siginfo_t`.
pub(crate) fn info_word(info: &[u8; 128], at: usize) -> i32 {
    i32::from_le_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]])
}

pub(crate) fn si_code(info: &[u8; 128]) -> i32 {
    info_word(info, 8)
}

/// Whether a mask blocks SIGSEGV.
pub(crate) fn blocks_segv(mask: u64) -> bool {
    mask & bit(libc::SIGSEGV) != 0
}

pub(crate) fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// A signal is about to be delivered.
pub(crate) fn on_signal(
    core: &mut Core,
    task: &mut Task,
    signal: i32,
    mut stopped: Stopped,
) -> Result<Next, StopError> {
    let mut info = stopped.siginfo()?;
    let regs = stopped.registers()?;
    if signal == libc::SIGSEGV
        && si_code(&info) == SI_KERNEL
        && let Some(instruction) = trap::trapped(core, task, &regs)
    {
        let next = trap::on_trapped(core, task, stopped, regs, instruction)?;
        ptracing::stepped(task);
        return Ok(next);
    }
    narrow::refuse_trapped(signal, &info)?;
    if signal == libc::SIGSYS && si_code(&info) == SYS_USER_DISPATCH && task.pending.is_none() {
        dispatched(core, task, &regs)?;
    }
    if point::ran_past(task, &mut stopped, signal == libc::SIGTRAP && si_code(&info) == TRAP_HWBKPT)? {
        return point::on_interrupt(core, task, stopped);
    }
    if is_late_breakpoint(task, signal, &info) {
        task.adrift = true;
        return Ok((stopped, Resume::Cont(0)));
    }
    let stands_in = ptracing::authentic(core, task, signal, &mut stopped, &mut info)?;
    let again = if stands_in { None } else { raised_again(task, signal, &info) };
    if let Some(original) = again {
        stopped.set_siginfo(&original)?;
        info = original;
    }
    if ptracing::is_traced(task) {
        return ptracing::on_signal(core, task, signal, info, stopped);
    }
    if signal == libc::SIGTRAP && si_code(&info) == TRAP_TRACE && regs.eflags & TRAP_FLAG != 0 {
        return Err(StopError::Refused(format!(
            "a program that sets its own trap flag, to be stopped at each instruction (here at {:#x}), is not supported",
            regs.rip
        )));
    }
    let place = if again.is_some() { Place::AfterEvent } else { place(task, signal, &info, &regs) };
    let raised = matches!(place, Place::Fault(_));
    if raised && buffer::way_out(task, &regs).is_some() {
        return Err(StopError::bug(format!("signal {signal} raised in the buffer, at {:#x}", regs.rip)));
    }
    let disposition = disposition(task.host, signal, raised)?;
    let (stop, before) = match place {
        Place::AfterEvent => (Stop::None, task.after),
        Place::Fault(before) => (Stop::Fault, *before),
        // Raised by the very call that is being made: it comes before that returns.
        Place::Anywhere if raised_by_call(signal) && buffer::way_out(task, &regs).is_some() => {
            hold(core, task, signal, info);
            return point::on_interrupt(core, task, stopped);
        }
        Place::Anywhere if disposition == Disposition::Handler => {
            hold(core, task, signal, info);
            task.adrift = true;
            return Ok((stopped, Resume::Cont(0)));
        }
        Place::Anywhere if disposition == Disposition::Kills => {
            hold(core, task, signal, info);
            return point::on_interrupt(core, task, stopped);
        }
        // It takes effect as it comes: raised again, it could come after what is to undo it. Where the task then stands is noted
        // when it has stopped.
        Place::Anywhere if disposition == Disposition::Stops => {
            task.stopping = Some((signal, info));
            task.adrift = true;
            return Ok((stopped, Resume::Cont(signal)));
        }
        Place::Anywhere => {
            task.adrift = true;
            return Ok((stopped, Resume::Cont(signal)));
        }
    };
    let event = Event { stop, ..Event::in_place(task.id, task.space.id, before, Fact::Instruction) };
    act(core, task, stopped, (signal, disposition), info, event)
}

/// Whether the recorder's own breakpoint was reached and something else told first, such as that the task may go on: then this is no longer
/// what it waits for. A program without a tracer has none of its own.
fn is_late_breakpoint(task: &Task, signal: i32, info: &[u8; 128]) -> bool {
    signal == libc::SIGTRAP && si_code(info) == TRAP_HWBKPT && !ptracing::is_traced(task)
}

/// Delivers the signal that a task is stopped for, or another in its place, as its tracer wants.
pub(crate) fn inject(
    core: &mut Core,
    task: &mut Task,
    signal: i32,
    stopped: Stopped,
) -> Result<Next, StopError> {
    if signal == libc::SIGKILL || stopped.signal_mask()? & bit(signal) != 0 {
        return Ok((stopped, Resume::Cont(signal)));
    }
    let info = stopped.siginfo()?;
    let event = Event::in_place(task.id, task.space.id, task.after, Fact::Instruction);
    act(core, task, stopped, (signal, disposition(task.host, signal, false)?), info, event)
}

/// What a signal does, `event` being where it landed.
fn act(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    (signal, disposition): (i32, Disposition),
    info: [u8; 128],
    mut event: Event,
) -> Result<Next, StopError> {
    let action = match disposition {
        Disposition::Handler => return deliver(core, task, stopped, signal, info, event),
        Disposition::Ignored => SignalAction::Ignored,
        Disposition::Stops => SignalAction::Stopped,
        Disposition::Kills => {
            task.dying = signal;
            SignalAction::Fatal
        }
    };
    // Of the fault itself, where no handler could be entered for it.
    let info = task.unframed.take().filter(|_| signal == libc::SIGSEGV).unwrap_or(info);
    event.fact = fact(signal, &info, action);
    core.sink.event(&event)?;
    task.after = event.after;
    if disposition == Disposition::Kills && event.stop == Stop::Fault && procfs::is_init(task.host) {
        return die_of_fault(stopped);
    }
    Ok((stopped, Resume::Cont(signal)))
}

/// The first process of a namespace is about to die of a SIGSEGV that it raised. The kernel spares it while it is traced, and would
/// have it raise the signal for ever; of a call that it cannot hand over (`PR_SET_SYSCALL_USER_DISPATCH`), it dies all the same.
fn die_of_fault(mut stopped: Stopped) -> Result<Next, StopError> {
    const DISPATCH: u64 = 59;
    const ON: u64 = 1;
    const UNREADABLE: u64 = 8;
    let site = GuestAddr(abi::SYSCALL);
    stopped.set_signal_mask(u64::MAX)?;
    let args = [DISPATCH, ON, 0, 0, UNREADABLE, 0];
    let (mut stopped, result) = exec::make_call(stopped, site, libc::SYS_prctl as u64, args)?;
    if result != 0 {
        return Err(StopError::Refused(
            "a crash of the first process of a namespace is not supported on this kernel".into(),
        ));
    }
    let regs = stopped.registers()?;
    let call = Registers { rip: site.0, rax: libc::SYS_getpid as u64, orig_rax: u64::MAX, ..regs };
    stopped.set_registers(&call)?;
    Ok((stopped, Resume::Cont(0)))
}

/// `si_code` of a system call that the guest has handed to itself.
const SYS_USER_DISPATCH: i32 = 2;

/// A call was not made but handed to the guest, before a tracer saw it: it is an event without a result, as one that a filter traps.
fn dispatched(core: &mut Core, task: &mut Task, regs: &Registers) -> Result<(), StopError> {
    let nr = regs.rax as u32;
    let before = syscall::at_instruction(&Registers { orig_rax: regs.rax, ..*regs });
    let info = SyscallInfo { nr, args: regs.syscall_args(), result: None, output: None, output_crc: 0 };
    core.sink.begin(task.id, task.space.id, before, info);
    let after = Registers { orig_rax: u64::MAX, ..*regs };
    let ended = Ended { info, after, xstate: None, maps: Vec::new(), writes: Vec::new() };
    core.sink.end(task.id, task.space.id, before, ended)?;
    task.goes_on(after, *regs);
    Ok(())
}

/// `si_code` of an instruction that was stepped over, and the flag that asks for that.
const TRAP_TRACE: i32 = 2;
const TRAP_FLAG: u64 = 1 << 8;

/// `si_code` of a hardware breakpoint.
pub(crate) const TRAP_HWBKPT: i32 = 4;

const SI_KERNEL: i32 = 0x80;

fn fact(signo: i32, info: &[u8; 128], action: SignalAction) -> Fact {
    Fact::Signal(Box::new(SignalInfo { signo, siginfo: info.to_vec(), action }))
}

pub(crate) fn place(task: &Task, signal: i32, info: &[u8; 128], regs: &Registers) -> Place {
    if point::no_code_ran(task, regs) {
        return Place::AfterEvent;
    }
    let raised = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP);
    if raised && si_code(info) > 0 {
        Place::Fault(Box::new(at_fault(task, (signal, si_code(info)), regs)))
    } else {
        Place::Anywhere
    }
}

/// The registers before an instruction that raised a signal: a breakpoint instruction, or an `int 4`, is behind the pc already.
fn at_fault(task: &Task, (signal, code): (i32, i32), regs: &Registers) -> Registers {
    let mut before = syscall::outside_calls(regs);
    let mut bytes = [0; 2];
    if matches!(signal, libc::SIGTRAP | libc::SIGSEGV)
        && task.space.memory.read(regs.pc().wrapping_sub(2), &mut bytes).is_ok()
    {
        before.rip = match bytes {
            [0xcd, 0x04] if signal == libc::SIGSEGV && code == SI_KERNEL => regs.rip - 2,
            [0xcd, 0x03] if signal == libc::SIGTRAP => regs.rip - 2,
            [_, 0xcc | 0xf1] if signal == libc::SIGTRAP => regs.rip - 1,
            _ => regs.rip,
        };
    }
    before
}

/// `raised`: by an instruction.
fn disposition(host: HostTid, signal: i32, raised: bool) -> Result<Disposition, StopError> {
    let disposition = usual_disposition(host, signal);
    let matters = matches!(disposition, Disposition::Kills | Disposition::Stops) && signal != libc::SIGSTOP;
    let spared = matters && procfs::is_init(host);
    match (spared, raised, signal) {
        (false, ..) | (true, true, libc::SIGSEGV) => Ok(disposition),
        (true, false, _) => Ok(Disposition::Ignored),
        (true, true, _) => Err(StopError::Refused(format!(
            "signal {signal} raised by an instruction of the first process of a namespace is not supported"
        ))),
    }
}

fn usual_disposition(host: HostTid, signal: i32) -> Disposition {
    if procfs::signal_set(host, "SigCgt") & bit(signal) != 0 {
        return Disposition::Handler;
    }
    if procfs::signal_set(host, "SigIgn") & bit(signal) != 0 {
        return Disposition::Ignored;
    }
    match signal {
        libc::SIGCONT => Disposition::Ignored,
        _ if ignored::BY_DEFAULT.contains(&signal) => Disposition::Ignored,
        _ if is_stop(signal) => Disposition::Stops,
        _ => Disposition::Kills,
    }
}

/// Whether it is a signal that a call raises in its own task.
fn raised_by_call(signal: i32) -> bool {
    matches!(signal, libc::SIGPIPE | libc::SIGXFSZ)
}

/// Whether a signal stops its process by default.
pub(crate) fn is_stop(signal: i32) -> bool {
    matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// The signal that stopped a task in its own code, which was not of its own process's making: the event of it.
pub(crate) fn stopped_by(core: &mut Core, task: &mut Task) -> Result<(), StopError> {
    let Some((signal, info)) = task.stopping.take() else { return Ok(()) };
    let fact = fact(signal, &info, SignalAction::Stopped);
    core.sink.event(&Event::in_place(task.id, task.space.id, task.after, fact))?;
    Ok(())
}

fn hold(core: &Core, task: &mut Task, signal: i32, siginfo: [u8; 128]) {
    const FIRST_REALTIME: i32 = 32;
    if signal < FIRST_REALTIME && task.held.iter().any(|held| held.signal == signal) {
        return;
    }
    task.held.push(Held { signal, siginfo, since: core.timer.now() });
    // It is raised at the next call that stops.
    buffer::allow(&task.space, false);
}

/// Raises the signals that were held back: at the entry of a system call, or at an execution point.
pub(crate) fn raise_held(task: &mut Task) {
    for held in std::mem::take(&mut task.held) {
        // SAFETY: tgkill takes numbers only; the task is a stopped tracee, so its id is not reused.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, task.process.0, task.host.0, held.signal) };
        if result == 0 {
            task.raised.push(held);
        }
    }
}

/// If this is a signal that was held back and raised again, or that a filter of the guest's wants: what it came with at first.
fn raised_again(task: &mut Task, signal: i32, info: &[u8; 128]) -> Option<[u8; 128]> {
    let sender = info_word(info, 16);
    // Another process id namespace knows us as 0.
    let again = si_code(info) == libc::SI_TKILL && (sender == 0 || sender as u32 == std::process::id());
    let filtered = signal == libc::SIGSYS && si_code(info) == seccomp::SYS_SECCOMP;
    if !again && !filtered {
        return None;
    }
    let at = task.raised.iter().position(|held| held.signal == signal)?;
    Some(task.raised.remove(at).siginfo)
}

/// Lets the kernel enter the handler and records the frame, at the handler's first instruction.
fn deliver(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    signal: i32,
    info: [u8; 128],
    mut event: Event,
) -> Result<Next, StopError> {
    let from = stopped.registers()?;
    check_alive(task.host)?;
    stopped.step(signal)?;
    let mut stopped = match wait_one(task.host)? {
        Report::Signal(libc::SIGTRAP, stopped) => stopped,
        report @ Report::Signal(libc::SIGSEGV, _) if signal == libc::SIGSEGV => {
            task.unframed = Some(info);
            return Err(StopError::Instead(report));
        }
        // No room for the frame, or death: that is a report of its own.
        report => return Err(as_it_stood(StopError::Instead(report), task.host, &from)),
    };
    let entered = stopped.registers().map_err(StopError::from).and_then(|raw| {
        ignored::in_handler(task, signal, &mut stopped)?;
        Ok((raw, stopped.xstate()?))
    });
    let (raw, xstate) = entered.map_err(|why| as_it_stood(why, task.host, &from))?;
    if same_place(&from, &raw) {
        return Err(StopError::bug(format!("signal {signal} did not enter its handler")));
    }
    event.xstate = Some(xstate);
    event.after = Registers { orig_rax: u64::MAX, ..raw };
    event.writes = vec![frame(core, task, &raw)?];
    event.fact = fact(signal, &info, SignalAction::Handler { handler: raw.pc() });
    core.sink.event(&event)?;
    task.goes_on(event.after, raw);
    task.segv.blocked = blocks_segv(stopped.signal_mask()?);
    ptracing::stepped_into_handler(task);
    Ok((stopped, Resume::Cont(0)))
}

/// The signal frame: from the stack pointer to the end of the saved extended state (`struct rt_sigframe` and
/// `struct _fpx_sw_bytes` of the kernel).
fn frame(core: &mut Core, task: &Task, raw: &Registers) -> Result<MemWrite, StopError> {
    const FPSTATE_POINTER: u64 = 8 + 40 + 184;
    const FRAME_LENGTH: u64 = 8 + 304 + 128;
    const LEGACY_LENGTH: u64 = 512;
    const SOFTWARE_BYTES: u64 = 464;
    const MAGIC: u32 = 0x4650_5853;
    let memory = &task.space.memory;
    let sp = raw.sp();
    let fpstate = GuestAddr(memory.read_u64(sp.wrapping_add(FPSTATE_POINTER))?);
    let mut end = sp.wrapping_add(FRAME_LENGTH);
    if fpstate != GuestAddr(0) {
        let has_more = memory.read_u32(fpstate.wrapping_add(SOFTWARE_BYTES))? == MAGIC;
        let len = if has_more {
            u64::from(memory.read_u32(fpstate.wrapping_add(SOFTWARE_BYTES + 4))?)
        } else {
            LEGACY_LENGTH
        };
        end = end.max(fpstate.wrapping_add(len));
    }
    let bytes = memory.read_vec(sp, (end.0 - sp.0) as usize)?;
    Ok(MemWrite { addr: sp, data: image::data(bytes, &mut core.sink.writer)? })
}
