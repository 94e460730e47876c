//! The table `executions`: every instruction that ran.

use std::ffi::CStr;

use guest::{SpaceId, TaskId};
use rusqlite::types::Value;
use store::{ExecutionQuery, ExecutionRow, QueryError};

use crate::adapter::Source;
use crate::counted::{Row, Rows};
use crate::database::Recording;
use crate::merged::Merged;
use crate::plan::{Bounds, Column, Shape};

/// One row per retired instruction.
pub(crate) struct ExecutionsTable;

const MOMENT: usize = 0;
const TASK: usize = 1;
const SPACE: usize = 2;
const PC: usize = 3;
const FUNCTION: usize = 4;
const LINE: usize = 5;

impl Source for ExecutionsTable {
    const NAME: &'static CStr = c"executions";
    const DECLARATION: &'static CStr =
        c"CREATE TABLE executions(moment INTEGER, task INTEGER, space INTEGER, \
        pc INTEGER, function TEXT HIDDEN, line TEXT HIDDEN)";
    const SHAPE: Shape = Shape {
        columns: &[
            Column::pushed("moment", 9),
            Column::pushed("task", 1),
            Column::pushed("space", 1),
            Column::pushed("pc", 4),
            Column::named("function", 3),
            Column::plain("line"),
        ],
        time: MOMENT,
        alias: None,
        counted: Some(&[PC, SPACE]),
    };
    type Row = Row<ExecutionRow>;
    type Rows = Rows<Merged<ExecutionRow, store::Executions>>;

    fn scan(recording: &Recording, bounds: &Bounds) -> Result<Self::Rows, QueryError> {
        let code = recording.code(bounds.addresses(PC), bounds.text(FUNCTION), false);
        if let Some(count) = bounds.count {
            let counts = recording.store.executed_code(bounds.id(SPACE).map(SpaceId), code.as_deref())?;
            return Ok(Rows::counted(counts, count, bounds.order, SPACE));
        }
        let open = |pcs| {
            recording.store.executions(&ExecutionQuery {
                space: bounds.id(SPACE).map(SpaceId),
                pcs,
                moments: bounds.moments(MOMENT),
                task: bounds.id(TASK).map(TaskId),
                order: bounds.order,
            })
        };
        Merged::open(code, bounds.order, |row| row.moment, open).map(Rows::Made)
    }

    fn column(
        recording: &Recording,
        _bounds: &Bounds,
        row: &Self::Row,
        column: usize,
    ) -> Result<Value, QueryError> {
        let row = match row {
            Row::Made(row) => row,
            Row::Counted(kind) => {
                return Ok(match column {
                    SPACE => Value::Integer(kind.space.0.into()),
                    PC => Value::Integer(kind.pc.0 as i64),
                    _ => Value::Null,
                });
            }
        };
        Ok(match column {
            MOMENT => Value::Integer(row.moment.0 as i64),
            TASK => Value::Integer(row.task.0.into()),
            SPACE => Value::Integer(row.space.0.into()),
            PC => Value::Integer(row.pc.0 as i64),
            FUNCTION => Value::Text(recording.symbols.function(row.space, row.moment, row.pc)),
            LINE => recording.symbols.line(row.space, row.moment, row.pc).map_or(Value::Null, Value::Text),
            _ => Value::Null,
        })
    }

    fn rowid(row: &Self::Row) -> i64 {
        match row {
            Row::Made(row) => row.moment.0 as i64,
            Row::Counted(kind) => kind.rowid(),
        }
    }
}
