//! Reading the small tables.

use guest::{EventId, GuestAddr, Moment, SpaceId, TaskId};

use crate::{EventRow, ImageRow, MappingRow, QueryError, SignalRow, SpaceRow, Store, SyscallRow, TaskRow};

impl Store {
    /// The number of instructions indexed so far: the moment of the end.
    pub fn end(&self) -> Result<Moment, QueryError> {
        Ok(Moment(0))
    }

    /// Whether the whole trace is in the index.
    pub fn complete(&self) -> Result<bool, QueryError> {
        Ok(false)
    }

    /// All tasks by number.
    pub fn tasks(&self) -> Result<Vec<TaskRow>, QueryError> {
        Ok(Vec::new())
    }

    /// All spaces by number.
    pub fn spaces(&self) -> Result<Vec<SpaceRow>, QueryError> {
        Ok(Vec::new())
    }

    /// All exec'ed images in order.
    pub fn images(&self) -> Result<Vec<ImageRow>, QueryError> {
        Ok(Vec::new())
    }

    /// One event.
    pub fn event(&self, event: EventId) -> Result<Option<EventRow>, QueryError> {
        let _ = event;
        Ok(None)
    }

    /// The syscall of an event.
    pub fn syscall(&self, event: EventId) -> Result<Option<SyscallRow>, QueryError> {
        let _ = event;
        Ok(None)
    }

    /// The signal of an event.
    pub fn signal(&self, event: EventId) -> Result<Option<SignalRow>, QueryError> {
        let _ = event;
        Ok(None)
    }

    /// The task that runs in `space` at the moment, or was the last to run there.
    pub fn task_in(&self, space: SpaceId, moment: Moment) -> Result<Option<TaskId>, QueryError> {
        let _ = (space, moment);
        Ok(None)
    }

    /// How `addr` was mapped in `space` just before `before`.
    pub fn mapping_at(
        &self,
        space: SpaceId,
        addr: GuestAddr,
        before: Moment,
    ) -> Result<Option<MappingRow>, QueryError> {
        let _ = (space, addr, before);
        Ok(None)
    }

    /// All mappings of `space` just before `before`, by address.
    pub fn mappings_at(&self, space: SpaceId, before: Moment) -> Result<Vec<MappingRow>, QueryError> {
        let _ = (space, before);
        Ok(Vec::new())
    }
}
