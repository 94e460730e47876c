//! The trace: what a recording is on disk, its writer, its reader and its checker.
//!
//! Pure but for files: knows nothing of processes. A trace is a directory; it is written once by the recorder and never
//! modified afterwards. What replays learn lies beside it (`learned/`, `index.db`) and may be deleted.
//!
//! ```text
//! events      frames: the header, then kept files and events as they came, last the summary of a complete recording
//! payload     frames: bytes that events refer to, written before those events
//! stopped     why the recorder gave up before the end, one line, where it could still say so
//! files/      kept files and kept pieces of files, each named by the BLAKE3 of its contents; links to a store that traces share
//!             where possible
//! learned/    ticks: the instruction count of each event, by the first complete replay
//! index.db    the index
//! ```
//!
//! Frames are found by walking their heads, so no table of them can be lost with a recorder's last words.
//!
//! - `event`: the event model that recorder, replayer and index share
//! - `header`: what the recording says about itself
//! - `frame`: compressed, checksummed frames
//! - `packer`: the thread that writes them
//! - `codec`: an event's bytes
//! - `validate`: what must hold of events
//! - `writer`, `reader`: the directory, written and read
//! - `sparse`: copies and hashes of files with holes
//! - `clock`: clocks that cost nothing
//! - `files`: kept files and the store that traces share
//! - `pieces`: kept pieces of what calls read of files
//! - `dir`: where traces live
//! - `landmarks`: the end, the exit and the fatal signal as moments
//! - `ticks`: the learned instruction counts, and moments from them
//! - `check`: every violated invariant of a trace

mod batch;
mod check;
mod clock;
mod codec;
mod dir;
mod event;
mod files;
mod frame;
mod header;
mod landmarks;
mod packer;
mod pieces;
mod reader;
mod sparse;
mod ticks;
mod validate;
mod writer;

pub use abi::calls::{Call as NotedCall, Noted, Reading as NotedReading};
pub use check::check;
pub use dir::{
    DirError, Meant, fresh, is_trace, latest, list, remove, resolve, root, set_latest, store_dir, unlisted,
};
pub use event::{
    Backing, Data, Event, ExecInfo, Fact, KeyPiece, Killed, MapOp, MemWrite, OutputStream, PageSum,
    PayloadRef, PieceRef, PointInfo, SignalAction, SignalInfo, SpawnInfo, Status, Stop, SyscallInfo,
    TracedInfo, Trapped,
};
pub use files::{KeepError, KeptFile, look_at_the_processor, note_of_machine, noted_of_machine};
pub use frame::FrameError;
pub use header::{CpuidLeaf, Header, InheritedFd, Located, Machine, Summary, Version};
pub use landmarks::{landmarks, resolve_when};
pub use pieces::{KeptPiece, SourceFile};
pub use reader::{Events, OpenError, ReadError, Trace};
pub use ticks::{Moments, TicksError, write_ticks};
pub use validate::{Problem, Violation};
pub use writer::{TraceWriter, WriteError};
