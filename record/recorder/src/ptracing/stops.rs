//! Which stops of the recorder's are a tracer's: what is written down where the task stands, and what the tracer will see.

use guest::Registers;
use ptrace::Stopped;
use trace::{Event, Fact, SignalAction, SignalInfo, Stop as Reached, TracedInfo};

use super::notice::{self, Siginfo};
use super::{EVENT_EXEC, EVENT_EXIT, EVENT_SECCOMP, EVENT_VFORK_DONE, Mode, Stop};
use crate::session::Core;
use crate::signal::{self, Place};
use crate::stop::{Next, StopError};
use crate::task::{Resume, Task};
use crate::{point, procfs, syscall};

/// `si_code`s of SIGTRAP.
const TRAP_BRKPT: i32 = 1;
const TRAP_TRACE: i32 = 2;

/// Holds the task in a stop.
fn hold(task: &mut Task, stop: Stop) {
    if let Some(traced) = &mut task.tracing {
        traced.stop = Some(stop);
    }
}

/// Whether the tracer wants to see the call that the task is about to make.
pub(crate) fn stops_at_entry(task: &Task) -> bool {
    let wants = |mode| matches!(mode, Mode::Calls | Mode::Emulated | Mode::EmulatedSteps);
    task.tracing.as_ref().is_some_and(|traced| traced.entered.is_none() && wants(traced.mode))
}

/// The stop at a call's entry: an event puts it before the call.
pub(crate) fn at_entry(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    regs: &Registers,
) -> Result<Next, StopError> {
    before_call(core, task, regs)?;
    hold(task, Stop::Entry);
    Ok((stopped, Resume::Cont(0)))
}

/// Writes down that the task came to a call.
fn before_call(core: &mut Core, task: &mut Task, regs: &Registers) -> Result<(), StopError> {
    let Some(traced) = &task.tracing else { return Ok(()) };
    let before = syscall::at_instruction(regs);
    let fact = Fact::Traced(TracedInfo { tracer: traced.tracer_task, request: None });
    core.sink
        .event(&Event { stop: Reached::Syscall, ..Event::in_place(task.id, task.space.id, before, fact) })?;
    task.goes_on(before, *regs);
    Ok(())
}

/// Whether a call that a filter leaves to the tracer is its to decide (`PTRACE_O_TRACESECCOMP`).
pub(crate) fn decides_for_filter(task: &Task) -> bool {
    task.tracing.as_ref().is_some_and(|traced| traced.has(libc::PTRACE_O_TRACESECCOMP))
}

/// Whether the tracer let such a call pass.
pub(crate) fn passes_filter(task: &mut Task) -> bool {
    task.tracing.as_mut().is_some_and(|traced| std::mem::take(&mut traced.filtered))
}

/// The stop at a call that a filter leaves to the tracer.
pub(crate) fn at_filter(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    regs: &Registers,
    data: u16,
) -> Result<Next, StopError> {
    before_call(core, task, regs)?;
    hold(task, Stop::Event(EVENT_SECCOMP, u64::from(data)));
    Ok((stopped, Resume::Cont(0)))
}

/// The result of a call that the tracer saw and does not want to be made; `None` for others.
pub(crate) fn skipped(task: &mut Task, regs: &Registers) -> Option<i64> {
    let skips = task.tracing.as_mut()?.entered.take()?;
    (skips || (regs.orig_rax as i32) < 0).then_some(regs.rax as i64)
}

/// A call that is about to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    nr: u32,
    args: [u64; 6],
    /// The recorder gave the result.
    answered: bool,
}

impl Made {
    /// The one that a task is in.
    pub(crate) fn by(task: &Task) -> Option<Self> {
        let pending = task.pending.as_ref().filter(|_| task.tracing.is_some())?;
        let (nr, args) = pending.made;
        Some(Self { nr, args, answered: pending.emulated.is_some() })
    }

    fn waits_for_child(&self) -> bool {
        const VFORK: u32 = kernel::number("vfork");
        const CLONE: u32 = kernel::number("clone");
        self.nr == VFORK || self.nr == CLONE && self.args[0] & libc::CLONE_VFORK as u64 != 0
    }
}

/// A call is over, its event written.
pub(crate) fn after_call(task: &mut Task, next: Next, made: Option<Made>) -> Result<Next, StopError> {
    let (Some(traced), Some(made)) = (&task.tracing, made) else { return Ok(next) };
    let (mut stopped, resume) = next;
    let mut regs = stopped.registers()?;
    if made.answered {
        regs.orig_rax = u64::from(made.nr);
        stopped.set_registers(&regs)?;
    }
    let done = traced.has(libc::PTRACE_O_TRACEVFORKDONE) && made.waits_for_child() && (regs.rax as i64) > 0;
    if done {
        hold(task, Stop::Event(EVENT_VFORK_DONE, regs.rax));
    } else {
        call_ends(task, &regs);
    }
    Ok((stopped, resume))
}

/// What a tracer sees at the very end of a call.
pub(super) fn call_ends(task: &mut Task, regs: &Registers) {
    match task.tracing.as_ref().map(|traced| traced.mode) {
        Some(Mode::Calls) => hold(task, Stop::Exit),
        Some(Mode::Steps) => {
            notice::send(task, libc::SIGTRAP, notice::at_address(libc::SIGTRAP, TRAP_BRKPT, regs.rip));
        }
        _ => {}
    }
}

