//! The trace: what a recording is on disk, its writer, its reader and its checker.
//!
//! Pure but for files: knows nothing of processes. A trace is a directory; it is written once by the recorder and never
//! modified afterwards. What replays learn lies beside it (`learned/`, `index.db`) and may be deleted.
//!
//! - `event`: the event model that recorder, replayer and index share
//! - `header`: what the recording says about itself

mod event;
mod header;

pub use event::{
    Backing, Data, Event, ExecInfo, Fact, Killed, MapOp, MemWrite, OutputStream, PayloadRef, SignalAction, SignalInfo,
    SpawnInfo, Status, Stop, SyscallInfo, Trapped,
};
pub use header::{CpuidLeaf, Header, InheritedFd, Machine, Summary, Version};
