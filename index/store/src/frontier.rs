//! Where what was committed ends, for a build that goes on there.

use granule::Frames;
use guest::SpaceId;

use crate::calls::frames_before;
use crate::{QueryError, Store};

impl Store {
    /// The spaces that were met so far: the tick at which each goes on, and the call stacks of its tasks there.
    pub fn frontier(&self) -> Result<Vec<(SpaceId, u64, Frames)>, QueryError> {
        self.spaces_met()?
            .into_iter()
            .map(|(space, tick)| Ok((space, tick, self.frames_at_end(space)?)))
            .collect()
    }

    fn spaces_met(&self) -> Result<Vec<(SpaceId, u64)>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare(
            "SELECT space, max(tick) FROM (SELECT space, first_tick + instructions AS tick FROM granules
             UNION ALL SELECT space, 0 FROM open_calls) GROUP BY space",
        )?;
        let rows = statement.query_map([], |row| Ok((SpaceId(row.get(0)?), row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The call stacks behind the last granule of a space.
    fn frames_at_end(&self, space: SpaceId) -> Result<Frames, QueryError> {
        let Some(&last) = self.inner.directory.of(space).last() else {
            return Ok(frames_before(&self.db(), space, i64::MAX as u64)?);
        };
        let mut frames = self.frames_before(&last)?;
        let broken = |source| QueryError::Granule { granule: last.granule, source };
        self.granule(last.granule)?.follow(&mut frames, u64::MAX, |_| {}).map_err(broken)?;
        frames.cross(|_| {});
        Ok(frames)
    }
}
