//! Kept pieces: what calls read of files, written once as it was read and referred to by every call that reads the same.
//!
//! Bytes that a call reads are compared with what was kept of that place in that file: equal ones are referred to, others are
//! appended to a piece. So it does not matter what happens to the file, or whether it is the file it is taken for. A piece ends where
//! the file's offset is a multiple of its length, so that reading a file in order makes the same pieces in every recording; they
//! are shared by their hashes as kept files are.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use guest::PieceId;
use serde::{Deserialize, Serialize};

use crate::event::PieceRef;
use crate::files::Shelf;
use crate::packer::Packer;
use crate::writer::WriteError;

/// The most bytes of a piece.
const PIECE: usize = 1 << 20;
/// Bytes that must be read of a file, since everything was last written, before what is new is kept in pieces: fewer are not worth a file.
const WORTH: u64 = 256 << 10;
/// Pieces that may be incomplete at once.
const OPEN: usize = 8;
/// Places in files that are remembered, all files together.
const REMEMBERED: usize = 1 << 16;
/// Pieces that are open to be compared with.
const AT_HAND: usize = 16;

/// A kept piece, in order of [`PieceId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptPiece {
    /// BLAKE3 of the contents, and the name under `files/`.
    pub hash: [u8; 32],
    /// Length in bytes, not 0.
    pub len: u32,
}

impl KeptPiece {
    /// The hash as 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }
}

/// Which file bytes were read from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceFile {
    /// Its device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
}

/// Where in a file the bytes of a piece may lie, in one run.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) file: File,
    pub(crate) offset: u64,
}

/// The hashes of the pieces that were written, by id.
pub(crate) type Written = Arc<Mutex<Vec<[u8; 32]>>>;

/// Pieces of one trace.
pub(crate) struct Pieces {
    folder: PathBuf,
    sources: HashMap<SourceFile, Source>,
    /// Number of places in all sources.
    places: usize,
    /// Those not handed over yet, in order of their ids.
    open: VecDeque<Open>,
    lens: Vec<u32>,
    written: Written,
    at_hand: VecDeque<(PieceId, File)>,
    /// Whether files share their blocks with pieces, as far as is known.
    shares_blocks: Arc<AtomicBool>,
}

/// What is known of a file.
#[derive(Default)]
struct Source {
    /// Bytes read since everything was written.
    recent: u64,
    /// The piece that what is new is appended to.
    open: Option<PieceId>,
    places: Places,
}

/// What was kept of a file: disjoint runs by their offsets.
#[derive(Default)]
struct Places(BTreeMap<u64, Place>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    piece: PieceId,
    /// Where the run begins in the piece.
    at: u32,
    len: u32,
}

struct Open {
    id: PieceId,
    bytes: Vec<u8>,
    origin: Option<Origin>,
    complete: bool,
}

/// A part of what was read, and where it was kept before, if it was.
type Part = (usize, Option<PieceRef>);

impl Places {
    /// What is known of a range, in order: lengths that add up to `len`.
    fn parts(&self, offset: u64, len: usize) -> Vec<Part> {
        let end = offset + len as u64;
        let first = self.0.range(..=offset).next_back().map_or(offset, |(&start, _)| start);
        let mut parts = Vec::new();
        let mut at = offset;
        for (&start, place) in self.0.range(first..end) {
            let stop = end.min(start + u64::from(place.len));
            if stop <= at {
                continue;
            }
            if start > at {
                parts.push(((start - at) as usize, None));
                at = start;
            }
            let len = (stop - at) as u32;
            let part = PieceRef { piece: place.piece, offset: place.at + (at - start) as u32, len };
            parts.push((len as usize, Some(part)));
            at = stop;
        }
        if at < end {
            parts.push(((end - at) as usize, None));
        }
        parts
    }

    /// Forgets a range.
    fn cut(&mut self, offset: u64, len: u32) {
        let end = offset + u64::from(len);
        let first = self.0.range(..=offset).next_back().map_or(offset, |(&start, _)| start);
        let met: Vec<(u64, Place)> =
            self.0.range(first..end).map(|(&start, &place)| (start, place)).collect();
        for (start, place) in met {
            let stop = start + u64::from(place.len);
            if stop <= offset {
                continue;
            }
            self.0.remove(&start);
            if start < offset {
                self.0.insert(start, Place { len: (offset - start) as u32, ..place });
            }
            if stop > end {
                let skip = (end - start) as u32;
                self.0.insert(end, Place { at: place.at + skip, len: place.len - skip, ..place });
            }
        }
    }

