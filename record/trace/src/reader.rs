//! Reads a trace directory. Believes nothing: lengths, checksums and references are checked before they are used.

mod events;

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use guest::{EventId, FileId, GuestRange, PieceId};

use crate::dir::STOPPED;
use crate::event::{Data, Event, PayloadRef, PieceRef};
use crate::files::{KeptFile, KeptState};
use crate::frame::{FrameError, FrameReader, Head, Kind, Stream};
use crate::header::{Header, Summary, Trailer, Version};
use crate::pieces::KeptPiece;
use crate::validate::{Bounds, Sequence, Violation};
use crate::writer::Footprint;

pub use events::Events;

/// Uncompressed payload frames kept for the next read.
const CACHED_FRAMES: usize = 16;

/// Why a directory could not be opened as a trace.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It has no event stream.
    #[error("{dir} is not a recording")]
    NotATrace {
        /// The directory.
        dir: PathBuf,
    },
    /// The recorder was killed before it wrote the header.
    #[error("{dir} holds nothing: its recorder was killed at once")]
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// A stream cannot be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Why part of a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A frame cannot be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// An event cannot be decoded.
    #[error("event {event} cannot be decoded")]
    Decode {
        /// Which.
        event: EventId,
    },
    /// An event breaks an invariant of the format.
    #[error("invalid event")]
    Invalid(#[from] Violation),
    /// There is no such event.
    #[error("the recording has no event {event}")]
    NoEvent {
        /// Which.
        event: EventId,
    },
    /// There is no such payload.
    #[error("the recording has no payload {offset}+{len}")]
    NoPayload {
        /// Offset in the uncompressed payload stream.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// There is no such kept file.
    #[error("the recording keeps no file {file}")]
    NoFile {
        /// Which.
        file: FileId,
    },
    /// There is no such kept piece.
    #[error("the recording keeps no piece {piece}")]
    NoPiece {
        /// Which.
        piece: PieceId,
    },
    /// A kept file cannot be read.
    #[error("cannot read kept file {path}")]
    File {
        /// Where it lies.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A kept file does not hold what was kept.
    #[error("kept file {path} was changed since it was kept")]
    Changed {
        /// Where it lies.
        path: PathBuf,
    },
}

struct Inner {
    dir: PathBuf,
    header: Header,
    summary: Option<Summary>,
    /// From the trailer; `None` when the recording is incomplete.
    footprint: Option<Vec<GuestRange>>,
    events: FrameReader,
    event_frames: Vec<Head>,
    event_count: u64,
    files: Vec<KeptFile>,
    pieces: Vec<KeptPiece>,
    piece_lens: Vec<u32>,
    payload: Option<FrameReader>,
    payload_frames: Vec<Head>,
    payload_len: u64,
    cache: Mutex<VecDeque<(usize, Arc<Vec<u8>>)>>,
    /// Kept files whose contents are known to be right.
    verified: Mutex<HashSet<FileId>>,
    /// Likewise of kept pieces.
    verified_pieces: Mutex<HashSet<PieceId>>,
}

/// An open trace. Cheap to clone; clones share everything and can be used from several threads.
#[derive(Clone)]
pub struct Trace(Arc<Inner>);

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("dir", &self.0.dir)
            .field("events", &self.0.event_count)
            .finish_non_exhaustive()
    }
}

