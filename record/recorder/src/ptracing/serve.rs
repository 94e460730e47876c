//! A tracer's `ptrace` calls, and what holds a task for its tracer.

use std::collections::BTreeMap;
use std::rc::Rc;

use guest::{GuestMemory, Registers};
use kernel::{Class, Errno};
use ptrace::{Gone, HostTid, Running};
use trace::{Event, Fact, MemWrite, TracedInfo};

use super::access::{self, Asked};
use super::notice::{self, Siginfo};
use super::{EVENT_STOP, Mode, Stop, attach, resume};
use crate::api::RecordError;
use crate::session::{Core, Session};
use crate::stop::StopError;
use crate::task::{Run, Task};
use crate::{buffer, follow, image, procfs, standing};

const PTRACE: u32 = kernel::number("ptrace");
const EIO: i64 = -(libc::EIO as i64);
const ESRCH: i64 = -(libc::ESRCH as i64);
/// The highest signal.
const LAST_SIGNAL: u64 = 64;

impl Session {
    /// A stop was dealt with, and the task could go on: unless its tracer holds it, or it asks for what needs other tasks.
    pub(crate) fn after_stop(&mut self, tid: HostTid) -> Result<(), RecordError> {
        self.tell_of_changes(tid)?;
        if self.tasks.get(&tid).is_some_and(|task| task.awaits.is_none()) {
            self.after_change(tid);
        }
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(()) };
        if super::is_held(task) {
            self.ready.remove(&tid);
            let run = std::mem::replace(&mut task.run, Run::Running);
            task.run = match run {
                Run::Ready(stopped, _) => Run::Traced(stopped),
                other => other,
            };
            if self.turn.is_some_and(|(holder, _)| holder == tid) {
                self.turn = None;
            }
            return self.show(tid);
        }
        if let Some(traced) = &task.tracing
            && traced.asked
            && let Err(gone) = Running::assume(tid).interrupt()
        {
            // A stop of the recorder's own took the place of the one that was asked for.
            tracing::debug!(%gone, "interrupted a task that is gone");
        }
        let class = task.pending.as_ref().filter(|pending| pending.emulated.is_none());
        match class.map(|pending| (pending.class, pending.made.0)) {
            Some((Class::Trace, _) | (Class::Unknown, PTRACE)) => self.serve(tid),
            Some(_) => self.begin_wait(tid),
            None => Ok(()),
        }
    }

    /// Writes down what the call that a task has just finished changed in the memory of tasks that are held, stand still for it, or are in
    /// calls.
    fn tell_of_changes(&mut self, tid: HostTid) -> Result<(), RecordError> {
        for (space, ranges) in std::mem::take(&mut self.core.tracing.changed) {
            let in_call = space.in_call();
            let of_space = |task: &&Task| {
                let holds = matches!(task.run, Run::Traced(_)) || standing::stands(task) || in_call;
                holds && Rc::ptr_eq(&task.space, &space)
            };
            let held = self.tasks.values().find(of_space);
            let (Some(held), Some(by)) = (held, self.tasks.get(&tid)) else { continue };
            let fact = Fact::Traced(TracedInfo { tracer: by.id, request: None });
            let mut event = Event::in_place(held.id, space.id, held.after, fact);
            let caught_up = match follow::caught_up(&mut self.core, held) {
                Ok(changes) => changes,
                Err(error) => return self.tracing_failed(error),
            };
            event.maps = space.owed.take();
            event.maps.extend(caught_up.maps);
            event.writes = caught_up.writes;
            for range in ranges {
                if let Ok(bytes) = space.memory.read_vec(range.start, range.len() as usize) {
                    let data = image::data(bytes, &mut self.core.sink.writer)?;
                    event.writes.push(MemWrite { addr: range.start, data });
                }
            }
            self.core.sink.event(&event)?;
        }
        Ok(())
    }

    /// Does what a task asks by `ptrace`.
    fn serve(&mut self, tid: HostTid) -> Result<(), RecordError> {
        let Some(mut tracer) = self.tasks.remove(&tid) else { return Ok(()) };
        self.core.tracing.is_used = true;
        let asked = tracer.pending.as_ref().map_or([0; 6], |pending| pending.made.1);
        let result = perform(&mut self.core, &mut self.tasks, &mut tracer, &asked);
        let result = match result {
            // It was killed meanwhile.
            Err(StopError::Gone(Gone { errno: libc::ESRCH, .. }) | StopError::LeaderEnded) => Ok(ESRCH),
            other => other,
        };
        let failed = match result {
            Ok(result) => {
                answer(&mut tracer, result);
                None
            }
            Err(error) => Some(error),
        };
        self.tasks.insert(tid, tracer);
        failed.map_or(Ok(()), |error| self.tracing_failed(error))?;
        self.let_tracees_go_on()
    }

    /// What a tracer's request came to where it could not be done.
    pub(crate) fn tracing_failed(&mut self, error: StopError) -> Result<(), RecordError> {
        match error {
            StopError::Gone(Gone { errno: libc::ESRCH, .. }) | StopError::LeaderEnded => Ok(()),
            StopError::Gone(gone) => Err(RecordError::Bug { what: gone.to_string() }),
            StopError::Refused(why) => {
                self.refuse(why);
                Ok(())
            }
            StopError::Fatal(error) => Err(error),
            StopError::Instead(report) => {
                Err(RecordError::Bug { what: format!("a tracee did something else: {report:?}") })
            }
        }
    }

    /// Takes in what requests did to tracees.
    pub(super) fn let_tracees_go_on(&mut self) -> Result<(), RecordError> {
        self.count_held();
        for tid in std::mem::take(&mut self.core.tracing.resumed) {
            let ready = self.tasks.get(&tid).is_some_and(Task::is_ready);
            if ready && self.ready.insert(tid) {
                self.after_stop(tid)?;
            }
        }
        for tid in std::mem::take(&mut self.core.tracing.shown) {
            self.after_stop(tid)?;
        }
        for waited in std::mem::take(&mut self.core.tracing.met) {
            self.report(waited)?;
        }
        Ok(())
    }

    /// Tells a tracer that its tracee has stopped.
    fn show(&mut self, tid: HostTid) -> Result<(), RecordError> {
        self.count_held();
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(()) };
        let uid = procfs::uid(task.host);
        let Some(traced) = &mut task.tracing else { return Ok(()) };
        let Some(stop) = traced.stop else { return Ok(()) };
        (traced.unseen, traced.asked) = (true, false);
        let status = traced.code(stop) & 0x7f;
        let (code, status) = match stop {
            Stop::Group(_) => (libc::CLD_STOPPED, status),
            Stop::Trap => (libc::CLD_STOPPED, 0),
            _ => (libc::CLD_TRAPPED, status),
        };
        let (tracer, process) = (traced.tracer, traced.tracer_process);
        let info = Siginfo { signo: libc::SIGCHLD, code, pid: traced.seen_as, uid, status };
        if !self.tasks.get(&tracer).is_some_and(|tracer| tracer.ignored.stops_of_children()) {
            notice::tell(&mut self.core, tracer, process, &info);
        }
        self.wake_waiters(process)
    }
}

