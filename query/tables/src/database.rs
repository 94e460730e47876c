//! Opening a recording for queries.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use guest::{EventId, FileId, GuestAddr, GuestRange, Moment, When};
use rusqlite::{Connection, OptionalExtension};
use store::{QueryError, Store, SyscallRow};
use symbols::{KeptFile, Layout, MappedFile, Mapping, Symbols};
use trace::{Moments, Trace};

use crate::calls::CallsTable;
use crate::error::SqlError;
use crate::executions::ExecutionsTable;
use crate::registers::RegistersAt;
use crate::render::{self, Format, RenderError};
use crate::writes::WritesTable;
use crate::{adapter, functions, registers, views};

/// A recording and its index, ready for questions. Read-only.
pub struct Database {
    connection: Connection,
    recording: Arc<Recording>,
}

/// What virtual tables and functions look into.
pub(crate) struct Recording {
    pub(crate) trace: Trace,
    pub(crate) store: Store,
    pub(crate) symbols: Symbols,
    /// What finds registers at a moment, where somebody can.
    pub(crate) registers: OnceLock<Arc<RegistersAt>>,
    /// Why a table or function failed last: SQLite carries no more than a line of text.
    failed: Mutex<Option<QueryError>>,
}

impl Recording {
    /// The index's error as SQLite carries it. [`Database::run`] finds the error itself.
    pub(crate) fn failure(&self, error: QueryError) -> rusqlite::Error {
        let text = error.to_string();
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        rusqlite::Error::ModuleError(text)
    }

    /// The code that `pcs` and the function `name` have in common, in pieces; `None` for all code. With `stubs`, linkage
    /// stubs to the function count.
    pub(crate) fn code(
        &self,
        pcs: Option<GuestRange>,
        name: Option<&str>,
        stubs: bool,
    ) -> Option<Vec<GuestRange>> {
        let named = name.map(|name| self.symbols.code_named(name, stubs)).filter(|named| !named.is_empty());
        let Some(named) = named else { return pcs.map(|pcs| vec![pcs]) };
        let within = |range: GuestRange| pcs.map_or(range, |pcs| pcs.intersect(range));
        Some(named.into_iter().map(within).filter(|range| !range.is_empty()).collect())
    }
}

