//! Writes a trace directory. Checks every event before it is written; knows nothing of processes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use guest::{EventId, FileId, GuestRange, SpaceId, TaskId};

use crate::batch;
use crate::clock;
use crate::codec::{self, Batch, Context};
use crate::dir::STOPPED;
use crate::event::{Data, Event, Fact, MapOp, MemWrite, PayloadRef};
use crate::files::{KeepError, Keeper, KeptFile, Shelf};
use crate::frame::{FrameWriter, Kind, Stream, Zip};
use crate::header::{Header, Summary, Trailer};
use crate::packer::{Files, Frame, Packer};
use crate::pieces::{Pieces, SourceFile, Written};
use crate::validate::{Bounds, Problem, Sequence, Violation, check_alone};

/// Data longer than this lies in the payload stream.
const INLINE: usize = 64;
/// Uncompressed bytes at which a frame of events is written.
const EVENTS_FRAME: usize = 128 << 10;
/// Events at which a frame is written.
const EVENTS_COUNT: u32 = 8192;
/// Uncompressed bytes of a payload frame.
const PAYLOAD_FRAME: usize = 256 << 10;
/// Payload bytes after which the events that refer to them are handed over, too.
const PAYLOAD_AHEAD: u64 = 1 << 20;
/// The longest an event stays here while others come.
const PUSH_AFTER: Duration = Duration::from_secs(1);

