//! What can go wrong on a timeline.

use guest::{Moment, TaskId, WhenError};
use replayer::ReplayError;

/// Why a timeline could not be moved on or read.
#[derive(Debug, thiserror::Error)]
pub enum TimelineError {
    /// Replaying failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A text names no moment of this recording.
    #[error(transparent)]
    When(#[from] WhenError),
    /// The moment lies past the end.
    #[error("{moment} is out of range: the recording ends at {end}")]
    OutOfRange {
        /// What was asked for.
        moment: Moment,
        /// The last moment.
        end: Moment,
    },
    /// The task is not alive at this moment.
    #[error("task {task} is not alive at {moment}")]
    NoTask {
        /// Which.
        task: TaskId,
        /// When.
        moment: Moment,
    },
}
