//! Waits of tracers: answered with a tracee's stop where there is one, else made, and cut short when a tracee stops.

use guest::Registers;
use ptrace::{HostTid, Report, Running, Stopped};

use super::serve;
use super::wanted::Wanted;
use crate::answer::store;
use crate::api::RecordError;
use crate::procfs;
use crate::scratch::Plan;
use crate::session::Session;
use crate::signal;
use crate::task::{Run, Task};

const PAUSE: u64 = kernel::number("pause") as u64;
const ERESTARTSYS: i64 = -512;
const ERESTARTNOHAND: i64 = -514;

/// What a wait reports.
#[derive(Clone, Copy, Debug)]
struct Found {
    tid: HostTid,
    /// Its id as the caller knows it.
    seen_as: i32,
    uid: u32,
    /// As `wait4` has it.
    status: i32,
    /// `si_code` and `si_status` of `waitid`.
    code: i32,
    shown: i32,
}

impl Session {
    /// A call begins: if it is a wait that concerns tracees, it is answered with what is there.
    pub(super) fn begin_wait(&mut self, tid: HostTid) -> Result<(), RecordError> {
        let Some((wanted, made)) = self.wanted(tid) else { return Ok(()) };
        if let Some(result) = self.find(tid, &wanted) {
            self.core.tracing.pausing.remove(&tid);
            if let Some(task) = self.tasks.get_mut(&tid) {
                serve::answer(task, result);
            }
            return Ok(());
        }
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(()) };
        if wanted.has_child(task) {
            return Ok(());
        }
        if wanted.returns_at_once() {
            serve::answer(task, 0);
            return Ok(());
        }
        // The kernel would say that there is nothing to wait for: it sleeps until it is woken.
        let Run::Ready(stopped, _) = &mut task.run else { return Ok(()) };
        tracing::debug!(%tid, call = made, "waits for tracees that are no children");
        let set = stopped
            .registers()
            .and_then(|regs| stopped.set_registers(&Registers { orig_rax: PAUSE, ..regs }));
        match set {
            Ok(()) => drop(self.core.tracing.pausing.insert(tid)),
            Err(gone) => tracing::debug!(%gone, "a waiting task is gone"),
        }
        Ok(())
    }

    /// A call ends: a wait that was cut short returns what there is now. Before anything else looks at the registers.
    pub(crate) fn end_wait(&mut self, tid: HostTid, report: &mut Report) {
        let Report::Syscall(stopped) = report else { return };
        let Some((wanted, made)) = self.wanted(tid) else { return };
        let paused = self.core.tracing.pausing.remove(&tid);
        let Ok(mut regs) = stopped.registers() else { return };
        let result = regs.rax as i64;
        let stale = self
            .tasks
            .get(&tid)
            .and_then(|task| wanted.stopped_by_kernel(task, result))
            .is_some_and(|stopped| self.is_tracee_of(tid, &wanted, stopped));
        let cut_short = matches!(result, ERESTARTSYS | ERESTARTNOHAND);
        if !(cut_short || stale || result == 0 && wanted.returns_at_once()) {
            return;
        }
        if paused {
            regs.orig_rax = u64::from(made);
            regs.rax = ERESTARTSYS as u64;
        }
        if stale {
            // A tracee's group stop is its tracer's to see, by its own report.
            regs.rax = if wanted.returns_at_once() { 0 } else { ERESTARTSYS as u64 };
            if let Err(gone) = Running::assume(tid).interrupt() {
                tracing::debug!(%gone, "a waiting task is gone");
            }
        }
        if let Some(found) = self.find(tid, &wanted) {
            regs.rax = found as u64;
        }
        if let Err(gone) = stopped.set_registers(&regs) {
            tracing::debug!(%gone, "a waiting task is gone");
        }
    }

    /// Whether a signal tells a tracer of its child's group stop: a tracer is told of the stop that it sees.
    pub(crate) fn is_told_otherwise(&self, tid: HostTid, stopped: &Stopped) -> bool {
        let Some(task) = self.tasks.get(&tid) else { return false };
        let Ok(info) = stopped.siginfo() else { return false };
        let (code, child) = (signal::si_code(&info), signal::info_word(&info, 16));
        let tracees = self.tasks.values().filter_map(|task| task.tracing.as_ref());
        let mut of_process = tracees.filter(|traced| traced.tracer_process == task.process);
        matches!(code, libc::CLD_STOPPED | libc::CLD_TRAPPED)
            && of_process.any(|traced| traced.seen_as == child)
    }

    /// What a task's present call waits for, and its number, if tracees are among that.
    fn wanted(&self, tid: HostTid) -> Option<(Wanted, u32)> {
        let task = self.tasks.get(&tid)?;
        let pending = task.pending.as_ref().filter(|pending| pending.emulated.is_none())?;
        let made = pending.made;
        let wanted = Wanted::of(task, made)?;
        let tracees = self.tasks.values().filter_map(|task| task.tracing.as_ref());
        let tracers = tracees.map(|traced| traced.tracer_process);
        let mut tracers = tracers.chain(self.core.tracing.dead.iter().map(|dead| dead.tracer_process));
        if !tracers.any(|process| process == task.process) {
            return None;
        }
        self.concerned(task, &wanted).then_some((wanted, made.0))
    }

    /// Whether there is a tracee that a wait could ever report.
    fn concerned(&self, caller: &Task, wanted: &Wanted) -> bool {
        let alive = self.tasks.values().any(|task| {
            let of_caller = |traced: &super::Traced| {
                wanted.concerns(caller, traced.tracer, traced.tracer_process)
                    && wanted.includes(task.host, traced.seen_as)
            };
            task.tracing.as_ref().is_some_and(|traced| of_caller(traced))
        });
        alive
            || self.core.tracing.dead.iter().any(|dead| {
                wanted.concerns(caller, dead.tracer, dead.tracer_process)
                    && wanted.includes(dead.tid, dead.seen_as)
            })
    }

    fn is_tracee_of(&self, tid: HostTid, wanted: &Wanted, seen_as: i32) -> bool {
        let Some(caller) = self.tasks.get(&tid) else { return false };
        self.tasks.values().filter_map(|task| task.tracing.as_ref()).any(|traced| {
            traced.seen_as == seen_as && wanted.concerns(caller, traced.tracer, traced.tracer_process)
        })
    }

    /// Takes what there is to report, stores it where the wait wants it, and gives the wait's result.
    fn find(&mut self, tid: HostTid, wanted: &Wanted) -> Option<i64> {
        let found = self.take_stop(tid, wanted).or_else(|| self.take_end(tid, wanted))?;
        let task = self.tasks.get_mut(&tid)?;
        if let Some(pending) = &mut task.pending {
            // The kernel's own answer, if it gave one, counts no longer.
            pending.writes = Plan::AsItIs;
        }
        let result = wanted.result(found.seen_as);
        let mut outcome = result;
        let mut put = |at: u64, bytes: &[u8]| {
            if at != 0 && store(task, at, bytes, 0) < 0 {
                outcome = -i64::from(libc::EFAULT);
            }
        };
        if wanted.by_id {
            let words = |words: [i32; 3]| words.map(i32::to_le_bytes).concat();
            put(wanted.status, &words([libc::SIGCHLD, 0, found.code]));
            if wanted.status != 0 {
                put(wanted.status + 16, &words([found.seen_as, found.uid as i32, found.shown]));
            }
        } else {
            put(wanted.status, &found.status.to_le_bytes());
        }
        put(wanted.usage, &usage(found.tid));
        Some(outcome)
    }

    fn take_stop(&mut self, tid: HostTid, wanted: &Wanted) -> Option<Found> {
        let caller = self.tasks.get(&tid)?;
        let (tracee, seen_as, code) = self.tasks.values().find_map(|task| {
            let traced = task.tracing.as_ref()?;
            let stop = traced.news()?;
            let matches = wanted.concerns(caller, traced.tracer, traced.tracer_process);
            (matches && wanted.includes(task.host, traced.seen_as))
                .then(|| (task.host, traced.seen_as, traced.code(stop)))
        })?;
        if !wanted.leaves_it()
            && let Some(traced) = self.tasks.get_mut(&tracee).and_then(|task| task.tracing.as_mut())
        {
            traced.unseen = false;
        }
        let (uid, status) = (procfs::uid(tracee), code << 8 | 0x7f);
        Some(Found { tid: tracee, seen_as, uid, status, code: libc::CLD_TRAPPED, shown: code })
    }

    fn take_end(&mut self, tid: HostTid, wanted: &Wanted) -> Option<Found> {
        let caller = self.tasks.get(&tid)?;
        let ends = &mut self.core.tracing.dead;
        let at = ends.iter().position(|dead| {
            let matches = wanted.concerns(caller, dead.tracer, dead.tracer_process);
            matches && wanted.includes(dead.tid, dead.seen_as) && wanted.wants_ends()
        })?;
        let dead = if wanted.leaves_it() { ends[at].clone() } else { ends.remove(at) };
        let status = dead.status;
        let (code, shown) = if libc::WIFEXITED(status) {
            (libc::CLD_EXITED, libc::WEXITSTATUS(status))
        } else if libc::WCOREDUMP(status) {
            (libc::CLD_DUMPED, libc::WTERMSIG(status))
        } else {
            (libc::CLD_KILLED, libc::WTERMSIG(status))
        };
        Some(Found { tid: dead.tid, seen_as: dead.seen_as, uid: dead.uid, status, code, shown })
    }

    /// A tracee of `process` has news: whoever waits there looks again.
    pub(super) fn wake_waiters(&mut self, process: HostTid) -> Result<(), RecordError> {
        let waiters: Vec<HostTid> = self
            .tasks
            .values()
            .filter(|task| task.process == process && task.pending.is_some())
            .map(|task| task.host)
            .collect();
        for tid in waiters {
            if self.wanted(tid).is_none() {
                continue;
            }
            let Some(task) = self.tasks.get(&tid) else { continue };
            match task.run {
                Run::Ready(..) => self.begin_wait(tid)?,
                Run::Running => {
                    if let Err(gone) = Running::assume(tid).interrupt() {
                        tracing::debug!(%gone, "a waiting task is gone");
                    }
                }
                // What it returns is seen to when it has its turn.
                Run::Halted | Run::Traced(_) | Run::Waits(_) => {}
            }
        }
        Ok(())
    }
}

/// `struct rusage` of a task: the times that it used.
fn usage(tid: HostTid) -> [u8; 144] {
    let mut usage = [0; 144];
    let mut put = |at: usize, micros: u64| {
        usage[at..at + 8].copy_from_slice(&(micros / 1_000_000).to_le_bytes());
        usage[at + 8..at + 16].copy_from_slice(&(micros % 1_000_000).to_le_bytes());
    };
    let [user, system] = procfs::times_micros(tid);
    put(0, user);
    put(16, system);
    usage
}
