//! `index`, and building an index where a question needs one.

use std::process::ExitCode;

use trace::Trace;

use crate::args::Index;
use crate::exit::{Class, Failure};
use crate::traces;

/// `backstory index`
pub(crate) fn index(args: &Index) -> anyhow::Result<ExitCode> {
    let trace = traces::open(args.which.trace.as_deref())?;
    build(&trace)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the index if there is none, and says so.
pub(crate) fn ensure(trace: &Trace) -> anyhow::Result<()> {
    if trace.dir().join(store::INDEX_FILE).is_file() {
        return Ok(());
    }
    eprintln!("backstory: {} has no index yet: building it", trace.dir().display());
    build(trace)
}

fn build(trace: &Trace) -> anyhow::Result<()> {
    Err(Failure::new(Class::System, format!("{} cannot be indexed yet", trace.dir().display())).into())
}
