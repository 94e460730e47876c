//! Where traces live: the root folder, fresh folder names, the latest trace, listing and removal.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::frame;

/// Name of the link to the newest trace in a root folder.
const LATEST: &str = "latest";
/// Name of the store of shared files in a root folder.
const STORE: &str = ".files";

/// Names in a trace: its event stream, what events refer to, and the kept files.
const EVENTS: &str = "events";
const PAYLOAD: &str = "payload";
const FILES: &str = "files";

/// Name of the file in a trace that says why it is incomplete.
pub(crate) const STOPPED: &str = "stopped";

/// Why a trace directory could not be found, made or removed.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// Nothing says where traces live.
    #[error("no place for traces: set BACKSTORY_TRACE_DIR or HOME")]
    NoRoot,
    /// There is no trace to take.
    #[error("no recording in {root}: make one with `backstory record`")]
    None {
        /// The root folder.
        root: PathBuf,
    },
    /// No trace has that name.
    #[error("no recording `{name}`")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Refused to remove something that is not a trace.
    #[error("{path} is not a recording")]
    NotATrace {
        /// What it is.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot access {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DirError {
    let path = path.to_owned();
    move |source| DirError::Io { path, source }
}

/// The root folder of traces: `$BACKSTORY_TRACE_DIR`, else `$XDG_DATA_HOME/backstory`, else `~/.local/share/backstory`.
pub fn root() -> Result<PathBuf, DirError> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("BACKSTORY_TRACE_DIR")
        .or_else(|| var("XDG_DATA_HOME").map(|data| data.join("backstory")))
        .or_else(|| var("HOME").map(|home| home.join(".local/share/backstory")))
        .ok_or(DirError::NoRoot)
}

/// The store of files that traces share, in the root folder.
pub fn store_dir() -> Option<PathBuf> {
    root().ok().map(|root| root.join(STORE))
}

/// Makes a folder and those that it lies in. Mostly it is there, which is asked first: to be told so by a try costs more.
pub(crate) fn make(dir: &Path) -> io::Result<()> {
    if dir.is_dir() { Ok(()) } else { fs::create_dir_all(dir) }
}

/// Makes a fresh, empty folder `<program>-<n>` in `root` and points `latest` at it.
pub fn fresh(root: &Path, program: &str) -> Result<PathBuf, DirError> {
    make(root).map_err(io_error(root))?;
    let base = Path::new(program).file_name().map_or("trace".into(), |name| name.to_string_lossy());
    let base: String =
        base.chars().map(|c| if c.is_alphanumeric() || "._+-".contains(c) { c } else { '_' }).collect();
    let base = base.trim_start_matches('.');
    let base = if base.is_empty() || base == LATEST { "trace" } else { base };
    let mut n = next_number(root, base)?;
    loop {
        let name = format!("{base}-{n}");
        let dir = root.join(&name);
        match fs::create_dir(&dir) {
            Ok(()) => {
                point(root, Path::new(&name))?;
                return Ok(dir);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => n += 1,
            Err(error) => return Err(io_error(&dir)(error)),
        }
    }
}

/// One more than the largest number in use for `base`.
fn next_number(root: &Path, base: &str) -> Result<u64, DirError> {
    let mut next = 0;
    for entry in fs::read_dir(root).map_err(io_error(root))? {
        let name = entry.map_err(io_error(root))?.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix(base)?.strip_prefix('-')?.parse::<u64>().ok());
        next = next.max(number.map_or(0, |n| n.saturating_add(1)));
    }
    Ok(next)
}

/// Points `latest` in `root` at `dir`.
pub fn set_latest(root: &Path, dir: &Path) -> Result<(), DirError> {
    let link = root.join(LATEST);
    // As a fresh folder is pointed at.
    if fs::read_link(&link).is_ok_and(|already| already.is_relative() && root.join(already) == dir) {
        return Ok(());
    }
    let absolute = fs::canonicalize(dir).map_err(io_error(dir))?;
    let canonical_root = fs::canonicalize(root).map_err(io_error(root))?;
    let target = absolute.strip_prefix(&canonical_root).unwrap_or(&absolute);
    point(root, target)
}

/// Points `latest` in `root` at `target`.
fn point(root: &Path, target: &Path) -> Result<(), DirError> {
    let link = root.join(LATEST);
    let temporary = root.join(format!(".latest-{}", std::process::id()));
    let _ = fs::remove_file(&temporary);
    symlink(target, &temporary).map_err(io_error(&temporary))?;
    fs::rename(&temporary, &link).map_err(io_error(&link))
}

/// The newest trace in `root`: what `latest` points at, else the one changed last.
pub fn latest(root: &Path) -> Result<PathBuf, DirError> {
    if let Ok(dir) = fs::canonicalize(root.join(LATEST))
        && is_trace(&dir)
    {
        return Ok(dir);
    }
    let mut all = list(root)?;
    all.sort_by_key(|dir| {
        fs::metadata(dir.join(EVENTS)).map(|m| (m.mtime(), m.mtime_nsec())).unwrap_or_default()
    });
    all.pop().ok_or(DirError::None { root: root.to_owned() })
}