impl Trace {
    /// Opens the trace in `dir`: reads the header, the frame heads and the manifest. An incomplete trace opens with
    /// everything up to its last complete frame.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join("events");
        match fs::metadata(&path) {
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                return Err(FrameError::Io { path, source }.into());
            }
            Ok(found) if found.is_file() => {}
            _ => return Err(OpenError::NotATrace { dir: dir.to_owned() }),
        }
        let empty = || OpenError::Empty { dir: dir.to_owned() };
        let events = FrameReader::open(&path, Stream::Events)?.ok_or_else(empty)?;
        let (heads, torn) = events.scan()?;
        let first = heads.first().ok_or_else(empty)?;
        let layout = Layout::read(&events, &heads, torn)?;
        let header = read_header(&events, first)?;
        let (payload, payload_frames, payload_len) = open_payload(&dir.join("payload"))?;
        let (summary, footprint) = match layout.trailer {
            Some(Trailer { summary, footprint }) => (Some(summary), Some(footprint)),
            None => (None, None),
        };
        Ok(Self(Arc::new(Inner {
            dir: dir.to_owned(),
            header,
            summary,
            footprint,
            events,
            event_frames: layout.frames,
            event_count: layout.count,
            files: layout.files,
            piece_lens: layout.pieces.iter().map(|piece| piece.len).collect(),
            pieces: layout.pieces,
            payload,
            payload_frames,
            payload_len,
            cache: Mutex::new(VecDeque::new()),
            verified: Mutex::new(HashSet::new()),
            verified_pieces: Mutex::new(HashSet::new()),
        })))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// What was recorded, where.
    pub fn header(&self) -> &Header {
        &self.0.header
    }

    /// Random identity of the recording.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.header.uuid
    }

    /// Why the recorder gave up before the end, where it did and could note it.
    pub fn stopped(&self) -> Option<String> {
        const LONGEST: u64 = 4096;
        let file = File::open(self.0.dir.join(STOPPED)).ok().filter(|_| !self.is_complete())?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, LONGEST), &mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).replace(char::is_control, " "))
    }

    /// How it ended; `None` when the recorder was killed or gave up.
    pub fn summary(&self) -> Option<&Summary> {
        self.0.summary.as_ref()
    }

    /// Whether the recorder finished its work.
    pub fn is_complete(&self) -> bool {
        self.0.summary.is_some()
    }

    /// Number of events that can be read.
    pub fn len(&self) -> u64 {
        self.0.event_count
    }

    /// Whether no event can be read.
    pub fn is_empty(&self) -> bool {
        self.0.event_count == 0
    }

    /// Bytes of the event and payload streams on disk.
    pub fn stream_bytes(&self) -> u64 {
        let end = |heads: &[Head]| heads.last().map_or(0, Head::end);
        end(&self.0.event_frames) + end(&self.0.payload_frames)
    }

    /// All events from the first on. Each is checked against those before it.
    pub fn events(&self) -> Events {
        Events::new(self.clone(), EventId(0), Some(Sequence::default()))
    }

    /// The events from `first` on. Each is checked by itself only.
    pub fn events_from(&self, first: EventId) -> Events {
        let sequence = (first == EventId(0)).then(Sequence::default);
        Events::new(self.clone(), first, sequence)
    }

    /// One event. Decodes its frame: for many, iterate.
    pub fn event(&self, event: EventId) -> Result<Event, ReadError> {
        match self.events_from(event).next() {
            Some(found) => found.map(|(_, event)| event),
            None => Err(ReadError::NoEvent { event }),
        }
    }

    /// The bytes that `data` stands for.
    pub fn data<'a>(&self, data: &'a Data) -> Result<Cow<'a, [u8]>, ReadError> {
        match data {
            Data::Inline(bytes) => Ok(Cow::Borrowed(bytes)),
            Data::Payload(at) => self.0.payload(*at).map(Cow::Owned),
            Data::Pieces(parts) => {
                let mut out = Vec::with_capacity(data.len());
                parts.iter().try_for_each(|part| Inner::part(self, *part, &mut out))?;
                Ok(Cow::Owned(out))
            }
        }
    }

    /// The kept files, in order of [`FileId`].
    pub fn files(&self) -> &[KeptFile] {
        &self.0.files
    }

    /// One kept file's record.
    pub fn file(&self, file: FileId) -> Result<&KeptFile, ReadError> {
        self.0.files.get(file.index()).ok_or(ReadError::NoFile { file })
    }

    /// Where the contents of a kept file lie.
    pub fn file_path(&self, file: FileId) -> Result<PathBuf, ReadError> {
        self.file(file).map(|kept| self.0.dir.join("files").join(kept.hex()))
    }

    /// As [`Trace::file_path`], once the contents are known to be what was kept: read and hashed at the first call.
    pub fn verified_file_path(&self, file: FileId) -> Result<PathBuf, ReadError> {
        let path = self.file_path(file)?;
        let verified = || self.0.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if !verified().contains(&file) {
            let (kept, version) = (self.file(file)?, self.header().version);
            let state = File::open(&path).and_then(|open| kept.state(&open, version));
            match state.map_err(|source| ReadError::File { path: path.clone(), source })? {
                KeptState::Whole => {}
                KeptState::OtherSize(_) | KeptState::Changed => return Err(ReadError::Changed { path }),
            }
            verified().insert(file);
        }
        Ok(path)
    }

    /// The kept pieces of what calls read of files, in order of [`PieceId`].
    pub fn pieces(&self) -> &[KeptPiece] {
        &self.0.pieces
    }

    /// Where the contents of a kept piece lie.
    pub fn piece_path(&self, piece: PieceId) -> Result<PathBuf, ReadError> {
        let kept = self.0.pieces.get(piece.index()).ok_or(ReadError::NoPiece { piece })?;
        Ok(self.0.dir.join("files").join(kept.hex()))
    }

    /// The contents of a kept piece, known to be what was kept.
    pub(crate) fn piece(&self, piece: PieceId) -> Result<Vec<u8>, ReadError> {
        let path = self.piece_path(piece)?;
        let bytes = fs::read(&path).map_err(|source| ReadError::File { path: path.clone(), source })?;
        let kept = self.0.pieces[piece.index()];
        if bytes.len() != kept.len as usize || *blake3::hash(&bytes).as_bytes() != kept.hash {
            return Err(ReadError::Changed { path });
        }
        Ok(bytes)
    }

    /// Every range that was ever mapped in any space, merged, in order. Reads all events when the recording is
    /// incomplete.
    pub fn footprint(&self) -> Result<Vec<GuestRange>, ReadError> {
        if let Some(ranges) = &self.0.footprint {
            return Ok(ranges.clone());
        }
        let mut footprint = Footprint::default();
        for event in self.events() {
            footprint.add_event(&event?.1);
        }
        Ok(footprint.ranges())
    }

    fn bounds(&self) -> Bounds<'_> {
        let files = self.0.files.len() as u32;
        Bounds { files, payload: self.0.payload_len, pieces: &self.0.piece_lens }
    }
}

