//! The one writer of an index: a segment is a transaction, so that a killed build leaves whole segments.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use granule::{BlockTable, Call, CallKind, Encoded};
use guest::{EventId, Moment, SpaceId};
use rusqlite::{Connection, OpenFlags, Transaction, params};

use crate::open::{connect, exists, hex, meta, read_blocks};
use crate::schema::{APPLICATION, COLUMNS_PER_GRANULE, CREATE};
use crate::{
    EventRow, FORMAT, INDEX_FILE, ImageRow, MappingRow, MappingSource, OpenError, OutputRow, QueryError,
    SignalRow, SpaceRow, SwitchRow, SyscallRow, TaskRow, pages,
};

/// Why something could not be committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The index that is there could not be opened, or is damaged.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// SQLite failed (a full disk, say).
    #[error("index database {path}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

impl CommitError {
    fn new(path: &Path, source: rusqlite::Error) -> Self {
        match pages::is_damage(&source) {
            true => OpenError::new(path, source).into(),
            false => Self::Sqlite { path: path.to_owned(), source },
        }
    }
}

/// Blocks that were numbered since the last commit.
#[derive(Clone, Debug, Default)]
pub struct NewBlocks {
    /// Number of the first.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// What [`BlockTable::write_from`] wrote.
    pub data: Vec<u8>,
}

/// What a transaction adds: a part of a replay unit.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// The unit, by its place in the recording.
    pub unit: u32,
    /// Which of its parts, from 0.
    pub part: u32,
    /// The place behind it, from which a build goes on: the moment and the next event. `None` for a unit's last.
    pub resumes_at: Option<(Moment, EventId)>,
    /// Granules; those of a space in the order of time.
    pub granules: Vec<Encoded>,
    /// Calls that a task of a new space is in because its parent was.
    pub inherited: Vec<(SpaceId, Call)>,
    /// What path arguments pointed to: event, which argument, path.
    pub paths: Vec<(EventId, u8, String)>,
    /// What was printed.
    pub output: Vec<OutputRow>,
}

/// The small tables.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Table `events`.
    pub events: Vec<EventRow>,
    /// Table `tasks`.
    pub tasks: Vec<TaskRow>,
    /// Table `spaces`.
    pub spaces: Vec<SpaceRow>,
    /// Table `images`.
    pub images: Vec<ImageRow>,
    /// Table `mappings`.
    pub mappings: Vec<MappingRow>,
    /// Table `syscalls`.
    pub syscalls: Vec<SyscallRow>,
    /// Table `signals`.
    pub signals: Vec<SignalRow>,
    /// Table `switches`.
    pub switches: Vec<SwitchRow>,
}

/// What is in an index that is being built.
#[derive(Clone, Debug, Default)]
pub struct Resume {
    /// The units that have committed parts.
    pub units: Vec<ResumeUnit>,
    /// The dictionary of blocks.
    pub blocks: BlockTable,
    /// Instructions in it.
    pub instructions: u64,
    /// Whether nothing is missing.
    pub complete: bool,
}

/// A unit that has committed parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeUnit {
    /// Its number.
    pub unit: u32,
    /// How many parts.
    pub parts: u32,
    /// The place behind them; `None` when they are all.
    pub next: Option<(Moment, EventId)>,
}

/// The one writer of an index.
pub struct Writer {
    path: PathBuf,
    db: Connection,
    next_granule: u64,
}

