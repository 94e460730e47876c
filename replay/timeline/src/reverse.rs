//! Continuing backwards: from ever earlier checkpoints forward to here, keeping the last stop met on the way.

use guest::Moment;
use replayer::{Bias, Position, Stopped, Stops, Until};

use crate::error::TimelineError;
use crate::timeline::{StopReason, Timeline};

impl Timeline {
    /// Runs back to the last stop before here, or to the start. At a breakpoint it stands before the instruction; at a
    /// watchpoint, before the instruction that touched the bytes, with their old values.
    pub fn reverse_cont(&mut self, stops: &Stops) -> Result<StopReason, TimelineError> {
        let here = self.position();
        let mut end = here;
        while end.moment > Moment(0) || end.event > self.start().event {
            let Some(kept) = self.checkpoints.earlier(end.moment) else { break };
            let from = kept.position();
            self.replay.restore(kept)?;
            if let Some((position, reason)) = self.last_stop(stops, from, end)? {
                self.seek_position(position)?;
                return Ok(reason);
            }
            if from.moment == Moment(0) {
                break;
            }
            end = from;
        }
        self.seek(Moment(0), Bias::NextInstruction)?;
        Ok(StopReason::Start)
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
    ) -> Result<Option<(Position, StopReason)>, TimelineError> {
        let mut last = self.stop_here(stops).filter(|_| from < end).map(|reason| (from, reason));
        self.replay.set_stops(stops)?;
        loop {
            match self.run(Until::Position(end))? {
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
        Ok(last)
    }

    /// A breakpoint at the very place it stands.
    fn stop_here(&self, stops: &Stops) -> Option<StopReason> {
        let task = self.task();
        let pc = self.registers(task).ok()?.pc();
        let here = self.space_of(task).is_some_and(|space| stops.apply_to(space));
        (here && stops.breakpoints.contains(&pc)).then_some(StopReason::Breakpoint { task })
    }

    /// The position at which instruction number `moment` is next.
    fn before(&self, moment: Moment) -> Position {
        let event = self.moments.event_at(moment).unwrap_or(guest::EventId(self.moments.len() as u64));
        Position { moment, event }
    }
}