/// An instruction was answered by the recorder: one that is stepped stops behind it.
pub(crate) fn stepped(task: &mut Task) {
    if super::steps(task) {
        let info = notice::at_address(libc::SIGTRAP, TRAP_TRACE, task.after.rip);
        notice::send(task, libc::SIGTRAP, info);
    }
}

/// A handler was entered: where it is stepped into, that is a stop.
pub(crate) fn stepped_into_handler(task: &mut Task) {
    if super::steps(task) {
        hold(task, Stop::Handler);
    }
}

/// A program was executed, its event written. `former` is the thread that asked for it.
pub(crate) fn after_exec(
    task: &mut Task,
    next: Next,
    former: u64,
    made: Option<Made>,
) -> Result<Next, StopError> {
    let Some(traced) = &task.tracing else { return Ok(next) };
    let (mut stopped, resume) = next;
    let (seized, told) = (traced.seized, traced.has(libc::PTRACE_O_TRACEEXEC));
    let mut regs = stopped.registers()?;
    if let Some(made) = made {
        regs.orig_rax = u64::from(made.nr);
        stopped.set_registers(&regs)?;
    }
    if told {
        hold(task, Stop::Event(EVENT_EXEC, former));
        return Ok((stopped, resume));
    }
    if !seized {
        let (pid, uid) = (task.process.0, procfs::uid(task.host));
        let info = Siginfo { signo: libc::SIGTRAP, pid, uid, ..Siginfo::default() };
        notice::send(task, libc::SIGTRAP, info.bytes());
    }
    call_ends(task, &regs);
    Ok((stopped, resume))
}

/// A task is about to go.
pub(crate) fn on_exit(task: &mut Task, status: u64) {
    let (process, host) = (task.process, task.host);
    let Some(traced) = &mut task.tracing else { return };
    traced.is_child = process == host && procfs::parent(host) == traced.tracer_process.0;
    if traced.has(libc::PTRACE_O_TRACEEXIT) {
        hold(task, Stop::Event(EVENT_EXIT, status));
    }
}

/// A group stop.
pub(crate) fn on_group_stop(
    core: &mut Core,
    task: &mut Task,
    signal: i32,
    stopped: Stopped,
) -> Result<Next, StopError> {
    let stopped = place(core, task, stopped)?;
    stopped_for_good(task, Stop::Group(signal));
    Ok((stopped, Resume::Cont(0)))
}

/// Whether a stop is one that the tracer asked for.
pub(crate) fn is_asked(task: &Task) -> bool {
    task.pending.is_none() && task.tracing.as_ref().is_some_and(|traced| traced.asked || traced.listening)
}

/// `PTRACE_INTERRUPT` took effect, or a group stop is over.
pub(crate) fn on_trap(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let stopped = place(core, task, stopped)?;
    stopped_for_good(task, Stop::Trap);
    Ok((stopped, Resume::Cont(0)))
}

fn stopped_for_good(task: &mut Task, stop: Stop) {
    hold(task, stop);
    if let Some(traced) = &mut task.tracing {
        (traced.asked, traced.listening) = (false, false);
    }
}

/// Sees to it that an event tells where the task stands.
fn place(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Stopped, StopError> {
    let regs = stopped.registers()?;
    if task.pending.is_some() || point::no_code_ran(task, &regs) {
        return Ok(stopped);
    }
    let (stopped, regs) = point::leave_repeated(task, stopped, regs)?;
    task.interrupted = false;
    point::capture(core, task, stopped, regs, 0)
}

/// A signal is about to be delivered to a traced task.
pub(crate) fn on_signal(
    core: &mut Core,
    task: &mut Task,
    signal: i32,
    info: [u8; 128],
    mut stopped: Stopped,
) -> Result<Next, StopError> {
    let code = signal::si_code(&info);
    let mut regs = stopped.registers()?;
    let by_debugging = signal == libc::SIGTRAP && (TRAP_TRACE..=signal::TRAP_HWBKPT).contains(&code);
    let found =
        if task.pending.is_some() { Place::AfterEvent } else { signal::place(task, signal, &info, &regs) };
    let (stop, before) = match found {
        Place::Fault(before) if !by_debugging => (Reached::Fault, *before),
        Place::AfterEvent => (Reached::None, task.after),
        Place::Fault(_) | Place::Anywhere => {
            if code == TRAP_TRACE && by_debugging {
                (stopped, regs) = point::after_step(task, stopped, regs)?;
            } else {
                (stopped, regs) = point::leave_repeated(task, stopped, regs)?;
                stopped.set_siginfo(&info)?;
            }
            task.interrupted = false;
            stopped = point::capture(core, task, stopped, regs, signal)?;
            (Reached::None, task.after)
        }
    };
    let mut event = Event { stop, ..Event::in_place(task.id, task.space.id, before, Fact::Instruction) };
    if stop == Reached::Fault {
        event.after = syscall::outside_calls(&regs);
    }
    let action = SignalAction::Traced;
    event.fact = Fact::Signal(Box::new(SignalInfo { signo: signal, siginfo: info.to_vec(), action }));
    core.sink.event(&event)?;
    let (after, at_point) = (event.after, task.at_point && stop == Reached::None);
    if task.pending.is_none() {
        task.goes_on(after, regs);
        task.at_point = at_point;
    }
    hold(task, Stop::Signal(signal));
    Ok((stopped, Resume::Cont(0)))
}
