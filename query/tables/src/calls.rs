//! The table `calls`: every call as the interval from its function's first instruction to its return.

use std::ffi::CStr;

use guest::{SpaceId, TaskId};
use rusqlite::types::Value;
use store::{CallKind, CallQuery, CallRow, QueryError};

use crate::adapter::Source;
use crate::database::Recording;
use crate::merged::Merged;
use crate::plan::{Bounds, Column, Shape};

/// One row per call. `caller` is the address of the call instruction; a handler has the instruction it interrupted.
pub(crate) struct CallsTable;

const ENTRY: usize = 0;
const EXIT: usize = 1;
const TASK: usize = 2;
const SPACE: usize = 3;
const DEPTH: usize = 4;
const CALLEE: usize = 5;
const CALLER: usize = 6;
const KIND: usize = 7;
const RET: usize = 8;
const SP: usize = 9;
const FUNCTION: usize = 10;
const CALLER_FUNCTION: usize = 11;
const MOMENT: usize = 12;

impl Source for CallsTable {
    const NAME: &'static CStr = c"calls";
    const DECLARATION: &'static CStr =
        c"CREATE TABLE calls(entry INTEGER, exit INTEGER, task INTEGER, space INTEGER, \
        depth INTEGER, callee INTEGER, caller INTEGER, kind TEXT, ret INTEGER HIDDEN, sp INTEGER HIDDEN, \
        function TEXT HIDDEN, caller_function TEXT HIDDEN, moment INTEGER HIDDEN)";
    const SHAPE: Shape = Shape {
        columns: &[
            Column::pushed("entry", 8),
            Column::plain("exit"),
            Column::pushed("task", 1),
            Column::pushed("space", 1),
            Column::plain("depth"),
            Column::pushed("callee", 3),
            Column::pushed("caller", 4),
            Column::plain("kind"),
            Column::plain("ret"),
            Column::plain("sp"),
            Column::named("function", 3),
            Column::named("caller_function", 3),
            Column::pushed("moment", 8),
        ],
        time: ENTRY,
        alias: Some(MOMENT),
        // The index does not have their number.
        counted: None,
    };
    type Row = CallRow;
    type Rows = Merged<CallRow, store::Calls>;

    fn scan(recording: &Recording, bounds: &Bounds) -> Result<Self::Rows, QueryError> {
        let callees = recording.code(bounds.addresses(CALLEE), bounds.text(FUNCTION), true);
        let sites = recording.code(bounds.addresses(CALLER), bounds.text(CALLER_FUNCTION), false);
        let open = |callees, sites| {
            recording.store.calls(&CallQuery {
                space: bounds.id(SPACE).map(SpaceId),
                callees,
                sites,
                entered: bounds.moments(ENTRY),
                task: bounds.id(TASK).map(TaskId),
                order: bounds.order,
            })
        };
        // Both in pieces would be their product: the callers are left to SQLite then.
        let site = sites.as_deref().and_then(|sites| if let [one] = sites { Some(*one) } else { None });
        match callees {
            Some(_) => Merged::open(callees, bounds.order, |row| row.entry, |callees| open(callees, site)),
            None => Merged::open(sites, bounds.order, |row| row.entry, |sites| open(None, sites)),
        }
    }

    fn column(
        recording: &Recording,
        _bounds: &Bounds,
        row: &CallRow,
        column: usize,
    ) -> Result<Value, QueryError> {
        let function = |pc| Value::Text(recording.symbols.function(row.space, row.entry, pc));
        // A function that is bound on its first call is entered by way of its stub then.
        let callee = || {
            let name = recording.symbols.function(row.space, row.entry, row.callee);
            Value::Text(name.strip_suffix("@plt").unwrap_or(&name).to_owned())
        };
        Ok(match column {
            ENTRY | MOMENT => Value::Integer(row.entry.0 as i64),
            EXIT => row.exit.map_or(Value::Null, |exit| Value::Integer(exit.0 as i64)),
            TASK => Value::Integer(row.task.0.into()),
            SPACE => Value::Integer(row.space.0.into()),
            DEPTH => Value::Integer(row.depth.into()),
            CALLEE => Value::Integer(row.callee.0 as i64),
            CALLER => Value::Integer(row.site.0 as i64),
            KIND => Value::Text(kind(row.kind).to_owned()),
            RET => Value::Integer(row.ret.0 as i64),
            SP => Value::Integer(row.sp.0 as i64),
            FUNCTION => callee(),
            CALLER_FUNCTION => function(row.site),
            _ => Value::Null,
        })
    }

    fn rowid(row: &CallRow) -> i64 {
        // A handler can be entered at the moment a function is: its depth differs.
        (row.entry.0 << 8 | u64::from(row.depth & 0xff)) as i64
    }
}

fn kind(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Call => "call",
        CallKind::Signal => "handler",
    }
}
