//! Opening an index for reading; what is refused, by name.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;

use crate::{Format, QueryError};

/// The index's file name in a trace folder.
pub const INDEX_FILE: &str = "index.db";

/// An index, open for reading. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) db: Mutex<Connection>,
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

impl Store {
    /// Opens the index in the trace folder `trace`, whose recording has this `uuid`. An unfinished index is opened too: it
    /// answers for what was committed.
    pub fn open(trace: &Path, uuid: &[u8; 16]) -> Result<Self, OpenError> {
        let path = trace.join(INDEX_FILE);
        let _ = uuid;
        Err(OpenError::Absent { path })
    }

    /// The database file, for reading the small tables by SQL.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How many granules were decoded through this index since it was opened.
    pub fn granules_decoded(&self) -> u64 {
        let _ = &self.inner.db;
        0
    }

    /// How many value pieces were decoded.
    pub fn pieces_decoded(&self) -> u64 {
        0
    }
}
