//! One row of each small table. Knows no SQL.

use guest::{EventId, GuestAddr, GuestRange, Moment, Prot, SpaceId, TaskId};

/// An event of the trace (table `events`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventRow {
    /// Its position in the event stream.
    pub event: EventId,
    /// When it happened.
    pub moment: Moment,
    /// To whom.
    pub task: TaskId,
    /// The space the task was in when it was over.
    pub space: SpaceId,
}

/// A task (table `tasks`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskRow {
    /// Its number.
    pub task: TaskId,
    /// Thread id as it saw it.
    pub tid: i32,
    /// Process id as it saw it.
    pub pid: i32,
    /// Who made it; `None` for the command.
    pub parent: Option<TaskId>,
    /// When it began.
    pub first: Moment,
    /// When it ended, if it did.
    pub last: Option<Moment>,
    /// Exit code, if it exited.
    pub exit_code: Option<i32>,
    /// The signal that killed it, if one did.
    pub signal: Option<i32>,
}

/// An address space (table `spaces`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceRow {
    /// Its number.
    pub space: SpaceId,
    /// The space it is a copy of (`fork`); `None` for an exec'ed one.
    pub parent: Option<SpaceId>,
    /// When it began: what it holds in copied memory was written by the parent before this moment.
    pub first: Moment,
    /// The event that made it.
    pub event: EventId,
}

/// A program image that an exec loaded (table `images`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageRow {
    /// The exec event.
    pub event: EventId,
    /// When.
    pub moment: Moment,
    /// By whom.
    pub task: TaskId,
    /// Into which space.
    pub space: SpaceId,
    /// Resolved path of the executable.
    pub exe: String,
    /// Arguments, as text, separated by blanks.
    pub argv: String,
    /// Working directory.
    pub cwd: String,
}

/// Where a mapping's contents came from at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MappingSource {
    /// A fresh mapping.
    Mapped,
    /// Moved here from another address (`mremap`).
    Moved {
        /// The address its first byte had.
        from: GuestAddr,
    },
    /// Copied with the whole space by a fork.
    Copied,
}

/// A range of a space that was mapped in one way for a while (table `mappings`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappingRow {
    /// In which space.
    pub space: SpaceId,
    /// Where.
    pub range: GuestRange,
    /// Protection.
    pub prot: Prot,
    /// Whether it was shared.
    pub shared: bool,
    /// The kept file behind it and the offset of its first byte.
    pub file: Option<(u32, u64)>,
    /// For shared mappings: the number of the object that they show, and the offset of the first byte in it. The same byte of an object
    /// is the same memory, wherever and in whichever space it is mapped.
    pub object: Option<(u32, u64)>,
    /// The name `/proc/PID/maps` showed.
    pub name: String,
    /// Where its contents came from.
    pub source: MappingSource,
    /// The event that mapped it at first (a later `mprotect` does not count).
    pub mapped_by: EventId,
    /// The moment of that event.
    pub mapped_at: Moment,
    /// From when the row holds.
    pub from: Moment,
    /// Until when, if it ended.
    pub until: Option<Moment>,
}

/// A syscall (table `syscalls`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyscallRow {
    /// The event at which it returned (or began, if it never returned).
    pub event: EventId,
    /// The moment of its `syscall` instruction.
    pub moment: Moment,
    /// Who made it.
    pub task: TaskId,
    /// In which space.
    pub space: SpaceId,
    /// Number.
    pub nr: u32,
    /// Name.
    pub name: String,
    /// Arguments as in the registers.
    pub args: [u64; 6],
    /// What it returned; `None` if it never did.
    pub result: Option<i64>,
    /// The descriptor it worked on, if it has one.
    pub fd: Option<i32>,
    /// What that descriptor was open on, or the path it names itself.
    pub path: Option<String>,
    /// The file offset at which it read or wrote, where known.
    pub offset: Option<u64>,
}

/// A signal acted upon (table `signals`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignalRow {
    /// The event.
    pub event: EventId,
    /// When.
    pub moment: Moment,
    /// Whom it hit.
    pub task: TaskId,
    /// In which space.
    pub space: SpaceId,
    /// Number.
    pub signo: i32,
    /// `handler`, `fatal`, `ignored` or `stopped`.
    pub action: String,
    /// Handler address, if one was entered.
    pub handler: Option<GuestAddr>,
    /// The program counter it interrupted.
    pub pc: GuestAddr,
    /// `si_code`.
    pub code: i32,
    /// `si_addr`, for faults.
    pub addr: Option<GuestAddr>,
}

/// A task stops running and another one goes on (table `switches`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchRow {
    /// When: the moment of the first instruction of the task that goes on.
    pub moment: Moment,
    /// Who stopped running.
    pub task: TaskId,
    /// Who went on.
    pub next: TaskId,
    /// `preempted`, `syscall`, `signal` or `exit`: what the first one's last event was.
    pub reason: String,
    /// Where the first one stood.
    pub pc: GuestAddr,
    /// That event.
    pub event: EventId,
}

/// What was written to the run's standard output or error (table `output`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputRow {
    /// The syscall's event.
    pub event: EventId,
    /// When.
    pub moment: Moment,
    /// By whom.
    pub task: TaskId,
    /// Through which descriptor.
    pub fd: Option<i32>,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// How many bytes.
    pub len: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}
