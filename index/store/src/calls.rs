//! Calls as intervals, lazily and in order of entry.

use std::collections::BTreeSet;
use std::ops::Range;

use granule::{Call, CallKind, Frame, Frames};
use guest::{GuestAddr, GuestRange, Moment, SpaceId, TaskId};
use rusqlite::{Connection, OptionalExtension, params};

use crate::lookup::Listed;
use crate::merge::{Merge, Rows};
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
    merge: Merge<CallRow>,
}

impl Iterator for Calls {
    type Item = Result<CallRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.merge.next()
    }
}

impl Store {
    /// The calls that `query` asks for, in order of entry.
    pub fn calls(&self, query: &CallQuery) -> Result<Calls, QueryError> {
        let mut granules = self.inner.directory.within(query.space, &query.entered);
        for pcs in [query.callees, query.sites].into_iter().flatten() {
            // A call at the end of a granule is entered in the next one: look one further.
            let running = self.granules_running(pcs)?;
            let one = query.sites == Some(pcs);
            granules.retain(|granule| {
                running.contains(&granule.granule) || one && self.follows_any(granule, &running)
            });
        }
        let (store, asked) = (self.clone(), query.clone());
        let open = move |listed: &Listed| {
            let mut rows = store.calls_of(listed)?;
            rows.retain(|row| asked.wants(row));
            if asked.order == Order::Descending {
                rows.reverse();
            }
            Ok(Box::new(rows.into_iter().map(Ok)) as Rows<CallRow>)
        };
        Ok(Calls {
            merge: Merge::new(granules, query.order, |row: &CallRow| (row.entry, u64::from(row.depth)), open),
        })
    }

    /// Whether the granule before this one in its space is in `running`.
    fn follows_any(&self, granule: &Listed, running: &BTreeSet<u64>) -> bool {
        let all = self.inner.directory.of(granule.space);
        let at = all.partition_point(|other| other.granule < granule.granule);
        at.checked_sub(1).is_some_and(|before| running.contains(&all[before].granule))
    }

    /// The calls entered in a granule, in order of entry.
    fn calls_of(&self, listed: &Listed) -> Result<Vec<CallRow>, QueryError> {
        let number = listed.granule;
        let granule = self.granule(number)?;
        let mut frames = self.frames_before(listed)?;
        let mut calls = Vec::new();
        granule
            .follow(&mut frames, u64::MAX, |call| {
                if !call.crossed && !call.inherited {
                    calls.push(row_of(listed.space, &call));
                }
            })
            .map_err(|source| QueryError::Granule { granule: number, source })?;
        for call in frames.in_progress().filter(|call| !call.crossed && !call.inherited) {
            let exit = self.exit_of(listed, &call)?;
            calls.push(CallRow { exit, ..row_of(listed.space, &call) });
        }
        calls.sort_by_key(|call| (call.entry, call.depth));
        Ok(calls)
    }

    /// When a call that was in progress at the end of the granule in which it was entered was left.
    fn exit_of(&self, listed: &Listed, call: &Call) -> Result<Option<Moment>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(
            "SELECT exit FROM open_calls WHERE space = ?1 AND task = ?2 AND depth = ?3 AND opened = ?4 AND entry = ?5",
        )?;
        let key = params![listed.space.0, call.task.0, call.depth, listed.granule, call.frame.entry.0];
        let exit: Option<Option<u64>> = statement.query_row(key, |row| row.get(0)).optional()?;
        Ok(exit.flatten().map(Moment))
    }

    /// The call stacks of all tasks of a space at the beginning of a granule.
    pub(crate) fn frames_before(&self, listed: &Listed) -> Result<Frames, QueryError> {
        Ok(frames_before(&self.db(), listed.space, listed.granule)?)
    }
}

/// How many frames of a stack are asked for one by one: few rows then have to be read. Deeper stacks are of functions that never return,
/// as where a program switches stacks by itself.
const ONE_BY_ONE: usize = 128;

pub(crate) fn frames_before(db: &Connection, space: SpaceId, granule: u64) -> rusqlite::Result<Frames> {
    frames_by(db, space, granule, ONE_BY_ONE)
}

