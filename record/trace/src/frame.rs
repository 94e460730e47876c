//! Framing: how a stream is cut into compressed, checksummed frames. Knows nothing of what frames hold.
//!
//! A file is a 16-byte prefix (magic, stream kind, version, CRC) and then frames. A frame is a 40-byte head (its own CRC
//! last) and a zstd body with a CRC. All integers are little-endian. A writer only appends, so after a kill a file ends
//! somewhere inside its last frame; everything before that frame is good.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use zstd::zstd_safe::{CParameter, compress_bound};

use crate::header::Version;

/// Bytes of the file prefix.
pub(crate) const PREFIX_LEN: u64 = 16;
/// Bytes of a frame head.
pub(crate) const HEAD_LEN: u64 = 40;
/// The largest uncompressed frame; a longer one is corrupt.
pub(crate) const MAX_RAW: u32 = 64 << 20;

const MAGIC: [u8; 8] = *b"BACKSTRY";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"BSfr");

/// Which stream a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// Events, the header, the manifest, the summary.
    Events = 1,
    /// Long data.
    Payload = 2,
    /// Retired counts learned by a replay.
    Ticks = 3,
}

/// How hard a body is packed.
#[derive(Clone, Copy)]
struct Effort {
    /// zstd's level.
    level: i32,
    /// The shortest match that it looks for; 0: the level's own.
    shortest: u32,
    /// The logarithm of the entries in the tables in which it looks for them; 0: the level's own.
    tables: u32,
}

impl Stream {
    fn effort(self, len: usize) -> Effort {
        /// The longest body that is short: recordings with no longer ones are over before more effort pays, and tables of zstd's own size take
        /// longer to clear than to use.
        const SHORT: usize = 32 << 10;
        let long = len > SHORT;
        let tables = if long { 0 } else { 11 };
        match self {
            // A program may read as fast as this packs, and what it reads seldom gets much smaller by more effort.
            Self::Payload => Effort { level: if long { 1 } else { -1 }, shortest: 7, tables },
            Self::Events | Self::Ticks => Effort { level: if long { 3 } else { 1 }, shortest: 0, tables },
        }
    }
}

/// What packs frames: one for all streams that are written in turns.
#[derive(Clone)]
pub(crate) struct Zip(Arc<Mutex<zstd::bulk::Compressor<'static>>>);

impl Zip {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(zstd::bulk::Compressor::default()))))
    }

    /// Packs bytes; the length of what they become.
    fn pack(&self, effort: Effort, raw: &[u8], into: &mut [u8]) -> io::Result<usize> {
        let mut zip = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        zip.set_parameter(CParameter::CompressionLevel(effort.level))?;
        zip.set_parameter(CParameter::MinMatch(effort.shortest))?;
        zip.set_parameter(CParameter::HashLog(effort.tables))?;
        zip.set_parameter(CParameter::ChainLog(effort.tables))?;
        zip.compress_to_buffer(raw, into)
    }
}

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The header: the first frame of `events` and of sidecars.
    Header = 0,
    /// Kept files, each before the first event that names it.
    Manifest = 1,
    /// Events.
    Events = 2,
    /// The end of a complete stream.
    Summary = 3,
    /// Payload bytes.
    Payload = 4,
    /// Retired counts.
    Ticks = 5,
    /// Kept pieces of files, each before the first event that refers to it. Since version 1.3.
    Pieces = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Header,
            1 => Self::Manifest,
            2 => Self::Events,
            3 => Self::Summary,
            4 => Self::Payload,
            5 => Self::Ticks,
            6 => Self::Pieces,
            _ => return None,
        })
    }
}

/// Why a framed file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The file could not be read.
    #[error("cannot read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not begin as this format does.
    #[error("{path} is not a backstory file of this kind")]
    Magic {
        /// The file.
        path: PathBuf,
    },
    /// It was written by an incompatible version.
    #[error("{path} has format version {}.{}, this build reads {}", found.major, found.minor, Version::CURRENT.major)]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
    /// Bytes are not what was written.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where, in bytes from its start.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// The head of a frame and where its body lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// Number of items (events, bytes, counts).
    pub(crate) count: u32,
    /// Position of the first item in its stream.
    pub(crate) first: u64,
    raw_len: u32,
    len: u32,
    crc: u32,
    /// Offset of the body in the file.
    body: u64,
}

