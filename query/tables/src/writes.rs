//! The table `writes`: every memory write, by instructions and by the kernel.

use std::ffi::CStr;

use guest::{GuestAddr, GuestRange, SpaceId, TaskId};
use rusqlite::types::Value;
use store::{Author, QueryError, WriteQuery, WriteRow};

use crate::adapter::Source;
use crate::counted::{Row, Rows, mix};
use crate::database::Recording;
use crate::merged::Merged;
use crate::plan::{Bounds, Column, Shape};

/// One row per write. `touches` is a question rather than a fact: `touches = ADDR` (or a range) asks for the writes that
/// share a byte with it, where `addr` asks for the ones that begin there.
pub(crate) struct WritesTable;

const MOMENT: usize = 0;
const TASK: usize = 1;
const SPACE: usize = 2;
const ADDR: usize = 3;
const SIZE: usize = 4;
const VALUE: usize = 5;
const PC: usize = 6;
const EVENT: usize = 7;
const TOUCHES: usize = 8;
const FUNCTION: usize = 9;
const LINE: usize = 10;

impl Source for WritesTable {
    const NAME: &'static CStr = c"writes";
    const DECLARATION: &'static CStr = c"CREATE TABLE writes(moment INTEGER, task INTEGER, space INTEGER, \
        addr INTEGER, size INTEGER, value, pc INTEGER, event INTEGER, touches INTEGER HIDDEN, function TEXT HIDDEN, \
        line TEXT HIDDEN)";
    const SHAPE: Shape = Shape {
        columns: &[
            Column::pushed("moment", 8),
            Column::pushed("task", 1),
            Column::pushed("space", 1),
            Column::pushed("addr", 6),
            Column::plain("size"),
            Column::plain("value"),
            Column::pushed("pc", 4),
            Column::plain("event"),
            Column::pushed("touches", 6),
            Column::named("function", 3),
            Column::plain("line"),
        ],
        time: MOMENT,
        alias: None,
        counted: Some(&[SPACE]),
    };
    type Row = Row<WriteRow>;
    type Rows = Rows<Merged<WriteRow, store::Writes>>;

    fn scan(recording: &Recording, bounds: &Bounds) -> Result<Self::Rows, QueryError> {
        if let Some(count) = bounds.count {
            let counts = recording.store.written(bounds.id(SPACE).map(SpaceId))?;
            let counts = counts.into_iter().map(|(space, count)| (space, GuestAddr(0), count)).collect();
            return Ok(Rows::counted(counts, count, bounds.order, SPACE));
        }
        let addrs = match (bounds.addresses(ADDR), bounds.addresses(TOUCHES)) {
            // A write that begins in one and touches the other shares a byte with the other.
            (_, Some(touches)) => Some(touches),
            (addrs, None) => addrs,
        };
        let code = recording.code(bounds.addresses(PC), code_name(bounds), false);
        let open = |pcs| {
            recording.store.writes(&WriteQuery {
                space: bounds.id(SPACE).map(SpaceId),
                addrs,
                moments: bounds.moments(MOMENT),
                pcs,
                task: bounds.id(TASK).map(TaskId),
                order: bounds.order,
            })
        };
        Merged::open(code, bounds.order, |row| row.moment, open).map(Rows::Made)
    }

    fn column(
        recording: &Recording,
        bounds: &Bounds,
        row: &Self::Row,
        column: usize,
    ) -> Result<Value, QueryError> {
        let row = match row {
            Row::Made(row) => row,
            Row::Counted(kind) if column == SPACE => return Ok(Value::Integer(kind.space.0.into())),
            Row::Counted(_) => return Ok(Value::Null),
        };
        let pc = match row.author {
            Author::Code { pc } => Some(pc),
            Author::Kernel { .. } => None,
        };
        Ok(match column {
            MOMENT => Value::Integer(row.moment.0 as i64),
            TASK => Value::Integer(row.task.0.into()),
            SPACE => Value::Integer(row.space.0.into()),
            ADDR => Value::Integer(row.addr.0 as i64),
            SIZE => Value::Integer(row.len as i64),
            VALUE => value(recording.store.value(row)?),
            PC => pc.map_or(Value::Null, |pc| Value::Integer(pc.0 as i64)),
            EVENT => match row.author {
                Author::Code { .. } => Value::Null,
                Author::Kernel { event } => Value::Integer(event.0 as i64),
            },
            TOUCHES => Value::Integer(touched(bounds, row.range()).0 as i64),
            FUNCTION => match row.author {
                Author::Code { pc } => Value::Text(recording.symbols.function(row.space, row.moment, pc)),
                Author::Kernel { event } => recording
                    .store
                    .syscall(event)?
                    .map_or(Value::Null, |call| Value::Text(format!("{}()", call.name))),
            },
            LINE => pc
                .and_then(|pc| recording.symbols.line(row.space, row.moment, pc))
                .map_or(Value::Null, Value::Text),
            _ => Value::Null,
        })
    }

    fn rowid(row: &Self::Row) -> i64 {
        let row = match row {
            Row::Made(row) => row,
            Row::Counted(kind) => return kind.rowid(),
        };
        let author = match row.author {
            Author::Code { pc } => pc.0,
            Author::Kernel { event } => !event.0,
        };
        mix(&[row.moment.0, u64::from(row.space.0), row.addr.0, row.len, author])
    }
}

/// The function asked for, unless it may be a syscall (`read()`), which no code range holds.
fn code_name(bounds: &Bounds) -> Option<&str> {
    bounds.text(FUNCTION).filter(|name| !name.ends_with("()"))
}

/// The byte of a write that the question's range begins with.
fn touched(bounds: &Bounds, write: GuestRange) -> GuestAddr {
    let (low, _) = bounds.range(TOUCHES);
    write.start.max(GuestAddr(low)).min(write.end.wrapping_sub(1))
}

/// An integer for up to 8 bytes, a blob for more.
fn value(bytes: Vec<u8>) -> Value {
    if bytes.is_empty() || bytes.len() > 8 {
        return Value::Blob(bytes);
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(&bytes);
    Value::Integer(i64::from_le_bytes(word))
}
