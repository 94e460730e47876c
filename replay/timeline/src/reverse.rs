//! Continuing backwards: from ever earlier checkpoints forward to here, keeping the last stop met on the way.

use guest::Moment;
use replayer::{Bias, Position, Stopped, Stops, Until};

use crate::error::TimelineError;
use crate::timeline::{StopReason, Timeline};

/// Instructions run between two questions whether to go on.
const SLICE: u64 = 20_000_000;

/// What a stretch holds.
enum Found {
    /// No stop.
    Nothing,
    /// This stop is its last.
    Stop(Position, StopReason),
    /// Nobody wants to know any more.
    Interrupted,
}

impl Timeline {
    /// Runs back to the last stop before here, or to the start. At a breakpoint it stands before the instruction; at a
    /// watchpoint, before the instruction that touched the bytes, with their old values.
    pub fn reverse_cont(&mut self, stops: &Stops) -> Result<StopReason, TimelineError> {
        let reason = self.reverse_cont_while(stops, &mut || true)?;
        Ok(reason.unwrap_or(StopReason::Start))
    }

    /// As [`Timeline::reverse_cont`], asking now and then whether to go on. Where not, it is back where it was: `None`.
    pub fn reverse_cont_while(
        &mut self,
        stops: &Stops,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<StopReason>, TimelineError> {
        let here = self.position();
        let mut end = here;
        while end.moment > Moment(0) || end.event > self.start().event {
            let Some(kept) = self.checkpoints.earlier(end.moment) else { break };
            let from = kept.position();
            self.replay.restore(kept)?;
            match self.last_stop(stops, from, end, go_on)? {
                Found::Stop(position, reason) => {
                    self.seek_position(position)?;
                    return Ok(Some(reason));
                }
                Found::Interrupted => {
                    self.seek_position(here)?;
                    return Ok(None);
                }
                Found::Nothing => {}
            }
            if from.moment == Moment(0) {
                break;
            }
            end = from;
        }
        self.seek(Moment(0), Bias::NextInstruction)?;
        Ok(Some(StopReason::Start))
    }

    fn start(&mut self) -> Position {
        let zero = Position { moment: Moment(0), event: guest::EventId(u64::MAX) };
        self.checkpoints.before(zero).map_or(zero, |kept| kept.position())
    }

    /// The last stop in `from..end`; the replay stands at `from`.
    fn last_stop(
        &mut self,
        stops: &Stops,
        from: Position,
        end: Position,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Found, TimelineError> {
        let mut last = self.stop_here(stops).filter(|_| from < end).map(|reason| (from, reason));
        self.replay.set_stops(stops)?;
        loop {
            let slice = Moment(self.moment().0.saturating_add(SLICE));
            let goal = end.min(Position { moment: slice, event: guest::EventId(0) });
            match self.run(Until::Position(goal))? {
                Stopped::Reached if self.position() < end => {
                    if !go_on() {
                        self.replay.set_stops(&Stops::default())?;
                        return Ok(Found::Interrupted);
                    }
                    // The next run does not meet the breakpoint it begins at.
                    let at = self.position();
                    last = self.stop_here(stops).map(|reason| (at, reason)).or(last);
                }
                Stopped::End | Stopped::Reached => break,
                Stopped::Breakpoint { task, .. } => {
                    let at = self.position();
                    if at >= end {
                        break;
                    }
                    last = Some((at, StopReason::Breakpoint { task }));
                }
                Stopped::Watchpoint { task, addr, moment, .. } => {
                    let at = self.before(moment);
                    if at >= end {
                        break;
                    }
                    last = Some((at, StopReason::Watchpoint { task, addr }));
                }
            }
        }
        self.replay.set_stops(&Stops::default())?;
        Ok(last.map_or(Found::Nothing, |(at, reason)| Found::Stop(at, reason)))
    }

    /// A breakpoint at the very place it stands.
    fn stop_here(&self, stops: &Stops) -> Option<StopReason> {
        let task = self.task();
        let pc = self.registers(task).ok()?.pc();
        let here = !self.is_at_point() && self.space_of(task).is_some_and(|space| stops.apply_to(space));
        (here && stops.breakpoints.contains(&pc)).then_some(StopReason::Breakpoint { task })
    }

    /// The position at which instruction number `moment` is next.
    fn before(&self, moment: Moment) -> Position {
        let event = self.moments.event_at(moment).unwrap_or(guest::EventId(self.moments.len() as u64));
        Position { moment, event }
    }
}
