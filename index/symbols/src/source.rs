//! Text of source lines, read from where the debug information says they are. Knows nothing of debug information.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Source files read so far.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: Mutex<HashMap<PathBuf, Option<Arc<SourceFile>>>>,
}

/// A source file, with the offset at which each line starts.
#[derive(Debug)]
struct SourceFile {
    text: Vec<u8>,
    starts: Vec<usize>,
}

impl Sources {
    /// When the file at `path` was last changed, in seconds since 1970.
    pub(crate) fn changed(path: &Path) -> Option<u64> {
        let changed = std::fs::metadata(path).ok()?.modified().ok()?;
        changed.duration_since(std::time::UNIX_EPOCH).ok().map(|time| time.as_secs())
    }

    /// Line `line` (from 1) of the file at `path`, without its line end; `None` where there is no such file or line.
    pub(crate) fn line(&self, path: &Path, line: u32) -> Option<String> {
        let mut files = self.files.lock().ok()?;
        let file = files
            .entry(path.to_owned())
            .or_insert_with(|| std::fs::read(path).ok().map(|text| Arc::new(SourceFile::new(text))))
            .clone()?;
        drop(files);
        file.line(line)
    }
}

impl SourceFile {
    fn new(text: Vec<u8>) -> Self {
        let ends = text.iter().enumerate().filter(|&(_, &b)| b == b'\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(ends).collect();
        Self { text, starts }
    }

    fn line(&self, line: u32) -> Option<String> {
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        let start = *self.starts.get(index)?;
        let rest = &self.text[start..];
        let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        let text = String::from_utf8_lossy(&rest[..end]);
        Some(text.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_one() {
        let file = SourceFile::new(b"one\r\n  two\n\nfour".to_vec());
        assert_eq!(file.line(0), None);
        assert_eq!(file.line(1).as_deref(), Some("one"));
        assert_eq!(file.line(2).as_deref(), Some("  two"));
        assert_eq!(file.line(3).as_deref(), Some(""));
        assert_eq!(file.line(4).as_deref(), Some("four"));
        assert_eq!(file.line(5), None);
    }
}