/// The frames of an event stream, in order and complete.
#[derive(Default)]
struct Layout {
    frames: Vec<Head>,
    count: u64,
    files: Vec<KeptFile>,
    pieces: Vec<KeptPiece>,
    trailer: Option<Trailer>,
}

impl Layout {
    fn read(events: &FrameReader, heads: &[Head], torn: u64) -> Result<Self, FrameError> {
        let mut layout = Self::default();
        for (i, head) in heads.iter().enumerate() {
            let bad = |what| events.corrupt(head.start(), what);
            let decode = |_| bad("a record cannot be decoded");
            if (i == 0) != (head.kind == Kind::Header) || layout.trailer.is_some() {
                return Err(bad("frames are out of order"));
            }
            match head.kind {
                Kind::Header => {}
                Kind::Manifest => {
                    let more: Vec<KeptFile> = postcard::from_bytes(&events.body(head)?).map_err(decode)?;
                    if head.first != layout.files.len() as u64 || head.count as usize != more.len() {
                        return Err(bad("kept files are out of order"));
                    }
                    layout.files.extend(more);
                }
                Kind::Pieces => {
                    let piece: KeptPiece = postcard::from_bytes(&events.body(head)?).map_err(decode)?;
                    if head.first != layout.pieces.len() as u64 || head.count != 1 || piece.len == 0 {
                        return Err(bad("kept pieces are out of order"));
                    }
                    layout.pieces.push(piece);
                }
                Kind::Events => {
                    if head.first != layout.count || head.count == 0 {
                        return Err(bad("events are out of order"));
                    }
                    layout.count += u64::from(head.count);
                    layout.frames.push(*head);
                }
                Kind::Summary => {
                    let trailer: Trailer = postcard::from_bytes(&events.body(head)?).map_err(decode)?;
                    if head.first != layout.count || trailer.summary.events != layout.count {
                        return Err(bad("events are missing"));
                    }
                    layout.trailer = Some(trailer);
                }
                Kind::Payload | Kind::Ticks => return Err(bad("a frame of another stream")),
            }
        }
        if layout.trailer.is_some() && torn != 0 {
            return Err(events.corrupt(heads.last().map_or(0, Head::end), "bytes follow the end"));
        }
        Ok(layout)
    }
}

