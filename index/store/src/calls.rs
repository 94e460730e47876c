//! Calls as intervals, lazily and in order of entry.

use std::ops::Range;

use granule::CallKind;
use guest::{GuestAddr, GuestRange, Moment, SpaceId, TaskId};

use crate::{Order, QueryError, Store};

/// Which calls are asked for. `Default` asks for all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallQuery {
    /// Only in this space.
    pub space: Option<SpaceId>,
    /// Only calls of functions whose entry lies in this range.
    pub callees: Option<GuestRange>,
    /// Only calls from call instructions in this range.
    pub sites: Option<GuestRange>,
    /// Only calls entered in these moments.
    pub entered: Range<Moment>,
    /// Only by this task.
    pub task: Option<TaskId>,
    /// In which order of entry.
    pub order: Order,
}

impl Default for CallQuery {
    fn default() -> Self {
        Self {
            space: None,
            callees: None,
            sites: None,
            entered: Moment(0)..Moment(u64::MAX),
            task: None,
            order: Order::Ascending,
        }
    }
}

/// One call, from its first instruction to its return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallRow {
    /// A call or a signal handler's entry.
    pub kind: CallKind,
    /// The moment of the callee's first instruction.
    pub entry: Moment,
    /// The moment after its return (by `ret`, or by unwinding past it); `None` if it never returned.
    pub exit: Option<Moment>,
    /// By whom.
    pub task: TaskId,
    /// In which space.
    pub space: SpaceId,
    /// Entry of the function called, behind a linkage stub if there was one. A tail call (`jmp`) out of it is not a call of
    /// its own: code of another function that runs in this frame was tail-called.
    pub callee: GuestAddr,
    /// The call instruction; for a handler, the instruction that was interrupted.
    pub site: GuestAddr,
    /// Where it returns to.
    pub ret: GuestAddr,
    /// The stack pointer on entry: the address of the return address.
    pub sp: GuestAddr,
    /// Number of calls around it in its task.
    pub depth: u32,
}

/// A lazy walk over calls.
pub struct Calls {
    pub(crate) store: Store,
    pub(crate) query: CallQuery,
}

impl Iterator for Calls {
    type Item = Result<CallRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let _ = (&self.store, &self.query);
        None
    }
}

impl Store {
    /// The calls that `query` asks for, in order of entry.
    pub fn calls(&self, query: &CallQuery) -> Result<Calls, QueryError> {
        Ok(Calls { store: self.clone(), query: query.clone() })
    }
}