/// What a person means by a trace's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meant {
    /// The trace's folder.
    pub dir: PathBuf,
    /// A file or folder here that has the same name and is not meant.
    pub not: Option<PathBuf>,
}

/// The trace a person means: what has a `/` is a path, else a name in the root folder comes first, then a path; for `None`,
/// the latest.
pub fn resolve(name: Option<&str>) -> Result<Meant, DirError> {
    match name {
        None => latest(&root()?).map(|dir| Meant { dir, not: None }),
        Some(name) => meant(name, root().ok().as_deref()),
    }
}

fn meant(name: &str, root: Option<&Path>) -> Result<Meant, DirError> {
    let only = |dir| Ok(Meant { dir, not: None });
    let unknown = || DirError::Unknown { name: name.to_owned() };
    // One word is shown, and handed on, in a way that cannot be taken for a name again.
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new(".").join(name) };
    let word = !name.contains('/') && !["", ".", ".."].contains(&name);
    let Some(named) = root.filter(|_| word).map(|root| root.join(name)).filter(|named| named.is_dir()) else {
        return if path.exists() && !name.is_empty() { only(path) } else { Err(unknown()) };
    };
    let same = |a: &Path, b: &Path| fs::canonicalize(a).ok() == fs::canonicalize(b).ok();
    match path.exists() && !same(&path, &named) {
        false => only(named),
        // What is no recording shadows none.
        true if !is_trace(&named) && is_trace(&path) => only(path),
        true => Ok(Meant { dir: named, not: Some(path) }),
    }
}

/// All traces in `root`, by name.
pub fn list(root: &Path) -> Result<Vec<PathBuf>, DirError> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error(root)(error)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error(root))?;
        let kind = entry.file_type().map_err(io_error(root))?;
        if kind.is_dir() && is_trace(&entry.path()) {
            all.push(entry.path());
        }
    }
    all.sort();
    Ok(all)
}

/// The folders of `root` that are traces or what is left of one, but that [`list`] cannot tell so, and why; by name.
pub fn unlisted(root: &Path) -> Vec<(PathBuf, String)> {
    let why = |dir: &Path| match fs::metadata(dir.join(EVENTS)) {
        Ok(_) => None,
        Err(error) if error.kind() != io::ErrorKind::NotFound => Some(error.to_string()),
        Err(_) => frame::begins_as_ours(&dir.join(PAYLOAD)).then(|| "it holds no events".to_owned()),
    };
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let is_folder = |entry: &fs::DirEntry| {
        entry.file_name() != STORE && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let dirs = entries.flatten().filter(is_folder).map(|entry| entry.path());
    let mut all: Vec<(PathBuf, String)> = dirs.filter_map(|dir| Some((dir.clone(), why(&dir)?))).collect();
    all.sort();
    all
}

/// Whether `dir` looks like a trace: it has an event stream.
pub fn is_trace(dir: &Path) -> bool {
    dir.join(EVENTS).is_file()
}

/// Whether `dir` is a trace or what is left of one: a recorder that was killed at its start has not begun the event stream, and a
/// removal that was interrupted has removed it. Of one killed at once nothing but an empty folder in the root folder is left.
fn is_ours(dir: &Path) -> bool {
    let nothing_in = |dir: &Path| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    let in_root = || {
        let (root, dir) =
            (root().ok().and_then(|root| fs::canonicalize(root).ok()), fs::canonicalize(dir).ok());
        dir.is_some_and(|dir| root.is_some_and(|root| dir.parent() == Some(&root)))
    };
    let only_files = || match fs::read_dir(dir) {
        Ok(mut entries) => entries
            .all(|entry| entry.is_ok_and(|entry| entry.file_name() == FILES && nothing_in(&entry.path()))),
        Err(_) => false,
    };
    [EVENTS, PAYLOAD].iter().any(|name| frame::begins_as_ours(&dir.join(name))) || in_root() && only_files()
}

/// Removes a trace, or what is left of one, and from its root's store the files that no trace needs any more.
pub fn remove(dir: &Path) -> Result<(), DirError> {
    if !is_ours(dir) {
        if let Err(source) = fs::metadata(dir.join(EVENTS))
            && source.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(io_error(dir)(source));
        }
        return Err(DirError::NotATrace { path: dir.to_owned() });
    }
    let root = fs::canonicalize(dir).map_err(io_error(dir))?.parent().map(Path::to_owned);
    // The event stream first, so that what an interrupted removal leaves is not taken for a trace.
    let events = dir.join(EVENTS);
    match fs::remove_file(&events) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&events)(error)),
        _ => {}
    }
    // What shows what it was goes last.
    for entry in fs::read_dir(dir).map_err(io_error(dir))? {
        let path = entry.map_err(io_error(dir))?.path();
        match path.symlink_metadata() {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path),
            _ if path.ends_with(PAYLOAD) => Ok(()),
            _ => fs::remove_file(&path),
        }
        .map_err(io_error(&path))?;
    }
    fs::remove_dir_all(dir).map_err(io_error(dir))?;
    let Some(root) = root else { return Ok(()) };
    let link = root.join(LATEST);
    if link.is_symlink() && !link.exists() {
        let _ = fs::remove_file(&link);
    }
    prune(&root.join(STORE));
    Ok(())
}

