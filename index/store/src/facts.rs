//! Reading the small tables.

use guest::{EventId, GuestAddr, GuestRange, Moment, Prot, SpaceId, TaskId};
use rusqlite::types::FromSql;
use rusqlite::{OptionalExtension, Row, params};

use crate::open::meta;
use crate::{
    EventRow, ImageRow, MappingRow, MappingSource, QueryError, SignalRow, SpaceRow, Store, SyscallRow,
    TaskRow,
};

pub(crate) const MAPPING: &str = "space, start, end, prot, shared, file, file_offset, name, source, source_addr, mapped_by, \
                                  mapped_at, since, until, object, object_offset";

const SYSCALL: &str =
    "event, moment, task, space, nr, name, a0, a1, a2, a3, a4, a5, result, fd, path, offset";

impl Store {
    /// The number of instructions indexed so far.
    pub fn end(&self) -> Result<Moment, QueryError> {
        Ok(Moment(meta(&self.db(), "instructions")?.unwrap_or(0)))
    }

    /// Whether the whole trace is in the index.
    pub fn complete(&self) -> Result<bool, QueryError> {
        Ok(meta::<i64>(&self.db(), "complete")? == Some(1))
    }

    /// All tasks by number.
    pub fn tasks(&self) -> Result<Vec<TaskRow>, QueryError> {
        self.all(
            "SELECT task, tid, pid, parent, first, last, exit_code, signal FROM tasks ORDER BY task",
            task,
        )
    }

    /// All spaces by number.
    pub fn spaces(&self) -> Result<Vec<SpaceRow>, QueryError> {
        self.all("SELECT space, parent, first, event FROM spaces ORDER BY space", space)
    }

    /// One space.
    pub fn space(&self, id: SpaceId) -> Result<Option<SpaceRow>, QueryError> {
        self.one("SELECT space, parent, first, event FROM spaces WHERE space = ?1", id.0, space)
    }

    /// All exec'ed images in order.
    pub fn images(&self) -> Result<Vec<ImageRow>, QueryError> {
        self.all("SELECT event, moment, task, space, exe, argv, cwd FROM images ORDER BY event", image)
    }

    /// One event.
    pub fn event(&self, event: EventId) -> Result<Option<EventRow>, QueryError> {
        self.one("SELECT event, moment, task, space FROM events WHERE event = ?1", event.0, |row| {
            Ok(EventRow {
                event: EventId(row.get(0)?),
                moment: Moment(row.get(1)?),
                task: TaskId(row.get(2)?),
                space: SpaceId(row.get(3)?),
            })
        })
    }

    /// The syscall of an event.
    pub fn syscall(&self, event: EventId) -> Result<Option<SyscallRow>, QueryError> {
        self.one(&format!("SELECT {SYSCALL} FROM syscalls WHERE event = ?1"), event.0, syscall)
    }

    /// The call that `task` was in at an event of another task: the first of its calls that returned behind it.
    pub fn call_behind(&self, event: EventId, task: TaskId) -> Result<Option<SyscallRow>, QueryError> {
        let sql = format!(
            "SELECT {SYSCALL} FROM syscalls WHERE event > ?1 AND task = {task} ORDER BY event LIMIT 1"
        );
        self.one(&sql, event.0, syscall)
    }

    /// The last call of `task` that returned before an event.
    pub fn call_before(&self, event: EventId, task: TaskId) -> Result<Option<SyscallRow>, QueryError> {
        let sql = format!(
            "SELECT {SYSCALL} FROM syscalls WHERE event < ?1 AND task = {task} ORDER BY event DESC LIMIT 1"
        );
        self.one(&sql, event.0, syscall)
    }

    /// The signal of an event.
    pub fn signal(&self, event: EventId) -> Result<Option<SignalRow>, QueryError> {
        let sql = "SELECT event, moment, task, space, signo, action, handler, pc, code, addr FROM signals \
                   WHERE event = ?1";
        self.one(sql, event.0, signal)
    }

    /// How `addr` was mapped in `space` just before `before`.
    pub fn mapping_at(
        &self,
        space: SpaceId,
        addr: GuestAddr,
        before: Moment,
    ) -> Result<Option<MappingRow>, QueryError> {
        let mappings = self.mappings_at(space, before)?;
        Ok(mappings.into_iter().find(|mapping| mapping.range.contains(addr)))
    }

