//! The files gdb may read through us: the copies the trace keeps, by the paths they had in the recording. Nothing else
//! of the machine is shown.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use guest::FileId;
use trace::Trace;

/// What gdb has open.
#[derive(Debug)]
enum Open {
    /// A kept file.
    Kept(File),
    /// A file of `/proc`, as it would read.
    Made(Vec<u8>),
}

/// Kept files by recorded path, and those that gdb has open.
#[derive(Debug, Default)]
pub(crate) struct Files {
    by_path: HashMap<String, PathBuf>,
    open: HashMap<u32, Open>,
    next: u32,
}

/// What `fstat` says of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// Length in bytes.
    pub(crate) len: u64,
    /// A number that tells it from others.
    pub(crate) number: u64,
}

impl Files {
    /// The kept files of `trace`. Where a path had several contents in turn, the last one kept counts.
    pub(crate) fn new(trace: &Trace) -> Self {
        let place = |i: usize| trace.file_path(FileId(i as u32)).ok();
        let kept = trace.files().iter().enumerate();
        let by_path = kept.filter_map(|(i, file)| Some((file.path.clone(), place(i)?))).collect();
        Self { by_path, ..Self::default() }
    }

    /// Where the contents lie of the file that was at `path` in the recording: by that path, by what it resolves to on
    /// this machine, else by its name if only one kept file has it (links are not recorded).
    pub(crate) fn find(&self, path: &str) -> Option<&Path> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let resolved = || fs::canonicalize(path).ok().and_then(|real| self.by_path.get(real.to_str()?));
        let found = self.by_path.get(path).or_else(resolved).or_else(|| self.only_one_named(path));
        found.map(PathBuf::as_path)
    }

    fn only_one_named(&self, path: &str) -> Option<&PathBuf> {
        let name = Path::new(path).file_name()?;
        let mut named = self.by_path.iter().filter(|(path, _)| Path::new(path).file_name() == Some(name));
        let (_, first) = named.next()?;
        named.next().is_none().then_some(first)
    }

    /// Opens a kept file.
    pub(crate) fn open(&mut self, path: &str) -> io::Result<u32> {
        let place = self.find(path).ok_or(io::ErrorKind::NotFound)?;
        let file = File::open(place)?;
        Ok(self.add(Open::Kept(file)))
    }

    /// Opens these bytes as if they were a file.
    pub(crate) fn open_made(&mut self, bytes: Vec<u8>) -> u32 {
        self.add(Open::Made(bytes))
    }

    fn add(&mut self, open: Open) -> u32 {
        self.next += 1;
        self.open.insert(self.next, open);
        self.next
    }

    /// Reads from an open one.
    pub(crate) fn read(&self, fd: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        match self.get(fd)? {
            Open::Kept(file) => file.read_at(into, offset),
            Open::Made(bytes) => Ok(part(bytes, offset, into.len(), into)),
        }
    }

    /// What is known of an open one.
    pub(crate) fn facts(&self, fd: u32) -> io::Result<Facts> {
        match self.get(fd)? {
            Open::Kept(file) => file.metadata().map(|meta| Facts { len: meta.len(), number: meta.ino() }),
            Open::Made(bytes) => Ok(Facts { len: bytes.len() as u64, number: u64::from(fd) }),
        }
    }

    /// Closes an open one.
    pub(crate) fn close(&mut self, fd: u32) -> io::Result<()> {
        self.open.remove(&fd).map(drop).ok_or(io::ErrorKind::InvalidInput.into())
    }

    fn get(&self, fd: u32) -> io::Result<&Open> {
        self.open.get(&fd).ok_or(io::ErrorKind::InvalidInput.into())
    }
}

/// The part of `object` that was asked for: how many bytes of it are now in `into`.
pub(crate) fn part(object: &[u8], offset: u64, length: usize, into: &mut [u8]) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|offset| object.get(offset..)).unwrap_or_default();
    let n = rest.len().min(length).min(into.len());
    into[..n].copy_from_slice(&rest[..n]);
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Files {
        let by_path = paths.iter().map(|path| ((*path).to_owned(), PathBuf::from(format!("kept:{path}"))));
        Files { by_path: by_path.collect(), ..Files::default() }
    }

    #[track_caller]
    fn check(files: &Files, path: &str, expected: Option<&str>) {
        let expected = expected.map(|path| PathBuf::from(format!("kept:{path}")));
        assert_eq!(files.find(path), expected.as_deref(), "{path}");
    }

    #[test]
    fn files_are_found_by_path_and_by_name_when_that_is_clear() {
        let files = files(&["/opt/a/libx.so", "/opt/b/liby.so", "/srv/liby.so"]);
        check(&files, "/opt/a/libx.so", Some("/opt/a/libx.so"));
        check(&files, "/lib64/libx.so", Some("/opt/a/libx.so"));
        check(&files, "/opt/b/liby.so", Some("/opt/b/liby.so"));
        check(&files, "/lib64/liby.so", None);
        check(&files, "/etc/passwd", None);
    }
}
