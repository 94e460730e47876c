//! Writes, lazily and in order of moments.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use granule::{Granule, Origin, Write, WriteFilter};
use guest::{EventId, GuestAddr, GuestRange, Moment, SpaceId, TaskId};

use crate::lookup::Listed;
use crate::merge::{Merge, Rows};
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
    store: Store,
    decoded: (u64, u64),
    merge: Merge<WriteRow>,
}

impl Writes {
    /// How many granules were decoded through the index since this walk began.
    pub fn granules_decoded(&self) -> u64 {
        self.store.granules_decoded() - self.decoded.0
    }

    /// How many pieces of values were.
    pub fn pieces_decoded(&self) -> u64 {
        self.store.pieces_decoded() - self.decoded.1
    }
}

impl Iterator for Writes {
    type Item = Result<WriteRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.merge.next()
    }
}

impl Store {
    /// The writes that `query` asks for, in order of moments. What a space inherited by a fork was written in its parent
    /// and is found there.
    pub fn writes(&self, query: &WriteQuery) -> Result<Writes, QueryError> {
        let mut granules = self.inner.directory.within(query.space, &query.moments);
        if let Some(addrs) = query.addrs {
            let mut writing = BTreeMap::new();
            for granule in &granules {
                if let Entry::Vacant(entry) = writing.entry(granule.space) {
                    entry.insert(self.granules_writing(granule.space, addrs)?);
                }
            }
            granules.retain(|granule| {
                let writing = writing.get(&granule.space).and_then(Option::as_ref);
                writing.is_none_or(|writing| writing.contains(&granule.granule))
            });
        }
        if let Some(pcs) = query.pcs {
            let running = self.granules_running(pcs)?;
            granules.retain(|granule| running.contains(&granule.granule));
        }
        let (store, asked) = (self.clone(), query.clone());
        let open = move |listed: &Listed| store.writes_of(listed, &asked);
        Ok(Writes {
            store: self.clone(),
            decoded: (self.granules_decoded(), self.pieces_decoded()),
            merge: Merge::new(granules, query.order, key, open),
        })
    }

    /// The matching writes of one granule.
    fn writes_of(&self, listed: &Listed, query: &WriteQuery) -> Result<Rows<WriteRow>, QueryError> {
        let Listed { granule: number, space, .. } = *listed;
        let broken = move |source| QueryError::Granule { granule: number, source };
        let granule = self.granule(number)?;
        if query.pcs.is_some_and(|pcs| !granule.runs_any(pcs)) {
            return Ok(Box::new(std::iter::empty()));
        }
        let marks = granule.marks().map_err(broken)?;
        let past = granule.end_tick() + 1;
        let start = marks.tick_at(query.moments.start, past);
        // The kernel may have written at this very tick but at an earlier moment.
        let end = marks.tick_at(query.moments.end, past).saturating_add(1);
        let filter = WriteFilter {
            addrs: query.addrs,
            ticks: start..end,
            pcs: query.pcs,
            backwards: query.order == Order::Descending,
        };
        let walk = granule.writes(filter).map_err(broken)?;
        let (moments, task) = (query.moments.clone(), query.task);
        let rows = walk.map(move |write| row_of(&granule, number, space, write.map_err(broken)?));
        let wanted =
            move |row: &WriteRow| moments.contains(&row.moment) && task.is_none_or(|task| row.task == task);
        Ok(Box::new(rows.filter(move |row| row.as_ref().map_or(true, &wanted))))
    }

    /// The last write before `before` that shares a byte with `range` in `space`, or, where the space is a copy, in the
    /// space it was copied from before it was.
    pub fn last_write(
        &self,
        space: SpaceId,
        range: GuestRange,
        before: Moment,
    ) -> Result<Option<WriteRow>, QueryError> {
        let (mut space, mut before) = (space, before);
        loop {
            if let Some(row) = self.last_write_in(space, range, Moment(0)..before)? {
                return Ok(Some(row));
            }
            let Some(facts) = self.space(space)? else { return Ok(None) };
            let Some(parent) = facts.parent else { return Ok(None) };
            (space, before) = (parent, before.min(facts.first));
        }
    }

    /// The last write in `moments` that shares a byte with `range` in `space` itself.
    pub(crate) fn last_write_in(
        &self,
        space: SpaceId,
        range: GuestRange,
        moments: Range<Moment>,
    ) -> Result<Option<WriteRow>, QueryError> {
        let listed = self.inner.directory.within(Some(space), &moments);
        let mut left = listed.as_slice();
        let query = WriteQuery {
            space: Some(space),
            addrs: Some(range),
            moments,
            order: Order::Descending,
            ..WriteQuery::default()
        };
        while let Some(newest) = left.last() {
            let Some(found) = self.last_writing(space, range, newest.granule)? else { return Ok(None) };
            if found < left[0].granule {
                return Ok(None);
            }
            let at = left.partition_point(|granule| granule.granule < found);
            let Some(granule) = left.get(at).filter(|granule| granule.granule == found) else {
                return Err(QueryError::Missing { what: "granule", id: found });
            };
            if let Some(row) = self.writes_of(granule, &query)?.next() {
                return row.map(Some);
            }
            left = &left[..at];
        }
        Ok(None)
    }

    /// How many writes there are in each space, or in one.
    pub fn written(&self, space: Option<SpaceId>) -> Result<Vec<(SpaceId, u64)>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(
            "SELECT space, sum(writes) FROM granules WHERE ?1 IS NULL OR space = ?1 GROUP BY space",
        )?;
        let rows = statement.query_map([space.map(|space| space.0)], |row| {
            Ok((SpaceId(row.get(0)?), row.get::<_, i64>(1)? as u64))
        })?;
        Ok(rows.collect::<Result<_, rusqlite::Error>>()?)
    }

    /// The bytes that `row` wrote.
    pub fn value(&self, row: &WriteRow) -> Result<Vec<u8>, QueryError> {
        let ValueAt { granule, write } = row.at;
        let broken = |source| QueryError::Granule { granule, source };
        self.granule(granule)?.value(&write).map_err(broken)
    }
}

/// The kernel's writes of a moment come before those of its instruction, in the order of events.
pub(crate) fn key(row: &WriteRow) -> (Moment, u64) {
    match row.author {
        Author::Kernel { event } => (row.moment, event.0),
        Author::Code { .. } => (row.moment, u64::MAX),
    }
}

fn row_of(granule: &Granule, number: u64, space: SpaceId, write: Write) -> Result<WriteRow, QueryError> {
    let (moment, task, author) = match write.origin {
        Origin::System { event, moment, task } => (moment, task, Author::Kernel { event }),
        Origin::Store { pc, .. } => {
            let marks = granule.marks().map_err(|source| QueryError::Granule { granule: number, source })?;
            let mark = marks.at(write.tick);
            (Moment(mark.moment.0 + (write.tick - mark.tick)), mark.task, Author::Code { pc })
        }
    };
    let at = ValueAt { granule: number, write };
    Ok(WriteRow { moment, task, space, addr: write.addr, len: u64::from(write.len), author, at })
}
