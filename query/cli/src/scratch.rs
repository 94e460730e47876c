//! A private temporary folder that goes when it is dropped.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The folder.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A new folder that only this user can enter.
    pub(crate) fn new(purpose: &str) -> anyhow::Result<Self> {
        for n in 0.. {
            let name = format!("backstory-{purpose}-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot create {}", path.display()));
                }
            }
        }
        anyhow::bail!("no name left for a temporary folder")
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever is left lies in the temporary folder, where it is swept.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
