//! Executed instructions, lazily and in order of moments.

use std::collections::HashMap;
use std::ops::Range;

use guest::{GuestAddr, GuestRange, Moment, SpaceId, TaskId};

use crate::lookup::Listed;
use crate::merge::{Merge, Rows};
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
    merge: Merge<ExecutionRow>,
}

impl Iterator for Executions {
    type Item = Result<ExecutionRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.merge.next()
    }
}

impl Store {
    /// The executions that `query` asks for, in order of moments.
    pub fn executions(&self, query: &ExecutionQuery) -> Result<Executions, QueryError> {
        let mut granules = self.inner.directory.within(query.space, &query.moments);
        if let Some(pcs) = query.pcs {
            let running = self.granules_running(pcs)?;
            granules.retain(|granule| running.contains(&granule.granule));
        }
        let (store, asked) = (self.clone(), query.clone());
        let open = move |listed: &Listed| store.executions_of(listed, &asked);
        let merge = Merge::new(granules, query.order, |row: &ExecutionRow| (row.moment, 0), open);
        Ok(Executions { merge })
    }

    /// The matching executions of one granule.
    fn executions_of(
        &self,
        listed: &Listed,
        query: &ExecutionQuery,
    ) -> Result<Rows<ExecutionRow>, QueryError> {
        let Listed { granule: number, space, .. } = *listed;
        let broken = move |source| QueryError::Granule { granule: number, source };
        let granule = self.granule(number)?;
        if query.pcs.is_some_and(|pcs| !granule.runs_any(pcs)) {
            return Ok(Box::new(std::iter::empty()));
        }
        let backwards = query.order == Order::Descending;
        let marks = granule.marks().map_err(broken)?;
        let ticks = marks.tick_at(query.moments.start, granule.end_tick())
            ..marks.tick_at(query.moments.end, granule.end_tick());
        let runs = granule.executed(query.pcs, ticks.clone(), backwards).map_err(broken)?;
        let (pcs, task) = (query.pcs, query.task);
        let rows = runs.flat_map(move |run| -> Vec<Result<ExecutionRow, QueryError>> {
            let expand = || -> Result<Vec<ExecutionRow>, granule::DecodeError> {
                let run = run?;
                let marks = granule.marks()?;
                let Some(shape) = granule.table().get(run.block) else { return Ok(Vec::new()) };
                let mut rows = Vec::new();
                for (tick, pc) in (run.tick..).zip(shape.pcs()) {
                    let mark = marks.at(tick);
                    let wanted = ticks.contains(&tick)
                        && pcs.is_none_or(|pcs| pcs.contains(pc))
                        && task.is_none_or(|task| task == mark.task);
                    if wanted {
                        let moment = Moment(mark.moment.0 + (tick - mark.tick));
                        rows.push(ExecutionRow { moment, task: mark.task, space, pc });
                    }
                }
                if backwards {
                    rows.reverse();
                }
                Ok(rows)
            };
            match expand() {
                Ok(rows) => rows.into_iter().map(Ok).collect(),
                Err(source) => vec![Err(broken(source))],
            }
        });
        Ok(Box::new(rows))
    }

    /// How often each instruction ran, in a space or in all, in these pieces of code or in all, by the counts of whole granules.
    pub fn executed_code(
        &self,
        space: Option<SpaceId>,
        code: Option<&[GuestRange]>,
    ) -> Result<Vec<(SpaceId, GuestAddr, u64)>, QueryError> {
        let pieces = code.map_or_else(|| vec![None], |code| code.iter().copied().map(Some).collect());
        let mut counts: HashMap<(SpaceId, GuestAddr), u64> = HashMap::new();
        for pcs in pieces {
            let running = pcs.map(|pcs| self.granules_running(pcs)).transpose()?;
            for listed in self.inner.directory.within(space, &(Moment(0)..Moment(u64::MAX))) {
                if running.as_ref().is_none_or(|running| running.contains(&listed.granule)) {
                    let granule = self.granule(listed.granule)?;
                    granule.counts(pcs, |pc, times| *counts.entry((listed.space, pc)).or_default() += times);
                }
            }
        }
        Ok(counts.into_iter().map(|((space, pc), count)| (space, pc, count)).collect())
    }
}
