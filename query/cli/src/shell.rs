//! The interactive SQL shell: lines, history, statements over several lines, dot commands.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tables::{Database, Format};

use crate::exit::{Class, Failure};
use crate::{query, signals};

const HELP: &str = "\
SQL ends with `;` and may go over several lines. Ctrl-C drops what was typed or stops a query, Ctrl-D quits.
  .tables          the tables
  .schema [TABLE]  their columns
  .functions       the functions besides SQLite's own
  .mode MODE       table, json or csv
  .help            this
  .quit            leave";

/// Reads and answers until the end of input.
pub(crate) fn run(database: &Database, format: Format) -> anyhow::Result<ExitCode> {
    // While a query runs; while a line is edited, the editor takes the key itself.
    let running = database.connection().get_interrupt_handle();
    signals::on_interrupt(move || running.interrupt());
    let mut editor = DefaultEditor::new()?;
    let history = history_file();
    if let Some(path) = &history {
        // No history yet is no error.
        let _ = editor.load_history(path);
    }
    println!("backstory query on {}; .help for help", database.trace().dir().display());
    let mut session = Session { database, format, pending: String::new(), answered: false };
    loop {
        let prompt = if session.pending.is_empty() { "backstory> " } else { "      ...> " };
        match editor.readline(prompt) {
            Ok(line) => {
                let entered = session.take(&line);
                let Some(entered) = entered else { continue };
                let _ = editor.add_history_entry(entered.trim());
                match session.answer(&entered) {
                    Ok(Next::Quit) => break,
                    Ok(Next::Go) => {}
                    Err(error) => eprintln!("backstory: {error}"),
                }
            }
            Err(ReadlineError::Interrupted) => session.pending.clear(),
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(path) = &history {
        if let Some(folder) = path.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        if let Err(error) = editor.save_history(path) {
            tracing::warn!(path = %path.display(), %error, "history not saved");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Does what `text` says, as if it were typed, up to the first thing that fails.
pub(crate) fn script(database: &Database, text: &str, format: Format) -> anyhow::Result<()> {
    let mut session = Session { database, format, pending: String::new(), answered: false };
    for line in text.lines() {
        if let Some(entered) = session.take(line)
            && session.answer(&entered)? == Next::Quit
        {
            return Ok(());
        }
    }
    // The last statement needs no `;`.
    let rest = std::mem::take(&mut session.pending);
    if !rest.trim().is_empty() {
        session.answer(&rest)?;
    }
    Ok(())
}

#[derive(PartialEq, Eq, Debug)]
enum Next {
    Go,
    Quit,
}

struct Session<'a> {
    database: &'a Database,
    format: Format,
    pending: String,
    /// Whether rows were printed before.
    answered: bool,
}

impl Session<'_> {
    /// Adds a line; what is complete now, a dot command or SQL up to its `;`, is returned.
    fn take(&mut self, line: &str) -> Option<String> {
        complete(&mut self.pending, line)
    }

    fn answer(&mut self, entered: &str) -> anyhow::Result<Next> {
        let shown = entered.trim();
        if !shown.starts_with('.') {
            if self.format == Format::Csv && self.answered {
                print!("\r\n");
            }
            self.answered = true;
            query::print(self.database, entered, self.format)?;
            return Ok(Next::Go);
        }
        let (command, argument) = shown.split_once(char::is_whitespace).unwrap_or((shown, ""));
        let mut out = std::io::stdout();
        let wrong = |message: String| Err(Failure::new(Class::Input, message).into());
        match (command, argument.trim().trim_end_matches(';')) {
            (".quit" | ".exit" | ".q", _) => return Ok(Next::Quit),
            (".help" | ".h", _) => writeln!(out, "{HELP}")?,
            (".tables", _) => write!(out, "{}", tables())?,
            (".schema", table) => match schema(table) {
                text if text.is_empty() => return wrong(format!("no table `{table}`: .tables lists them")),
                text => write!(out, "{text}")?,
            },
            (".functions", _) => write!(out, "{}", listed(tables::FUNCTIONS, ""))?,
            (".mode", "table") => self.format = Format::Table,
            (".mode", "json") => self.format = Format::Json,
            (".mode", "csv") => self.format = Format::Csv,
            (".mode", other) => return wrong(format!("no mode `{other}`: table, json or csv")),
            (other, _) => return wrong(format!("no command `{other}`: .help lists them")),
        }
        Ok(Next::Go)
    }
}

/// Names and meanings, aligned.
fn listed(rows: &[(&str, &str)], indent: &str) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, meaning)| format!("{indent}{name:width$}  {meaning}\n")).collect()
}

