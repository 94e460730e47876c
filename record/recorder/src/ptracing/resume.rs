//! How a tracee goes on from the stop that its tracer saw. Knows nothing of what the tracer may ask.

use ptrace::{HostTid, Stopped, Waited};

use super::notice::{self, SI_KERNEL, Siginfo};
use super::stops::call_ends;
use super::{EVENT_CLONE, EVENT_EXIT, EVENT_FORK, EVENT_SECCOMP, EVENT_VFORK, Mode, Stop};
use crate::procfs;
use crate::session::Core;
use crate::stop::StopError;
use crate::syscall;
use crate::task::{Resume, Run, Task};

/// Lets a held task go on. The signal (0 for none) is delivered, as far as the stop is one at which one can be.
pub(super) fn go_on(core: &mut Core, task: &mut Task, mode: Mode, signal: i32) -> Result<(), StopError> {
    let Some((stop, was)) = leave_stop(task, mode) else { return Ok(()) };
    let Run::Traced(mut stopped) = std::mem::replace(&mut task.run, Run::Running) else { return Ok(()) };
    let resume = match stop {
        Stop::Signal(_) if signal == 0 => Resume::Cont(0),
        Stop::Signal(came) => {
            if signal != came {
                stopped.set_siginfo(&by_tracer(task, signal))?;
            }
            Resume::Inject(signal)
        }
        Stop::Entry => {
            deliver_later(task, signal);
            enters(task, was.emulates(), false);
            let entered = syscall::on_entry(core, task, stopped);
            return settle(core, task, entered);
        }
        Stop::Event(EVENT_SECCOMP, _) => {
            enters(task, false, true);
            let entered = syscall::on_entry(core, task, stopped);
            return settle(core, task, entered);
        }
        Stop::Exit | Stop::Handler => {
            deliver_later(task, signal);
            Resume::Cont(0)
        }
        Stop::Event(EVENT_FORK | EVENT_VFORK | EVENT_CLONE, _) => Resume::ToExit,
        Stop::Event(EVENT_EXIT, _) => Resume::Cont(0),
        Stop::Event(..) => return after_event(core, task, stopped),
        Stop::Group(_) if task.tracing.is_none() => Resume::Listen,
        Stop::Group(_) | Stop::Trap => Resume::Cont(0),
    };
    task.run = Run::Ready(stopped, resume);
    core.tracing.resumed.push(task.host);
    Ok(())
}

/// The call at which the task stands was shown to its tracer.
fn enters(task: &mut Task, skips: bool, filtered: bool) {
    if let Some(traced) = &mut task.tracing {
        (traced.entered, traced.filtered) = (Some(skips), filtered);
    }
}

/// The stop that the task leaves, and how it had been told to go on before.
fn leave_stop(task: &mut Task, mode: Mode) -> Option<(Stop, Mode)> {
    let traced = task.tracing.as_mut()?;
    let stop = traced.stop.take()?;
    traced.unseen = false;
    Some((stop, std::mem::replace(&mut traced.mode, mode)))
}

/// Ends the tracing of a held task, which goes on with a signal.
pub(super) fn release(core: &mut Core, task: &mut Task, signal: i32) -> Result<(), StopError> {
    let Some(traced) = &mut task.tracing else { return Ok(()) };
    let Some(stop) = traced.stop.take() else {
        task.tracing = None;
        return Ok(());
    };
    let skips = traced.mode.emulates() && stop == Stop::Entry;
    let filtered = matches!(stop, Stop::Event(EVENT_SECCOMP, _));
    if !matches!(stop, Stop::Signal(_)) {
        deliver_later(task, signal);
    }
    let Run::Traced(mut stopped) = std::mem::replace(&mut task.run, Run::Running) else {
        task.tracing = None;
        return Ok(());
    };
    if let Stop::Signal(came) = stop
        && signal != 0
        && signal != came
    {
        stopped.set_siginfo(&by_tracer(task, signal))?;
    }
    let mut traced = task.tracing.take();
    let resume = match stop {
        Stop::Signal(_) if signal != 0 => Resume::Inject(signal),
        Stop::Entry | Stop::Event(EVENT_SECCOMP, _) => {
            if skips || filtered {
                // Tracing ends once the call was passed over, or past its filter.
                traced.iter_mut().for_each(|traced| traced.mode = Mode::Free);
                task.tracing = traced;
                enters(task, skips, filtered);
            }
            let entered = syscall::on_entry(core, task, stopped);
            task.tracing = None;
            return settle(core, task, entered);
        }
        Stop::Event(EVENT_FORK | EVENT_VFORK | EVENT_CLONE, _) => Resume::ToExit,
        Stop::Group(_) => Resume::Listen,
        _ => Resume::Cont(0),
    };
    task.run = Run::Ready(stopped, resume);
    core.tracing.resumed.push(task.host);
    Ok(())
}

/// What becomes of a task whose call was begun on its tracer's behalf.
fn settle(
    core: &mut Core,
    task: &mut Task,
    entered: Result<(Stopped, Resume), StopError>,
) -> Result<(), StopError> {
    match entered {
        Ok((stopped, resume)) => {
            task.run = Run::Ready(stopped, resume);
            core.tracing.resumed.push(task.host);
            Ok(())
        }
        Err(StopError::Instead(report)) => {
            core.tracing.met.push(Waited { tid: task.host, report });
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Behind the event of a call that is over but for its exit.
fn after_event(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<(), StopError> {
    let regs = stopped.registers()?;
    call_ends(task, &regs);
    task.run = Run::Ready(stopped, Resume::Cont(0));
    if super::is_held(task) {
        core.tracing.shown.push(task.host);
    } else {
        core.tracing.resumed.push(task.host);
    }
    Ok(())
}

/// What comes with a signal that the tracer makes up.
fn by_tracer(task: &Task, signo: i32) -> [u8; 128] {
    let tracer = task.tracing.as_ref().map_or(HostTid(0), |traced| traced.tracer);
    let process = task.tracing.as_ref().map_or(HostTid(0), |traced| traced.tracer_process);
    let pid = procfs::seen_by(task.host, process);
    Siginfo { signo, code: libc::SI_USER, pid, uid: procfs::uid(tracer), status: 0 }.bytes()
}

/// A signal given at a stop that is not its delivery is sent.
fn deliver_later(task: &mut Task, signal: i32) {
    if signal != 0 {
        notice::send(task, signal, Siginfo { signo: signal, code: SI_KERNEL, ..Siginfo::default() }.bytes());
    }
}
