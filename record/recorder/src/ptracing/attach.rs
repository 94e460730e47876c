//! How tracing begins (`PTRACE_TRACEME`, `ATTACH`, `SEIZE`, the birth of a tracee's child) and ends with the tracer.

use std::collections::BTreeMap;

use kernel::Errno;
use ptrace::{HostTid, Running, Waited};
use trace::Status;

use super::notice::{self, SI_KERNEL, Siginfo};
use super::{Dead, EVENT_CLONE, EVENT_FORK, EVENT_VFORK, Mode, Stop, Traced, resume};
use crate::api::RecordError;
use crate::procfs;
use crate::session::{Core, Session};
use crate::stop::{StopError, wait_one};
use crate::task::{Run, Task};

/// All options that there are (`PTRACE_O_MASK`).
const ALL_OPTIONS: u64 = 0xff | libc::PTRACE_O_EXITKILL as u64 | SUSPEND_SECCOMP;
const SUSPEND_SECCOMP: u64 = 1 << 21;

fn traced(tracer: &Task, tid: HostTid, seized: bool, options: u64) -> Box<Traced> {
    Box::new(Traced {
        seen_as: procfs::seen_by(tracer.host, tid),
        tracer: tracer.host,
        tracer_task: tracer.id,
        tracer_process: tracer.process,
        is_child: false,
        seized,
        options,
        mode: Mode::Free,
        stop: None,
        unseen: false,
        sent: Vec::new(),
        listening: false,
        asked: false,
        entered: None,
        filtered: false,
    })
}

/// `PTRACE_TRACEME`: the parent traces the caller from now on.
pub(super) fn trace_me(tasks: &mut BTreeMap<HostTid, Task>, task: &mut Task) -> Result<i64, StopError> {
    if task.tracing.is_some() {
        return Ok(Errno::EPERM.as_result());
    }
    let process = HostTid(procfs::parent(task.host));
    let of_process = |parent: &&Task| parent.process == process;
    let creator = tasks.get(&task.creator).filter(of_process);
    let Some(parent) = creator.or_else(|| tasks.values().find(of_process)) else {
        return Err(StopError::Refused(
            "ptrace(PTRACE_TRACEME) of a process whose parent is not recorded is not supported".into(),
        ));
    };
    let mut by_parent = traced(parent, task.host, false, 0);
    by_parent.is_child = task.host == task.process;
    task.tracing = Some(by_parent);
    Ok(0)
}

/// `PTRACE_SETOPTIONS`, and those of `PTRACE_SEIZE`.
pub(super) fn options(asked: u64) -> Option<u64> {
    (asked & !ALL_OPTIONS == 0 && asked & SUSPEND_SECCOMP == 0).then_some(asked)
}

/// `PTRACE_ATTACH` and `PTRACE_SEIZE`.
pub(super) fn attach(
    core: &mut Core,
    tasks: &mut BTreeMap<HostTid, Task>,
    tracer: &Task,
    tid: HostTid,
    [addr, data]: [u64; 2],
    seizes: bool,
) -> Result<i64, StopError> {
    let denied = Errno::EPERM.as_result();
    if seizes && (addr != 0 || data & !ALL_OPTIONS != 0) {
        return Ok(-i64::from(libc::EIO));
    }
    let Some(asked) = options(if seizes { data } else { 0 }) else {
        return Ok(Errno::EINVAL.as_result());
    };
    let Some(task) = tasks.get_mut(&tid) else {
        return outside(tid, tracer);
    };
    if task.process == tracer.process || !may_trace(tracer, task) || task.tracing.is_some() {
        return Ok(denied);
    }
    if task.exiting.is_some() {
        return Ok(denied);
    }
    let mut begun = traced(tracer, tid, seizes, asked);
    begun.is_child = task.host == task.process && procfs::parent(tid) == tracer.process.0;
    task.tracing = Some(begun);
    if !seizes {
        let info = Siginfo { signo: libc::SIGSTOP, code: SI_KERNEL, ..Siginfo::default() };
        notice::send(task, libc::SIGSTOP, info.bytes());
    }
    if matches!(task.run, Run::Halted) {
        // In a group stop already: that is what the tracer sees at once.
        Running::assume(tid).interrupt()?;
        core.tracing.met.push(Waited { tid, report: wait_one(tid)? });
    }
    Ok(0)
}

/// A task that is not recorded.
fn outside(tid: HostTid, tracer: &Task) -> Result<i64, StopError> {
    if tid == tracer.host || procfs::exists(tid) && procfs::is_dead(tid) {
        return Ok(Errno::EPERM.as_result());
    }
    if tid.0 <= 0 || !procfs::exists(tid) {
        return Ok(-i64::from(libc::ESRCH));
    }
    Err(StopError::Refused(format!("ptrace of process {tid}, which is not recorded, is not supported")))
}

