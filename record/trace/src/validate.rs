//! What must hold of events, one by one and in sequence. Used before writing, after reading and by the checker.
//! Knows nothing of files.

use std::fmt;

use guest::{
    EventId, FileId, GuestAddr, GuestRange, PAGE_SIZE, PieceId, RegisterName, Registers, SpaceId, TaskId,
};

use crate::codec::MAX_XSTATE;
use crate::event::{Backing, Data, Event, Fact, MapOp, MemWrite, PieceRef, SignalAction, SpawnInfo, Stop};

/// First address past the user half with five-level paging.
const USER_END: u64 = 1 << 56;
/// More instructions than this, in bytes, are not rewritten at once.
const LONGEST_REWRITTEN: usize = 256;
/// Size of the kernel's `siginfo_t`.
const SIGINFO_LEN: usize = 128;

/// Something that may not be in a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Violation {
    /// The event that shows it, where one does.
    pub event: Option<EventId>,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event {
            Some(event) => write!(f, "event {event}: {}", self.problem),
            None => self.problem.fmt(f),
        }
    }
}

/// What can be wrong with a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message and field names say what it is")]
pub enum Problem {
    #[error("the recording does not begin with task 0 executing a program in space 0")]
    FirstEvent,
    #[error("task {task} was never created")]
    UnknownTask { task: TaskId },
    #[error("task {task} has exited")]
    DeadTask { task: TaskId },
    #[error("new task has number {found}, next is {expected}")]
    TaskNotDense { found: TaskId, expected: TaskId },
    #[error("new space has number {found}, next is {expected}")]
    SpaceNotDense { found: SpaceId, expected: SpaceId },
    #[error("task {task} is in space {expected}, not {found}")]
    WrongSpace { task: TaskId, found: SpaceId, expected: SpaceId },
    #[error("a fact `{fact}` cannot have stop {stop:?}")]
    StopMismatch { fact: &'static str, stop: Stop },
    #[error("task {task} is already inside syscall {nr}")]
    NestedSyscall { task: TaskId, nr: u32 },
    #[error("task {task} is not inside a syscall")]
    NotInSyscall { task: TaskId },
    #[error("syscall number is {found}, {expected} was expected")]
    SyscallNumber { found: u32, expected: u32 },
    #[error("a fact `{fact}` changes register {register}")]
    Changes { fact: &'static str, register: RegisterName },
    #[error("task {task} went on with {register} = {expected:#x} and starts here with {found:#x}")]
    Chain { task: TaskId, register: RegisterName, expected: u64, found: u64 },
    #[error("range {}..{} is empty, not page-aligned or outside user space", range.start, range.end)]
    Range { range: GuestRange },
    #[error("file offset {offset:#x} is not page-aligned")]
    Offset { offset: u64 },
    #[error("a write of {len} bytes at {addr} lies outside user space")]
    Write { addr: GuestAddr, len: u64 },
    #[error("{shown} bytes at {addr} stand for {own} bytes of instructions")]
    Rewritten { addr: GuestAddr, shown: usize, own: usize },
    #[error("kept file {file} does not exist")]
    UnknownFile { file: FileId },
    #[error("payload {offset}+{len} does not exist")]
    Payload { offset: u64, len: u32 },
    #[error("no kept piece {piece} has bytes {offset}+{len}")]
    Piece { piece: PieceId, offset: u32, len: u32 },
    #[error("extended state of {len} bytes")]
    XState { len: usize },
    #[error("signal information of {len} bytes")]
    Siginfo { len: usize },
    #[error("an exec does not begin by unmapping everything")]
    ExecMaps,
    #[error("a call that was made without a stop cannot be decoded, at {offset} of the payload")]
    Calls { offset: u64 },
    #[error("{expected} calls that were made without a stop are {found}")]
    CallCount { expected: u32, found: u32 },
    #[error("{what} {expected} by the summary, {found} in the stream")]
    Summary { what: &'static str, expected: u64, found: u64 },
    #[error("the recording ended with task {task} alive")]
    Alive { task: TaskId },
    #[error("kept file {file} is missing")]
    FileMissing { file: FileId },
    #[error("kept file {file} has {found} bytes, {expected} were kept")]
    FileSize { file: FileId, found: u64, expected: u64 },
    #[error("kept file {file} was changed")]
    FileHash { file: FileId },
    #[error("kept piece {piece} is missing")]
    PieceMissing { piece: PieceId },
    #[error("kept piece {piece} was changed")]
    PieceChanged { piece: PieceId },
    #[error("the learned counts do not fit: {what}")]
    Ticks { what: String },
    #[error("{what}")]
    Unreadable { what: String },
}

/// What the stream may refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    /// Kept files so far.
    pub(crate) files: u32,
    /// Payload bytes so far.
    pub(crate) payload: u64,
    /// The lengths of the kept pieces so far.
    pub(crate) pieces: &'a [u32],
}

/// Checks what can be said of an event without knowing those before it.
pub(crate) fn check_alone(event: &Event, bounds: Bounds<'_>) -> Result<(), Problem> {
    check_stop(event)?;
    event.maps.iter().try_for_each(|op| check_map(op, bounds))?;
    event.writes.iter().try_for_each(|write| check_write(write, bounds))?;
    if let Some(xstate) = &event.xstate
        && !(512..=MAX_XSTATE).contains(&xstate.0.len())
    {
        return Err(Problem::XState { len: xstate.0.len() });
    }
    match &event.fact {
        Fact::Spawn(info) => info.writes.iter().try_for_each(|write| check_write(write, bounds))?,
        Fact::Signal(info) if info.siginfo.len() != SIGINFO_LEN => {
            return Err(Problem::Siginfo { len: info.siginfo.len() });
        }
        Fact::Exec(_) if event.maps.first() != Some(&MapOp::UnmapAll) => return Err(Problem::ExecMaps),
        Fact::Syscall(info) | Fact::SyscallEnter(info)
            if event.stop != Stop::Narrow && info.nr != event.before.rax as u32 =>
        {
            return Err(Problem::SyscallNumber { found: info.nr, expected: event.before.rax as u32 });
        }
        _ => {}
    }
    if matches!(event.fact, Fact::SyscallEnter(_) | Fact::Spawn(_) | Fact::Point(_))
        && let Some(register) = first_difference(&event.before, &event.after)
    {
        return Err(Problem::Changes { fact: event.fact.name(), register });
    }
    Ok(())
}

fn check_stop(event: &Event) -> Result<(), Problem> {
    let fits = match &event.fact {
        Fact::Exec(_) | Fact::SyscallLeave(_) | Fact::Spawn(_) | Fact::Exit(_) => event.stop == Stop::None,
        Fact::Syscall(_) => matches!(event.stop, Stop::Syscall | Stop::Buffered | Stop::Narrow),
        Fact::SyscallEnter(_) => matches!(event.stop, Stop::Syscall | Stop::Narrow),
        Fact::Instruction => matches!(event.stop, Stop::Instruction(_) | Stop::BufferedInstruction(_)),
        Fact::Signal(_) => matches!(event.stop, Stop::None | Stop::Fault),
        Fact::Point(_) => event.stop == Stop::Point,
        Fact::Traced(info) => match info.request {
            Some(_) => event.stop == Stop::None,
            None => matches!(event.stop, Stop::None | Stop::Syscall),
        },
    };
    if fits { Ok(()) } else { Err(Problem::StopMismatch { fact: event.fact.name(), stop: event.stop }) }
}

fn check_map(op: &MapOp, bounds: Bounds<'_>) -> Result<(), Problem> {
    match op {
        MapOp::UnmapAll => Ok(()),
        MapOp::Map { range, backing, .. } => {
            if let Backing::File { file, offset } = backing {
                if file.0 >= bounds.files {
                    return Err(Problem::UnknownFile { file: *file });
                }
                if offset % PAGE_SIZE != 0 {
                    return Err(Problem::Offset { offset: *offset });
                }
            }
            check_range(*range)
        }
        MapOp::Unmap { range } | MapOp::Protect { range, .. } | MapOp::Discard { range } => {
            check_range(*range)
        }
        MapOp::Remap { from, to, .. } => check_range(*from).and_then(|()| check_range(*to)),
        MapOp::Rewrite { addr, shown, own } => check_rewritten(*addr, shown, own),
    }
}

fn check_rewritten(addr: GuestAddr, shown: &[u8], own: &[u8]) -> Result<(), Problem> {
    let inside = addr.0.checked_add(own.len() as u64).is_some_and(|end| end <= USER_END);
    if inside && shown.len() == own.len() && (1..=LONGEST_REWRITTEN).contains(&own.len()) {
        Ok(())
    } else {
        Err(Problem::Rewritten { addr, shown: shown.len(), own: own.len() })
    }
}

fn check_range(range: GuestRange) -> Result<(), Problem> {
    let aligned = range.start.page_offset() == 0 && range.end.page_offset() == 0;
    if aligned && !range.is_empty() && range.end.0 <= USER_END {
        Ok(())
    } else {
        Err(Problem::Range { range })
    }
}

fn check_write(write: &MemWrite, bounds: Bounds<'_>) -> Result<(), Problem> {
    match &write.data {
        Data::Inline(_) => {}
        Data::Payload(at) => {
            if at.offset.checked_add(u64::from(at.len)).is_none_or(|end| end > bounds.payload) {
                return Err(Problem::Payload { offset: at.offset, len: at.len });
            }
        }
        Data::Pieces(parts) => parts.iter().try_for_each(|part| check_part(part, bounds))?,
    }
    check_write_place(write.addr, write.data.len() as u64)
}

/// Checks where so many bytes are written.
pub(crate) fn check_write_place(addr: GuestAddr, len: u64) -> Result<(), Problem> {
    let inside = addr.0.checked_add(len).is_some_and(|end| end <= USER_END);
    if inside { Ok(()) } else { Err(Problem::Write { addr, len }) }
}

fn check_part(&PieceRef { piece, offset, len }: &PieceRef, bounds: Bounds<'_>) -> Result<(), Problem> {
    let has = bounds.pieces.get(piece.index()).copied().unwrap_or(0);
    let inside = offset.checked_add(len).is_some_and(|end| end <= has);
    if inside && len > 0 { Ok(()) } else { Err(Problem::Piece { piece, offset, len }) }
}

/// The first register in which the two differ.
fn first_difference(a: &Registers, b: &Registers) -> Option<RegisterName> {
    let (a, b) = (a.to_words(), b.to_words());
    (0..Registers::COUNT).find(|&i| a[i] != b[i]).map(RegisterName)
}

/// What is known of a task while its events are followed.
#[derive(Clone, Debug)]
struct TaskState {
    space: SpaceId,
    alive: bool,
    inside: Option<u32>,
    last: Registers,
    /// Whether only some registers of `last` are known: its last call was made without a stop.
    in_part: bool,
}

/// Follows a stream from its start and checks each event against those before it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Sequence {
    tasks: Vec<TaskState>,
    spaces: u32,
}

impl Sequence {
    /// Number of tasks so far.
    pub(crate) fn tasks(&self) -> u32 {
        self.tasks.len() as u32
    }

