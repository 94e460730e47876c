//! Whose turn it is: passing it on, resuming who has it, and waiting for what happens next.

use std::io;
use std::rc::Rc;

use ptrace::{HostTid, PtraceEvent, Report, Running, Stopped, Waited};

use crate::api::RecordError;
use crate::chaos::Chaos;
use crate::session::{SOON, Session};
use crate::stop::StopError;
use crate::task::{Resume, Run, Task};
use crate::waking::Woke;
use crate::{buffer, point, procfs, ptracing, signal, standing};

impl Session {
    /// Passes the turn on where that is due, and resumes who has it.
    pub(crate) fn take_turns(&mut self) -> Result<(), RecordError> {
        if self.ending {
            return Ok(());
        }
        loop {
            self.give_way()?;
            let now = self.core.timer.now();
            self.pass_turn(now)?;
            let Some((tid, _)) = self.turn else { return Ok(()) };
            self.last = tid;
            if !self.ready.contains(&tid) || self.resume(tid, now)? {
                return Ok(());
            }
        }
    }

    fn pass_turn(&mut self, now: u32) -> Result<(), RecordError> {
        if let Some((tid, since)) = self.turn {
            if self.tasks.get_mut(&tid).is_some_and(|task| std::mem::take(&mut task.ranks_anew)) {
                self.rank_anew();
            }
            self.hear_again(tid);
            let gone = !self.tasks.contains_key(&tid);
            let stands = self.ready.contains(&tid);
            // What a call changes when it begins to wait changes before others run. Who is about to make a call does so first: it may wait,
            // and stops at its end otherwise.
            let on_its_way = stands
                && self.tasks.get(&tid).is_some_and(|task| {
                    let enters = self.chaos.is_none() && task.pending.is_some();
                    enters || self.core.sink.is_about_to_wait(task.id)
                });
            let yields = stands
                && !on_its_way
                && self.tasks.get_mut(&tid).is_some_and(|task| std::mem::take(&mut task.yields));
            // What it has just mapped may be what another runs on.
            let barred = stands && !self.may_run(tid);
            let over = yields || now.wrapping_sub(since) >= self.slice() || self.ends_by_chance(tid);
            if gone || barred || over && !on_its_way && self.others_ready(tid) {
                self.turn = None;
                if let Some(chaos) = self.chaos.as_mut().filter(|_| !gone) {
                    chaos.used_up(tid);
                }
            }
        }
        if self.turn.is_none() {
            self.turn = self.pick().map(|tid| (tid, now));
            self.turn
                .and_then(|(tid, _)| self.tasks.get_mut(&tid))
                .into_iter()
                .for_each(|task| task.yields = false);
            self.takes_over_from(self.last)?;
            if let (Some(chaos), Some(_)) = (&mut self.chaos, self.turn) {
                self.core.timer.next_in(chaos.slice());
            }
        }
        Ok(())
    }

    /// Another task has got the turn: one that runs on makes no more calls before its turn comes again.
    fn takes_over_from(&mut self, former: HostTid) -> Result<(), RecordError> {
        if self.turn.is_none_or(|(tid, _)| tid == former) {
            return Ok(());
        }
        if let Some(task) = self.tasks.get(&former)
            && task.runs_own_code()
        {
            buffer::allow(&task.space, false);
            self.let_note(former);
        }
        self.drain(former)
    }

