//! Which granules can hold an answer: the list of granules, the page index, the code index.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use granule::PageMask;
use guest::{GuestAddr, GuestRange, Moment, PAGE_SIZE, SpaceId};
use rusqlite::{Connection, params};

use crate::{QueryError, Store};

/// A granule as the index lists it. Within a space, numbers grow with time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub(crate) granule: u64,
    pub(crate) space: SpaceId,
    /// The moment of its first tick, and that of its end, at which the kernel may still have written.
    pub(crate) first: Moment,
    pub(crate) last: Moment,
}

/// All granules.
#[derive(Default)]
pub(crate) struct Directory {
    by_space: BTreeMap<SpaceId, Vec<Listed>>,
}

impl Directory {
    pub(crate) fn read(db: &Connection) -> Result<Self, QueryError> {
        let mut by_space: BTreeMap<SpaceId, Vec<Listed>> = BTreeMap::new();
        let mut statement =
            db.prepare("SELECT granule, space, first, last FROM granules ORDER BY granule")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let space = SpaceId(row.get(1)?);
            by_space.entry(space).or_default().push(Listed {
                granule: row.get(0)?,
                space,
                first: Moment(row.get(2)?),
                last: Moment(row.get(3)?),
            });
        }
        Ok(Self { by_space })
    }

    /// The granules of a space, in the order of time.
    pub(crate) fn of(&self, space: SpaceId) -> &[Listed] {
        self.by_space.get(&space).map_or(&[], Vec::as_slice)
    }

    /// The spaces that have granules.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        self.by_space.keys().copied()
    }

    /// Those that can hold something of `moments`, of one space or of all, in no order across spaces.
    pub(crate) fn within(&self, space: Option<SpaceId>, moments: &Range<Moment>) -> Vec<Listed> {
        let spaces = match space {
            Some(space) => vec![space],
            None => self.spaces().collect(),
        };
        spaces.into_iter().flat_map(|space| self.part(space, moments)).copied().collect()
    }

    fn part(&self, space: SpaceId, moments: &Range<Moment>) -> &[Listed] {
        let all = self.of(space);
        let from = all.partition_point(|granule| granule.last < moments.start);
        let to = all.partition_point(|granule| granule.first < moments.end);
        all.get(from..to).unwrap_or_default()
    }

    /// Those that can hold `moment`.
    pub(crate) fn at(&self, moment: Moment) -> impl Iterator<Item = Listed> {
        self.spaces()
            .flat_map(move |space| self.part(space, &(moment..Moment(moment.0.saturating_add(1)))))
            .copied()
    }
}

/// More pages than this are not looked up one by one.
const MANY_PAGES: u64 = 4096;

impl Store {
    /// The granules of `space` that write a word of `range`; `None` when the range is too wide for the index to help.
    pub(crate) fn granules_writing(
        &self,
        space: SpaceId,
        range: GuestRange,
    ) -> Result<Option<BTreeSet<u64>>, QueryError> {
        let pages = (range.start.0 >> 12, (range.end.0.max(1) - 1) >> 12);
        let mut found = BTreeSet::new();
        if range.is_empty() {
            return Ok(Some(found));
        }
        if pages.1 - pages.0 > MANY_PAGES {
            return Ok(None);
        }
        let db = self.db();
        let mut statement = db.prepare_cached(
            "SELECT page, granule, mask FROM page_index WHERE space = ?1 AND page BETWEEN ?2 AND ?3",
        )?;
        let mut rows = statement.query(params![space.0, pages.0, pages.1])?;
        while let Some(row) = rows.next()? {
            let (page, granule): (u64, u64) = (row.get(0)?, row.get(1)?);
            if touches(page, granule, row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?, range)? {
                found.insert(granule);
            }
        }
        Ok(Some(found))
    }

    /// The newest granule of `space`, not newer than `newest`, that writes a word of `range`.
    pub(crate) fn last_writing(
        &self,
        space: SpaceId,
        range: GuestRange,
        newest: u64,
    ) -> Result<Option<u64>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(
            "SELECT granule, mask FROM page_index WHERE space = ?1 AND page = ?2 AND granule <= ?3 ORDER BY granule DESC",
        )?;
        let mut best = None;
        let mut page = range.start.page();
        while page < range.end {
            let number = page.0 >> 12;
            let mut rows = statement.query(params![space.0, number, newest])?;
            while let Some(row) = rows.next()? {
                let granule: u64 = row.get(0)?;
                if best.is_some_and(|best| best >= granule) {
                    break;
                }
                if touches(number, granule, row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?, range)?
                {
                    best = Some(granule);
                    break;
                }
            }
            match page.checked_add(PAGE_SIZE) {
                Some(next) => page = next,
                None => break,
            }
        }
        Ok(best)
    }

    /// The granules that run code in `pcs`.
    pub(crate) fn granules_running(&self, pcs: GuestRange) -> Result<BTreeSet<u64>, QueryError> {
        let mut found = BTreeSet::new();
        if pcs.is_empty() {
            return Ok(found);
        }
        let pages = (pcs.start.0 >> 12, (pcs.end.0 - 1) >> 12);
        let db = self.db();
        let mut statement =
            db.prepare_cached("SELECT code, granule, lines FROM code_index WHERE code BETWEEN ?1 AND ?2")?;
        let mut rows = statement.query(params![pages.0, pages.1])?;
        while let Some(row) = rows.next()? {
            let (page, lines): (u64, i64) = (row.get(0)?, row.get(2)?);
            let part = pcs.intersect(GuestRange::new(GuestAddr(page << 12), PAGE_SIZE));
            let (first, last) = (part.start.page_offset() >> 6, (part.end.0 - 1 - (page << 12)) >> 6);
            let wanted = (u64::MAX >> (63 - last)) & (u64::MAX << first);
            if lines as u64 & wanted != 0 {
                found.insert(row.get(1)?);
            }
        }
        Ok(found)
    }
}

fn touches(page: u64, granule: u64, mask: &[u8], range: GuestRange) -> Result<bool, QueryError> {
    let mask =
        PageMask::from_bytes(mask).map_err(|source| QueryError::PageIndex { page, granule, source })?;
    Ok(mask.touches(GuestAddr(page << 12), range))
}