    /// Number of spaces so far.
    pub(crate) fn spaces(&self) -> u32 {
        self.spaces
    }

    /// A task that has not exited.
    pub(crate) fn alive(&self) -> Option<TaskId> {
        self.tasks.iter().position(|task| task.alive).map(|i| TaskId(i as u32))
    }

    /// Checks `event` and takes it in. After an error the sequence is as before.
    pub(crate) fn follow(&mut self, event: &Event) -> Result<(), Problem> {
        if self.tasks.is_empty() {
            return self.first(event);
        }
        self.check_task(event)?;
        self.check_chain(event)?;
        match &event.fact {
            Fact::Exec(_) => self.exec(event)?,
            Fact::Spawn(info) => self.spawn(event, info)?,
            Fact::Syscall(_) | Fact::SyscallEnter(_) | Fact::Instruction | Fact::Point(_) => {
                self.outside(event.task)?
            }
            Fact::SyscallLeave(info) => match self.task(event.task).inside {
                None => return Err(Problem::NotInSyscall { task: event.task }),
                Some(nr) if nr != info.nr => {
                    return Err(Problem::SyscallNumber { found: info.nr, expected: nr });
                }
                Some(_) => {}
            },
            Fact::Signal(info) if matches!(info.action, SignalAction::Handler { .. }) => {
                self.outside(event.task)?
            }
            Fact::Traced(info) => {
                if info.tracer == event.task || self.tasks.get(info.tracer.index()).is_none() {
                    return Err(Problem::UnknownTask { task: info.tracer });
                }
                if event.stop != Stop::None {
                    self.outside(event.task)?;
                }
            }
            Fact::Signal(_) | Fact::Exit(_) => {}
        }
        self.take(event);
        Ok(())
    }

