//! The files gdb may read through us: the copies the trace keeps, by the paths they had in the recording. Nothing else
//! of the machine is shown.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use guest::FileId;
use trace::Trace;

/// Kept files by recorded path, and those that gdb has open.
#[derive(Debug, Default)]
pub(crate) struct Files {
    by_path: HashMap<String, PathBuf>,
    open: HashMap<u32, File>,
    next: u32,
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
        self.next += 1;
        self.open.insert(self.next, file);
        Ok(self.next)
    }

    /// Reads from an open one.
    pub(crate) fn read(&self, fd: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file(fd)?.read_at(into, offset)
    }

    /// What is known of an open one.
    pub(crate) fn metadata(&self, fd: u32) -> io::Result<fs::Metadata> {
        self.file(fd)?.metadata()
    }

    /// Closes an open one.
    pub(crate) fn close(&mut self, fd: u32) -> io::Result<()> {
        self.open.remove(&fd).map(drop).ok_or(io::ErrorKind::InvalidInput.into())
    }

    fn file(&self, fd: u32) -> io::Result<&File> {
        self.open.get(&fd).ok_or(io::ErrorKind::InvalidInput.into())
    }
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
