//! The tables of an index and their columns; the format's version.
//!
//! Large things are blobs in rowid tables (`columns`, `blocks`), small index rows lie in WITHOUT ROWID tables: a blob in
//! the latter makes cold queries three times slower.

/// Format version of an index. The major number must match; a newer minor number only adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Incompatible changes.
    pub major: u32,
    /// Additions.
    pub minor: u32,
}

/// The format this build writes.
pub const FORMAT: Format = Format { major: 5, minor: 0 };

/// What the database's header says that it is (`PRAGMA application_id`).
pub(crate) const APPLICATION: u32 = u32::from_be_bytes(*b"bksy");

/// How many columns a granule may have: its number times this, plus a column's number, is the rowid in `columns`.
pub(crate) const COLUMNS_PER_GRANULE: u64 = 1 << 16;

/// Everything that is created in a fresh index.
///
/// Numbers of tasks, spaces and events are the trace's. `moment`s count instructions, addresses are the 64 bits of the
/// address as SQLite's signed integer.
pub(crate) const CREATE: &str = "
-- key: format_major, format_minor, trace (uuid in hex), complete (1 once everything is in), instructions, events
CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- What was committed: part `part` of replay unit `unit`, with granules `granule` and those after it. The
-- build goes on at `next_moment`, before event `next_event`; a unit's last part has none.
CREATE TABLE segments(unit INTEGER, part INTEGER, instructions INTEGER, next_moment INTEGER,
  next_event INTEGER, granule INTEGER, granules INTEGER, PRIMARY KEY(unit, part)) WITHOUT ROWID;

-- One row per granule. Ticks count the instructions of its space; moments those of the run.
CREATE TABLE granules(granule INTEGER PRIMARY KEY, space INTEGER NOT NULL, first_tick INTEGER NOT NULL,
  instructions INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, writes INTEGER NOT NULL,
  bytes INTEGER NOT NULL);
CREATE INDEX granules_by_space ON granules(space, first_tick);
CREATE INDEX granules_by_moment ON granules(first);

-- A granule's columns: rowid = granule * 65536 + column.
CREATE TABLE columns(id INTEGER PRIMARY KEY, data BLOB NOT NULL);

-- The block dictionary, in the order of numbers: block `first` and those after it.
CREATE TABLE blocks(first INTEGER PRIMARY KEY, count INTEGER NOT NULL, data BLOB NOT NULL);

-- Which bytes of which pages a granule writes.
CREATE TABLE page_index(space INTEGER, page INTEGER, granule INTEGER, mask BLOB NOT NULL,
  PRIMARY KEY(space, page, granule)) WITHOUT ROWID;

-- Which 64-byte lines of a page of code (pc >> 12) a granule runs, as a bitmap, and how many instructions retired in
-- blocks that begin there.
CREATE TABLE code_index(code INTEGER, granule INTEGER, lines INTEGER NOT NULL, instructions INTEGER NOT NULL,
  PRIMARY KEY(code, granule)) WITHOUT ROWID;

-- Calls that were in progress at the end of a granule: the first such granule (0: inherited by a fork), the granule in
-- which they were left, if they were, and when. kind: 0 call, 1 signal handler.
CREATE TABLE open_calls(space INTEGER, task INTEGER, depth INTEGER, opened INTEGER, entry INTEGER,
  kind INTEGER NOT NULL, callee INTEGER NOT NULL, site INTEGER NOT NULL, ret INTEGER NOT NULL, sp INTEGER NOT NULL,
  closed INTEGER, exit INTEGER, PRIMARY KEY(space, task, depth, opened, entry)) WITHOUT ROWID;

CREATE TABLE events(event INTEGER PRIMARY KEY, moment INTEGER NOT NULL, task INTEGER NOT NULL,
  space INTEGER NOT NULL);
CREATE INDEX events_by_moment ON events(moment);

-- The strings that a syscall's path arguments pointed to.
CREATE TABLE paths(event INTEGER, argument INTEGER, path TEXT NOT NULL, PRIMARY KEY(event, argument)) WITHOUT ROWID;

CREATE TABLE tasks(task INTEGER PRIMARY KEY, tid INTEGER NOT NULL, pid INTEGER NOT NULL, parent INTEGER,
  first INTEGER NOT NULL, last INTEGER, exit_code INTEGER, signal INTEGER);

CREATE TABLE spaces(space INTEGER PRIMARY KEY, parent INTEGER, first INTEGER NOT NULL, event INTEGER NOT NULL);

CREATE TABLE images(event INTEGER PRIMARY KEY, moment INTEGER NOT NULL, task INTEGER NOT NULL,
  space INTEGER NOT NULL, exe TEXT NOT NULL, argv TEXT NOT NULL, cwd TEXT NOT NULL);

-- prot: PROT_* bits. source: 0 mapped, 1 moved from `source_addr` by mremap, 2 copied by fork. object: what a shared mapping
-- shows, from its byte `object_offset` on.
CREATE TABLE mappings(space INTEGER NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, prot INTEGER NOT NULL,
  shared INTEGER NOT NULL, file INTEGER, file_offset INTEGER, name TEXT NOT NULL, source INTEGER NOT NULL,
  source_addr INTEGER, mapped_by INTEGER NOT NULL, mapped_at INTEGER NOT NULL, since INTEGER NOT NULL,
  until INTEGER, object INTEGER, object_offset INTEGER);
CREATE INDEX mappings_by_space ON mappings(space, start);
CREATE INDEX mappings_by_object ON mappings(object) WHERE object IS NOT NULL;

CREATE TABLE syscalls(event INTEGER PRIMARY KEY, moment INTEGER NOT NULL, task INTEGER NOT NULL,
  space INTEGER NOT NULL, nr INTEGER NOT NULL, name TEXT NOT NULL, a0 INTEGER, a1 INTEGER, a2 INTEGER, a3 INTEGER,
  a4 INTEGER, a5 INTEGER, result INTEGER, fd INTEGER, path TEXT, offset INTEGER);
CREATE INDEX syscalls_by_moment ON syscalls(moment);

CREATE TABLE signals(event INTEGER PRIMARY KEY, moment INTEGER NOT NULL, task INTEGER NOT NULL,
  space INTEGER NOT NULL, signo INTEGER NOT NULL, action TEXT NOT NULL, handler INTEGER, pc INTEGER NOT NULL,
  code INTEGER NOT NULL, addr INTEGER);

-- Another task than before runs from `moment` on. reason: preempted, syscall, signal or exit.
CREATE TABLE switches(moment INTEGER PRIMARY KEY, task INTEGER NOT NULL, next INTEGER NOT NULL,
  reason TEXT NOT NULL, pc INTEGER NOT NULL, event INTEGER NOT NULL);

-- stream: stdout or stderr of the recorded run.
CREATE TABLE output(event INTEGER PRIMARY KEY, moment INTEGER NOT NULL, task INTEGER NOT NULL, fd INTEGER,
  stream TEXT NOT NULL, len INTEGER NOT NULL, bytes BLOB NOT NULL);
";