impl Head {
    /// Offset of the first byte past the frame.
    pub(crate) fn end(&self) -> u64 {
        self.body + u64::from(self.len)
    }

    /// Offset of the frame's first byte.
    pub(crate) fn start(&self) -> u64 {
        self.body - HEAD_LEN
    }

    fn encode(&self) -> [u8; HEAD_LEN as usize] {
        let mut out = [0; HEAD_LEN as usize];
        out[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        out[4] = self.kind as u8;
        out[8..12].copy_from_slice(&self.count.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw_len.to_le_bytes());
        out[16..20].copy_from_slice(&self.len.to_le_bytes());
        out[20..24].copy_from_slice(&self.crc.to_le_bytes());
        out[24..32].copy_from_slice(&self.first.to_le_bytes());
        out[32..36].copy_from_slice(&(self.start() as u32).to_le_bytes());
        let crc = crc32fast::hash(&out[..36]);
        out[36..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HEAD_LEN as usize], start: u64) -> Result<Self, &'static str> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(36) != crc32fast::hash(&bytes[..36]) {
            return Err("a frame head does not match its checksum");
        }
        if word(0) != FRAME_MAGIC || bytes[5..8] != [0; 3] || word(32) != start as u32 {
            return Err("not a frame head");
        }
        let kind = Kind::from_byte(bytes[4]).ok_or("a frame of unknown kind")?;
        if word(12) > MAX_RAW || word(16) > MAX_RAW + (MAX_RAW >> 4) {
            return Err("a frame is too long");
        }
        let first = u64::from(word(24)) | u64::from(word(28)) << 32;
        Ok(Self {
            kind,
            count: word(8),
            first,
            raw_len: word(12),
            len: word(16),
            crc: word(20),
            body: start + HEAD_LEN,
        })
    }
}

/// Appends frames to a file.
pub(crate) struct FrameWriter {
    file: File,
    path: PathBuf,
    at: u64,
    stream: Stream,
    zip: Zip,
    /// The frame that is being made, then what is left of longer ones.
    out: Vec<u8>,
}

impl FrameWriter {
    /// Creates `path`, which must not exist, and writes its prefix.
    pub(crate) fn create(path: &Path, stream: Stream, zip: Zip) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        file.write_all_at(&prefix(stream, Version::CURRENT), 0)?;
        Ok(Self { file, path: path.to_owned(), at: PREFIX_LEN, stream, zip, out: Vec::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends one frame in one write. After an error the frame may be cut off but nothing before it is harmed, and the
    /// next frame replaces it.
    pub(crate) fn frame(&mut self, kind: Kind, first: u64, count: u32, raw: &[u8]) -> io::Result<()> {
        let body = self.at + HEAD_LEN;
        let raw_len = u32::try_from(raw.len()).ok().filter(|&len| len <= MAX_RAW);
        let raw_len =
            raw_len.ok_or_else(|| io::Error::other("a frame would be longer than the format allows"))?;
        let room = HEAD_LEN as usize + compress_bound(raw.len());
        if self.out.len() < room {
            self.out.resize(room, 0);
        }
        let (head, packed) = self.out.split_at_mut(HEAD_LEN as usize);
        let len = self.zip.pack(self.stream.effort(raw.len()), raw, packed)?;
        let crc = crc32fast::hash(&packed[..len]);
        head.copy_from_slice(&Head { kind, count, first, raw_len, len: len as u32, crc, body }.encode());
        self.file.write_all_at(&self.out[..HEAD_LEN as usize + len], self.at)?;
        self.at = body + len as u64;
        Ok(())
    }

    /// Cuts off what a failed write left behind the last frame, which gives a full disk some room.
    pub(crate) fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.at)
    }
}