/// Drops store files that have no other link. What cannot be removed stays.
fn prune(store: &Path) {
    let Ok(entries) = fs::read_dir(store) else { return };
    for entry in entries.flatten() {
        let lonely = entry.metadata().is_ok_and(|meta| meta.is_file() && meta.nlink() == 1);
        let hashed = entry.file_name().len() == 64;
        if lonely && hashed {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(root: &Path, program: &str) -> PathBuf {
        let dir = fresh(root, program).unwrap();
        fs::write(dir.join(EVENTS), "BACKSTRY").unwrap();
        dir
    }

    #[test]
    fn folders_are_numbered_listed_and_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        assert!(matches!(latest(root), Err(DirError::None { .. })));
        let a = make(root, "/bin/ls");
        let b = make(root, "ls");
        assert_eq!([a.file_name().unwrap(), b.file_name().unwrap()], ["ls-0", "ls-1"]);
        assert_eq!(latest(root).unwrap(), fs::canonicalize(&b).unwrap());
        assert_eq!(list(root).unwrap(), [a.clone(), b.clone()]);
        remove(&b).unwrap();
        assert_eq!(latest(root).unwrap(), a);
        assert!(matches!(remove(root), Err(DirError::NotATrace { .. })));
    }

    #[test]
    fn what_cannot_be_told_to_be_a_trace_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        for name in ["a", "b", "c", STORE] {
            fs::create_dir(root.join(name)).unwrap();
        }
        make(root, "ls");
        std::os::unix::fs::symlink("events", root.join("b").join(EVENTS)).unwrap();
        fs::write(root.join("c").join(PAYLOAD), "BACKSTRY..").unwrap();
        let names = list(root).unwrap();
        assert_eq!(names, [root.join("ls-0")]);
        let [(b, why), (c, left)] = &unlisted(root)[..] else { panic!("{:?}", unlisted(root)) };
        assert_eq!((b, c), (&root.join("b"), &root.join("c")));
        assert!(why.starts_with("Too many levels of symbolic links"), "{why}");
        assert_eq!(left, "it holds no events");
    }

    #[test]
    fn only_traces_and_what_is_left_of_them_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |name: &str, files: &[(&str, &str)]| {
            let dir = scratch.path().join(name);
            fs::create_dir_all(dir.join(FILES)).unwrap();
            for (file, text) in files {
                fs::write(dir.join(file), text).unwrap();
            }
            dir
        };
        let left = [("payload", "BACKSTRY.."), ("index.db", "")];
        for files in [&left[..], &left[..1], &[("events", ""), left[0]], &[("events", "BACKSTRY")]] {
            let dir = make("left", files);
            remove(&dir).unwrap();
            assert!(!dir.exists(), "{files:?}");
        }
        for files in [&[("events", "on Monday\n")][..], &[("events", "")], &[("payload", "mine")], &[]] {
            let dir = make("other", files);
            assert!(matches!(remove(&dir), Err(DirError::NotATrace { .. })), "{files:?}");
            assert!(files.iter().all(|(file, _)| dir.join(file).exists()));
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[track_caller]
    fn check(name: &str, root: &Path, dir: &Path, not: Option<&Path>) {
        let expected = Meant { dir: dir.to_owned(), not: not.map(Path::to_owned) };
        assert_eq!(meant(name, Some(root)).unwrap(), expected, "{name}");
    }

    #[test]
    fn names_come_before_paths_and_what_has_a_slash_is_a_path() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        // The tests run in the crate's folder: it has a `src`.
        let shadowed = root.join("src");
        fs::create_dir(&shadowed).unwrap();
        fs::write(shadowed.join(EVENTS), "").unwrap();
        let made = make(root, "ls");
        check("src", root, &shadowed, Some(Path::new("./src")));
        check("./src", root, Path::new("./src"), None);
        check("ls-0", root, &made, None);
        check("Cargo.toml", root, Path::new("./Cargo.toml"), None);
        for missing in ["nothing", "./ls-0", ""] {
            assert!(matches!(meant(missing, Some(root)), Err(DirError::Unknown { .. })), "{missing}");
        }
        assert_eq!(meant("src", None).unwrap().dir, Path::new("./src"));
        assert_eq!(meant("..", Some(root)).unwrap().dir, Path::new("./.."));
    }
}