fn read_header(events: &FrameReader, head: &Head) -> Result<Header, FrameError> {
    let header: Header = postcard::from_bytes(&events.body(head)?)
        .map_err(|_| events.corrupt(head.start(), "the header cannot be decoded"))?;
    if header.version.major != Version::CURRENT.major {
        return Err(FrameError::Version { path: events.path().to_owned(), found: header.version });
    }
    Ok(header)
}

type Payload = (Option<FrameReader>, Vec<Head>, u64);

fn open_payload(path: &Path) -> Result<Payload, FrameError> {
    let Some(reader) = FrameReader::open(path, Stream::Payload)? else { return Ok((None, Vec::new(), 0)) };
    // A cut-off frame matters only to the events that refer to it.
    let (heads, _torn) = reader.scan()?;
    let mut len = 0;
    for head in &heads {
        if head.kind != Kind::Payload || head.first != len || head.count == 0 {
            return Err(reader.corrupt(head.start(), "payload frames are out of order"));
        }
        len += u64::from(head.count);
    }
    Ok((Some(reader), heads, len))
}

impl Inner {
    /// Appends a part of a kept piece, which is read as a whole the first time, to know that it is what was kept.
    fn part(trace: &Trace, at: PieceRef, out: &mut Vec<u8>) -> Result<(), ReadError> {
        let (from, len) = (at.offset as usize, at.len as usize);
        let missing = ReadError::NoPiece { piece: at.piece };
        let verified = || trace.0.verified_pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if !verified().contains(&at.piece) {
            let whole = trace.piece(at.piece)?;
            let part = from.checked_add(len).and_then(|end| whole.get(from..end)).ok_or(missing)?;
            out.extend_from_slice(part);
            verified().insert(at.piece);
            return Ok(());
        }
        let path = trace.piece_path(at.piece)?;
        let start = out.len();
        out.resize(start + len, 0);
        File::open(&path)
            .and_then(|file| file.read_exact_at(&mut out[start..], u64::from(at.offset)))
            .map_err(|source| ReadError::File { path, source })
    }

    fn payload(&self, at: PayloadRef) -> Result<Vec<u8>, ReadError> {
        let missing = ReadError::NoPayload { offset: at.offset, len: at.len };
        let end = at.offset.checked_add(u64::from(at.len)).filter(|&end| end <= self.payload_len);
        let Some(end) = end else { return Err(missing) };
        let mut out = Vec::with_capacity(at.len as usize);
        let mut index = self.payload_frames.partition_point(|head| head.first <= at.offset).saturating_sub(1);
        while at.offset + (out.len() as u64) < end {
            let frame = self.payload_frame(index)?;
            let from = (at.offset + out.len() as u64 - self.payload_frames[index].first) as usize;
            let to = frame.len().min(from + at.len as usize - out.len());
            out.extend_from_slice(&frame[from..to]);
            index += 1;
        }
        Ok(out)
    }

    /// An uncompressed payload frame, from the cache where it is there.
    fn payload_frame(&self, index: usize) -> Result<Arc<Vec<u8>>, ReadError> {
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, frame)) = lock().iter().find(|(i, _)| *i == index) {
            return Ok(frame.clone());
        }
        let head = &self.payload_frames[index];
        let reader = self.payload.as_ref().expect("frames come from a reader");
        let body = reader.body(head)?;
        if body.len() != head.count as usize {
            return Err(reader.corrupt(head.start(), "a payload frame is not as long as it says").into());
        }
        let body = Arc::new(body);
        let mut cache = lock();
        if cache.len() >= CACHED_FRAMES {
            cache.pop_front();
        }
        cache.push_back((index, body.clone()));
        Ok(body)
    }
}
