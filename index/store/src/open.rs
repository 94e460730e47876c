//! Opening an index for reading; what is refused, by name.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use granule::{BlockTable, Counters};
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::granules::Cache;
use crate::lookup::Directory;
use crate::{FORMAT, Format, QueryError};

/// The index's file name in a trace folder.
pub const INDEX_FILE: &str = "index.db";

/// An index, open for reading. Cloning gives another handle to the same one. What a build commits after the opening is
/// not seen.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    path: PathBuf,
    pub(crate) db: Arc<Mutex<Connection>>,
    pub(crate) blocks: Arc<BlockTable>,
    pub(crate) directory: Directory,
    pub(crate) cache: Cache,
    pub(crate) counters: Arc<Counters>,
}

/// Why an index could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error("no index at {path}")]
    Absent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file is no index of ours.
    #[error("{path} is not an index")]
    NotAnIndex {
        /// The file.
        path: PathBuf,
    },
    /// It was built for another recording.
    #[error("{path} is the index of another trace ({found}, this one is {wanted})")]
    OtherTrace {
        /// The file.
        path: PathBuf,
        /// The recording it belongs to.
        found: String,
        /// The recording at hand.
        wanted: String,
    },
    /// Another version of the program wrote it.
    #[error("{path} has index format {}.{}, this program reads {}.x", found.major, found.minor, crate::FORMAT.major)]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: Format,
    },
    /// SQLite failed.
    #[error("index database {path}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// Something in it is damaged.
    #[error("index database {path}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What.
        source: Box<QueryError>,
    },
}

/// The identity of a recording as the index stores it.
pub(crate) fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn meta<T: rusqlite::types::FromSql>(db: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    db.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// Refuses a database that is no index, or one of another format or recording.
pub(crate) fn identify(db: &Connection, path: &Path, uuid: &[u8; 16]) -> Result<(), OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let foreign = || OpenError::NotAnIndex { path: path.to_owned() };
    let major = match meta::<u32>(db, "format_major") {
        Ok(major) => major.ok_or_else(foreign)?,
        Err(rusqlite::Error::SqliteFailure(error, _))
            if error.code == rusqlite::ErrorCode::DatabaseBusy
                || error.code == rusqlite::ErrorCode::SystemIoFailure =>
        {
            return Err(sqlite(rusqlite::Error::SqliteFailure(error, None)));
        }
        Err(_) => return Err(foreign()),
    };
    let minor = meta(db, "format_minor").map_err(sqlite)?.ok_or_else(foreign)?;
    if major != FORMAT.major {
        return Err(OpenError::Version { path: path.to_owned(), found: Format { major, minor } });
    }
    let found: String = meta(db, "trace").map_err(sqlite)?.ok_or_else(foreign)?;
    let wanted = hex(uuid);
    if found != wanted {
        return Err(OpenError::OtherTrace { path: path.to_owned(), found, wanted });
    }
    Ok(())
}

/// The dictionary of blocks as committed so far.
pub(crate) fn read_blocks(db: &Connection) -> Result<BlockTable, QueryError> {
    let mut table = BlockTable::default();
    let mut statement = db.prepare("SELECT first, count, data FROM blocks ORDER BY first")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (first, count): (u64, u64) = (row.get(0)?, row.get(1)?);
        let missing = QueryError::Missing { what: "block", id: table.len() as u64 };
        if first != table.len() as u64 {
            return Err(missing);
        }
        table.append(usize::try_from(count).map_err(|_| missing)?, row.get(2)?);
    }
    Ok(table)
}

impl Store {
    /// Opens the index in the trace folder `trace`, whose recording has this `uuid`. An unfinished index is opened too: it
    /// answers for what was committed.
    pub fn open(trace: &Path, uuid: &[u8; 16]) -> Result<Self, OpenError> {
        let path = trace.join(INDEX_FILE);
        if !path.exists() {
            return Err(OpenError::Absent { path });
        }
        let sqlite = |source| OpenError::Sqlite { path: path.clone(), source };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&path, flags).map_err(sqlite)?;
        identify(&db, &path, uuid)?;
        db.execute_batch("PRAGMA cache_size = -65536; PRAGMA mmap_size = 1073741824;").map_err(sqlite)?;
        db.set_prepared_statement_cache_capacity(64);
        let damaged =
            |source: QueryError| OpenError::Damaged { path: path.clone(), source: Box::new(source) };
        let blocks = read_blocks(&db).map_err(damaged)?;
        let directory = Directory::read(&db).map_err(damaged)?;
        let inner = Inner {
            db: Arc::new(Mutex::new(db)),
            blocks: Arc::new(blocks),
            directory,
            cache: Cache::default(),
            counters: Arc::new(Counters::default()),
            path,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The database file, for reading the small tables by SQL.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How many granules were decoded through this index since it was opened.
    pub fn granules_decoded(&self) -> u64 {
        self.inner.counters.granules.load(Ordering::Relaxed)
    }

    /// How many value pieces were decoded.
    pub fn pieces_decoded(&self) -> u64 {
        self.inner.counters.pieces.load(Ordering::Relaxed)
    }

    pub(crate) fn db(&self) -> MutexGuard<'_, Connection> {
        self.inner.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
