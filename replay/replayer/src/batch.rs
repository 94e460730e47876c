//! Calls and readings that were recorded without a stop, many at a time: a space puts their effects by itself on its way to a later event of
//! the task.

use engine::{Call, Made, Reading, Space};
use guest::{EventId, GuestAddr, Moment, TaskId};
use trace::{Event, Fact, Noted, NotedReading, Stop, SyscallInfo, Trapped};

use crate::error::ReplayError;
use crate::observer::{Look, Observer};
use crate::options::{Position, Until};
use crate::replay::{Replay, own, watched};

/// How many are prepared at first, and again where few of those prepared were made.
pub(crate) const FEW: usize = 8;

impl Replay {
    /// By when calls must be over that may be made together; `None` where that is not known of any.
    pub(crate) fn together(&self, until: Until) -> Option<Moment> {
        match until {
            _ if self.one_by_one => None,
            Until::End => Some(Moment(u64::MAX)),
            Until::Moment(moment, _) | Until::Position(Position { moment, .. }) => {
                self.moments.is_some().then_some(moment)
            }
        }
    }

    /// Prepares the next calls of the task that is next, as far as it follows that it comes to a stop by itself: there the run ends,
    /// whatever comes then. Returns how many were prepared.
    pub(crate) fn prepare(&mut self, by: Moment, observer: &dyn Observer) -> Result<usize, ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(0) };
        let Some(mut next) = unstopped(event) else { return Ok(0) };
        let mut first = Vec::with_capacity(event.writes.len());
        for write in &event.writes {
            first.push((write.addr, self.trace.data(&write.data)?));
        }
        let mut wrote: Vec<(GuestAddr, &[u8])> = first.iter().map(|(to, bytes)| (*to, &**bytes)).collect();
        let (_, space) = self.live.enter(event.task).ok_or(ReplayError::NotAlive { event: *id })??;
        let behind = self.cursor.events.behind_calls();
        let stops = behind.is_some_and(|(task, stop)| task == event.task && is_met(stop));
        let calls = self.cursor.events.calls().map(Some).chain(stops.then_some(None));
        let mut count = 0;
        for (following, behind) in (id.0 + 1..).zip(calls.take(self.cursor.stride)) {
            let over = self.moments.as_ref().map_or(Moment(0), |moments| moments.end(EventId(following)));
            let there = observer.looks_at(next.call()) == Look::There;
            if over > by || there || !next.prepare(space, &wrote) {
                break;
            }
            count += 1;
            let Some(noted) = behind else { break };
            wrote.clear();
            if let Noted::Call(call) = &noted {
                wrote.extend(call.wrote.map(|piece| (GuestAddr(piece.to), piece.bytes)));
            }
            next = Unstopped::of(&noted);
        }
        Ok(count)
    }

    /// Lets the events happen whose calls a space has made, of so many that were prepared, since it had retired `before` instructions.
    /// Returns how many it had retired at the last of them.
    pub(crate) fn settle(
        &mut self,
        task: TaskId,
        (prepared, before): (usize, u64),
        observer: &mut dyn Observer,
    ) -> Result<u64, ReplayError> {
        let event = self.next_id();
        let (_, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event })??;
        let made = space.take_made_calls();
        let all = made.len() == prepared;
        self.cursor.stride = (made.len() * if all { 4 } else { 2 }).max(FEW);
        let mut retired = before;
        for call in &made {
            let ran = call.retired - retired;
            retired = call.retired;
            self.cursor.moment.0 += ran;
            self.cursor.ran += ran;
            self.made(call, observer)?;
        }
        if !made.is_empty() {
            let (_, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event })??;
            space.look_back(None);
        }
        Ok(retired)
    }

    /// The next event, whose call was made.
    fn made(&mut self, call: &Made, observer: &mut dyn Observer) -> Result<(), ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(()) };
        let (id, own) = (*id, own(event));
        let look = unstopped(event).is_some_and(|made| observer.looks_at(made.call()) != Look::No);
        if look {
            let at = Position { moment: self.cursor.moment, event: id };
            let (space_id, space) =
                self.live.enter(event.task).ok_or(ReplayError::NotAlive { event: id })??;
            space.look_back(Some(call));
            watched(observer.before_event(space_id, space, event, at))?;
        }
        self.count(id, own)?;
        if let (true, Some((_, event))) = (look, &self.cursor.next) {
            let at = Position { moment: self.cursor.moment, event: id };
            let (_, space) = self.live.enter(event.task).ok_or(ReplayError::NotAlive { event: id })??;
            watched(observer.after_event(space, event, at))?;
        }
        self.cursor.last_good = Some(id);
        self.advance()
    }
}

/// Whether a task comes to such a stop by running, whatever is known of it.
fn is_met(stop: Stop) -> bool {
    match stop {
        Stop::Syscall
        | Stop::Buffered
        | Stop::Narrow
        | Stop::Instruction(_)
        | Stop::BufferedInstruction(_) => true,
        // That of a stack's end is put for the event alone.
        Stop::Fault | Stop::Point | Stop::None => false,
    }
}

/// What was made without a stop, but for what it wrote.
enum Unstopped {
    /// A call by the address after it.
    Call(GuestAddr, SyscallInfo),
    Reading(Reading),
}

/// What an event is of, if it was made so.
fn unstopped(event: &Event) -> Option<Unstopped> {
    let after = GuestAddr(event.after.rip);
    match (event.stop, &event.fact) {
        // What changes mappings is done by itself.
        (Stop::Buffered, Fact::Syscall(info)) if event.maps.is_empty() => Some(Unstopped::Call(after, *info)),
        (Stop::BufferedInstruction(kind), _) => {
            let ticks = event.after.rdx << 32 | event.after.rax;
            let processor = (kind == Trapped::Rdtscp).then_some(event.after.rcx as u32);
            Some(Unstopped::Reading(Reading { after, ticks, processor }))
        }
        _ => None,
    }
}

impl Unstopped {
    fn of(noted: &Noted<'_>) -> Self {
        match noted {
            Noted::Call(call) => {
                let (nr, args, result) = (call.nr, call.args, Some(call.result));
                let info = SyscallInfo { nr, args, result, output: None, output_crc: 0 };
                Self::Call(GuestAddr(call.after), info)
            }
            Noted::Reading(NotedReading { after, ticks, processor }) => {
                let (after, ticks, processor) = (GuestAddr(*after), *ticks, *processor);
                Self::Reading(Reading { after, ticks, processor })
            }
        }
    }

    fn call(&self) -> Option<&SyscallInfo> {
        match self {
            Self::Call(_, info) => Some(info),
            Self::Reading(_) => None,
        }
    }

    /// Has a space make it next, if it can.
    fn prepare(&self, space: &mut Space, wrote: &[(GuestAddr, &[u8])]) -> bool {
        match self {
            Self::Call(after, info) => space.prepare_call(&Call {
                after: *after,
                number: info.nr,
                args: info.args,
                compared: kernel::inside(info.nr, &info.args).map_or(0, |call| call.args),
                result: info.result.unwrap_or_default(),
                wrote,
            }),
            Self::Reading(reading) => space.prepare_reading(reading),
        }
    }
}
