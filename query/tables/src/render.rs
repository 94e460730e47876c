//! Results as text: an aligned table, JSON or CSV. Rows are written as they come.

use std::io::{self, Write};

use guest::{Moment, When};
use rusqlite::types::Value;
use rusqlite::{Batch, Connection, Statement, fallible_iterator::FallibleIterator};

use store::QueryError;

use crate::error::SqlError;

/// How results are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// Columns aligned for reading, with a head; long blobs are cut.
    #[default]
    Table,
    /// One array of objects per statement; blobs as hexadecimal text.
    Json,
    /// As RFC 4180, with a head, an empty line between two statements' rows; blobs as hexadecimal text.
    Csv,
}

/// Why results did not come out.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// SQLite refused the text or failed while it ran.
    #[error(transparent)]
    Sql(SqlError),
    /// The index could not be read.
    #[error("reading the index")]
    Index(#[source] QueryError),
    /// The text could not be written.
    #[error("writing results")]
    Write(#[from] io::Error),
}

impl From<SqlError> for RenderError {
    fn from(error: SqlError) -> Self {
        if error.damaged { Self::Index(QueryError::Page) } else { Self::Sql(error) }
    }
}

/// Rows looked at before the widths of a table's columns are settled.
const SAMPLE: usize = 100;

/// The widest column of a table; longer values push the rest of their line to the right.
const WIDEST: usize = 60;

/// The moment that a landmark (`@end`) has, or why there is none.
pub(crate) type Landmark<'a> = &'a dyn Fn(When) -> Result<Moment, String>;

/// Runs every statement in `sql` and writes the rows of those that have any. Returns how many rows there were.
pub(crate) fn run(
    connection: &Connection,
    sql: &str,
    format: Format,
    landmark: Landmark<'_>,
    out: &mut dyn Write,
) -> Result<u64, RenderError> {
    let mut batch = Batch::new(connection, sql);
    let (mut count, mut printed) = (0, false);
    loop {
        let Some(mut statement) = batch.next().map_err(|e| located(sql, e))? else { break };
        bind(sql, &mut statement, landmark)?;
        if statement.column_count() == 0 {
            statement.raw_execute().map_err(|e| SqlError::new(sql, 0, e))?;
            continue;
        }
        if format == Format::Csv && printed {
            // Another head follows.
            write!(out, "\r\n")?;
        }
        printed = true;
        count += match format {
            Format::Table => table(sql, &mut statement, out)?,
            Format::Json => json(sql, &mut statement, out)?,
            Format::Csv => csv(sql, &mut statement, out)?,
        };
    }
    Ok(count)
}

/// Gives `@123` and `@end` their numbers: SQLite takes them for parameters. Any other parameter has no value.
fn bind(sql: &str, statement: &mut Statement<'_>, landmark: Landmark<'_>) -> Result<(), SqlError> {
    for index in 1..=statement.parameter_count() {
        let name = statement.parameter_name(index).unwrap_or("?").to_owned();
        let when = name.strip_prefix('@').and_then(|moment| moment.replace('_', "").parse().ok());
        let number = match when {
            Some(When::Exactly(moment)) => i64::try_from(moment.0).ok(),
            Some(when) => {
                let moment = landmark(when).map_err(|reason| SqlError::at(sql, &name, reason))?;
                i64::try_from(moment.0).ok()
            }
            None => None,
        };
        let number = number.ok_or_else(|| SqlError::unbound(sql, &name))?;
        statement.raw_bind_parameter(index, number).map_err(|e| SqlError::new(sql, 0, e))?;
    }
    Ok(())
}

/// A statement's error counts from that statement's start.
fn located(sql: &str, error: rusqlite::Error) -> SqlError {
    let start = match &error {
        rusqlite::Error::SqlInputError { sql: rest, .. } => sql.len().saturating_sub(rest.len()),
        _ => 0,
    };
    SqlError::new(sql, start, error)
}

fn names(statement: &Statement<'_>) -> Vec<String> {
    statement.column_names().map(str::to_owned).collect()
}

/// Calls `each` with the values of every row.
fn rows(
    sql: &str,
    statement: &mut Statement<'_>,
    mut each: impl FnMut(Vec<Value>) -> io::Result<()>,
) -> Result<u64, RenderError> {
    let columns = statement.column_count();
    let mut rows = statement.raw_query();
    let mut count = 0;
    while let Some(row) = rows.next().map_err(|e| SqlError::new(sql, 0, e))? {
        let values = (0..columns).map(|i| row.get_ref(i).map(Value::try_from)).collect::<Result<Vec<_>, _>>();
        let values = values.map_err(|e| SqlError::new(sql, 0, e))?;
        each(values.into_iter().map(|v| v.unwrap_or(Value::Null)).collect())?;
        count += 1;
    }
    Ok(count)
}

fn table(sql: &str, statement: &mut Statement<'_>, out: &mut dyn Write) -> Result<u64, RenderError> {
    let mut table = Table { names: names(statement), widths: Vec::new(), sample: Vec::new() };
    let count = rows(sql, statement, |values| table.add(&values, out))?;
    table.settle(out)?;
    Ok(count)
}

/// A table whose column widths are settled by its first rows.
struct Table {
    names: Vec<String>,
    /// Width of each column and whether it holds numbers; empty until settled.
    widths: Vec<(usize, bool)>,
    sample: Vec<Vec<(String, bool)>>,
}

impl Table {
    fn add(&mut self, values: &[Value], out: &mut dyn Write) -> io::Result<()> {
        let cells =
            values.iter().map(|v| (shown(v), matches!(v, Value::Integer(_) | Value::Real(_)))).collect();
        if self.widths.is_empty() {
            self.sample.push(cells);
            if self.sample.len() < SAMPLE {
                return Ok(());
            }
            return self.settle(out);
        }
        self.line(&cells, out)
    }

    /// Writes the head and the sample, once.
    fn settle(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if !self.widths.is_empty() {
            return Ok(());
        }
        let width = |text: &str| text.chars().count();
        for (index, name) in self.names.iter().enumerate() {
            let cells = self.sample.iter().map(|row| &row[index]);
            let widest = cells.clone().map(|(text, _)| width(text)).max().unwrap_or(0);
            let mut cells = cells.filter(|(text, _)| !text.is_empty()).peekable();
            let numbers = cells.peek().is_some() && cells.all(|(_, number)| *number);
            self.widths.push((widest.min(WIDEST).max(width(name)), numbers));
        }
        let head: Vec<_> = self.names.iter().map(|name| (name.clone(), false)).collect();
        self.line(&head, out)?;
        let rule: Vec<_> = self.widths.iter().map(|(width, _)| ("-".repeat(*width), false)).collect();
        self.line(&rule, out)?;
        for cells in std::mem::take(&mut self.sample) {
            self.line(&cells, out)?;
        }
        Ok(())
    }

    fn line(&self, cells: &[(String, bool)], out: &mut dyn Write) -> io::Result<()> {
        let mut line = String::new();
        for (index, ((text, _), (width, numbers))) in cells.iter().zip(&self.widths).enumerate() {
            if index > 0 {
                line.push_str("  ");
            }
            let fill = " ".repeat(width.saturating_sub(text.chars().count()));
            if *numbers {
                line.push_str(&fill);
            }
            line.push_str(text);
            if !*numbers {
                line.push_str(&fill);
            }
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// Bytes of a longer blob that a table shows.
const SHOWN: usize = 24;

/// A value as a table shows it: of a long blob the beginning, and how long it is.
fn shown(value: &Value) -> String {
    match value {
        Value::Blob(bytes) if bytes.len() * 2 > WIDEST => {
            format!("{}.. {} bytes", hex(&bytes[..SHOWN]), bytes.len())
        }
        value => plain(value),
    }
}

/// A value on one line: control characters escaped, blobs as hexadecimal text.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Integer(n) => n.to_string(),
        Value::Real(f) => f.to_string(),
        Value::Text(text) => {
            let shown =
                text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() });
            shown.collect()
        }
        Value::Blob(bytes) => hex(bytes),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json(sql: &str, statement: &mut Statement<'_>, out: &mut dyn Write) -> Result<u64, RenderError> {
    let names = names(statement);
    let mut first = true;
    let count = rows(sql, statement, |values| {
        out.write_all(if first { b"[" } else { b",\n" })?;
        first = false;
        let pairs = names.iter().cloned().zip(values.iter().map(json_value));
        // Not a map: columns keep their order, and may share a name.
        let pairs = pairs.map(|(name, value)| format!("{}:{value}", serde_json::Value::String(name)));
        write!(out, "{{{}}}", pairs.collect::<Vec<_>>().join(","))
    })?;
    out.write_all(if first { b"[]\n" } else { b"]\n" })?;
    Ok(count)
}

fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(n) => (*n).into(),
        Value::Real(f) => (*f).into(),
        Value::Text(text) => text.clone().into(),
        Value::Blob(bytes) => hex(bytes).into(),
    }
}

