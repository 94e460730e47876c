//! `query`: SQL from the command line, from standard input, or from the interactive shell.

use std::io::{BufWriter, IsTerminal, Read, Write};
use std::process::ExitCode;

use tables::{Database, Format, RenderError};

use crate::args::Query;
use crate::exit::{Class, Failure};
use crate::{indexing, registers, shell};

/// `backstory query`
pub(crate) fn query(args: &Query) -> anyhow::Result<ExitCode> {
    let format = match (args.json, args.csv) {
        (true, _) => Format::Json,
        (_, true) => Format::Csv,
        _ => Format::Table,
    };
    let database = indexing::database(args.which.trace.as_deref())?;
    registers::offer(&database);
    match &args.sql {
        Some(sql) => run(&database, sql, format),
        None if std::io::stdin().is_terminal() => shell::run(&database, format),
        None => {
            let mut sql = String::new();
            std::io::stdin().read_to_string(&mut sql)?;
            run(&database, &sql, format)
        }
    }
}

fn run(database: &Database, sql: &str, format: Format) -> anyhow::Result<ExitCode> {
    if sql.trim().is_empty() {
        return Err(Failure::new(Class::Input, "no SQL given").into());
    }
    shell::script(database, sql, format)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `sql` and prints its rows on standard output.
pub(crate) fn print(database: &Database, sql: &str, format: Format) -> anyhow::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let ran = database.run(sql, format, &mut out);
    out.flush()?;
    match ran {
        Ok(_) => Ok(()),
        Err(error @ RenderError::Index(_)) => Err(indexing::unreadable(database.store().path(), error)),
        Err(RenderError::Sql(error)) => Err(Failure::new(Class::Input, error).into()),
        Err(RenderError::Write(error)) => Err(error.into()),
    }
}
