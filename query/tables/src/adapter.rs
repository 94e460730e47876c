//! Between SQLite's virtual-table interface and lazy queries over the index. Knows no particular table.
#![expect(
    unsafe_code,
    reason = "implements rusqlite's virtual-table traits, whose structs SQLite lays its own over"
)]

use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::vtab::{
    Context, Filters, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor, sqlite3_vtab,
    sqlite3_vtab_cursor,
};
use rusqlite::{Connection, Result};
use store::QueryError;

use crate::database::Recording;
use crate::plan::{self, Bounds, Shape};

/// A virtual table: what the adapter needs to know of it.
pub(crate) trait Source: Sized + 'static {
    /// Its name.
    const NAME: &'static CStr;
    /// `CREATE TABLE` with its columns in the order of `SHAPE`.
    const DECLARATION: &'static CStr;
    /// Its columns for planning.
    const SHAPE: Shape;
    /// One row.
    type Row;
    /// A lazy walk over rows.
    type Rows: Iterator<Item = std::result::Result<Self::Row, QueryError>>;

    /// The rows within `bounds` (more do no harm), in their order.
    fn scan(recording: &Recording, bounds: &Bounds) -> std::result::Result<Self::Rows, QueryError>;
    /// The value of a column.
    fn column(
        recording: &Recording,
        bounds: &Bounds,
        row: &Self::Row,
        column: usize,
    ) -> std::result::Result<Value, QueryError>;
    /// A number that no other row has, the same in every scan (SQLite drops duplicates of `OR` by it).
    fn rowid(row: &Self::Row) -> i64;
}

/// Makes the table known on `connection`.
pub(crate) fn register<S: Source>(connection: &Connection, recording: &Arc<Recording>) -> Result<()> {
    connection.create_module(S::NAME, &Table::<S>::MODULE, Some(recording.clone()))
}

/// SQLite's handle to a table.
#[repr(C)]
struct Table<S> {
    /// SQLite's part; must come first.
    base: sqlite3_vtab,
    recording: Arc<Recording>,
    source: std::marker::PhantomData<S>,
}

impl<S: Source> Table<S> {
    const MODULE: Module<'static, Self> = Module::eponymous_only_module();
}

// SAFETY: the contract of `VTab` is that the struct is `repr(C)` and begins with a `sqlite3_vtab`: it does.
unsafe impl<S: Source> VTab<'_> for Table<S> {
    type Aux = Arc<Recording>;
    type Cursor = Cursor<S>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&Self::Aux>,
        _module: &[u8],
        _database: &[u8],
        _table: &[u8],
        _args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Self)> {
        let recording = aux.expect("registered with a recording").clone();
        db.config(VTabConfig::Innocuous)?;
        let table = Self { base: sqlite3_vtab::default(), recording, source: std::marker::PhantomData };
        Ok((Cow::Borrowed(S::DECLARATION), table))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        plan::choose(&S::SHAPE, info);
        Ok(true)
    }

    fn open(&mut self) -> Result<Cursor<S>> {
        Ok(Cursor {
            base: sqlite3_vtab_cursor::default(),
            recording: self.recording.clone(),
            bounds: Bounds::all(&S::SHAPE),
            rows: None,
            row: None,
        })
    }
}

/// SQLite's handle to a scan.
#[repr(C)]
struct Cursor<S: Source> {
    /// SQLite's part; must come first.
    base: sqlite3_vtab_cursor,
    recording: Arc<Recording>,
    bounds: Bounds,
    rows: Option<S::Rows>,
    row: Option<S::Row>,
}

// SAFETY: the contract of `VTabCursor` is that the struct is `repr(C)` and begins with a `sqlite3_vtab_cursor`: it does.
unsafe impl<S: Source> VTabCursor for Cursor<S> {
    fn filter(&mut self, _number: c_int, plan: Option<&str>, args: &Filters<'_>) -> Result<()> {
        self.bounds = Bounds::from_plan(&S::SHAPE, plan.unwrap_or_default(), args.iter());
        self.rows = match self.bounds.empty {
            true => None,
            false => Some(S::scan(&self.recording, &self.bounds).map_err(|e| self.recording.failure(e))?),
        };
        self.next()
    }

    fn next(&mut self) -> Result<()> {
        let row = self.rows.as_mut().and_then(Iterator::next).transpose();
        self.row = row.map_err(|e| self.recording.failure(e))?;
        Ok(())
    }

    fn eof(&self) -> bool {
        self.row.is_none()
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let Some(row) = &self.row else { return Ok(()) };
        let column = usize::try_from(column).unwrap_or(usize::MAX);
        let value = S::column(&self.recording, &self.bounds, row, column);
        let value = value.map_err(|e| self.recording.failure(e))?;
        context.set_result(value)
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.row.as_ref().map_or(0, S::rowid))
    }
}