    fn task(&self, task: TaskId) -> &TaskState {
        &self.tasks[task.index()]
    }

    fn first(&mut self, event: &Event) -> Result<(), Problem> {
        let exec = matches!(event.fact, Fact::Exec(_));
        if event.task != TaskId(0) || event.space != SpaceId(0) || !exec {
            return Err(Problem::FirstEvent);
        }
        self.tasks.push(TaskState {
            space: SpaceId(0),
            alive: true,
            inside: None,
            last: event.after,
            in_part: false,
        });
        self.spaces = 1;
        Ok(())
    }

    fn check_task(&self, event: &Event) -> Result<(), Problem> {
        let state = self.tasks.get(event.task.index()).ok_or(Problem::UnknownTask { task: event.task })?;
        if !state.alive {
            return Err(Problem::DeadTask { task: event.task });
        }
        if !matches!(event.fact, Fact::Exec(_)) && state.space != event.space {
            return Err(Problem::WrongSpace { task: event.task, found: event.space, expected: state.space });
        }
        Ok(())
    }

    fn check_chain(&self, event: &Event) -> Result<(), Problem> {
        let state = self.task(event.task);
        if event.stop != Stop::None {
            return Ok(());
        }
        let last = match state.in_part {
            true => Registers { rip: state.last.rip, rax: state.last.rax, ..event.before },
            false => state.last,
        };
        match first_difference(&last, &event.before) {
            None => Ok(()),
            Some(register) => {
                let (expected, found) = (last.to_words()[register.0], event.before.to_words()[register.0]);
                Err(Problem::Chain { task: event.task, register, expected, found })
            }
        }
    }

