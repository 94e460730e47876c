//! `why`: the question from the command line, the answer as text or JSON.

use std::io::Write;
use std::process::ExitCode;

use guest::Moment;
use tables::Database;
use why::{Answer, Question, WhyError};

use crate::args;
use crate::exit::{Class, Classify};
use crate::{indexing, replay};

/// `backstory why`
pub(crate) fn why(args: &args::Why) -> anyhow::Result<ExitCode> {
    let database = indexing::database(args.which.trace.as_deref())?;
    let at = args.at.map(|when| replay::resolve(database.trace(), when)).transpose()?;
    let answer = ask(&database, &args.what, args.size, at)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    } else {
        writeln!(out, "{}", answer.to_string().trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks about `what`, before `at`.
pub(crate) fn ask(
    database: &Database,
    what: &str,
    size: Option<u32>,
    at: Option<Moment>,
) -> anyhow::Result<Answer> {
    let target = what.parse().map_err(anyhow::Error::from).class(Class::Input)?;
    let question = Question { target, size: size.map(u64::from), at, space: None };
    let answer = ::why::why(database, &question);
    let class = match &answer {
        Err(WhyError::Query(_)) => Class::Trace,
        _ => Class::Input,
    };
    answer.class(class)
}
