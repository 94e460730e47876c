//! The instruction and the call stack at a moment.

use guest::{Moment, SpaceId};

use crate::{CallRow, ExecutionRow, QueryError, Store};

impl Store {
    /// The instruction that retires at `moment`: the next one to run there. `None` past the end.
    pub fn at(&self, moment: Moment) -> Result<Option<ExecutionRow>, QueryError> {
        let _ = moment;
        Ok(None)
    }

    /// The calls in progress in the task that runs at `moment`, the innermost first. Exits are filled in where they are
    /// known without looking far.
    pub fn stack_at(&self, moment: Moment) -> Result<Vec<CallRow>, QueryError> {
        let _ = moment;
        Ok(Vec::new())
    }

    /// The space whose task runs at `moment`.
    pub fn space_at(&self, moment: Moment) -> Result<Option<SpaceId>, QueryError> {
        Ok(self.at(moment)?.map(|row| row.space))
    }
}