/// Why a recording cannot be queried.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder is no trace that can be read.
    #[error(transparent)]
    Trace(#[from] trace::OpenError),
    /// There is no index, or not one of this trace.
    #[error(transparent)]
    Index(#[from] store::OpenError),
    /// The index could be opened but not read.
    #[error("reading the index")]
    Query(#[from] QueryError),
    /// SQLite failed.
    #[error("opening {path} with SQLite")]
    Sqlite {
        /// The index.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

impl Database {
    /// Opens the trace folder `dir`, whose index must exist (it may be unfinished).
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let trace = Trace::open(dir)?;
        let store = Store::open(dir, &trace.uuid())?;
        let path = store.path().to_owned();
        let sqlite = |source| OpenError::Sqlite { path: path.clone(), source };
        let connection = store.connection().map_err(sqlite)?;
        let layout = load_layout(&connection).map_err(QueryError::from)?;
        let symbols = Symbols::new(kept_files(&trace), layout);
        let (registers, failed) = (OnceLock::new(), Mutex::default());
        let recording = Arc::new(Recording { trace, store, symbols, registers, failed });
        register(&connection, &recording).map_err(sqlite)?;
        Ok(Self { connection, recording })
    }

    /// Lets `arg` and `reg` find registers; without it they fail. Only the first one counts.
    pub fn set_registers(&self, find: Arc<RegistersAt>) {
        let _ = self.recording.registers.set(find);
    }

    /// The SQLite connection with everything registered.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The recording.
    pub fn trace(&self) -> &Trace {
        &self.recording.trace
    }

    /// Its index.
    pub fn store(&self) -> &Store {
        &self.recording.store
    }

    /// Its symbols.
    pub fn symbols(&self) -> &Symbols {
        &self.recording.symbols
    }

    /// The last call before `before` that wrote the byte at `offset` of the file at `path`, and the address of that byte in its
    /// buffer. Only calls with one buffer (`write`, `pwrite64`), by the name under which the file was opened.
    pub fn file_writer(
        &self,
        path: &str,
        offset: u64,
        before: Moment,
    ) -> Result<Option<(SyscallRow, GuestAddr)>, QueryError> {
        let (Ok(offset), before) = (i64::try_from(offset), i64::try_from(before.0).unwrap_or(i64::MAX))
        else {
            return Ok(None);
        };
        let mut statement = self.connection.prepare_cached(
            "SELECT event FROM main.syscalls WHERE path = ?1 AND name IN ('write', 'pwrite64') AND \"offset\" <= ?2 \
             AND \"offset\" + result > ?2 AND moment < ?3 ORDER BY moment DESC LIMIT 1",
        )?;
        let event: Option<i64> = statement.query_row((path, offset, before), |row| row.get(0)).optional()?;
        let Some(event) = event else { return Ok(None) };
        let call = self.store().syscall(EventId(event as u64))?;
        Ok(call.map(|call| {
            let skipped = offset as u64 - call.offset.unwrap_or(0);
            let addr = GuestAddr(call.args[1]).wrapping_add(skipped);
            (call, addr)
        }))
    }

    /// Runs one or more statements and writes their rows to `out` as they come. Returns how many rows there were.
    pub fn run(&self, sql: &str, format: Format, out: &mut dyn Write) -> Result<u64, RenderError> {
        let failed = || self.recording.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed();
        let landmark = |when| self.landmark(when);
        render::run(&self.connection, sql, format, &landmark, out).map_err(|error| match (error, failed()) {
            (RenderError::Sql(_), Some(index)) => RenderError::Index(index),
            (error, _) => error,
        })
    }

    fn landmark(&self, when: When) -> Result<Moment, String> {
        let trace = self.trace();
        let moments = Moments::load(trace).map_err(|error| error.to_string())?;
        let moments = moments.ok_or("landmarks are known when the index is whole: see `backstory index`")?;
        let found = trace::resolve_when(trace, &moments, when).map_err(|error| error.to_string())?;
        found.map_err(|error| error.to_string())
    }

    /// Compiles `sql` without running it: what is wrong with it, if anything.
    pub fn check(&self, sql: &str) -> Result<(), SqlError> {
        self.connection.prepare(sql).map(drop).map_err(|e| SqlError::new(sql, 0, e))
    }
}

fn register(connection: &Connection, recording: &Arc<Recording>) -> Result<(), rusqlite::Error> {
    adapter::register::<WritesTable>(connection, recording)?;
    adapter::register::<CallsTable>(connection, recording)?;
    adapter::register::<ExecutionsTable>(connection, recording)?;
    functions::register(connection, recording)?;
    registers::register(connection, recording)?;
    connection.execute_batch(views::CREATE)
}

fn kept_files(trace: &Trace) -> Vec<KeptFile> {
    let files = 0..trace.files().len() as u32;
    files
        .map(|id| KeptFile {
            stored: trace.file_path(FileId(id)).unwrap_or_default(),
            original: trace.file(FileId(id)).map(|file| file.path.clone().into()).unwrap_or_default(),
        })
        .collect()
}

fn load_layout(connection: &Connection) -> Result<Layout, rusqlite::Error> {
    let mut statement = connection.prepare(
        "SELECT space, start, end, prot, file, file_offset, name, since, until FROM main.mappings",
    )?;
    let rows = statement.query_map([], |row| {
        let start = row.get::<_, i64>(1)? as u64;
        let end = row.get::<_, i64>(2)? as u64;
        let file = row.get::<_, Option<u32>>(4)?;
        let offset = row.get::<_, Option<i64>>(5)?.unwrap_or(0) as u64;
        Ok(Mapping {
            space: guest::SpaceId(row.get(0)?),
            range: GuestRange { start: GuestAddr(start), end: GuestAddr(end) },
            prot: guest::Prot::from_bits(row.get::<_, i64>(3)? as u64),
            file: file.map(|file| MappedFile { file: FileId(file), offset }),
            name: row.get(6)?,
            from: Moment(row.get::<_, i64>(7)? as u64),
            until: Moment(row.get::<_, Option<i64>>(8)?.map_or(u64::MAX, |n| n as u64)),
        })
    })?;
    rows.collect::<Result<Vec<_>, _>>().map(Layout::new)
}