/// Why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Something is there that is not an empty directory.
    #[error("{dir} exists and is not an empty folder")]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// A file or directory could not be written.
    #[error("cannot write {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The caller's event breaks an invariant of the format; it was not written.
    #[error("refused to write an invalid event")]
    Invalid(#[from] Violation),
    /// An event or the header cannot be encoded.
    #[error("cannot encode a record")]
    Encode(#[from] postcard::Error),
    /// A file could not be kept.
    #[error(transparent)]
    Keep(#[from] KeepError),
}

/// A trace being written.
///
/// Frames are handed to a thread that packs and writes them when they are full, on [`TraceWriter::push`], and when an event comes a
/// second or a mebibyte of payload or more after the last push. The payload an event refers to is always written before the event. A recorder that is
/// about to wait for long should push. What cannot be written is an error of a later call.
pub struct TraceWriter {
    dir: PathBuf,
    packer: Packer,
    keeper: Keeper,
    pieces: Pieces,
    /// Kept files that no manifest frame names yet.
    unnamed: Vec<KeptFile>,
    sequence: Sequence,
    footprint: Footprint,
    context: Context,
    pending: Vec<u8>,
    pending_count: u32,
    written: u64,
    data: Vec<u8>,
    data_written: u64,
    /// How much of it was written at the last push.
    data_pushed: u64,
    /// When everything was handed over last.
    pushed: Duration,
}

impl TraceWriter {
    /// Starts a trace in `dir`, which is made if it is not there and must be empty, and writes the header. Kept
    /// files are shared with other traces through the store of [`crate::store_dir`].
    pub fn create(dir: &Path, header: &Header) -> Result<Self, WriteError> {
        Self::create_with_store(dir, header, crate::dir::store_dir())
    }

    /// As [`TraceWriter::create`] with another store of shared files, or none.
    pub fn create_with_store(
        dir: &Path,
        header: &Header,
        store: Option<PathBuf>,
    ) -> Result<Self, WriteError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| WriteError::Io { path, source }
        };
        if fs::metadata(dir).is_ok_and(|there| !there.is_dir()) {
            return Err(WriteError::Exists { dir: dir.to_owned() });
        }
        crate::dir::make(dir).map_err(io(dir))?;
        if fs::read_dir(dir).map_err(io(dir))?.next().is_some() {
            return Err(WriteError::Exists { dir: dir.to_owned() });
        }
        let files = dir.join("files");
        fs::create_dir(&files).map_err(io(&files))?;
        let payload = dir.join("payload");
        let zip = Zip::new().map_err(io(&payload))?;
        let payload = FrameWriter::create(&payload, Stream::Payload, zip.clone()).map_err(io(&payload))?;
        let events = dir.join("events");
        let mut events = FrameWriter::create(&events, Stream::Events, zip).map_err(io(&events))?;
        let bytes = postcard::to_stdvec(header)?;
        events.frame(Kind::Header, 0, 1, &bytes).map_err(io(&dir.join("events")))?;
        let shelf = Shelf::new(files, store);
        let kept = Written::default();
        let pieces = Pieces::new(&shelf, Arc::clone(&kept));
        let keeper = Keeper::new(shelf.clone());
        let packer = Packer::new(Files { events, payload, shelf, kept });
        Ok(Self {
            dir: dir.to_owned(),
            packer,
            keeper,
            pieces,
            unnamed: Vec::new(),
            sequence: Sequence::default(),
            footprint: Footprint::default(),
            context: Context::default(),
            pending: Vec::new(),
            pending_count: 0,
            written: 0,
            data: Vec::new(),
            data_written: 0,
            data_pushed: 0,
            pushed: clock::monotonic(),
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The id the next event gets.
    pub fn next_id(&self) -> EventId {
        EventId(self.written + u64::from(self.pending_count))
    }

    /// What the thread that packs and writes is to do before it does: which processors it uses is the caller's affair. Without
    /// effect once anything was handed over to it.
    pub fn packing_begins_with(&mut self, first: impl FnOnce() + Send + 'static) {
        self.packer.first(first);
    }

    /// Checks an event and appends it. Long data are moved to the payload stream.
    pub fn event(&mut self, event: &Event) -> Result<EventId, WriteError> {
        let id = self.next_id();
        let invalid = |problem: Problem| Violation { event: Some(id), problem };
        let payload = self.data_written + self.data.len() as u64;
        let bounds = Bounds { files: self.keeper.len(), payload, pieces: self.pieces.lens() };
        check_alone(event, bounds).map_err(invalid)?;
        self.sequence.follow(event).map_err(invalid)?;
        self.footprint.add_event(event);

        let event = self.moved_out(event)?;
        codec::encode(&mut self.context, &event, &mut self.pending)?;
        self.pending_count += 1;
        self.push_if_due()?;
        Ok(id)
    }

    fn push_if_due(&mut self) -> Result<(), WriteError> {
        let full = self.pending.len() >= EVENTS_FRAME || self.pending_count >= EVENTS_COUNT;
        let behind = self.data_written - self.data_pushed >= PAYLOAD_AHEAD;
        if full || behind || clock::monotonic().saturating_sub(self.pushed) >= PUSH_AFTER {
            self.push()?;
        }
        Ok(())
    }

    /// Appends the calls that a task made without a stop: `bytes` as [`abi::calls`] has them, an event each. Returns the last.
    pub fn batch(&mut self, task: TaskId, space: SpaceId, bytes: &[u8]) -> Result<Option<Event>, WriteError> {
        let offset = self.data_written + self.data.len() as u64;
        let next = self.next_id().0;
        let invalid = |(count, problem): (u32, Problem)| Violation {
            event: Some(EventId(next + u64::from(count))),
            problem,
        };
        let (count, last) = batch::sound(offset, bytes).map_err(invalid)?;
        let Some((last, _)) = batch::take_first((task, space), offset + last as u64, &bytes[last..]) else {
            return Ok(None);
        };
        // What else must hold of one holds of all.
        let payload = offset + bytes.len() as u64;
        let bounds = Bounds { files: self.keeper.len(), payload, pieces: self.pieces.lens() };
        let checked = check_alone(&last, bounds).and_then(|()| self.sequence.follow(&last));
        checked.map_err(|problem| invalid((count - 1, problem)))?;
        let Data::Payload(at) = self.payload(bytes)? else { return Ok(None) };
        codec::encode_batch(&Batch { task, space, count, at }, &mut self.pending)?;
        self.pending_count += count;
        self.push_if_due()?;
        Ok(Some(last))
    }

    /// Appends the one call among such `bytes`, with what it changed about mappings: an event of its own. Returns it.
    pub fn mapping_call(
        &mut self,
        task: TaskId,
        space: SpaceId,
        bytes: &[u8],
        maps: Vec<MapOp>,
    ) -> Result<Option<Event>, WriteError> {
        let Some((event, _)) = batch::take_first((task, space), 0, bytes) else { return Ok(None) };
        let event = Event { maps, ..event };
        self.event(&event)?;
        Ok(Some(event))
    }

    /// Puts bytes into the payload stream, for events that refer to them.
    pub fn payload(&mut self, bytes: &[u8]) -> Result<Data, WriteError> {
        let Ok(len) = u32::try_from(bytes.len()) else {
            let source = io::Error::other("data of 4 GiB or more");
            return Err(WriteError::Io { path: self.dir.join("payload"), source });
        };
        let offset = self.data_written + self.data.len() as u64;
        for piece in bytes.chunks(PAYLOAD_FRAME) {
            self.data.extend_from_slice(piece);
            if self.data.len() >= PAYLOAD_FRAME {
                self.push_payload()?;
            }
        }
        Ok(Data::Payload(PayloadRef { offset, len }))
    }

    /// Keeps bytes that a call read of a file from `offset` on, for an event that refers to them: in pieces, and once where the same was
    /// read there before; in the payload stream while little is read. `open` opens the file, to share its blocks where the file system can; whether
    /// it still holds those bytes, or is that file, is of no account.
    pub fn of_file(
        &mut self,
        file: SourceFile,
        open: &dyn Fn() -> Option<File>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Data, WriteError> {
        match self.pieces.refer(&self.packer, (file, open), offset, bytes)? {
            Some(parts) => Ok(Data::Pieces(parts)),
            None => self.payload(bytes),
        }
    }

    /// Keeps the contents that an open file has now, under the path it had in the recording. A file whose
    /// identity (device, inode, size, times) was met before is not read again; equal contents are kept once.
    pub fn keep_file(&mut self, file: &File, path: &str) -> Result<FileId, WriteError> {
        let (id, fresh) = self.keeper.keep(file, path)?;
        self.unnamed.extend(fresh);
        Ok(id)
    }

    /// Keeps the contents that an open file has now under an id that no other file has, for a mapping whose stores change
    /// the file.
    pub fn keep_anew(&mut self, file: &File, path: &str) -> Result<FileId, WriteError> {
        let (id, kept) = self.keeper.keep_anew(file, path)?;
        self.unnamed.push(kept);
        Ok(id)
    }

    /// What was noted by [`TraceWriter::note`] of a file that has not changed since, in this recording or an earlier one.
    pub fn noted(&self, file: &File, what: &str) -> Option<String> {
        self.keeper.noted(file, what)
    }

    /// Notes what was found out about a file, so that it need not be found out again while the file does not change. `what` becomes a
    /// part of a file's name, and tells one such thing from others.
    pub fn note(&self, file: &File, what: &str, text: &str) {
        self.keeper.note(file, what, text);
    }

    /// Hands over everything so far to be written, without waiting for that.
    pub fn push(&mut self) -> Result<(), WriteError> {
        self.pieces.push(&self.packer)?;
        self.push_payload()?;
        self.data_pushed = self.data_written;
        if !self.unnamed.is_empty() {
            let first = u64::from(self.keeper.len()) - self.unnamed.len() as u64;
            let raw = postcard::to_stdvec(&self.unnamed)?;
            let count = self.unnamed.len() as u32;
            self.packer.hand_over(Frame { kind: Kind::Manifest, first, count, raw })?;
            self.unnamed.clear();
        }
        if self.pending_count > 0 {
            let (first, count) = (self.written, self.pending_count);
            let raw = std::mem::replace(&mut self.pending, self.packer.body());
            self.written += u64::from(count);
            self.pending_count = 0;
            self.context.clear();
            self.packer.hand_over(Frame { kind: Kind::Events, first, count, raw })?;
        }
        self.pushed = clock::monotonic();
        self.packer.check()
    }

    /// Writes everything so far to the files. Does not wait for the disk.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.push()?;
        self.packer.wait()
    }

    /// Leaves the trace incomplete, and notes why beside it if that is still possible.
    pub fn give_up(&mut self, why: &dyn std::error::Error) {
        let mut line = why.to_string();
        let mut source = why.source();
        while let Some(cause) = source {
            line += &format!(": {cause}");
            source = cause.source();
        }
        // What can be written no more is lost; what is there stays readable.
        self.packer.last();
        let _ = self.push();
        let _ = self.packer.end();
        let cut =
            self.packer.files().map_or(Ok(()), |files| files.events.cut().and_then(|()| files.payload.cut()));
        let noted = cut.and_then(|()| fs::write(self.dir.join(STOPPED), line.replace('\n', " ")));
        if let Err(error) = noted {
            tracing::warn!(%error, "why the recording stops cannot be noted");
        }
    }

    /// Completes the trace. The counts in `summary` must be those of the stream. Does not wait for the disk.
    pub fn finish(mut self, summary: &Summary) -> Result<(), WriteError> {
        let done = self.complete(summary);
        if let Err(error) = &done {
            self.give_up(error);
        }
        done
    }

    fn complete(&mut self, summary: &Summary) -> Result<(), WriteError> {
        self.packer.last();
        self.push()?;
        let counts = [
            ("events", summary.events, self.written),
            ("tasks", u64::from(summary.tasks), u64::from(self.sequence.tasks())),
            ("spaces", u64::from(summary.spaces), u64::from(self.sequence.spaces())),
        ];
        for (what, expected, found) in counts {
            if expected != found {
                let problem = Problem::Summary { what, expected, found };
                return Err(Violation { event: None, problem }.into());
            }
        }
        let trailer = Trailer { summary: summary.clone(), footprint: self.footprint.ranges() };
        let raw = postcard::to_stdvec(&trailer)?;
        self.packer.hand_over(Frame { kind: Kind::Summary, first: self.written, count: 1, raw })?;
        self.packer.end()
    }

    /// Number of tasks and spaces in the events so far, as [`TraceWriter::finish`] wants them in the summary.
    pub fn counts(&self) -> (u32, u32) {
        (self.sequence.tasks(), self.sequence.spaces())
    }

    /// The event with its long data in the payload stream.
    fn moved_out<'a>(&mut self, event: &'a Event) -> Result<Cow<'a, Event>, WriteError> {
        let long = |writes: &[MemWrite]| writes.iter().any(|write| is_long(&write.data));
        let born = match &event.fact {
            Fact::Spawn(info) => &info.writes[..],
            _ => &[],
        };
        if !long(&event.writes) && !long(born) {
            return Ok(Cow::Borrowed(event));
        }
        let mut event = event.clone();
        self.move_out(&mut event.writes)?;
        if let Fact::Spawn(info) = &mut event.fact {
            self.move_out(&mut info.writes)?;
        }
        Ok(Cow::Owned(event))
    }

    fn move_out(&mut self, writes: &mut [MemWrite]) -> Result<(), WriteError> {
        for write in writes {
            if let Data::Inline(bytes) = &write.data
                && is_long(&write.data)
            {
                write.data = self.payload(bytes)?;
            }
        }
        Ok(())
    }

    fn push_payload(&mut self) -> Result<(), WriteError> {
        if self.data.is_empty() {
            return Ok(());
        }
        let (first, count) = (self.data_written, self.data.len() as u32);
        let raw = std::mem::replace(&mut self.data, self.packer.body());
        self.data_written += u64::from(count);
        self.packer.hand_over(Frame { kind: Kind::Payload, first, count, raw })
    }
}

/// Whether data belong in the payload stream.
fn is_long(data: &Data) -> bool {
    matches!(data, Data::Inline(bytes) if bytes.len() > INLINE)
}

/// Every range that was ever mapped, merged.
#[derive(Default)]
pub(crate) struct Footprint {
    /// End by start; disjoint and not touching.
    ranges: BTreeMap<u64, u64>,
}

impl Footprint {
    pub(crate) fn add_event(&mut self, event: &Event) {
        for op in &event.maps {
            match op {
                MapOp::Map { range, .. } | MapOp::Remap { to: range, .. } => self.add(*range),
                _ => {}
            }
        }
    }

    fn add(&mut self, range: GuestRange) {
        let (mut start, mut end) = (range.start.0, range.end.0);
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            if s <= start && e >= end {
                return;
            }
            self.ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
    }

    pub(crate) fn ranges(&self) -> Vec<GuestRange> {
        use guest::GuestAddr;
        self.ranges.iter().map(|(&s, &e)| GuestRange { start: GuestAddr(s), end: GuestAddr(e) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest::GuestAddr;

    #[test]
    fn footprints_merge() {
        let mut all = Footprint::default();
        for (start, len) in
            [(0x1000, 0x1000), (0x5000, 0x1000), (0x2000, 0x1000), (0x4000, 0x1000), (0x1000, 0x800)]
        {
            all.add(GuestRange::new(GuestAddr(start), len));
        }
        let range = |start, len| GuestRange::new(GuestAddr(start), len);
        assert_eq!(all.ranges(), [range(0x1000, 0x2000), range(0x4000, 0x2000)]);
        all.add(range(0x2800, 0x3000));
        assert_eq!(all.ranges(), [range(0x1000, 0x5000)]);
    }
}