impl Writer {
    /// Makes the index in the trace folder `trace`, or goes on with the one that is there.
    pub fn open(trace: &Path, uuid: &[u8; 16]) -> Result<(Self, Resume), CommitError> {
        let path = trace.join(INDEX_FILE);
        let sqlite = |source| CommitError::new(&path, source);
        let db = if exists(&path) {
            connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE, uuid)?
        } else {
            pages::register().map_err(sqlite)?;
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
            let db = Connection::open_with_flags_and_vfs(&path, flags, pages::NAME).map_err(sqlite)?;
            create(&db, uuid).map_err(sqlite)?;
            db
        };
        db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -32768;",
        )
        .map_err(sqlite)?;
        let damaged =
            |source: QueryError| OpenError::Damaged { path: path.clone(), source: Box::new(source) };
        let resume = resume(&db).map_err(damaged)?;
        let newest: u64 = db
            .query_row("SELECT ifnull(max(granule), 0) FROM granules", [], |row| row.get(0))
            .map_err(sqlite)?;
        Ok((Self { path, db, next_granule: newest + 1 }, resume))
    }

    fn transaction(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), CommitError> {
        let sqlite = |source| CommitError::new(&self.path, source);
        let transaction = self.db.transaction().map_err(sqlite)?;
        work(&transaction).map_err(sqlite)?;
        transaction.commit().map_err(sqlite)
    }

    /// Adds a segment, or nothing of it. `blocks` are those that its granules name and no earlier commit brought.
    pub fn commit(&mut self, segment: &Segment, blocks: &NewBlocks) -> Result<(), CommitError> {
        let first = self.next_granule;
        self.transaction(|db| {
            if blocks.count > 0 {
                let NewBlocks { first, count, data } = blocks;
                db.execute("INSERT INTO blocks VALUES(?1, ?2, ?3)", params![first, count, data])?;
            }
            for (space, call) in &segment.inherited {
                open_call(db, *space, 0, call)?;
            }
            for (number, granule) in (first..).zip(&segment.granules) {
                add_granule(db, number, granule)?;
            }
            add_pages(db, first, &segment.granules)?;
            add_strings(db, segment)?;
            let ticks: u64 = segment.granules.iter().map(|granule| granule.ticks).sum();
            db.execute(
                "INSERT INTO segments VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    segment.unit,
                    segment.part,
                    ticks,
                    segment.resumes_at.map(|(moment, _)| moment.0),
                    segment.resumes_at.map(|(_, event)| event.0),
                    first,
                    segment.granules.len() as u64
                ],
            )?;
            db.execute("UPDATE meta SET value = value + ?1 WHERE key = 'instructions'", [ticks])?;
            Ok(())
        })?;
        self.next_granule = first + segment.granules.len() as u64;
        Ok(())
    }

    /// Instructions committed so far.
    pub fn instructions(&self) -> Result<u64, CommitError> {
        let sqlite = |source| CommitError::new(&self.path, source);
        Ok(meta(&self.db, "instructions").map_err(sqlite)?.unwrap_or(0))
    }

    /// What path arguments pointed to, by event and argument.
    pub fn paths(&self) -> Result<BTreeMap<(EventId, u8), String>, CommitError> {
        let sqlite = |source| CommitError::new(&self.path, source);
        let mut statement = self.db.prepare("SELECT event, argument, path FROM paths").map_err(sqlite)?;
        let rows = statement
            .query_map([], |row| Ok(((EventId(row.get(0)?), row.get(1)?), row.get(2)?)))
            .map_err(sqlite)?;
        rows.collect::<Result<_, _>>().map_err(sqlite)
    }

    /// Replaces the small tables; `complete` once nothing of the trace is missing.
    pub fn commit_facts(&mut self, facts: &Facts, complete: bool) -> Result<(), CommitError> {
        self.transaction(|db| {
            let tables =
                ["events", "tasks", "spaces", "images", "mappings", "syscalls", "signals", "switches"];
            for table in tables {
                db.execute(&format!("DELETE FROM {table}"), [])?;
            }
            add_facts(db, facts)?;
            db.execute("UPDATE meta SET value = ?1 WHERE key = 'complete'", [complete])?;
            db.execute("UPDATE meta SET value = ?1 WHERE key = 'events'", [facts.events.len() as u64])?;
            Ok(())
        })
    }

    /// Leaves a single file behind.
    pub fn finish(self) -> Result<(), CommitError> {
        let sqlite = |source| CommitError::new(&self.path, source);
        self.db.execute_batch("PRAGMA journal_mode = DELETE;").map_err(sqlite)?;
        self.db.close().map_err(|(_, source)| CommitError::new(&self.path, source))
    }
}

fn create(db: &Connection, uuid: &[u8; 16]) -> rusqlite::Result<()> {
    pages::reserve(db)?;
    let page = pages::PAGE;
    db.execute_batch(&format!(
        "PRAGMA page_size = {page}; PRAGMA application_id = {APPLICATION}; BEGIN; {CREATE}"
    ))?;
    let mut insert = db.prepare("INSERT INTO meta VALUES(?1, ?2)")?;
    insert.execute(params!["format_major", FORMAT.major])?;
    insert.execute(params!["format_minor", FORMAT.minor])?;
    insert.execute(params!["trace", hex(uuid)])?;
    for key in ["complete", "instructions", "events"] {
        insert.execute(params![key, 0])?;
    }
    db.execute_batch("COMMIT")
}