    fn outside(&self, task: TaskId) -> Result<(), Problem> {
        match self.task(task).inside {
            Some(nr) => Err(Problem::NestedSyscall { task, nr }),
            None => Ok(()),
        }
    }

    fn next_space(&self, found: SpaceId) -> Result<(), Problem> {
        let expected = SpaceId(self.spaces);
        if found == expected { Ok(()) } else { Err(Problem::SpaceNotDense { found, expected }) }
    }

    fn exec(&mut self, event: &Event) -> Result<(), Problem> {
        if self.task(event.task).inside.is_none() {
            return Err(Problem::NotInSyscall { task: event.task });
        }
        self.next_space(event.space)
    }

    fn spawn(&mut self, event: &Event, info: &SpawnInfo) -> Result<(), Problem> {
        if self.task(event.task).inside.is_none() {
            return Err(Problem::NotInSyscall { task: event.task });
        }
        let expected = TaskId(self.tasks.len() as u32);
        if info.child != expected {
            return Err(Problem::TaskNotDense { found: info.child, expected });
        }
        if !info.shares {
            return self.next_space(info.space);
        }
        let expected = event.space;
        if info.space == expected {
            Ok(())
        } else {
            Err(Problem::WrongSpace { task: info.child, found: info.space, expected })
        }
    }

    /// Takes in a checked event.
    fn take(&mut self, event: &Event) {
        match &event.fact {
            Fact::Exec(_) => self.spaces += 1,
            Fact::Spawn(info) => {
                self.spaces += u32::from(!info.shares);
                let (space, last) = (info.space, info.regs);
                self.tasks.push(TaskState { space, alive: true, inside: None, last, in_part: false });
            }
            _ => {}
        }
        let state = &mut self.tasks[event.task.index()];
        state.space = event.space;
        state.last = event.after;
        state.in_part = matches!(event.stop, Stop::Buffered | Stop::BufferedInstruction(_));
        match &event.fact {
            Fact::SyscallEnter(info) => state.inside = Some(info.nr),
            Fact::SyscallLeave(_) | Fact::Exec(_) => state.inside = None,
            Fact::Exit(_) => state.alive = false,
            _ => {}
        }
    }
}

impl Fact {
    /// A short name of the kind of fact, lowercase.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Syscall(_) => "syscall",
            Self::SyscallEnter(_) => "syscall enter",
            Self::SyscallLeave(_) => "syscall leave",
            Self::Spawn(_) => "spawn",
            Self::Instruction => "instruction",
            Self::Signal(_) => "signal",
            Self::Exit(_) => "exit",
            Self::Point(_) => "point",
            Self::Traced(_) => "traced",
        }
    }
}
