//! Opening an index for reading; what is refused, by name.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use granule::{BlockTable, Counters};
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::granules::Cache;
use crate::lookup::Directory;
use crate::schema::APPLICATION;
use crate::{FORMAT, Format, QueryError, pages};

/// The index's file name in a trace folder.
pub const INDEX_FILE: &str = "index.db";

const READING: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

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
    /// The file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
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

impl OpenError {
    pub(crate) fn new(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match pages::is_damage(&source) {
            true => Self::Damaged { path, source: Box::new(QueryError::Page) },
            false => Self::Sqlite { path, source },
        }
    }
}

/// The identity of a recording as the index stores it.
pub(crate) fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn meta<T: rusqlite::types::FromSql>(db: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    db.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// Whether there is a file that is not empty: SQLite leaves an empty one where it was killed before it wrote anything.
pub(crate) fn exists(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// Opens the database at `path` with every page checked. Refuses one that is no index, or one of another format or recording.
pub(crate) fn connect(path: &Path, flags: OpenFlags, uuid: &[u8; 16]) -> Result<Connection, OpenError> {
    let failed = |source| OpenError::new(path, source);
    match header(path)? {
        Header::Ours => {}
        Header::Foreign => return Err(OpenError::NotAnIndex { path: path.to_owned() }),
        Header::Older => {
            // Before format 3, pages had no checksums.
            let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
            let found = |key| meta::<u32>(&db, key).ok().flatten();
            return Err(match (found("format_major"), found("format_minor")) {
                (Some(major), Some(minor)) if major < FORMAT.major => {
                    OpenError::Version { path: path.to_owned(), found: Format { major, minor } }
                }
                _ => OpenError::NotAnIndex { path: path.to_owned() },
            });
        }
    }
    pages::register().map_err(failed)?;
    let db = Connection::open_with_flags_and_vfs(path, flags, pages::NAME).map_err(failed)?;
    identify(&db, path, uuid)?;
    Ok(db)
}

/// What the first bytes of a database say.
enum Header {
    Ours,
    /// A database without checksums that is not marked as anyone's.
    Older,
    Foreign,
}

/// Looks at the header of the file (<https://sqlite.org/fileformat2.html#the_database_header>), which is all that can be
/// told of a file whose pages may have no checksums.
fn header(path: &Path) -> Result<Header, OpenError> {
    let mut bytes = [0; 100];
    let file = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0));
    match file {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Header::Foreign),
        Err(source) => return Err(OpenError::Read { path: path.to_owned(), source }),
        Ok(()) => {}
    }
    let (reserved, application) = (i32::from(bytes[20]), &bytes[68..72]);
    Ok(if !bytes.starts_with(b"SQLite format 3\0") {
        Header::Foreign
    } else if reserved == pages::RESERVED && application == APPLICATION.to_be_bytes() {
        Header::Ours
    } else if reserved == 0 && application == [0; 4] {
        Header::Older
    } else {
        Header::Foreign
    })
}

/// Refuses an index of another format or recording.
fn identify(db: &Connection, path: &Path, uuid: &[u8; 16]) -> Result<(), OpenError> {
    let failed = |source| OpenError::new(path, source);
    let foreign = || OpenError::NotAnIndex { path: path.to_owned() };
    let major = meta::<u32>(db, "format_major").map_err(failed)?.ok_or_else(foreign)?;
    let minor = meta(db, "format_minor").map_err(failed)?.ok_or_else(foreign)?;
    if major != FORMAT.major {
        return Err(OpenError::Version { path: path.to_owned(), found: Format { major, minor } });
    }
    let found: String = meta(db, "trace").map_err(failed)?.ok_or_else(foreign)?;
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
        if !exists(&path) {
            return Err(OpenError::Absent { path });
        }
        let db = connect(&path, READING, uuid)?;
        db.execute_batch("PRAGMA cache_size = -65536;").map_err(|source| OpenError::new(&path, source))?;
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

    /// The database file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// A connection to the database, for reading the small tables by SQL.
    pub fn connection(&self) -> rusqlite::Result<Connection> {
        Connection::open_with_flags_and_vfs(&self.inner.path, READING, pages::NAME)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(folder.path(), &[7; 16]).unwrap();
        writer.finish().unwrap();
        let path = folder.path().join(INDEX_FILE);
        let db = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE, &[7; 16]).unwrap();
        db.execute("UPDATE meta SET value = 99 WHERE key = 'format_major'", []).unwrap();
        drop(db);
        let refused = Store::open(folder.path(), &[7; 16]).map(drop).unwrap_err().to_string();
        assert!(refused.ends_with("has index format 99.0, this program reads 5.x"), "{refused}");
    }
}