fn resume(db: &Connection) -> Result<Resume, QueryError> {
    let mut statement = db.prepare(
        "SELECT unit, part, next_moment, next_event FROM segments AS one
         WHERE part = (SELECT max(part) FROM segments AS other WHERE other.unit = one.unit) ORDER BY unit",
    )?;
    let units = statement.query_map([], |row| {
        let part: u32 = row.get(1)?;
        let next: Option<u64> = row.get(2)?;
        let next = next.zip(row.get::<_, Option<u64>>(3)?);
        let next = next.map(|(moment, event)| (Moment(moment), EventId(event)));
        Ok(ResumeUnit { unit: row.get(0)?, parts: part + 1, next })
    })?;
    Ok(Resume {
        units: units.collect::<Result<_, _>>()?,
        blocks: read_blocks(db)?,
        instructions: meta(db, "instructions")?.unwrap_or(0),
        complete: meta::<i64>(db, "complete")? == Some(1),
    })
}

fn add_strings(db: &Transaction<'_>, segment: &Segment) -> rusqlite::Result<()> {
    let mut insert = db.prepare_cached("INSERT OR REPLACE INTO paths VALUES(?1, ?2, ?3)")?;
    for (event, argument, path) in &segment.paths {
        insert.execute(params![event.0, argument, path])?;
    }
    let mut insert = db.prepare_cached("INSERT OR REPLACE INTO output VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
    for row in &segment.output {
        let OutputRow { event, moment, task, fd, stream, len, bytes } = row;
        insert.execute(params![event.0, moment.0, task.0, fd, stream, len, bytes])?;
    }
    Ok(())
}

fn add_granule(db: &Transaction<'_>, number: u64, granule: &Encoded) -> rusqlite::Result<()> {
    let Moment(first) = granule.first;
    let Moment(last) = granule.last;
    db.prepare_cached("INSERT INTO granules VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?.execute(params![
        number,
        granule.space,
        granule.first_tick,
        granule.ticks,
        first,
        last,
        granule.writes,
        granule.bytes()
    ])?;
    let mut insert = db.prepare_cached("INSERT INTO columns VALUES(?1, ?2)")?;
    for (column, data) in &granule.columns {
        insert.execute(params![number * COLUMNS_PER_GRANULE + u64::from(*column), data])?;
    }
    for call in &granule.closed {
        close_call(db, granule.space(), number, call)?;
    }
    for call in &granule.opened {
        open_call(db, granule.space(), number, call)?;
    }
    Ok(())
}

/// The pages that granules write and run, in the order of their keys: then rows that lie together are put in together.
fn add_pages(db: &Transaction<'_>, first: u64, granules: &[Encoded]) -> rusqlite::Result<()> {
    let numbered = || (first..).zip(granules);
    let pages = numbered().flat_map(|(number, granule)| {
        granule.pages.iter().map(move |(page, mask)| (granule.space, *page, number, mask))
    });
    let mut pages: Vec<_> = pages.collect();
    pages.sort_unstable_by_key(|&(space, page, number, _)| (space, page, number));
    let mut insert = db.prepare_cached("INSERT INTO page_index VALUES(?1, ?2, ?3, ?4)")?;
    for (space, page, number, mask) in pages {
        insert.execute(params![space, page, number, mask.to_bytes()])?;
    }
    let code = numbered()
        .flat_map(|(number, granule)| granule.code.iter().map(move |(page, code)| (*page, number, *code)));
    let mut code: Vec<_> = code.collect();
    code.sort_unstable_by_key(|&(page, number, _)| (page, number));
    let mut insert = db.prepare_cached("INSERT INTO code_index VALUES(?1, ?2, ?3, ?4)")?;
    for (page, number, code) in code {
        insert.execute(params![page, number, code.lines as i64, code.instructions])?;
    }
    Ok(())
}

fn open_call(db: &Transaction<'_>, space: SpaceId, granule: u64, call: &Call) -> rusqlite::Result<()> {
    let frame = &call.frame;
    let mut insert = db.prepare_cached(
        "INSERT OR REPLACE INTO open_calls VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, NULL, NULL)",
    )?;
    insert.execute(params![
        space.0,
        call.task.0,
        call.depth,
        granule,
        frame.entry.0,
        u8::from(frame.kind == CallKind::Signal),
        frame.callee.0 as i64,
        frame.site.0 as i64,
        frame.ret.0 as i64,
        frame.sp.0 as i64,
    ])?;
    Ok(())
}