    /// All mappings of `space` just before `before`, by address.
    pub fn mappings_at(&self, space: SpaceId, before: Moment) -> Result<Vec<MappingRow>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(&format!(
            "SELECT {MAPPING} FROM mappings WHERE space = ?1 AND since < ?2 AND (until IS NULL OR until >= ?2) \
             ORDER BY start"
        ))?;
        let before = i64::try_from(before.0).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![space.0, before], mapping)?;
        let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
        rows.sort_by_key(|row| row.range.start);
        Ok(rows)
    }

    fn all<T>(&self, sql: &str, read: fn(&Row<'_>) -> rusqlite::Result<T>) -> Result<Vec<T>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(sql)?;
        let rows = statement.query_map([], read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn one<T>(
        &self,
        sql: &str,
        key: impl TryInto<i64>,
        read: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, QueryError> {
        let db = self.db();
        let mut statement = db.prepare_cached(sql)?;
        let key = key.try_into().unwrap_or(i64::MAX);
        Ok(statement.query_row([key], read).optional()?)
    }
}

fn addr(row: &Row<'_>, at: usize) -> rusqlite::Result<GuestAddr> {
    row.get::<_, i64>(at).map(|addr| GuestAddr(addr as u64))
}

fn optional<T: FromSql, R>(row: &Row<'_>, at: usize, make: fn(T) -> R) -> rusqlite::Result<Option<R>> {
    Ok(row.get::<_, Option<T>>(at)?.map(make))
}

fn task(row: &Row<'_>) -> rusqlite::Result<TaskRow> {
    Ok(TaskRow {
        task: TaskId(row.get(0)?),
        tid: row.get(1)?,
        pid: row.get(2)?,
        parent: optional(row, 3, TaskId)?,
        first: Moment(row.get(4)?),
        last: optional(row, 5, Moment)?,
        exit_code: row.get(6)?,
        signal: row.get(7)?,
    })
}

fn space(row: &Row<'_>) -> rusqlite::Result<SpaceRow> {
    Ok(SpaceRow {
        space: SpaceId(row.get(0)?),
        parent: optional(row, 1, SpaceId)?,
        first: Moment(row.get(2)?),
        event: EventId(row.get(3)?),
    })
}

fn image(row: &Row<'_>) -> rusqlite::Result<ImageRow> {
    Ok(ImageRow {
        event: EventId(row.get(0)?),
        moment: Moment(row.get(1)?),
        task: TaskId(row.get(2)?),
        space: SpaceId(row.get(3)?),
        exe: row.get(4)?,
        argv: row.get(5)?,
        cwd: row.get(6)?,
    })
}

fn syscall(row: &Row<'_>) -> rusqlite::Result<SyscallRow> {
    let mut args = [0; 6];
    for (at, arg) in (6..).zip(&mut args) {
        *arg = row.get::<_, i64>(at)? as u64;
    }
    Ok(SyscallRow {
        event: EventId(row.get(0)?),
        moment: Moment(row.get(1)?),
        task: TaskId(row.get(2)?),
        space: SpaceId(row.get(3)?),
        nr: row.get(4)?,
        name: row.get(5)?,
        args,
        result: row.get(12)?,
        fd: row.get(13)?,
        path: row.get(14)?,
        offset: row.get(15)?,
    })
}

fn signal(row: &Row<'_>) -> rusqlite::Result<SignalRow> {
    Ok(SignalRow {
        event: EventId(row.get(0)?),
        moment: Moment(row.get(1)?),
        task: TaskId(row.get(2)?),
        space: SpaceId(row.get(3)?),
        signo: row.get(4)?,
        action: row.get(5)?,
        handler: optional(row, 6, |addr: i64| GuestAddr(addr as u64))?,
        pc: addr(row, 7)?,
        code: row.get(8)?,
        addr: optional(row, 9, |addr: i64| GuestAddr(addr as u64))?,
    })
}

pub(crate) fn mapping(row: &Row<'_>) -> rusqlite::Result<MappingRow> {
    let file: Option<u32> = row.get(5)?;
    let offset: Option<u64> = row.get(6)?;
    let from = row.get::<_, Option<i64>>(9)?.unwrap_or(0);
    Ok(MappingRow {
        space: SpaceId(row.get(0)?),
        range: GuestRange { start: addr(row, 1)?, end: addr(row, 2)? },
        prot: Prot::from_bits(row.get(3)?),
        shared: row.get(4)?,
        file: file.zip(offset),
        object: row.get::<_, Option<u32>>(14)?.zip(row.get(15)?),
        name: row.get(7)?,
        source: match row.get::<_, u8>(8)? {
            1 => MappingSource::Moved { from: GuestAddr(from as u64) },
            2 => MappingSource::Copied,
            _ => MappingSource::Mapped,
        },
        mapped_by: EventId(row.get(10)?),
        mapped_at: Moment(row.get(11)?),
        from: Moment(row.get(12)?),
        until: optional(row, 13, Moment)?,
    })
}
