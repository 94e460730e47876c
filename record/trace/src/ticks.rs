//! The learned instruction counts beside a trace (`learned/ticks`), and moments from them.
//!
//! Per event: how many instructions its task retired since its previous event, the event's own instruction included. What
//! a task ran since its previous event comes just before its next one, so sums of counts are moments.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use guest::{EventId, Moment, TickDelta};

use crate::frame::{FrameError, FrameReader, FrameWriter, Kind, Stream, Zip};
use crate::reader::Trace;

/// Counts in a frame.
const PER_FRAME: usize = 64 << 10;

/// Why learned counts could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TicksError {
    /// The file cannot be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The file cannot be written.
    #[error("cannot write {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The counts are of another recording, or not of all its events.
    #[error("{path} does not belong to this recording: delete it and replay again")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
}

/// The moments of all events of a recording. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moments {
    /// `ends[e]`: instructions retired when event `e` is over.
    ends: Arc<[u64]>,
}

impl Moments {
    /// From the count of each event.
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        let mut sum = 0u64;
        let add = |count: u64| {
            sum = sum.saturating_add(count);
            sum
        };
        Self { ends: counts.into_iter().map(add).collect() }
    }

    /// The counts learned by an earlier replay; `None` when there was none yet.
    pub fn load(trace: &Trace) -> Result<Option<Self>, TicksError> {
        let path = path(trace);
        if !path.is_file() {
            return Ok(None);
        }
        let foreign = || TicksError::Foreign { path: path.clone() };
        let reader = FrameReader::open(&path, Stream::Ticks)?.ok_or_else(foreign)?;
        let (heads, torn) = reader.scan()?;
        let Some((header, frames)) = heads.split_first() else { return Err(foreign()) };
        if header.kind != Kind::Header || torn != 0 || reader.body(header)? != trace.uuid() {
            return Err(foreign());
        }
        let mut counts = Vec::new();
        for head in frames {
            let bad = || reader.corrupt(head.start(), "counts cannot be decoded");
            if head.kind != Kind::Ticks || head.first != counts.len() as u64 {
                return Err(bad().into());
            }
            let more: Vec<u64> = postcard::from_bytes(&reader.body(head)?).map_err(|_| bad())?;
            counts.extend(more);
        }
        if counts.len() as u64 != trace.len() {
            return Err(foreign());
        }
        Ok(Some(Self::from_counts(counts)))
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Instructions retired over all tasks: the last moment.
    pub fn total(&self) -> Moment {
        Moment(self.ends.last().copied().unwrap_or(0))
    }

    /// The moment at which the instructions that lead to `event` begin (the end of the event before it).
    pub fn start(&self, event: EventId) -> Moment {
        let before = event.index().checked_sub(1).and_then(|i| self.ends.get(i));
        if event.index() > self.ends.len() { self.total() } else { Moment(before.copied().unwrap_or(0)) }
    }

    /// The moment when `event` is over, its own instruction retired.
    pub fn end(&self, event: EventId) -> Moment {
        Moment(self.ends.get(event.index()).copied().unwrap_or_else(|| self.total().0))
    }

    /// Instructions that the event's task retired since its previous event, the event's own included.
    pub fn count(&self, event: EventId) -> TickDelta {
        TickDelta(self.end(event).0 - self.start(event).0)
    }

    /// The event in whose stretch instruction number `moment` runs: the first that ends after it. `None` at the
    /// end of the recording and beyond.
    pub fn event_at(&self, moment: Moment) -> Option<EventId> {
        let index = self.ends.partition_point(|&end| end <= moment.0);
        (index < self.ends.len()).then_some(EventId(index as u64))
    }
}

fn path(trace: &Trace) -> PathBuf {
    trace.dir().join("learned").join("ticks")
}

/// Stores the count of each event beside the trace, replacing what is there in one step.
pub fn write_ticks(trace: &Trace, counts: &[u64]) -> Result<(), TicksError> {
    let path = path(trace);
    let io = |source| TicksError::Io { path: path.clone(), source };
    if counts.len() as u64 != trace.len() {
        return Err(TicksError::Foreign { path });
    }
    let folder = trace.dir().join("learned");
    fs::create_dir_all(&folder).map_err(io)?;
    let temporary = folder.join(format!(".ticks-{}", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let mut writer =
        Zip::new().and_then(|zip| FrameWriter::create(&temporary, Stream::Ticks, zip)).map_err(io)?;
    writer.frame(Kind::Header, 0, 1, &trace.uuid()).map_err(io)?;
    for (i, piece) in counts.chunks(PER_FRAME).enumerate() {
        let bytes = postcard::to_stdvec(piece).map_err(|error| io(io::Error::other(error)))?;
        writer.frame(Kind::Ticks, (i * PER_FRAME) as u64, piece.len() as u32, &bytes).map_err(io)?;
    }
    fs::rename(&temporary, &path).map_err(io)
}