fn tables() -> String {
    let rows: Vec<(&str, &str)> = tables::TABLES.iter().map(|table| (table.name, table.row)).collect();
    listed(&rows, "")
}

/// The columns of a table, or of all where none is named; nothing where there is no such table.
fn schema(name: &str) -> String {
    let wanted = |table: &&tables::Table| name.is_empty() || table.name.eq_ignore_ascii_case(name);
    let describe = |table: &tables::Table| {
        let columns = [table.columns, table.hidden].concat();
        format!("{}: {}\n{}", table.name, table.row, listed(&columns, "  "))
    };
    tables::TABLES.iter().filter(wanted).map(describe).collect()
}

/// Where the history is kept: `$XDG_STATE_HOME/backstory/history`, else under `~/.local/state`.
fn history_file() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = var("XDG_STATE_HOME").or_else(|| var("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("backstory/history"))
}

/// Adds `line` to `pending`; takes out what is complete: a dot command on its own line, or text that ends with `;`
/// outside quotes and comments.
fn complete(pending: &mut String, line: &str) -> Option<String> {
    if pending.is_empty() && line.trim().is_empty() {
        return None;
    }
    if pending.is_empty() && line.trim_start().starts_with('.') {
        return Some(line.to_owned());
    }
    if !pending.is_empty() {
        pending.push('\n');
    }
    pending.push_str(line);
    ends_statement(pending).then(|| std::mem::take(pending))
}

/// Whether the last thing in `sql`, space and comments aside, is a `;` outside quotes.
fn ends_statement(sql: &str) -> bool {
    let mut rest = sql;
    let mut ended = false;
    while let Some(first) = rest.chars().next() {
        let skip = |end: &str, from: usize| rest[from..].find(end).map(|at| from + at + end.len());
        let next = match first {
            '\'' | '"' | '`' => skip(&first.to_string(), 1),
            '[' => skip("]", 1),
            '-' if rest.starts_with("--") => Some(rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => skip("*/", 2),
            _ => Some(first.len_utf8()),
        };
        let Some(next) = next else { return false };
        let comment = rest.starts_with("--") || rest.starts_with("/*");
        if !first.is_whitespace() && !comment {
            ended = first == ';';
        }
        rest = &rest[next..];
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &[&str], expected: &[&str]) {
        let mut pending = String::new();
        let got: Vec<String> = lines.iter().filter_map(|line| complete(&mut pending, line)).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn statements_end_with_a_semicolon() {
        check(&["SELECT 1;"], &["SELECT 1;"]);
        check(&["SELECT", "  1;", "SELECT 2; "], &["SELECT\n  1;", "SELECT 2; "]);
        check(&["", ".help", "  .quit"], &[".help", "  .quit"]);
        check(&["SELECT ';", "';"], &["SELECT ';\n';"]);
        check(&["SELECT 1; -- done"], &["SELECT 1; -- done"]);
        check(&["SELECT 1 -- no;"], &[]);
        check(&["SELECT 1 /* ; */", ";"], &["SELECT 1 /* ; */\n;"]);
        check(&["SELECT", ".5;"], &["SELECT\n.5;"]);
    }

    #[test]
    fn tables_are_described() {
        assert!(tables().lines().any(|line| line.starts_with("writes ")));
        assert!(schema("writes").contains("\n  moment "));
        assert!(!schema("writes").contains("calls:"));
        assert_eq!(schema("nope"), "");
    }
}