fn close_call(db: &Transaction<'_>, space: SpaceId, granule: u64, call: &Call) -> rusqlite::Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE open_calls SET closed = ?1, exit = ?2 WHERE space = ?3 AND task = ?4 AND depth = ?5 \
         AND closed IS NULL AND entry = ?6",
    )?;
    let exit = call.exit.map(|moment| moment.0);
    update.execute(params![granule, exit, space.0, call.task.0, call.depth, call.frame.entry.0])?;
    Ok(())
}

fn add_facts(db: &Transaction<'_>, facts: &Facts) -> rusqlite::Result<()> {
    let mut insert = db.prepare("INSERT INTO events VALUES(?1, ?2, ?3, ?4)")?;
    for row in &facts.events {
        insert.execute(params![row.event.0, row.moment.0, row.task.0, row.space.0])?;
    }
    let mut insert = db.prepare("INSERT INTO tasks VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    for row in &facts.tasks {
        insert.execute(params![
            row.task.0,
            row.tid,
            row.pid,
            row.parent.map(|task| task.0),
            row.first.0,
            row.last.map(|moment| moment.0),
            row.exit_code,
            row.signal
        ])?;
    }
    let mut insert = db.prepare("INSERT INTO spaces VALUES(?1, ?2, ?3, ?4)")?;
    for row in &facts.spaces {
        insert.execute(params![row.space.0, row.parent.map(|space| space.0), row.first.0, row.event.0])?;
    }
    let mut insert = db.prepare("INSERT INTO images VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
    for row in &facts.images {
        insert.execute(params![
            row.event.0,
            row.moment.0,
            row.task.0,
            row.space.0,
            row.exe,
            row.argv,
            row.cwd
        ])?;
    }
    facts.mappings.iter().try_for_each(|row| add_mapping(db, row))?;
    facts.syscalls.iter().try_for_each(|row| add_syscall(db, row))?;
    facts.signals.iter().try_for_each(|row| add_signal(db, row))?;
    facts.switches.iter().try_for_each(|row| add_switch(db, row))
}

fn add_mapping(db: &Transaction<'_>, row: &MappingRow) -> rusqlite::Result<()> {
    let (source, from) = match row.source {
        MappingSource::Mapped => (0, None),
        MappingSource::Moved { from } => (1, Some(from.0 as i64)),
        MappingSource::Copied => (2, None),
    };
    let mut insert = db.prepare_cached(
        "INSERT INTO mappings VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )?;
    insert.execute(params![
        row.space.0,
        row.range.start.0 as i64,
        row.range.end.0 as i64,
        row.prot.bits(),
        row.shared,
        row.file.map(|(file, _)| file),
        row.file.map(|(_, offset)| offset),
        row.name,
        source,
        from,
        row.mapped_by.0,
        row.mapped_at.0,
        row.from.0,
        row.until.map(|moment| moment.0),
        row.object.map(|(object, _)| object),
        row.object.map(|(_, offset)| offset)
    ])?;
    Ok(())
}

fn add_syscall(db: &Transaction<'_>, row: &SyscallRow) -> rusqlite::Result<()> {
    let args = row.args.map(|arg| arg as i64);
    let mut insert = db.prepare_cached(
        "INSERT INTO syscalls VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )?;
    insert.execute(params![
        row.event.0,
        row.moment.0,
        row.task.0,
        row.space.0,
        row.nr,
        row.name,
        args[0],
        args[1],
        args[2],
        args[3],
        args[4],
        args[5],
        row.result,
        row.fd,
        row.path,
        row.offset
    ])?;
    Ok(())
}

fn add_switch(db: &Transaction<'_>, row: &SwitchRow) -> rusqlite::Result<()> {
    let SwitchRow { moment, task, next, reason, pc, event } = row;
    let mut insert = db.prepare_cached("INSERT INTO switches VALUES(?1, ?2, ?3, ?4, ?5, ?6)")?;
    insert.execute(params![moment.0, task.0, next.0, reason, pc.0 as i64, event.0])?;
    Ok(())
}

fn add_signal(db: &Transaction<'_>, row: &SignalRow) -> rusqlite::Result<()> {
    let mut insert =
        db.prepare_cached("INSERT INTO signals VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
    insert.execute(params![
        row.event.0,
        row.moment.0,
        row.task.0,
        row.space.0,
        row.signo,
        row.action,
        row.handler.map(|addr| addr.0 as i64),
        row.pc.0 as i64,
        row.code,
        row.addr.map(|addr| addr.0 as i64)
    ])?;
    Ok(())
}