/// Whether the kernel would let one trace the other (`ptrace(2)`, "Ptrace access mode checking").
fn may_trace(tracer: &Task, task: &Task) -> bool {
    const SYS_PTRACE: u32 = 19;
    let ids = procfs::credentials(task.host);
    let own = procfs::credentials(tracer.host);
    let same = |kind: usize| {
        let effective = own[kind].first().copied();
        ids[kind].iter().take(3).all(|id| Some(*id) == effective)
    };
    procfs::signal_set(tracer.host, "CapEff") & 1 << SYS_PTRACE != 0
        || same(0) && same(1) && task.guise.is_dumpable()
}

/// A tracee made a task: whether that is an event, and who traces the child.
pub(crate) fn inherit(task: &mut Task, child: &mut Task, flags: u64) {
    let Some(traced) = &mut task.tracing else { return };
    let has = |flag: i32| flags & flag as u64 != 0;
    let (event, option) = if has(libc::CLONE_VFORK) {
        (EVENT_VFORK, libc::PTRACE_O_TRACEVFORK)
    } else if flags & 0xff != libc::SIGCHLD as u64 {
        (EVENT_CLONE, libc::PTRACE_O_TRACECLONE)
    } else {
        (EVENT_FORK, libc::PTRACE_O_TRACEFORK)
    };
    let told = traced.has(option) && flags & kernel::CLONE_UNTRACED == 0;
    if told || has(libc::CLONE_PTRACE) {
        let seized = traced.seized;
        let stop = seized.then_some(Stop::Trap);
        let (mode, is_child) =
            (Mode::Free, child.host == child.process && has(libc::CLONE_PARENT) && traced.is_child);
        let copied = Traced {
            seen_as: procfs::seen_by(traced.tracer, child.host),
            mode,
            stop,
            is_child,
            sent: Vec::new(),
            listening: false,
            asked: false,
            unseen: false,
            entered: None,
            filtered: false,
            ..(**traced).clone()
        };
        child.tracing = Some(Box::new(copied));
        if !seized {
            let info = Siginfo { signo: libc::SIGSTOP, ..Siginfo::default() };
            notice::send(child, libc::SIGSTOP, info.bytes());
        }
    }
    if told {
        traced.stop = Some(Stop::Event(event, procfs::seen_by(traced.tracer, child.host) as u64));
    }
}

impl Session {
    /// A task is gone: what it traced is traced no more.
    pub(crate) fn tracer_gone(&mut self, tid: HostTid) -> Result<(), RecordError> {
        let of_tracer = |task: &&mut Task| task.tracing.as_ref().is_some_and(|traced| traced.tracer == tid);
        let mut outcome = Ok(());
        for task in self.tasks.values_mut().filter(of_tracer) {
            let Some(traced) = &task.tracing else { continue };
            if traced.has(libc::PTRACE_O_EXITKILL) {
                task.host.kill();
            }
            // What the tracer has not seen yet is delivered.
            let signal = match traced.news() {
                Some(Stop::Signal(signal)) => signal,
                _ => 0,
            };
            outcome = outcome.and(resume::release(&mut self.core, task, signal));
        }
        self.core.tracing.dead.retain(|dead| dead.tracer != tid);
        outcome.or_else(|error| self.tracing_failed(error))?;
        self.let_tracees_go_on()
    }

    /// A tracee is gone: its tracer hears of it where the kernel does not tell.
    pub(crate) fn tracee_gone(&mut self, task: &Task, status: Status) -> Result<(), RecordError> {
        let Some(traced) = &task.tracing else { return Ok(()) };
        self.count_held();
        if traced.is_child || !self.tasks.contains_key(&traced.tracer) {
            return Ok(());
        }
        let (encoded, code, shown) = match status {
            Status::Exited(code) => (code << 8, libc::CLD_EXITED, code),
            Status::Killed(killed) => {
                let core = if killed.core { 0x80 } else { 0 };
                let code = if killed.core { libc::CLD_DUMPED } else { libc::CLD_KILLED };
                (killed.signo | core, code, killed.signo)
            }
        };
        let (tracer, tracer_process, tid) = (traced.tracer, traced.tracer_process, task.host);
        let seen_as = traced.seen_as;
        let uid = procfs::uid(tracer);
        self.core.tracing.dead.push(Dead { tracer, tracer_process, tid, seen_as, uid, status: encoded });
        let info = Siginfo { signo: libc::SIGCHLD, code, pid: seen_as, uid, status: shown };
        notice::tell(&mut self.core, tracer, tracer_process, &info);
        self.wake_waiters(tracer_process)
    }

    /// A thread executes a program and takes its leader's id: nobody hears of the leader's end.
    pub(crate) fn tracing_moves(&mut self, from: HostTid, to: HostTid) {
        if let Some(leader) = self.tasks.get_mut(&to) {
            leader.tracing = None;
        }
        for traced in self.tasks.values_mut().filter_map(|task| task.tracing.as_mut()) {
            if traced.tracer == from {
                traced.tracer = to;
            }
        }
    }
}
