//! Finding and opening recordings, and the classes of what can go wrong there.

use std::path::{Path, PathBuf};

use guest::{FileId, Moment};
use trace::{DirError, Moments, ReadError, Trace};

use crate::exit::{Class, Classify};
use crate::text;

/// The folder of the recording meant: the latest when none is named. Says so where something here has the same name.
pub(crate) fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let name = named.map(Path::to_string_lossy);
    match trace::resolve(name.as_deref()) {
        Ok(meant) => {
            if let Some(other) = &meant.not {
                let (dir, other) = (meant.dir.display(), other.display());
                eprintln!("backstory: the recording {dir} is meant; for the path, say {other}");
            }
            Ok(meant.dir)
        }
        Err(error @ DirError::Io { .. }) => Err(error).class(Class::System),
        Err(error) => Err(error).class(Class::Input),
    }
}

/// Says on standard error, in one line, where a recording ends if not where the program did. `end` is its last moment if that is known.
pub(crate) fn say_if_cut(trace: &Trace, end: Option<Moment>) {
    let refused = trace.summary().and_then(|summary| summary.refused.clone());
    let why = match refused {
        Some(why) => why,
        None if trace.is_complete() => return,
        None => text::incomplete(trace),
    };
    let end = end.or_else(|| Some(Moments::load(trace).ok()??.total()));
    let place = match end {
        Some(moment) => moment.to_string(),
        None => format!("event {}, of an unknown moment", text::grouped(trace.len())),
    };
    eprintln!("backstory: the recording ends at {place}, cut: {why}; what ran later is not in it");
}

/// Fails where a file that the recording keeps is gone: names would be missing without a word.
pub(crate) fn whole(trace: &Trace) -> anyhow::Result<()> {
    for file in (0..trace.files().len() as u32).map(FileId) {
        let path = trace.file_path(file).class(Class::Trace)?;
        std::fs::metadata(&path).map_err(|source| ReadError::File { path, source }).class(Class::Trace)?;
    }
    Ok(())
}

/// Opens the recording meant.
pub(crate) fn open(named: Option<&Path>) -> anyhow::Result<Trace> {
    Trace::open(&find(named)?).class(Class::Trace)
}
