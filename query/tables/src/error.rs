//! What can go wrong with a query: SQLite's own message, and the place in the text.

use std::fmt;

/// SQL that SQLite refused, or that failed while it ran. Shown as SQLite's message; where SQLite knows the place, the line
/// of the text follows with a caret under it.
#[derive(Debug)]
pub struct SqlError {
    /// SQLite's message.
    pub message: String,
    /// The text that was given.
    pub sql: String,
    /// Byte offset in it, where SQLite knows.
    pub offset: Option<usize>,
    /// Whether the index is what failed.
    pub(crate) damaged: bool,
    source: Option<Box<rusqlite::Error>>,
}

impl SqlError {
    /// From SQLite's error about `sql[start..]`.
    pub(crate) fn new(sql: &str, start: usize, source: rusqlite::Error) -> Self {
        let (message, offset) = match &source {
            rusqlite::Error::SqlInputError { msg, offset, .. } => {
                (msg.clone(), usize::try_from(*offset).ok().map(|offset| offset + start))
            }
            rusqlite::Error::SqliteFailure(_, Some(message)) => (message.clone(), None),
            other => (other.to_string(), None),
        };
        Self {
            message,
            sql: sql.to_owned(),
            damaged: store::is_damage(&source),
            offset: offset.filter(|&at| at <= sql.len()),
            source: Some(Box::new(source)),
        }
    }

    /// A parameter that nothing gives a value; SQLite would take it for NULL.
    pub(crate) fn unbound(sql: &str, name: &str) -> Self {
        let moments = "moments (@123456789, @start, @end, @exit, @signal)";
        Self::at(sql, name, format!("`{name}` has no value: the only parameters are {moments}"))
    }

    /// About a parameter.
    pub(crate) fn at(sql: &str, name: &str, message: String) -> Self {
        Self { message, sql: sql.to_owned(), offset: sql.find(name), damaged: false, source: None }
    }
}

impl std::error::Error for SqlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message is already this error's own: only deeper causes are news.
        self.source.as_ref().and_then(|source| std::error::Error::source(&**source))
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let Some(offset) = self.offset else { return Ok(()) };
        let before = self.sql.get(..offset).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = self.sql[start..].lines().next().unwrap_or_default();
        let column = self.sql[start..offset].chars().count();
        write!(f, "\n  {line}\n  {:column$}^", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_shown() {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        let sql = "SELECT 1,\n  nonsense + 2";
        let error = SqlError::new(sql, 0, db.prepare(sql).unwrap_err());
        assert_eq!(error.to_string(), "no such column: nonsense\n    nonsense + 2\n    ^");
        let error = SqlError::new("SELEC 1", 0, db.prepare("SELEC 1").unwrap_err());
        assert_eq!(error.to_string(), "near \"SELEC\": syntax error\n  SELEC 1\n  ^");
    }
}
