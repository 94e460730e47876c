//! `Timeline`: a replay that can go anywhere.

use engine::{Mapping, Space};
use guest::{Landmarks, Moment, Registers, SpaceId, TaskId, When, XState};
use replayer::{
    Bias, Look, Moments, Observer, Options, Position, Replay, ReplayError, Silent, Stopped, Stops, TaskView,
    Until, learn,
};
use trace::{SyscallInfo, Trace, landmarks};

use crate::checkpoints::Checkpoints;
use crate::error::TimelineError;

/// Instructions before a place below which no further checkpoints are made on the way to it.
const NEAR: u64 = 300_000;
/// The same on the way back, where the next move is likely a little further back: restoring a checkpoint that has just run the
/// code nearby saves translating it again.
const CLOSE: u64 = 1_000;

/// Bytes that all checkpoints together may come to hold, as far as there are more than [`FEWEST`].
const MEMORY: u64 = 2 << 30;
/// Checkpoints that are kept however much memory they need.
const FEWEST: usize = 5;

/// Why a move ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// As many instructions as asked for were stepped.
    Step,
    /// The next instruction of `task` has a breakpoint.
    Breakpoint {
        /// The task.
        task: TaskId,
    },
    /// Forwards: an instruction or syscall of `task` has just touched the watched bytes at `addr`. Backwards: it is the next to run.
    Watchpoint {
        /// The task.
        task: TaskId,
        /// Start of the watched range, as it was given.
        addr: guest::GuestAddr,
    },
    /// The recording ends here.
    End,
    /// The recording starts here.
    Start,
}

/// A recording in which one can move both ways. Must be used on the thread that made it.
#[derive(Debug)]
pub struct Timeline {
    pub(crate) replay: Replay,
    pub(crate) moments: Moments,
    pub(crate) checkpoints: Checkpoints,
    marks: Landmarks,
    /// Task last run, shown at the end where none runs next.
    last: TaskId,
}

impl Timeline {
    /// Opens a recording; stands before its first instruction. Replays it once, silently, if no replay has learned its counts yet.
    pub fn open(trace: &Trace) -> Result<Self, TimelineError> {
        Self::open_with(trace, &Options::default())
    }

    /// As [`Timeline::open`], with options for the replay.
    pub fn open_with(trace: &Trace, options: &Options) -> Result<Self, TimelineError> {
        let moments = learn(trace, options)?;
        let marks = landmarks(trace, &moments).map_err(ReplayError::from)?;
        let mut replay = Replay::open_known(trace, &moments, options)?;
        replay.run(Until::Moment(Moment(0), Bias::NextInstruction), &mut Silent)?;
        let mut checkpoints = Checkpoints::default();
        let first = replay.snapshot()?;
        checkpoints.keep(first, Moment(0), usize::MAX);
        Ok(Self { replay, moments, checkpoints, marks, last: TaskId(0) })
    }

    /// The recording.
    pub fn trace(&self) -> &Trace {
        self.replay.trace()
    }

    /// The moments of its events.
    pub fn moments(&self) -> &Moments {
        &self.moments
    }

    /// Its landmarks: end, exit, fatal signal.
    pub fn landmarks(&self) -> &Landmarks {
        &self.marks
    }

    /// The moment that a person names: `@123`, `@50%`, `@start`, `@end`, `@exit`, `@signal`.
    pub fn resolve(&self, text: &str) -> Result<Moment, TimelineError> {
        Ok(text.parse::<When>()?.resolve(&self.marks)?)
    }

    /// Where it stands: instructions retired so far.
    pub fn moment(&self) -> Moment {
        self.replay.position().moment
    }

    /// Where it stands, among the states of that moment too.
    pub fn position(&self) -> Position {
        self.replay.position()
    }

    /// The task that runs the next instruction (at the end: the last that ran).
    pub fn task(&self) -> TaskId {
        self.replay.task().unwrap_or(self.last)
    }

    /// Whether the task that ran last was stopped here, so that its next instruction does not run yet.
    pub fn is_at_point(&self) -> bool {
        self.replay.is_at_point()
    }

    /// The tasks alive, in order.
    pub fn tasks(&self) -> Vec<TaskView> {
        self.replay.tasks()
    }

    /// A task's registers.
    pub fn registers(&self, task: TaskId) -> Result<Registers, TimelineError> {
        self.replay.registers(task).ok_or(TimelineError::NoTask { task, moment: self.moment() })
    }

    /// A task's extended state.
    pub fn xstate(&self, task: TaskId) -> Result<XState, TimelineError> {
        self.replay.xstate(task)?.ok_or(TimelineError::NoTask { task, moment: self.moment() })
    }

    /// The space a task is in.
    pub fn space_of(&self, task: TaskId) -> Option<SpaceId> {
        self.tasks().into_iter().find(|view| view.task == task).map(|view| view.space)
    }

    /// A space's memory, for reading through [`guest::GuestMemory`]; `None` when it is not alive.
    pub fn memory(&self, space: SpaceId) -> Option<&Space> {
        self.replay.space(space)
    }

    /// A space's mappings in ascending order; empty when it is not alive.
    pub fn mappings(&self, space: SpaceId) -> Vec<Mapping> {
        self.memory(space).map(Space::mappings).unwrap_or_default()
    }