    /// Notes what a range holds now.
    fn note(&mut self, offset: u64, place: Place) {
        self.cut(offset, place.len);
        if let Some((&start, last)) = self.0.range_mut(..offset).next_back()
            && start + u64::from(last.len) == offset
            && (last.piece, last.at + last.len) == (place.piece, place.at)
        {
            last.len += place.len;
            return;
        }
        self.0.insert(offset, place);
    }
}

impl Pieces {
    /// None yet. They will lie on `shelf`, and their hashes in `written` once they do.
    pub(crate) fn new(shelf: &Shelf, written: Written) -> Self {
        Self {
            folder: shelf.folder().to_owned(),
            sources: HashMap::new(),
            places: 0,
            open: VecDeque::new(),
            lens: Vec::new(),
            written,
            at_hand: VecDeque::new(),
            shares_blocks: Arc::clone(shelf.shares_blocks()),
        }
    }

    /// The lengths of the pieces so far, by id.
    pub(crate) fn lens(&self) -> &[u32] {
        &self.lens
    }

    /// Where bytes are kept that a call read of a file; `None` where they should go into the payload stream. `open` opens the file.
    pub(crate) fn refer(
        &mut self,
        packer: &Packer,
        (file, open): (SourceFile, &dyn Fn() -> Option<File>),
        offset: u64,
        bytes: &[u8],
    ) -> Result<Option<Vec<PieceRef>>, WriteError> {
        let Some(_) = offset.checked_add(bytes.len() as u64) else { return Ok(None) };
        let source = self.sources.entry(file).or_default();
        source.recent += bytes.len() as u64;
        let worth = source.recent >= WORTH;
        let mut parts = source.places.parts(offset, bytes.len());
        let mut from = 0;
        for (len, known) in &mut parts {
            if let Some(part) = known
                && !self.holds(packer, *part, &bytes[from..from + *len])?
            {
                *known = None;
            }
            if known.is_none() && !worth {
                return Ok(None);
            }
            from += *len;
        }
        let (mut refs, mut from) = (Vec::new(), 0);
        for (len, known) in parts {
            match known {
                Some(part) => push(&mut refs, part),
                None => {
                    let at = offset + from as u64;
                    self.append(packer, (file, open), (at, &bytes[from..from + len]), &mut refs)?;
                }
            }
            from += len;
        }
        Ok(Some(refs))
    }

    /// Whether a part of a piece is these bytes.
    fn holds(&mut self, packer: &Packer, part: PieceRef, bytes: &[u8]) -> Result<bool, WriteError> {
        if let Some(open) = self.open.iter().find(|open| open.id == part.piece) {
            return Ok(open.bytes[part.offset as usize..][..part.len as usize] == *bytes);
        }
        let written = |all: &Written| {
            all.lock().unwrap_or_else(PoisonError::into_inner).get(part.piece.index()).copied()
        };
        if written(&self.written).is_none() {
            packer.wait()?;
        }
        let Some(hash) = written(&self.written) else { return Ok(false) };
        // What cannot be read is no reason to stop: it is kept anew.
        Ok(self.read(part, hash).is_ok_and(|kept| kept == bytes))
    }

    fn read(&mut self, part: PieceRef, hash: [u8; 32]) -> io::Result<Vec<u8>> {
        let mut kept = vec![0; part.len as usize];
        if let Some((_, file)) = self.at_hand.iter().find(|(piece, _)| *piece == part.piece) {
            file.read_exact_at(&mut kept, u64::from(part.offset))?;
            return Ok(kept);
        }
        let file = File::open(self.folder.join(KeptPiece { hash, len: part.len }.hex()))?;
        file.read_exact_at(&mut kept, u64::from(part.offset))?;
        if self.at_hand.len() >= AT_HAND {
            self.at_hand.pop_front();
        }
        self.at_hand.push_back((part.piece, file));
        Ok(kept)
    }