fn prefix(stream: Stream, version: Version) -> [u8; PREFIX_LEN as usize] {
    let mut out = [0; PREFIX_LEN as usize];
    out[..8].copy_from_slice(&MAGIC);
    out[8..10].copy_from_slice(&version.major.to_le_bytes());
    out[10..12].copy_from_slice(&(version.minor & 0xff | (stream as u16) << 8).to_le_bytes());
    let crc = crc32fast::hash(&out[..12]);
    out[12..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Whether a file begins as all of this format do.
pub(crate) fn begins_as_ours(path: &Path) -> bool {
    let mut found = [0; MAGIC.len()];
    File::open(path).is_ok_and(|file| file.read_exact_at(&mut found, 0).is_ok()) && found == MAGIC
}

/// Reads frames of a file. Can be shared between threads.
pub(crate) struct FrameReader {
    file: File,
    path: PathBuf,
    len: u64,
}

impl FrameReader {
    /// Opens `path` and checks its prefix. `Ok(None)` when the file ends within its prefix (a writer was killed at once).
    pub(crate) fn open(path: &Path, stream: Stream) -> Result<Option<Self>, FrameError> {
        let io = |source| FrameError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut found = [0; PREFIX_LEN as usize];
        let have = len.min(PREFIX_LEN) as usize;
        file.read_exact_at(&mut found[..have], 0).map_err(io)?;
        let magic = have.min(MAGIC.len());
        if found[..magic] != MAGIC[..magic] {
            return Err(FrameError::Magic { path: path.to_owned() });
        }
        if len < PREFIX_LEN {
            return Ok(None);
        }
        if found[12..] != crc32fast::hash(&found[..12]).to_le_bytes() {
            let what = "the file prefix does not match its checksum";
            return Err(FrameError::Corrupt { path: path.to_owned(), offset: 0, what });
        }
        let version =
            Version { major: u16::from_le_bytes([found[8], found[9]]), minor: u16::from(found[10]) };
        if version.major != Version::CURRENT.major {
            return Err(FrameError::Version { path: path.to_owned(), found: version });
        }
        if found[11] != stream as u8 {
            return Err(FrameError::Magic { path: path.to_owned() });
        }
        Ok(Some(Self { file, path: path.to_owned(), len }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The heads of all complete frames, and the number of bytes of an incomplete one at the end.
    pub(crate) fn scan(&self) -> Result<(Vec<Head>, u64), FrameError> {
        let mut heads = Vec::new();
        let mut at = PREFIX_LEN;
        while self.len - at >= HEAD_LEN {
            let mut bytes = [0; HEAD_LEN as usize];
            self.file.read_exact_at(&mut bytes, at).map_err(|source| self.io(source))?;
            let head = Head::decode(&bytes, at).map_err(|what| self.corrupt(at, what))?;
            if head.end() > self.len {
                break;
            }
            at = head.end();
            heads.push(head);
        }
        Ok((heads, self.len - at))
    }

    /// The uncompressed body of a frame.
    pub(crate) fn body(&self, head: &Head) -> Result<Vec<u8>, FrameError> {
        let mut packed = vec![0; head.len as usize];
        self.file.read_exact_at(&mut packed, head.body).map_err(|source| self.io(source))?;
        if crc32fast::hash(&packed) != head.crc {
            return Err(self.corrupt(head.start(), "a frame does not match its checksum"));
        }
        let raw = zstd::bulk::decompress(&packed, head.raw_len as usize)
            .map_err(|_| self.corrupt(head.start(), "a frame cannot be decompressed"))?;
        if raw.len() != head.raw_len as usize {
            return Err(self.corrupt(head.start(), "a frame is shorter than it says"));
        }
        Ok(raw)
    }

    pub(crate) fn corrupt(&self, offset: u64, what: &'static str) -> FrameError {
        FrameError::Corrupt { path: self.path.clone(), offset, what }
    }

    fn io(&self, source: io::Error) -> FrameError {
        FrameError::Io { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip_and_know_their_place() {
        let head =
            Head { kind: Kind::Payload, count: 7, first: 1 << 40, raw_len: 9, len: 20, crc: 5, body: 1040 };
        assert_eq!(Head::decode(&head.encode(), 1000), Ok(head));
        assert!(Head::decode(&head.encode(), 1001).is_err());
    }
}