fn csv(sql: &str, statement: &mut Statement<'_>, out: &mut dyn Write) -> Result<u64, RenderError> {
    let quoted = |text: &str| match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    let head: Vec<_> = names(statement).iter().map(|name| quoted(name)).collect();
    write!(out, "{}\r\n", head.join(","))?;
    rows(sql, statement, |values| {
        let cells: Vec<_> = values
            .iter()
            .map(|value| match value {
                Value::Text(text) => quoted(text),
                other => plain(other),
            })
            .collect();
        write!(out, "{}\r\n", cells.join(","))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sql: &str, format: Format, expected: &str) {
        let connection = Connection::open_in_memory().unwrap();
        let mut out = Vec::new();
        run(&connection, sql, format, &landmark, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    const ROWS: &str =
        "SELECT 1 AS n, 'a' AS name, NULL AS gone UNION ALL SELECT 200, 'say \"hi\",' || char(10), x'00ff'";

    #[test]
    fn tables_are_aligned() {
        check(
            ROWS,
            Format::Table,
            "  n  name         gone\n---  -----------  ----\n  1  a\n200  say \"hi\",\\n  00ff\n",
        );
        check("SELECT 1 AS x WHERE 0", Format::Table, "x\n-\n");
        let (head, rule) = (format!("x{}\n", ""), format!("{}\n", "-".repeat(60)));
        check(
            "SELECT zeroblob(4096) AS x",
            Format::Table,
            &format!("{head}{rule}{}.. 4096 bytes\n", "00".repeat(24)),
        );
    }

    #[test]
    fn json_is_an_array_of_objects() {
        check(
            ROWS,
            Format::Json,
            "[{\"n\":1,\"name\":\"a\",\"gone\":null},\n{\"n\":200,\"name\":\"say \\\"hi\\\",\\n\",\"gone\":\"00ff\"}]\n",
        );
        check("SELECT 1 WHERE 0; SELECT 2 AS b", Format::Json, "[]\n[{\"b\":2}]\n");
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        check(ROWS, Format::Csv, "n,name,gone\r\n1,a,\r\n200,\"say \"\"hi\"\",\n\",00ff\r\n");
        check("SELECT 1 AS a; SELECT 2 AS b", Format::Csv, "a\r\n1\r\n\r\nb\r\n2\r\n");
    }

    fn landmark(when: When) -> Result<Moment, String> {
        match when {
            When::Start => Ok(Moment(0)),
            When::End => Ok(Moment(77)),
            _ => Err("there is none".to_owned()),
        }
    }

    fn failed(connection: &Connection, sql: &str) -> String {
        run(connection, sql, Format::Table, &landmark, &mut Vec::new()).unwrap_err().to_string()
    }

    #[test]
    fn moments_are_numbers_and_other_parameters_are_refused() {
        check("SELECT @12 + @1_000 AS x", Format::Csv, "x\r\n1012\r\n");
        check("SELECT @end - @start AS x", Format::Csv, "x\r\n77\r\n");
        for name in ["?", ":x", "$x", "@ends", "@99999999999999999999", "?1"] {
            let connection = Connection::open_in_memory().unwrap();
            let error = failed(&connection, &format!("SELECT 1 = {name}"));
            assert!(error.starts_with(&format!("`{name}` has no value: ")), "{error}");
        }
        let error = failed(&Connection::open_in_memory().unwrap(), "SELECT 1,\n @signal");
        assert_eq!(error, "there is none\n   @signal\n   ^");
    }

    #[test]
    fn errors_name_the_place_in_the_whole_text() {
        let connection = Connection::open_in_memory().unwrap();
        let sql = "SELECT 1;\nSELECT nonsense";
        let error = failed(&connection, sql);
        assert_eq!(error, "no such column: nonsense\n  SELECT nonsense\n         ^");
        let error = failed(&connection, "SELECT abs(-9223372036854775808)");
        assert_eq!(error, "integer overflow");
    }
}