    /// Appends bytes of a file to its pieces.
    fn append(
        &mut self,
        packer: &Packer,
        (file, open_file): (SourceFile, &dyn Fn() -> Option<File>),
        (mut offset, mut bytes): (u64, &[u8]),
        refs: &mut Vec<PieceRef>,
    ) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let piece = self.open_piece(packer, file)?;
            let Some(open) = self.open.iter_mut().find(|open| open.id == piece) else { return Ok(()) };
            let boundary = PIECE - (offset % PIECE as u64) as usize;
            let now = bytes.len().min(PIECE - open.bytes.len()).min(boundary);
            let part = PieceRef { piece, offset: open.bytes.len() as u32, len: now as u32 };
            if open.bytes.is_empty() && self.shares_blocks.load(Ordering::Relaxed) {
                open.origin = open_file().map(|file| Origin { file, offset });
            }
            open.origin.take_if(|origin| origin.offset + open.bytes.len() as u64 != offset);
            open.bytes.extend_from_slice(&bytes[..now]);
            open.complete = open.bytes.len() == PIECE || now == boundary;
            self.lens[piece.index()] += now as u32;
            let source = self.sources.entry(file).or_default();
            if open.complete {
                source.open = None;
            }
            if self.places < REMEMBERED {
                let before = source.places.0.len();
                source.places.note(offset, Place { piece, at: part.offset, len: part.len });
                self.places = (self.places + source.places.0.len()).saturating_sub(before);
            } else {
                source.places.cut(offset, part.len);
            }
            push(refs, part);
            (offset, bytes) = (offset + now as u64, &bytes[now..]);
            self.hand_over(packer)?;
        }
        Ok(())
    }

    /// The incomplete piece of a file, begun if there is none.
    fn open_piece(&mut self, packer: &Packer, file: SourceFile) -> Result<PieceId, WriteError> {
        if let Some(open) = self.sources.get(&file).and_then(|source| source.open) {
            return Ok(open);
        }
        if self.open.len() >= OPEN {
            self.complete(packer)?;
        }
        let id = PieceId(self.lens.len() as u32);
        self.lens.push(0);
        let mut bytes = packer.body();
        bytes.reserve_exact(PIECE);
        self.open.push_back(Open { id, bytes, origin: None, complete: false });
        self.sources.entry(file).or_default().open = Some(id);
        Ok(id)
    }

    /// Hands over everything to be written.
    pub(crate) fn push(&mut self, packer: &Packer) -> Result<(), WriteError> {
        self.complete(packer)?;
        self.sources.retain(|_, source| {
            source.recent = 0;
            !source.places.0.is_empty()
        });
        Ok(())
    }

    fn complete(&mut self, packer: &Packer) -> Result<(), WriteError> {
        if self.open.is_empty() {
            return Ok(());
        }
        self.open.iter_mut().for_each(|open| open.complete = true);
        self.sources.values_mut().for_each(|source| source.open = None);
        self.hand_over(packer)
    }

    /// Hands over the complete pieces that come before any incomplete one.
    fn hand_over(&mut self, packer: &Packer) -> Result<(), WriteError> {
        while self.open.front().is_some_and(|open| open.complete) {
            let Some(Open { id, bytes, origin, .. }) = self.open.pop_front() else { break };
            packer.keep(id, bytes, origin)?;
        }
        Ok(())
    }
}

/// Adds a part to others; one that continues the last is one with it.
fn push(parts: &mut Vec<PieceRef>, part: PieceRef) {
    match parts.last_mut() {
        Some(last) if (last.piece, last.offset + last.len) == (part.piece, part.offset) => {
            last.len += part.len
        }
        _ => parts.push(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_what_was_noted_last() {
        // By brute force: which piece and offset each byte of a small file has.
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut places = Places::default();
        let mut bytes = [None; 64];
        for round in 0..2000 {
            let offset = random(60);
            let len = 1 + random(64 - offset) as u32;
            if random(4) == 0 {
                places.cut(offset, len);
                bytes[offset as usize..][..len as usize].fill(None);
            } else {
                let place = Place { piece: PieceId(random(3) as u32), at: random(50) as u32, len };
                places.note(offset, place);
                for (i, byte) in bytes[offset as usize..][..len as usize].iter_mut().enumerate() {
                    *byte = Some((place.piece, place.at + i as u32));
                }
            }
            let (from, len) = (random(40), 1 + random(24) as usize);
            let mut found = Vec::new();
            for (len, known) in places.parts(from, len) {
                assert!(known.is_none_or(|part| part.len as usize == len));
                let at = |i| known.map(|part| (part.piece, part.offset + i));
                found.extend((0..len as u32).map(at));
            }
            assert_eq!(found, bytes[from as usize..][..len], "round {round}");
        }
    }
}