    /// Goes to a moment.
    pub fn seek(&mut self, moment: Moment, bias: Bias) -> Result<(), TimelineError> {
        if moment > self.marks.end {
            return Err(TimelineError::OutOfRange { moment, end: self.marks.end });
        }
        self.replay.set_stops(&Stops::default())?;
        let here = self.moment();
        let mut from = self.checkpoints.earlier(moment);
        if moment.0 == 0 {
            from = self.checkpoints.before(Position { moment, event: guest::EventId(u64::MAX) });
        }
        if let Some(kept) = from
            && (here > moment || here == moment && bias == Bias::Earliest || kept.position().moment > here)
        {
            self.replay.restore(kept)?;
        }
        self.approach(moment, if here > moment { CLOSE } else { NEAR })?;
        self.run(Until::Moment(moment, bias)).map(|_| ())
    }

    /// Goes to a position.
    pub fn seek_position(&mut self, position: Position) -> Result<(), TimelineError> {
        self.replay.set_stops(&Stops::default())?;
        let here = self.position();
        if let Some(kept) = self.checkpoints.before(position)
            && (here > position || kept.position() > here)
        {
            self.replay.restore(kept)?;
        }
        self.approach(position.moment, if here > position { CLOSE } else { NEAR })?;
        self.run(Until::Position(position)).map(|_| ())
    }

    /// Runs `n` instructions, over all tasks.
    pub fn step(&mut self, n: u64) -> Result<StopReason, TimelineError> {
        let goal = Moment(self.moment().0.saturating_add(n));
        self.replay.set_stops(&Stops::default())?;
        match self.run(Until::Moment(goal, Bias::NextInstruction))? {
            Stopped::End => Ok(StopReason::End),
            _ => Ok(StopReason::Step),
        }
    }

    /// Goes back `n` instructions, over all tasks.
    pub fn reverse_step(&mut self, n: u64) -> Result<StopReason, TimelineError> {
        let here = self.moment().0;
        self.seek(Moment(here.saturating_sub(n)), Bias::NextInstruction)?;
        Ok(if n > here || here == 0 { StopReason::Start } else { StopReason::Step })
    }

    /// Runs on to a stop or the end. A breakpoint where it stands is not met.
    pub fn cont(&mut self, stops: &Stops) -> Result<StopReason, TimelineError> {
        self.replay.set_stops(stops)?;
        let stopped = self.run(Until::End)?;
        self.replay.set_stops(&Stops::default())?;
        Ok(match stopped {
            Stopped::End | Stopped::Reached => StopReason::End,
            Stopped::Breakpoint { task, .. } => StopReason::Breakpoint { task },
            Stopped::Watchpoint { task, addr, .. } => StopReason::Watchpoint { task, addr },
        })
    }

    /// Runs on to a stop, or to a position.
    pub fn cont_to(&mut self, stops: &Stops, goal: Position) -> Result<StopReason, TimelineError> {
        self.replay.set_stops(stops)?;
        let stopped = self.run(Until::Position(goal))?;
        self.replay.set_stops(&Stops::default())?;
        Ok(reason(stopped))
    }

    /// Runs on to a stop, or until instruction `goal` is next.
    pub fn cont_until(&mut self, stops: &Stops, goal: Moment) -> Result<StopReason, TimelineError> {
        self.replay.set_stops(stops)?;
        let stopped = self.run(Until::Moment(goal, Bias::NextInstruction))?;
        self.replay.set_stops(&Stops::default())?;
        Ok(reason(stopped))
    }

    /// Makes checkpoints on the way to a moment, each half as far from it as the one before, down to `near`.
    fn approach(&mut self, goal: Moment, near: u64) -> Result<(), TimelineError> {
        loop {
            let here = self.moment();
            let left = goal.0.saturating_sub(here.0);
            if left <= near {
                return Ok(());
            }
            self.run(Until::Moment(Moment(here.0 + left / 2), Bias::NextInstruction))?;
            self.checkpoint(goal)?;
        }
    }

    /// Keeps the present state, unless it is kept already.
    pub(crate) fn checkpoint(&mut self, near: Moment) -> Result<(), TimelineError> {
        if !self.checkpoints.has(self.position()) {
            let snapshot = self.replay.snapshot()?;
            self.checkpoints.keep(snapshot, near, self.affordable());
        }
        Ok(())
    }

    /// How many checkpoints may be kept when each may come to hold a copy of all writable memory.
    fn affordable(&self) -> usize {
        let writable = |space: &Space| {
            let private = |mapping: &&Mapping| mapping.prot.write && !mapping.shared;
            space.mappings().iter().filter(private).map(|mapping| mapping.range.len()).sum::<u64>()
        };
        let each: u64 = self.replay.spaces().map(|(_, space)| writable(space)).sum();
        usize::try_from(MEMORY / each.max(1)).unwrap_or(usize::MAX).max(FEWEST)
    }

    pub(crate) fn run(&mut self, until: Until) -> Result<Stopped, TimelineError> {
        struct Last(TaskId);
        impl Observer for Last {
            // A task whose call is over runs on to its next event.
            fn looks_at(&self, _call: Option<&SyscallInfo>) -> Look {
                Look::No
            }

            fn before_event(
                &mut self,
                _id: SpaceId,
                _space: &mut Space,
                event: &trace::Event,
                _at: Position,
            ) -> replayer::Watched {
                self.0 = event.task;
                Ok(())
            }
        }
        let mut last = Last(self.last);
        let stopped = self.replay.run(until, &mut last)?;
        self.last = last.0;
        Ok(stopped)
    }
}

fn reason(stopped: Stopped) -> StopReason {
    match stopped {
        Stopped::End => StopReason::End,
        Stopped::Reached => StopReason::Step,
        Stopped::Breakpoint { task, .. } => StopReason::Breakpoint { task },
        Stopped::Watchpoint { task, addr, .. } => StopReason::Watchpoint { task, addr },
    }
}
