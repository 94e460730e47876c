//! What to replay and how far, and where a replay stands. Plain values.

use engine::{Mode, Watch};
use guest::{EventId, GuestAddr, Moment, SpaceId, TaskId};

/// How to replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// What translated code does besides running.
    pub mode: Mode,
    /// Size of each space's log in bytes (for [`Mode::Indexed`]); 0 for none.
    pub log_bytes: usize,
    /// The CPU to replay on; `None` for the one the thread is on.
    pub cpu: Option<usize>,
    /// Whether to stop at each call that was recorded without a stop, rather than have many of them made at a time. All that can be
    /// seen is the same.
    pub one_by_one: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::Plain, log_bytes: 0, cpu: None, one_by_one: false }
    }
}

/// Which of the states that share a moment is meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Bias {
    /// The first: before any event that retires nothing, such as a signal's delivery.
    Earliest,
    /// The last: all events that retire nothing have happened; instruction number `moment` runs next.
    #[default]
    NextInstruction,
}

/// How far to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// To the end of the recording (or unit).
    End,
    /// To a moment.
    Moment(Moment, Bias),
    /// To a place between events or in the stretch before one: the moment is reached and all events before this one have
    /// happened.
    Position(Position),
}

/// A place in a recording, totally ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// Instructions retired so far, over all tasks.
    pub moment: Moment,
    /// The next event to happen; its task is the one that runs.
    pub event: EventId,
}

/// Where to stop besides the end asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stops {
    /// Before the instructions at these addresses.
    pub breakpoints: Vec<GuestAddr>,
    /// After instructions, or syscalls, that touch these bytes.
    pub watchpoints: Vec<Watch>,
    /// Only in these spaces; in all when empty.
    pub spaces: Vec<SpaceId>,
}

impl Stops {
    /// Whether there is nothing to stop at.
    pub fn is_empty(&self) -> bool {
        self.breakpoints.is_empty() && self.watchpoints.is_empty()
    }

    /// Whether they hold in `space`.
    pub fn apply_to(&self, space: SpaceId) -> bool {
        !self.is_empty() && (self.spaces.is_empty() || self.spaces.contains(&space))
    }
}

/// Why a run stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// There is nothing more to replay.
    End,
    /// The place asked for is reached.
    Reached,
    /// The next instruction of `task` has a breakpoint.
    Breakpoint {
        /// The task.
        task: TaskId,
        /// Its pc.
        pc: GuestAddr,
    },
    /// An instruction of `task`, or a syscall it made, touched watched bytes; it is over.
    Watchpoint {
        /// The task.
        task: TaskId,
        /// Start of the watched range, as it was given.
        addr: GuestAddr,
        /// The instruction.
        pc: GuestAddr,
        /// The moment of that instruction: seek there to stand before it.
        moment: Moment,
    },
}
