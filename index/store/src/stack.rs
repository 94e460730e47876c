//! The instruction and the call stack at a moment.

use std::sync::Arc;

use granule::{Call, Granule};
use guest::{Moment, SpaceId, TaskId};

use crate::calls::row_of;
use crate::lookup::Listed;
use crate::{CallRow, ExecutionRow, QueryError, Store};

/// Where an instruction is: its granule, its tick and its task.
type Located = (Listed, Arc<Granule>, u64, TaskId);

impl Store {
    /// Where the instruction at `moment` retires.
    fn locate(&self, moment: Moment) -> Result<Option<Located>, QueryError> {
        for listed in self.inner.directory.at(moment) {
            let granule = self.granule(listed.granule)?;
            let broken = |source| QueryError::Granule { granule: listed.granule, source };
            let marks = granule.marks().map_err(broken)?;
            let tick = marks.tick_at(moment, granule.end_tick());
            if tick < granule.end_tick() && marks.moment(tick) == moment {
                let task = marks.at(tick).task;
                return Ok(Some((listed, granule, tick, task)));
            }
        }
        Ok(None)
    }

    /// The instruction that retires at `moment`: the next one to run there. `None` past the end.
    pub fn at(&self, moment: Moment) -> Result<Option<ExecutionRow>, QueryError> {
        let Some((listed, granule, tick, task)) = self.locate(moment)? else { return Ok(None) };
        let broken = |source| QueryError::Granule { granule: listed.granule, source };
        let pc = granule.pc(tick).map_err(broken)?;
        Ok(pc.map(|pc| ExecutionRow { moment, task, space: listed.space, pc }))
    }

    /// The calls in progress in the task that runs at `moment`, the innermost first. Their exits are not filled in.
    pub fn stack_at(&self, moment: Moment) -> Result<Vec<CallRow>, QueryError> {
        let Some((listed, granule, tick, task)) = self.locate(moment)? else { return Ok(Vec::new()) };
        let mut frames = self.frames_before(&listed)?;
        granule
            .follow(&mut frames, tick + 1, |_| {})
            .map_err(|source| QueryError::Granule { granule: listed.granule, source })?;
        let calls = (0..).zip(frames.of(task)).map(|(depth, &frame)| {
            row_of(listed.space, &Call { frame, task, depth, exit: None, crossed: false, inherited: false })
        });
        let mut calls: Vec<CallRow> = calls.collect();
        calls.reverse();
        Ok(calls)
    }

    /// The space whose task runs at `moment`.
    pub fn space_at(&self, moment: Moment) -> Result<Option<SpaceId>, QueryError> {
        Ok(self.locate(moment)?.map(|(listed, ..)| listed.space))
    }

    /// The task that runs in `space` at the moment, or was the last to run there.
    pub fn task_in(&self, space: SpaceId, moment: Moment) -> Result<Option<TaskId>, QueryError> {
        let all = self.inner.directory.of(space);
        let after = all.partition_point(|granule| granule.first <= moment);
        let Some(listed) = after.checked_sub(1).map(|at| all[at]) else { return Ok(None) };
        let granule = self.granule(listed.granule)?;
        let broken = |source| QueryError::Granule { granule: listed.granule, source };
        let marks = granule.marks().map_err(broken)?;
        let tick = marks.tick_at(moment, granule.end_tick());
        let mark = marks.at(tick);
        let mark = if mark.moment > moment { marks.at(tick.saturating_sub(1)) } else { mark };
        Ok(Some(mark.task))
    }
}