fn frames_by(db: &Connection, space: SpaceId, granule: u64, one_by_one: usize) -> rusqlite::Result<Frames> {
    let mut frames = Frames::default();
    // A space has few tasks and many calls: from one task's rows to the next one's, without those between.
    let mut after = db.prepare_cached("SELECT min(task) FROM open_calls WHERE space = ?1 AND task > ?2")?;
    let mut tasks: Vec<u32> = Vec::new();
    loop {
        let last = tasks.last().map_or(-1, |&task| i64::from(task));
        let next: Option<u32> = after.query_row(params![space.0, last], |row| row.get(0))?;
        let Some(next) = next else { break };
        tasks.push(next);
    }
    let mut statement = db.prepare_cached(
        "SELECT closed, kind, entry, callee, site, ret, sp FROM open_calls
         WHERE space = ?1 AND task = ?2 AND depth = ?3 AND opened < ?4 ORDER BY opened DESC, entry DESC LIMIT 1",
    )?;
    for task in tasks {
        let mut stack = Vec::new();
        while stack.len() < one_by_one {
            let key = params![space.0, task, stack.len() as u64, granule];
            let found = statement.query_row(key, |row| Ok((row.get(0)?, frame_of(row)?))).optional()?;
            let Some((closed, frame)): Option<(Option<u64>, Frame)> = found else { break };
            if closed.is_some_and(|closed| closed < granule) {
                break;
            }
            stack.push(frame);
        }
        if stack.len() == one_by_one {
            deeper_before(db, (space, task), granule, &mut stack)?;
        }
        frames.set(TaskId(task), stack);
    }
    Ok(frames)
}

/// Appends the rest of a deep stack, all in one statement.
fn deeper_before(
    db: &Connection,
    (space, task): (SpaceId, u32),
    granule: u64,
    stack: &mut Vec<Frame>,
) -> rusqlite::Result<()> {
    let mut statement = db.prepare_cached(
        "SELECT closed, kind, entry, callee, site, ret, sp, depth FROM open_calls
         WHERE space = ?1 AND task = ?2 AND depth >= ?3 AND opened < ?4 ORDER BY depth, opened, entry",
    )?;
    let mut rows = statement.query(params![space.0, task, stack.len() as u64, granule])?;
    // Of several at one depth the last one counts.
    let mut last: Option<(u64, Option<u64>, Frame)> = None;
    let mut keep = |(depth, closed, frame): (u64, Option<u64>, Frame)| {
        let goes_on = depth == stack.len() as u64 && closed.is_none_or(|closed| closed >= granule);
        if goes_on {
            stack.push(frame);
        }
        goes_on
    };
    while let Some(row) = rows.next()? {
        let next = (row.get(7)?, row.get(0)?, frame_of(row)?);
        if let Some(done) = last.take_if(|last| last.0 != next.0)
            && !keep(done)
        {
            return Ok(());
        }
        last = Some(next);
    }
    last.map(keep);
    Ok(())
}

fn frame_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Frame> {
    let addr = |at: usize| row.get::<_, i64>(at).map(|addr| GuestAddr(addr as u64));
    Ok(Frame {
        kind: if row.get::<_, u8>(1)? == 0 { CallKind::Call } else { CallKind::Signal },
        entry: Moment(row.get(2)?),
        callee: addr(3)?,
        site: addr(4)?,
        ret: addr(5)?,
        sp: addr(6)?,
    })
}

pub(crate) fn row_of(space: SpaceId, call: &Call) -> CallRow {
    let Frame { kind, entry, callee, site, ret, sp } = call.frame;
    CallRow { kind, entry, exit: call.exit, task: call.task, space, callee, site, ret, sp, depth: call.depth }
}

impl CallQuery {
    fn wants(&self, row: &CallRow) -> bool {
        self.entered.contains(&row.entry)
            && self.task.is_none_or(|task| row.task == task)
            && self.callees.is_none_or(|range| range.contains(row.callee))
            && self.sites.is_none_or(|range| range.contains(row.site))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tasks that come and go between depths, over granules 0 to 39.
    #[test]
    fn deep_stacks_are_the_same_however_they_are_read() {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(crate::schema::CREATE).unwrap();
        let sql = "INSERT INTO open_calls VALUES(0, ?1, ?2, ?3, ?4, 0, ?4, 5, 6, 7, ?5, NULL)";
        for task in 0..2u64 {
            for depth in 0..30u64 {
                let lasts = 1 + (7 * depth + task) % 5;
                for opened in (depth / 4..40).step_by(lasts as usize + (depth % 3) as usize) {
                    let closed = Some(opened + lasts).filter(|_| opened % 6 != 0);
                    db.execute(sql, params![task, depth, opened, 100 * opened + depth, closed]).unwrap();
                }
            }
        }
        let mut deepest = 0;
        for granule in 0..41 {
            let read = |one_by_one| {
                let frames = frames_by(&db, SpaceId(0), granule, one_by_one).unwrap();
                [0, 1].map(|task| frames.of(TaskId(task)).to_vec())
            };
            let expected = read(usize::MAX);
            deepest = deepest.max(expected[0].len());
            for one_by_one in [0, 1, 5, 20] {
                assert_eq!(read(one_by_one), expected, "granule {granule}, {one_by_one} one by one");
            }
        }
        assert!(deepest > 5, "{deepest}");
    }
}
