//! Finding and opening recordings, and the classes of what can go wrong there.

use std::path::{Path, PathBuf};

use trace::{DirError, Trace};

use crate::exit::{Class, Classify};

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

/// Opens the recording meant.
pub(crate) fn open(named: Option<&Path>) -> anyhow::Result<Trace> {
    Trace::open(&find(named)?).class(Class::Trace)
}
