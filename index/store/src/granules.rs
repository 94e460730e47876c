//! Fetching and keeping decoded granules.

use std::sync::{Arc, Mutex, PoisonError};

use granule::{ColumnSource, Granule};
use rusqlite::{Connection, OptionalExtension};

use crate::schema::COLUMNS_PER_GRANULE;
use crate::{QueryError, Store};

/// How many decoded granules are kept: some 10 MB each.
const KEPT: usize = 12;

/// The granules decoded last, the newest first.
#[derive(Default)]
pub(crate) struct Cache {
    kept: Mutex<Vec<(u64, Arc<Granule>)>>,
}

struct Columns {
    db: Arc<Mutex<Connection>>,
    granule: u64,
}

impl ColumnSource for Columns {
    fn column(&self, number: u32) -> Result<Option<Vec<u8>>, String> {
        let db = self.db.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.granule * COLUMNS_PER_GRANULE + u64::from(number);
        let read = || {
            let mut statement = db.prepare_cached("SELECT data FROM columns WHERE id = ?1")?;
            statement.query_row([id], |row| row.get(0)).optional()
        };
        read().map_err(|error: rusqlite::Error| error.to_string())
    }
}

impl Store {
    /// A granule by number.
    pub(crate) fn granule(&self, number: u64) -> Result<Arc<Granule>, QueryError> {
        let mut kept = self.inner.cache.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(held, _)| *held == number) {
            let entry = kept.remove(at);
            let granule = Arc::clone(&entry.1);
            kept.insert(0, entry);
            return Ok(granule);
        }
        let source = Columns { db: Arc::clone(&self.inner.db), granule: number };
        let granule =
            Granule::open(Box::new(source), Arc::clone(&self.inner.blocks), Arc::clone(&self.inner.counters))
                .map_err(|source| QueryError::Granule { granule: number, source })?;
        let granule = Arc::new(granule);
        kept.insert(0, (number, Arc::clone(&granule)));
        kept.truncate(KEPT);
        Ok(granule)
    }
}