/// Gives a call its result.
pub(super) fn answer(task: &mut Task, result: i64) {
    let (Some(pending), Run::Ready(stopped, _)) = (&mut task.pending, &mut task.run) else { return };
    pending.emulated = Some(result);
    let set = stopped.registers().and_then(|regs| {
        stopped.set_registers(&Registers { orig_rax: u64::MAX, rax: result as u64, ..regs })
    });
    if let Err(gone) = set {
        tracing::debug!(%gone, "answered a task that is gone");
    }
}

/// `ptrace(request, pid, addr, data)`.
fn perform(
    core: &mut Core,
    tasks: &mut BTreeMap<HostTid, Task>,
    tracer: &mut Task,
    &[request, pid, addr, data, ..]: &[u64; 6],
) -> Result<i64, StopError> {
    let named = core.named(tracer.host, pid as i32);
    match request as u32 {
        libc::PTRACE_TRACEME => return attach::trace_me(tasks, tracer),
        libc::PTRACE_ATTACH | libc::PTRACE_SEIZE => {
            let tid = named.unwrap_or(HostTid(pid as i32));
            let seizes = request as u32 == libc::PTRACE_SEIZE;
            return attach::attach(core, tasks, tracer, tid, [addr, data], seizes);
        }
        _ => {}
    }
    let Some(task) = named.and_then(|tid| tasks.get_mut(&tid)) else { return Ok(ESRCH) };
    let Some(traced) = task.tracing.as_mut().filter(|traced| traced.tracer == tracer.host) else {
        return Ok(ESRCH);
    };
    match request as u32 {
        libc::PTRACE_KILL => {
            notice::send(task, libc::SIGKILL, [0; 128]);
            return Ok(0);
        }
        libc::PTRACE_INTERRUPT if traced.seized => {
            traced.asked = true;
            Running::assume(task.host).interrupt()?;
            return Ok(0);
        }
        libc::PTRACE_INTERRUPT => return Ok(EIO),
        _ => {}
    }
    let Some(stop) = traced.stop.filter(|_| matches!(task.run, Run::Traced(_))) else { return Ok(ESRCH) };
    buffer::before_request(core, tracer.id, task)?;
    let mode = match request as u32 {
        libc::PTRACE_CONT => Mode::Free,
        libc::PTRACE_SYSCALL => Mode::Calls,
        libc::PTRACE_SINGLESTEP => Mode::Steps,
        libc::PTRACE_SYSEMU => Mode::Emulated,
        libc::PTRACE_SYSEMU_SINGLESTEP => Mode::EmulatedSteps,
        libc::PTRACE_DETACH if data <= LAST_SIGNAL => {
            resume::release(core, task, data as i32)?;
            return Ok(0);
        }
        libc::PTRACE_DETACH => return Ok(EIO),
        libc::PTRACE_SETOPTIONS => {
            let Some(options) = attach::options(data) else { return Ok(Errno::EINVAL.as_result()) };
            task.tracing.iter_mut().for_each(|traced| traced.options = options);
            return Ok(0);
        }
        libc::PTRACE_LISTEN => return listen(task, stop),
        other => return access::access(core, tracer, task, Asked { request: other, addr, data }),
    };
    if data > LAST_SIGNAL {
        return Ok(EIO);
    }
    resume::go_on(core, task, mode, data as i32)?;
    Ok(0)
}

/// `PTRACE_LISTEN`: the task stays in its group stop, and its tracer hears of its end.
fn listen(task: &mut Task, stop: Stop) -> Result<i64, StopError> {
    let Some(traced) = &mut task.tracing else { return Ok(ESRCH) };
    if !traced.seized || traced.code(stop) >> 8 != EVENT_STOP {
        return Ok(EIO);
    }
    let Run::Traced(stopped) = std::mem::replace(&mut task.run, Run::Halted) else { return Ok(ESRCH) };
    (traced.stop, traced.unseen, traced.listening) = (None, false, true);
    stopped.listen()?;
    Ok(0)
}
