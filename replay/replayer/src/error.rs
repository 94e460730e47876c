//! Divergences and the other ways a replay can end early.

use std::fmt;

use engine::Exit;
use guest::{EventId, GuestAddr, Moment, RegisterName, SpaceId, TaskId};
use trace::Stop;

/// Why a replay could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// What ran is not what was recorded.
    #[error(transparent)]
    Divergence(Box<Divergence>),
    /// The trace could not be read.
    #[error("cannot read the recording")]
    Read(#[from] trace::ReadError),
    /// The learned counts could not be written.
    #[error("cannot keep the learned counts")]
    Ticks(#[from] trace::TicksError),
    /// A replaying process could not be started.
    #[error("cannot start space {space}")]
    New {
        /// Which.
        space: SpaceId,
        /// Why.
        source: engine::NewError,
    },
    /// A replaying process could not be copied.
    #[error("cannot copy space {space}")]
    Fork {
        /// Which.
        space: SpaceId,
        /// Why.
        source: engine::ForkError,
    },
    /// A mapping could not be made.
    #[error("cannot change the mappings of space {space} at event {event}")]
    Map {
        /// Which.
        space: SpaceId,
        /// The event.
        event: EventId,
        /// Why.
        source: engine::MapError,
    },
    /// Memory could not be written.
    #[error("cannot write the memory of space {space} at event {event}")]
    Write {
        /// Which.
        space: SpaceId,
        /// The event.
        event: EventId,
        /// Why.
        source: engine::WriteError,
    },
    /// The engine failed.
    #[error("cannot run task {task} at {moment} towards event {event}")]
    Run {
        /// Which.
        task: TaskId,
        /// When.
        moment: Moment,
        /// The event it was run towards.
        event: EventId,
        /// Why.
        source: engine::RunError,
    },
    /// The replaying process failed.
    #[error("cannot use space {space}")]
    Host {
        /// Which.
        space: SpaceId,
        /// Why.
        #[source]
        source: engine::HostError,
    },
    /// The program uses what replay refuses.
    #[error("task {task} reached `{name}` at {pc} ({moment}), which cannot be replayed")]
    Unsupported {
        /// Which task.
        task: TaskId,
        /// When.
        moment: Moment,
        /// Where.
        pc: GuestAddr,
        /// The instruction.
        name: String,
    },
    /// The program drew from the processor what no recording can tell there.
    #[error(
        "task {task} reached `{name}` at {pc} ({moment}), whose result is not in the recording: it is recorded only in the code of files that \
         are mapped private, in functions that have unwind entries; record the program built or set up to do without it"
    )]
    Unrecorded {
        /// Which task.
        task: TaskId,
        /// When.
        moment: Moment,
        /// Where.
        pc: GuestAddr,
        /// The instruction.
        name: &'static str,
    },
    /// A task or space that the event needs is not alive: the trace is inconsistent.
    #[error("event {event} needs a task or space that is not alive")]
    NotAlive {
        /// Which.
        event: EventId,
    },
    /// Whoever observes the replay wants it to end.
    #[error("replay was stopped")]
    Observer(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What ran is not what was recorded.
#[derive(Debug)]
pub struct Divergence {
    /// The event that did not happen as recorded.
    pub event: EventId,
    /// What kind of event that is.
    pub fact: &'static str,
    /// The task.
    pub task: TaskId,
    /// Instructions retired until then.
    pub moment: Moment,
    /// The last event that happened as recorded.
    pub last_good: Option<EventId>,
    /// What differs.
    pub what: Difference,
}

/// A way in which a replay differs from its recording.
#[derive(Debug)]
pub enum Difference {
    /// The stop was reached with other registers.
    Registers(Vec<RegisterDifference>),
    /// Something else was reached.
    Stop {
        /// What the recording has.
        expected: Stop,
        /// Where the recording has it.
        expected_pc: GuestAddr,
        /// What was reached.
        actual: Exit,
        /// Where.
        actual_pc: GuestAddr,
    },
    /// An instruction ran whose result was not recorded.
    NotRecorded {
        /// Its name.
        name: &'static str,
        /// Where.
        pc: GuestAddr,
    },
    /// The program printed other bytes.
    Output {
        /// CRC-32 of what was printed while recording.
        expected: u32,
        /// CRC-32 of what the replayed memory holds.
        actual: u32,
    },
    /// The bytes the program printed are not in its memory.
    OutputLost {
        /// Why.
        what: String,
    },
    /// No instruction before the task's next stop has the state of an execution point.
    NoPoint {
        /// Instructions that had the right registers but not the right memory.
        refuted: u64,
    },
    /// An event took another number of instructions than in the replay before.
    Count {
        /// Then.
        expected: u64,
        /// Now.
        actual: u64,
    },
}

/// One register that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterDifference {
    /// Which.
    pub register: RegisterName,
    /// Its value in the recording.
    pub expected: u64,
    /// Its value in the replay.
    pub actual: u64,
}

impl std::error::Error for Divergence {}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, fact, task, moment, .. } = self;
        write!(f, "replay diverged at {moment}, event {event} ({fact}) of task {task}: {}", self.what)?;
        match self.last_good {
            Some(good) => write!(f, "; last good event {good}"),
            None => f.write_str("; no event was good"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers(all) => {
                for (i, RegisterDifference { register, expected, actual }) in all.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{register} is {actual:#x}, recorded {expected:#x}")?;
                }
                Ok(())
            }
            Self::Stop { expected, expected_pc, actual, actual_pc } => {
                write!(f, "reached {actual:?} at {actual_pc}, recorded {expected:?} at {expected_pc}")
            }
            Self::NotRecorded { name, pc } => write!(f, "the result of `{name}` at {pc} was not recorded"),
            Self::Output { expected, actual } => {
                write!(f, "output has checksum {actual:#010x}, recorded {expected:#010x}")
            }
            Self::OutputLost { what } => write!(f, "output cannot be read: {what}"),
            Self::NoPoint { refuted } => {
                write!(f, "no instruction has the recorded state; {refuted} have its registers")
            }
            Self::Count { expected, actual } => {
                write!(f, "took {actual} instructions, an earlier replay took {expected}")
            }
        }
    }
}