    /// Resumes a task that is ready. False if something else was reported of it instead.
    fn resume(&mut self, tid: HostTid, now: u32) -> Result<bool, RecordError> {
        self.let_wait(Some(tid));
        if let Err(error) = self.before_change(tid) {
            self.tracing_failed(error)?;
        }
        self.ready.remove(&tid);
        let slice = self.counted_slice(tid);
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(true) };
        let (stopped, resume) = match std::mem::replace(&mut task.run, Run::Running) {
            Run::Ready(stopped, resume) => (stopped, resume),
            Run::Waits(report) => {
                let waited = killed_where_it_stood(tid)?.unwrap_or(Waited { tid, report });
                self.report(waited)?;
                return Ok(false);
            }
            other => {
                task.run = other;
                return Ok(true);
            }
        };
        task.resumed = now;
        let adrift = std::mem::replace(&mut task.adrift, false);
        // A child of vfork has descriptors of its own, but its parent's memory.
        buffer::allow(&task.space, task.held.is_empty() && !task.by_vfork && task.woke != Woke::GaveWay);
        buffer::tell_alone(&task.space, self.ready.is_empty());
        if let Some(counting) = &self.counting {
            task.count.go_on(counting, tid, &stopped, slice);
        }
        if let Some(chaos) = &mut self.chaos
            && resume == Resume::Cont(0)
            && task.can_be_stepped()
            && let Some(steps) = chaos.steps()
        {
            return self.step_turn(tid, stopped, steps);
        }
        if let Resume::Inject(signal) = resume {
            let injected = signal::inject(&mut self.core, task, signal, stopped);
            self.conclude_and_go_on(tid, injected)?;
            return Ok(false);
        }
        let moves = matches!(resume, Resume::Cont(_)) && {
            let told_later = task.raw.orig_rax as i64 >= 0;
            told_later || !stopped.awaits_signal().unwrap_or(false)
        };
        // As late as can be.
        if let Some(waited) = killed_where_it_stood(tid)? {
            (task.adrift, task.run) = (adrift, Run::Ready(stopped, resume));
            self.report(waited)?;
            return Ok(false);
        }
        task.unmoved = task.unmoved && !moves;
        let resumed = match resume {
            Resume::Cont(signal) if ptracing::steps(task) => stopped.step(signal),
            Resume::Cont(signal) | Resume::Inject(signal) => stopped.cont(signal),
            Resume::ToExit => stopped.cont_to_syscall(0),
            Resume::Listen => stopped.listen(),
        };
        match resumed {
            Ok(_running) => {}
            // Killed meanwhile: the wait tells.
            Err(gone) => tracing::debug!(%gone, "resumed a task that is gone"),
        }
        if resume == Resume::Listen {
            task.run = Run::Halted;
            self.turn = None;
        }
        Ok(true)
    }

    /// The tick at which a task's turn began, if a counter is to end it.
    fn counted_slice(&self, tid: HostTid) -> Option<u32> {
        let wanted = self.counting.is_some() && self.chaos.is_none() && self.others_ready(tid);
        self.turn.filter(|(holder, _)| wanted && *holder == tid).map(|(_, since)| since)
    }

    /// A turn of so many instructions. False if it ended in something that was reported.
    fn step_turn(&mut self, tid: HostTid, stopped: Stopped, steps: u64) -> Result<bool, RecordError> {
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(true) };
        task.unmoved = false;
        let report = match point::step(task, stopped, steps) {
            Ok((stopped, false)) => {
                if let Err(gone) = stopped.cont(0) {
                    tracing::debug!(%gone, "resumed a task that is gone");
                }
                return Ok(true);
            }
            Ok((stopped, true)) => {
                task.interrupted = true;
                self.turn = None;
                if let Some(chaos) = &mut self.chaos {
                    chaos.used_up(tid);
                }
                Report::Event(PtraceEvent::Stop, stopped)
            }
            Err(StopError::Instead(report)) => report,
            Err(gone @ (StopError::Gone(_) | StopError::LeaderEnded)) => {
                tracing::debug!(%gone, "stepped a task that is gone");
                return Ok(true);
            }
            Err(StopError::Fatal(error)) => return Err(error),
            Err(StopError::Refused(what)) => return Err(RecordError::Bug { what }),
        };
        self.report(Waited { tid, report })?;
        Ok(false)
    }

    /// Somebody waits for a turn: who has it shall know. One that does not run hears of it when it is resumed.
    pub(crate) fn tell_holder(&self) {
        if let Some(task) = self.turn.and_then(|(holder, _)| self.tasks.get(&holder))
            && task.runs_own_code()
        {
            buffer::tell_alone(&task.space, false);
        }
    }

    /// A task woke up. A thread beside it that has the turn soon loses it, as the kernel, too, lets those go on early that have slept:
    /// what compiles for the others, say, costs them time as long as it waits. At the next call it makes, if it makes one until then: who
    /// wakes others mostly does, and there nothing need be noted of memory.
    pub(crate) fn hasten(&mut self, woken: HostTid) {
        let Some((holder, since)) = self.turn.filter(|(holder, _)| self.chaos.is_none() && *holder != woken)
        else {
            return;
        };
        let now = self.core.timer.now();
        let ticks = self.slice() - 1;
        let earlier = |tick: u32| now.wrapping_sub(now.wrapping_sub(tick).max(ticks));
        let Some(space) = self.tasks.get(&woken).map(|task| Rc::clone(&task.space)) else { return };
        if let Some(task) = self.tasks.get_mut(&holder).filter(|task| Rc::ptr_eq(&task.space, &space)) {
            task.resumed = earlier(task.resumed);
            self.turn = Some((holder, earlier(since)));
            // Not again before that tick, which would put it off.
            if self.hastened.replace(now) != Some(now) {
                self.core.timer.next_in(SOON);
                task.yields = true;
                if task.runs_own_code() {
                    buffer::allow(&space, false);
                }
            }
        }
    }

    /// Whether chance ends the turn of a task that has just stopped.
    fn ends_by_chance(&mut self, tid: HostTid) -> bool {
        self.ready.contains(&tid) && self.chaos.as_mut().is_some_and(Chaos::ends_at_call)
    }

    /// Who gets the turn.
    fn pick(&mut self) -> Option<HostTid> {
        let able = self.ready.iter().copied().filter(|tid| self.may_run(*tid)).collect();
        match &mut self.chaos {
            Some(chaos) => chaos.choose(&able),
            None => self.order.next(&able, |tid| self.tasks.get(&tid).map(|task| task.rank)),
        }
    }

    /// Whether another task could be given the turn.
    pub(crate) fn others_ready(&self, tid: HostTid) -> bool {
        self.ready.iter().any(|other| *other != tid && self.may_run(*other))
    }

    fn somebody_ready(&self) -> bool {
        self.ready.iter().any(|tid| self.may_run(*tid))
    }

    /// Asks the kernel for everybody's priority.
    fn rank_anew(&mut self) {
        self.tasks.values_mut().for_each(|task| task.rank = procfs::rank(task.host));
    }

    /// Where a process no longer ignores a signal, it shall interrupt also the calls that wait already: they are made again.
    fn hear_again(&self, tid: HostTid) {
        let Some(task) = self.tasks.get(&tid).filter(|task| task.ignored.take_fewer()) else { return };
        let deaf = |other: &&Task| {
            let blocks = other.pending.as_ref().is_some_and(|pending| pending.mask.is_some());
            let deaf = blocks || other.deafened != 0;
            Rc::ptr_eq(&other.ignored, &task.ignored) && deaf && matches!(other.run, Run::Running)
        };
        for other in self.tasks.values().filter(deaf) {
            if let Err(gone) = Running::assume(other.host).interrupt() {
                tracing::debug!(%gone, "told a task to listen that is gone");
            }
        }
    }

    /// A task that shares memory runs only while no other of its kind does, and none stands where no event tells of.
    pub(crate) fn may_run(&self, tid: HostTid) -> bool {
        let adrift = self.tasks.get(&tid).is_some_and(|task| task.adrift);
        if !adrift && self.chaos.as_ref().is_some_and(|chaos| chaos.is_starving(tid)) {
            return false;
        }
        if self.tasks.get(&tid).is_some_and(|task| standing::stands(task) || self.waits_for_others(task)) {
            return false;
        }
        let sharing = self.tasks.get(&tid).is_some_and(|task| task.space.is_shared());
        let first = |task: &Task| task.runs_on_shared_memory() || task.adrift && !adrift;
        !sharing || !self.tasks.values().any(first)
    }

    /// The next report, or `None` if the turn was lost or a tick came.
    pub(crate) fn wait(&mut self) -> Result<Option<Waited>, RecordError> {
        if self.turn.is_none() && !self.ending && self.somebody_ready() {
            return Ok(None);
        }
        if let Some(leader) = self.leaving_leader() {
            return self.poll_end(leader);
        }
        if let Some((tid, _)) = self.turn
            && self.tasks.get(&tid).is_some_and(Task::surely_waits)
            && self.others_ready(tid)
        {
            self.turn = None;
            return Ok(None);
        }
        if let Some((tid, _)) = self.turn
            && self.others_ready(tid)
            && let Some(may_block) = self.tasks.get(&tid).and_then(Task::may_sleep)
        {
            return self.poll(tid, may_block).map_err(cannot_wait);
        }
        ptrace::wait_any_or_signal().map_err(cannot_wait)
    }

    /// A leader that is on its way out of a process in which other threads stay: no wait reports its end, whoever has the turn.
    fn leaving_leader(&self) -> Option<HostTid> {
        let leaves = |task: &&Task| {
            let goes = matches!(task.run, Run::Running | Run::Halted);
            task.exiting.is_some() && task.host == task.process && goes
        };
        self.tasks.values().find(|task| leaves(task) && self.has_threads(task)).map(|task| task.host)
    }

    /// Whether a process has more threads than its leader.
    pub(crate) fn has_threads(&self, leader: &Task) -> bool {
        self.tasks.values().any(|task| task.process == leader.host && task.host != leader.host)
    }

    /// Waits for the end of such a leader, or for another report.
    fn poll_end(&mut self, tid: HostTid) -> Result<Option<Waited>, RecordError> {
        while self.core.timer.now() == self.seen_tick {
            let waited = ptrace::wait_any(libc::WNOHANG).map_err(cannot_wait)?;
            if waited.is_some() {
                return Ok(waited);
            }
            if procfs::is_dead(tid) {
                self.leader_ended(tid)?;
                break;
            }
            std::thread::yield_now();
        }
        Ok(None)
    }

    /// Waits for a task that is in a system call while others are ready: only as long as it does not sleep.
    fn poll(&mut self, tid: HostTid, may_block: bool) -> io::Result<Option<Waited>> {
        const PATIENCE: u32 = 3;
        for round in 0.. {
            // It has just been resumed on this processor: most calls are over when it gives it back.
            std::thread::yield_now();
            if let Some(waited) = ptrace::wait_any(libc::WNOHANG)? {
                return Ok(Some(waited));
            }
            let over = self.core.timer.now() != self.seen_tick;
            if (over || may_block || round > PATIENCE) && self.sleepers.is_sleeping(tid) {
                self.turn = None;
                break;
            }
            if over {
                break;
            }
        }
        Ok(None)
    }
}

/// What came instead of a stop, perhaps while that was seen to: resumed now, the task would not be seen to end.
fn killed_where_it_stood(tid: HostTid) -> Result<Option<Waited>, RecordError> {
    ptrace::wait_for(tid, libc::WNOHANG).map_err(cannot_wait)
}

pub(crate) fn cannot_wait(source: io::Error) -> RecordError {
    RecordError::System { what: "cannot wait for the tracees", source }
}
