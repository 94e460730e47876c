//! A private temporary folder that goes when it is dropped. What processes left that were killed goes when the next one is made.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

/// How all names begin; the purpose, the process's id and a number follow.
const PREFIX: &str = "backstory-";
/// How old a folder is at least that nobody holds any more: a younger one may be about to be locked.
const STALE: Duration = Duration::from_secs(60);

/// The folder, and the lock on it that says that it is in use.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    _lock: Option<File>,
}

impl Scratch {
    /// A new folder that only this user can enter.
    pub(crate) fn new(purpose: &str) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir();
        sweep(&folder);
        for n in 0.. {
            let path = folder.join(format!("{PREFIX}{purpose}-{}-{n}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    // Where there are no locks, nobody else's can be taken, either.
                    let lock = File::open(&path).ok().filter(|folder| folder.try_lock().is_ok());
                    return Ok(Self { path, _lock: lock });
                }
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
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever is left lies in the temporary folder, where it is swept.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes such folders of ours whose processes are gone. What cannot be removed stays.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(process_of);
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) && is_stale(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process that made a folder of that name.
fn process_of(name: &str) -> Option<&str> {
    let (rest, number) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    let (_, pid) = rest.rsplit_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(pid)).then_some(pid)
}

/// Whether nobody uses a folder: not even a process of another container, whose id says nothing here.
fn is_stale(path: &Path) -> bool {
    let Ok(facts) = fs::symlink_metadata(path) else { return false };
    let own = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == facts.uid());
    let old = facts.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age >= STALE);
    facts.is_dir() && own && old && File::open(path).is_ok_and(|folder| folder.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_processes_that_are_gone_are_swept() {
        let scratch = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        let old = std::time::SystemTime::now() - 2 * STALE;
        let make = |name: String, modified| {
            let path = scratch.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "").unwrap();
            File::open(&path).unwrap().set_modified(modified).unwrap();
            path
        };
        let stale = make(format!("backstory-gdb-{gone}-0"), old);
        let held = make(format!("backstory-gdb-{gone}-1"), old);
        let lock = File::open(&held).unwrap();
        lock.try_lock().unwrap();
        let young = make(format!("backstory-gdb-{gone}-2"), std::time::SystemTime::now());
        let of_a_living_one = make(format!("backstory-gdb-{}-0", std::process::id()), old);
        let other = make(format!("backstory-{gone}"), old);
        sweep(scratch.path());
        let there = [&stale, &held, &young, &of_a_living_one, &other].map(|path| path.exists());
        assert_eq!(there, [false, true, true, true, true]);
    }
}
