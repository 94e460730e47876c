//! Calls that would have waited, tried again instead of made: a task whose call the buffer tried in vain lets the others go on, and then
//! begins it anew. Where they do what it waits for, that is one stop instead of two, and nobody need be asked whether it sleeps.
//!
//! Where such a task stands concerns nobody that it shares no memory with, so that no event tells of it. Where others show the same mappings,
//! it is put off for the sake of those that do not, and goes on before any that does. Threads are not put off. A call
//! that is in vain again, nothing having been noted meanwhile, is made, as is one that nobody could go on instead of: it surely waits, so that
//! the turn passes on at once.

use abi::buffer::CODE;
use guest::Registers;
use ptrace::{Gone, HostTid, Report, Stopped};

use crate::api::RecordError;
use crate::buffer::Left;
use crate::session::Session;
use crate::task::{Resume, Run, Task};

impl Session {
    /// Puts off the call that a task was stopped at, if that is what the stop comes from; `noted`: the task's calls before it came into the trace
    /// with this stop. What else there is to do about it.
    pub(crate) fn put_off(
        &mut self,
        tid: HostTid,
        noted: bool,
        report: Report,
    ) -> Result<Option<Report>, RecordError> {
        let Report::Seccomp(stopped) = report else { return Ok(Some(report)) };
        let wanted = self.chaos.is_none() && !self.ending && self.strangers_ready(tid);
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(Some(Report::Seccomp(stopped))) };
        // Any other event of it since then has ended that.
        let in_vain = std::mem::take(&mut task.put_off) && !noted;
        if !wanted || in_vain || !may_be_put_off(task) {
            return Ok(Some(Report::Seccomp(stopped)));
        }
        match begun_anew(task, stopped) {
            Ok((stopped, false)) => return Ok(Some(Report::Seccomp(stopped))),
            Ok((stopped, true)) => {
                task.run = Run::Ready(stopped, Resume::Cont(0));
                task.put_off = true;
                task.adrift = task.space.is_shared();
                self.ready.insert(tid);
                self.turn = self.turn.filter(|(holder, _)| *holder != tid);
            }
            // It was killed: the wait tells.
            Err(gone) => tracing::debug!(%gone, "a task is gone whose call was to be put off"),
        }
        Ok(None)
    }

    /// Whether another task could be given the turn that shares no memory with this one.
    fn strangers_ready(&self, tid: HostTid) -> bool {
        let shares = |tid: &HostTid| self.tasks.get(tid).is_some_and(|task| task.space.is_shared());
        let both_share = |other: &HostTid| shares(other) && shares(&tid);
        self.ready.iter().any(|other| *other != tid && self.may_run(*other) && !both_share(other))
    }
}

fn may_be_put_off(task: &Task) -> bool {
    // What a file mapping shows changes with calls of strangers.
    let still = task.space.shared.borrow().iter().all(|mapping| mapping.object.is_anonymous());
    let alone = still && !task.space.has_threads() && !task.by_vfork && task.tracing.is_none();
    let free = task.held.is_empty() && !task.interrupted && task.runs_to.is_none() && task.restart.is_none();
    alone && free && task.sandbox.mode() == 0
}

/// Has a task at a call that was tried go back to where the trial begins; whether it was tried.
fn begun_anew(task: &Task, mut stopped: Stopped) -> Result<(Stopped, bool), Gone> {
    let regs = stopped.registers()?;
    if regs.rip != buffer::traced_return() || !task.space.has_buffer() {
        return Ok((stopped, false));
    }
    let Ok(Left { descriptor, in_vain: true, .. }) = crate::buffer::left(&task.space) else {
        return Ok((stopped, false));
    };
    let begin = Registers { rip: CODE, rax: regs.orig_rax, r11: descriptor, orig_rax: u64::MAX, ..regs };
    stopped.set_registers(&begin)?;
    Ok((stopped, true))
}
