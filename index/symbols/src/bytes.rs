//! File contents as shared byte slices: mapped where they lie in the file as they are, on the heap where they had to be
//! decompressed. Knows nothing of what they mean.
#![expect(unsafe_code, reason = "memory-maps files")]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// A part of a file. Cloning shares it; the bytes stay where they are for as long as a clone lives.
#[derive(Clone)]
pub(crate) struct Bytes {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    Mapped(Mmap),
    Heap(Vec<u8>),
}

impl Bytes {
    /// The whole of the file at `path`.
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self::heap(Vec::new()));
        }
        // SAFETY: a mapping must not change or shrink while it is used. Files of a trace are never modified after it was
        // recorded, and debug files are replaced, not rewritten, by package managers.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { range: 0..map.len(), owner: Arc::new(Owner::Mapped(map)) })
    }

    /// Bytes that are no part of a file as they are.
    pub(crate) fn heap(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), owner: Arc::new(Owner::Heap(bytes)) }
    }

    /// The part `offset .. offset + len` of these, `None` where they end before.
    pub(crate) fn part(&self, offset: u64, len: u64) -> Option<Self> {
        let start = self.range.start.checked_add(usize::try_from(offset).ok()?)?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        (end <= self.range.end).then(|| Self { owner: self.owner.clone(), range: start..end })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let whole: &[u8] = match &*self.owner {
            Owner::Mapped(map) => map,
            Owner::Heap(bytes) => bytes,
        };
        &whole[self.range.clone()]
    }
}
