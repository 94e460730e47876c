//! `why`: the question from the command line, the answer as text or JSON.

use std::io::Write;
use std::process::ExitCode;

use guest::{Moment, SpaceId};
use tables::Database;
use why::{Answer, Question, WhyError};

use crate::args;
use crate::exit::{Class, Classify};
use crate::{indexing, replay, text};

/// `backstory why`
pub(crate) fn why(args: &args::Why) -> anyhow::Result<ExitCode> {
    let database = indexing::database(args.which.trace.as_deref())?;
    let at = args.at.map(|when| replay::resolve(database.trace(), when)).transpose()?;
    let answer = ask(&database, &args.what, args.size, at, args.space.map(SpaceId))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    } else {
        let trace = args.which.trace.as_deref().map(|trace| text::quoted(&trace.display().to_string()));
        writeln!(out, "{}", answer.text(trace.as_deref()))?;
    }
    // The process ends: taking caches apart piece by piece would only take time.
    std::mem::forget(database);
    Ok(ExitCode::SUCCESS)
}

/// Asks about `what`, before `at`, in `space` if given.
pub(crate) fn ask(
    database: &Database,
    what: &str,
    size: Option<u32>,
    at: Option<Moment>,
    space: Option<SpaceId>,
) -> anyhow::Result<Answer> {
    let target = what.parse().map_err(anyhow::Error::from).class(Class::Input)?;
    let question = Question { target, size: size.map(u64::from), at, space };
    match ::why::why(database, &question) {
        Err(error @ WhyError::Query(_)) => Err(indexing::unreadable(database.store().path(), error)),
        answer => answer.class(Class::Input),
    }
}
