//! Calls that were recorded without a stop, many at a time: a space puts their effects by itself on its way to a later event of the task.

use engine::{Call, Made};
use guest::{EventId, GuestAddr, Moment, TaskId};
use trace::{Fact, NotedCall, Stop, SyscallInfo};

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
        let Fact::Syscall(info) = &event.fact else { return Ok(0) };
        if event.stop != Stop::Buffered {
            return Ok(0);
        }
        let mut first = Vec::with_capacity(event.writes.len());
        for write in &event.writes {
            first.push((write.addr, self.trace.data(&write.data)?));
        }
        let mut wrote: Vec<(GuestAddr, &[u8])> = first.iter().map(|(to, bytes)| (*to, &**bytes)).collect();
        let mut call = (event.after.rip, *info);
        let (_, space) = self.live.enter(event.task).ok_or(ReplayError::NotAlive { event: *id })??;
        let behind = self.cursor.events.behind_calls();
        let stops = behind.is_some_and(|(task, stop)| task == event.task && is_met(stop));
        let calls = self.cursor.events.calls().map(Some).chain(stops.then_some(None));
        let mut count = 0;
        for (following, next) in (id.0 + 1..).zip(calls.take(self.cursor.stride)) {
            let over = self.moments.as_ref().map_or(Moment(0), |moments| moments.end(EventId(following)));
            let there = observer.looks_at(&call.1) == Look::There;
            if over > by || there || !space.prepare_call(&prepared(&call, &wrote)) {
                break;
            }
            count += 1;
            let Some(next) = next else { break };
            call = (next.after, noted(&next));
            wrote.clear();
            wrote.extend(next.wrote.map(|piece| (GuestAddr(piece.to), piece.bytes)));
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
        let look = matches!(&event.fact, Fact::Syscall(info) if observer.looks_at(info) != Look::No);
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
        Stop::Syscall | Stop::Buffered | Stop::Narrow | Stop::Instruction(_) => true,
        // That of a stack's end is put for the event alone.
        Stop::Fault | Stop::Point | Stop::None => false,
    }
}

fn noted(call: &NotedCall<'_>) -> SyscallInfo {
    SyscallInfo { nr: call.nr, args: call.args, result: Some(call.result), output: None, output_crc: 0 }
}

/// A call by the address after it, and what it wrote.
fn prepared<'a>((after, info): &(u64, SyscallInfo), wrote: &'a [(GuestAddr, &'a [u8])]) -> Call<'a> {
    Call {
        after: GuestAddr(*after),
        number: info.nr,
        args: info.args,
        compared: kernel::inside(info.nr, &info.args).map_or(0, |call| call.args),
        result: info.result.unwrap_or_default(),
        wrote,
    }
}
