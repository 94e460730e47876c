//! Memory that several mappings show: a byte of it is written through each of them, in every space that has one.

use guest::{GuestRange, Moment, SpaceId};
use rusqlite::{OptionalExtension, params};

use crate::facts::{MAPPING, mapping};
use crate::writes::key;
use crate::{MappingRow, QueryError, Store, WriteRow};

/// A write to an object that mappings show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedWrite {
    /// The write.
    pub row: WriteRow,
    /// The bytes asked about that this mapping shows, as the writer addressed them; the write shares some with them.
    pub shown: GuestRange,
    /// Where `shown` begins in the bytes asked about.
    pub skipped: u64,
}

impl Store {
    /// The mappings of `space` just before `before` that show an object and share a byte with `range`, by address.
    pub fn shared_within(
        &self,
        space: SpaceId,
        range: GuestRange,
        before: Moment,
    ) -> Result<Vec<MappingRow>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(&format!(
            "SELECT {MAPPING} FROM mappings WHERE object IS NOT NULL AND space = ?1 AND since < ?2 \
             AND (until IS NULL OR until >= ?2)"
        ))?;
        let before = i64::try_from(before.0).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![space.0, before], mapping)?;
        let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
        rows.retain(|row| row.range.overlaps(range));
        rows.sort_by_key(|row| row.range.start);
        Ok(rows)
    }

    /// The last write before `before` to any of the `len` bytes at `offset` of an object, through whichever mapping of it.
    pub fn last_shared_write(
        &self,
        (object, offset): (u32, u64),
        len: u64,
        before: Moment,
    ) -> Result<Option<SharedWrite>, QueryError> {
        let mut last: Option<SharedWrite> = None;
        for mapping in self.mappings_of(object, before)? {
            let Some((_, start)) = mapping.object else { continue };
            let (first, past) = (offset.max(start), (offset + len).min(start + mapping.range.len()));
            if first >= past {
                continue;
            }
            let known = last.as_ref().map(|last| last.row.moment);
            let until = self.open_until(&mapping)?.min(before);
            if known.is_some_and(|known| until <= known) {
                continue;
            }
            let shown = GuestRange::new(mapping.range.start.wrapping_add(first - start), past - first);
            let Some(row) = self.last_write_in(mapping.space, shown, mapping.from..until)? else { continue };
            if last.as_ref().is_none_or(|last| key(&row) > key(&last.row)) {
                last = Some(SharedWrite { row, shown, skipped: first - offset });
            }
        }
        Ok(last)
    }

    /// Since when a kept file stands for an object: its contents are the object's then, whatever changed them.
    pub fn kept_since(&self, object: u32, file: u32) -> Result<Option<Moment>, QueryError> {
        let db = self.db();
        let mut statement =
            db.prepare_cached("SELECT min(since) FROM mappings WHERE object = ?1 AND file = ?2")?;
        Ok(statement.query_row([object, file], |row| row.get::<_, Option<u64>>(0))?.map(Moment))
    }

    /// All mappings of an object that began before `before`, those that lasted longest first.
    fn mappings_of(&self, object: u32, before: Moment) -> Result<Vec<MappingRow>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(&format!(
            "SELECT {MAPPING} FROM mappings WHERE object = ?1 AND since < ?2 \
             ORDER BY until IS NOT NULL, until DESC, space, start"
        ))?;
        let before = i64::try_from(before.0).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![object, before], mapping)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Before which moment a write in the mapping's range was one to what it shows. What the kernel does at the end of a space, to
    /// locks that are held then, has the moment of that end.
    fn open_until(&self, mapping: &MappingRow) -> Result<Moment, QueryError> {
        let Some(until) = mapping.until else { return Ok(Moment(u64::MAX)) };
        let db = self.db();
        let mut statement = db.prepare_cached(
            "SELECT 1 FROM mappings WHERE space = ?1 AND (until IS NULL OR until > ?2) LIMIT 1",
        )?;
        let goes_on = statement.query_row(params![mapping.space.0, until.0], |_| Ok(())).optional()?;
        Ok(Moment(until.0 + u64::from(goes_on.is_none())))
    }
}
