//! An event that happens: its registers compared, its effects put, its instruction counted.

use engine::{Sharing, Space};
use guest::{EventId, GuestAddr, GuestRange, Registers, SpaceId, TaskId, Tid, XState};
use trace::{Event, Fact, SpawnInfo, Stop, SyscallInfo};

use crate::compare::{differences, noted_at_call};
use crate::effects::{apply_maps, apply_writes};
use crate::error::{Difference, ReplayError};
use crate::live::stop_at;
use crate::observer::Observer;
use crate::options::{Position, Stopped};
use crate::output;
use crate::replay::{Replay, own, watched};

impl Replay {
    /// Lets the next event, whose stop is reached, happen.
    pub(crate) fn perform(&mut self, observer: &mut dyn Observer) -> Result<Option<Stopped>, ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(None) };
        let (id, task) = (*id, event.task);
        if event.stop != Stop::None {
            self.compare(event)?;
        }
        let at = self.position();
        let Some((_, mut event)) = self.cursor.next.take() else { return Ok(None) };
        if matches!(event.stop, Stop::Buffered | Stop::BufferedInstruction(_)) {
            let registers = self.live.registers(task).ok_or(ReplayError::NotAlive { event: id })?;
            event = event.completed(&registers);
        }
        // Until the event has happened it is still the next one, for whatever goes wrong.
        let done = self.happen(id, &event, at, observer);
        self.cursor.next = Some((id, event));
        let watch = done?;
        self.cursor.last_good = Some(id);
        self.advance()?;
        Ok(watch.map(|(addr, pc)| Stopped::Watchpoint { task, addr, pc, moment: at.moment }))
    }

    fn compare(&self, event: &Event) -> Result<(), ReplayError> {
        let actual =
            self.live.registers(event.task).ok_or(ReplayError::NotAlive { event: self.next_id() })?;
        let noted = match &event.fact {
            Fact::Syscall(info) if event.stop == Stop::Buffered => {
                let count = kernel::inside(info.nr, &info.args).map_or(0, |call| call.args);
                &noted_at_call(&event.before, &actual, count)
            }
            _ if matches!(event.stop, Stop::BufferedInstruction(_)) => {
                &Registers { rip: event.before.rip, ..actual }
            }
            _ => &event.before,
        };
        let found = differences(noted, &actual, event.stop, self.cursor.flags_exact);
        if found.is_empty() { Ok(()) } else { Err(self.diverged(Difference::Registers(found))) }
    }

    /// The event's effects. Returns the watched bytes that it wrote, with the pc.
    fn happen(
        &mut self,
        id: EventId,
        event: &Event,
        at: Position,
        observer: &mut dyn Observer,
    ) -> Result<Option<(GuestAddr, GuestAddr)>, ReplayError> {
        let not_alive = || ReplayError::NotAlive { event: id };
        if let Some(entered) = self.live.enter(event.task) {
            let (space_id, space) = entered?;
            watched(observer.before_event(space_id, space, event, at))?;
        }
        match &event.fact {
            Fact::Exec(info) => {
                self.leave(event.task, at, observer)?;
                self.new_space(event.space)?;
                // The task that executes a program is, or becomes, its process's leader.
                let ids = (Tid(info.tid), Tid(info.tid));
                self.live.add_task(event.task, ids, event.space, event.before, XState::default());
            }
            Fact::Spawn(info) => self.spawn(id, event, info)?,
            _ => {}
        }
        let (space_id, space) = self.live.enter(event.task).ok_or_else(not_alive)??;
        if let Some(guard) = self.cursor.guard.take() {
            let failed = |source| ReplayError::Map { space: space_id, event: id, source };
            space.unmap(guard).map_err(failed)?;
        }
        if !matches!(event.fact, Fact::Spawn(_)) {
            apply_maps(&self.trace, (space_id, space), id, &event.maps)?;
        }
        apply_writes(&self.trace, (space_id, space), id, &event.writes)?;
        space.set_registers(&event.after);
        if let Some(xstate) = &event.xstate {
            space.set_xstate(xstate).map_err(|source| ReplayError::Host { space: space_id, source })?;
        }
        if let Fact::Syscall(info) | Fact::SyscallLeave(info) = &event.fact {
            self.print(event, info, at, observer)?;
        }
        self.count(id, own(event))?;
        let at = Position { moment: self.cursor.moment, event: id };
        let (_, space) = self.live.enter(event.task).ok_or_else(not_alive)??;
        watched(observer.after_event(space, event, at))?;
        if let Some(live) = self.live.task_mut(event.task) {
            live.arrived = event.before.rip != event.after.rip || event.stop == Stop::Point;
        }
        if matches!(event.fact, Fact::Exit(_)) {
            self.leave(event.task, at, observer)?;
        }
        Ok(self.watched_write(space_id, event))
    }

    /// Counts what the event retires itself, and holds the sum against an earlier replay's.
    pub(crate) fn count(&mut self, id: EventId, own: u64) -> Result<(), ReplayError> {
        let count = self.cursor.ran + own;
        if let Some(moments) = &self.moments
            && moments.count(id).0 != count
        {
            let expected = moments.count(id).0;
            return Err(self.diverged(Difference::Count { expected, actual: count }));
        }
        self.cursor.moment.0 += own;
        self.cursor.ran = 0;
        if self.moments.is_none() {
            self.cursor.counts.truncate(id.index());
            self.cursor.counts.push(count);
        }
        Ok(())
    }

    /// A task leaves its space; the space goes with its last task.
    fn leave(&mut self, task: TaskId, at: Position, observer: &mut dyn Observer) -> Result<(), ReplayError> {
        match self.live.remove_task(task) {
            Some((id, mut space)) => watched(observer.space_ends(id, &mut space, at)),
            None => Ok(()),
        }
    }

    fn new_space(&mut self, id: SpaceId) -> Result<(), ReplayError> {
        let made = match self.live.spaces().next() {
            Some((_, peer)) => Space::new_beside(&self.config, peer),
            None => Space::new(&self.config),
        };
        self.add_space(id, made.map_err(|source| ReplayError::New { space: id, source })?)
    }

    fn add_space(&mut self, id: SpaceId, mut space: Space) -> Result<(), ReplayError> {
        let at = self.position();
        stop_at(&mut space, id, &self.stops).map_err(|source| ReplayError::Run {
            task: self.task().unwrap_or(TaskId(0)),
            moment: at.moment,
            event: at.event,
            source,
        })?;
        self.live.add_space(id, space);
        Ok(())
    }

    /// A new task. A copied space is copied before the parent's own writes: the kernel makes those after the copy.
    fn spawn(&mut self, id: EventId, event: &Event, info: &SpawnInfo) -> Result<(), ReplayError> {
        let (parent_id, parent) =
            self.live.enter(event.task).ok_or(ReplayError::NotAlive { event: id })??;
        apply_maps(&self.trace, (parent_id, parent), id, &event.maps)?;
        let xstate = parent.xstate().map_err(|source| ReplayError::Host { space: parent_id, source })?;
        if !info.shares {
            let child = parent
                .fork(Sharing::Kept)
                .map_err(|source| ReplayError::Fork { space: info.space, source })?;
            self.add_space(info.space, child)?;
        }
        self.live.add_task(info.child, (info.tid, info.pid), info.space, info.regs, xstate);
        let space = self.live.space_mut(info.space).ok_or(ReplayError::NotAlive { event: id })?;
        apply_writes(&self.trace, (info.space, space), id, &info.writes)
    }

    /// Hands on what a syscall printed, once its checksum is right.
    fn print(
        &mut self,
        event: &Event,
        info: &SyscallInfo,
        at: Position,
        observer: &mut dyn Observer,
    ) -> Result<(), ReplayError> {
        let Some(stream) = info.output.filter(|_| info.result.is_some_and(|result| result > 0)) else {
            return Ok(());
        };
        let Some(space) = self.live.space(event.space) else { return Ok(()) };
        let bytes = match output::bytes(space, info) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(()),
            Err(error) => return Err(self.diverged(Difference::OutputLost { what: error.to_string() })),
        };
        let actual = crc32fast::hash(&bytes);
        if actual != info.output_crc {
            return Err(self.diverged(Difference::Output { expected: info.output_crc, actual }));
        }
        watched(observer.output(stream, &bytes, at))
    }

    /// The watchpoint that the event's writes touch.
    fn watched_write(&self, space: SpaceId, event: &Event) -> Option<(GuestAddr, GuestAddr)> {
        // At a point the program has written already what is put there.
        if !self.stops.apply_to(space) || event.stop == Stop::Point {
            return None;
        }
        let touched = |range: GuestRange| {
            let written = |w: &trace::MemWrite| GuestRange::new(w.addr, w.data.len() as u64).overlaps(range);
            event.writes.iter().any(written)
        };
        let watch = self.stops.watchpoints.iter().find(|watch| touched(watch.range))?;
        Some((watch.range.start, event.before.pc()))
    }
}
