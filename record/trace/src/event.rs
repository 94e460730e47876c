//! Events: the points at which the kernel (or a trapped instruction) acted on a task, and everything it did there.
//!
//! Every event has one shape, so that replaying needs no knowledge of syscalls: run the task until it reaches `stop`,
//! compare its registers with `before`, perform `maps`, put `writes` into memory, load `after` and `xstate`. What the
//! event *means* is in `fact`, for the index and for people.

use guest::{FileId, GuestAddr, GuestRange, PieceId, Prot, Registers, SpaceId, TaskId, Tid, XState};
use serde::{Deserialize, Serialize};

/// One event of one task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// The task it happened to.
    pub task: TaskId,
    /// The address space the task is in when the event is over (a new one after `execve`).
    pub space: SpaceId,
    /// What the task reaches, by running, for the event to happen.
    pub stop: Stop,
    /// The registers on reaching the stop, normalised as [`Stop`] says.
    pub before: Registers,
    /// The registers with which the task goes on (its next event starts from them).
    pub after: Registers,
    /// The extended state with which it goes on, where the kernel changed it (handler entry, sigreturn, exec).
    pub xstate: Option<XState>,
    /// Changes of the address space, in order, performed before `writes`, and before a task that appears copies the space.
    pub maps: Vec<MapOp>,
    /// What the kernel wrote into the task's memory, in order.
    pub writes: Vec<MemWrite>,
    /// What happened.
    pub fact: Fact,
}

/// What a task reaches by running. `before.rip` is always the address of the instruction *at* which it stopped, not yet
/// retired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stop {
    /// Nothing is run: the event follows the task's previous one at once (a signal on the way out of a syscall, the
    /// second half of a blocking syscall, the task's first event).
    None,
    /// A `syscall` instruction at `before.rip`. `before.rax` is the number; `rcx` and `r11` (which the instruction
    /// overwrites) and `orig_rax` are not known there and are 0, not compared. The instruction retires when
    /// the call returns: in this event, or in the one with [`Fact::SyscallLeave`]. Also a call of the vsyscall page, at
    /// one of its entry points: there `rax` is the number, whatever the guest had in it.
    Syscall,
    /// An instruction at `before.rip` whose result had to be recorded. `after` holds the result and
    /// the rip of the next instruction; it retires here.
    Instruction(Trapped),
    /// A synchronous fault of the instruction at `before.rip`, which does not retire.
    Fault,
    /// An arbitrary instruction boundary in user code that can only be found by its state ([`Fact::Point`]). The first
    /// replay finds how many instructions lead there. `before` is compared in full.
    Point,
    /// A `syscall` instruction as at [`Stop::Syscall`], made without a stop ([`Fact::Syscall`]). Only `rip`, `rax` and the registers of the
    /// arguments that the call has were noted: the others are 0, and not compared. See [`Event::completed`]. Since version 1.8 also a call
    /// that changes mappings.
    Buffered,
    /// An `int 0x80` at `before.rip`, a call of the 32-bit table: `before.rax` is its number there, and no register is overwritten. The call
    /// ([`Fact::Syscall`] and the like) is that of the 64-bit table which does the same. Since version 1.5.
    Narrow,
    /// An instruction as at [`Stop::Instruction`], made without a stop. Only `rip` was noted of the registers before it, and the result: the
    /// others are 0, and not compared. See [`Event::completed`]. Since version 1.7.
    BufferedInstruction(Trapped),
}

/// Instructions whose results are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Trapped {
    /// `rdtsc`
    Rdtsc,
    /// `rdtscp`
    Rdtscp,
    /// `cpuid`
    Cpuid,
    /// `rdrand`, rewritten ([`MapOp::Rewrite`]). Since version 1.6, as the following.
    Rdrand,
    /// `rdseed`
    Rdseed,
    /// `rdpid`
    Rdpid,
}

/// A change of an address space. All addresses and lengths are page-aligned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MapOp {
    /// Everything is unmapped (the start of an exec).
    UnmapAll,
    /// A mapping replaces whatever was in `range`.
    Map {
        /// Where.
        range: GuestRange,
        /// With which protection.
        prot: Prot,
        /// `MAP_SHARED` rather than `MAP_PRIVATE`.
        shared: bool,
        /// `MAP_GROWSDOWN`: a stack.
        grows_down: bool,
        /// `MAP_NORESERVE`.
        no_reserve: bool,
        /// What its pages hold at first.
        backing: Backing,
        /// The name `/proc/PID/maps` showed (a path, `[heap]`, `[stack]`), or empty.
        name: String,
    },
    /// Mappings in `range` are removed.
    Unmap {
        /// Where.
        range: GuestRange,
    },
    /// The protection of `range` becomes `prot`.
    Protect {
        /// Where.
        range: GuestRange,
        /// The new protection.
        prot: Prot,
    },
    /// Pages move (`mremap`): the contents of `from` appear at `to`, which may be longer or shorter.
    Remap {
        /// The old place; unmapped afterwards unless `keep`.
        from: GuestRange,
        /// The new place.
        to: GuestRange,
        /// `MREMAP_DONTUNMAP`.
        keep: bool,
    },
    /// Contents are dropped (`MADV_DONTNEED` and the like): private anonymous pages read as zero again, file pages as
    /// the file.
    Discard {
        /// Where.
        range: GuestRange,
    },
    /// Instructions of the program lead to code of the recorder's, or are trapped, or are so no more: what memory holds, and what loads see,
    /// changes; what runs does not. Since version 1.5.
    Rewrite {
        /// Where.
        addr: GuestAddr,
        /// What memory holds from now on.
        shown: Vec<u8>,
        /// The program's own instructions, as many bytes.
        own: Vec<u8>,
    },
}

/// What a fresh mapping holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Backing {
    /// Zeroes.
    Zero,
    /// A kept file from `offset` bytes on; pages past its end fault with SIGBUS.
    File {
        /// The kept file.
        file: FileId,
        /// Offset of the mapping's first byte, in bytes.
        offset: u64,
    },
}

/// Bytes the kernel wrote.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemWrite {
    /// Where, in the task's space.
    pub addr: GuestAddr,
    /// What.
    pub data: Data,
}

/// Bytes held in the event, in the payload stream or in kept pieces.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Data {
    /// In the event itself. The writer moves long ones to the payload stream.
    Inline(Vec<u8>),
    /// In the payload stream.
    Payload(PayloadRef),
    /// In kept pieces of a file that a call read, one after the other. Since version 1.3.
    Pieces(Vec<PieceRef>),
}

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Payload(at) => at.len as usize,
            Self::Pieces(parts) => parts.iter().map(|part| part.len as usize).sum(),
        }
    }

    /// Whether there is not a byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A place in the payload stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PayloadRef {
    /// Offset in the uncompressed stream, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A part of a kept piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceRef {
    /// Which.
    pub piece: PieceId,
    /// Offset in it, in bytes.
    pub offset: u32,
    /// Length in bytes, not 0.
    pub len: u32,
}

/// What happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Fact {
    /// The task's program was replaced. Also the first event of task 0. `stop` is `None` there, else the
    /// `execve` was announced by [`Fact::SyscallEnter`] and the instruction never retires.
    Exec(Box<ExecInfo>),
    /// A syscall, from entry to return, with nothing recorded in between.
    Syscall(SyscallInfo),
    /// A syscall began and other events come before its return. `after` equals `before`.
    SyscallEnter(SyscallInfo),
    /// The syscall announced by the task's last `SyscallEnter` returned. `stop` is `None`.
    SyscallLeave(SyscallInfo),
    /// A new task appeared, inside this task's fork, vfork or clone (between its `SyscallEnter` and `SyscallLeave`).
    /// `stop` is `None` and `after` equals `before`.
    Spawn(Box<SpawnInfo>),
    /// A trapped instruction was answered.
    Instruction,
    /// A signal was acted upon.
    Signal(Box<SignalInfo>),
    /// The task is gone. `stop` is `None`. Its space goes with its last task; `writes` are what the kernel wrote into it
    /// for those that stay (the cleared thread id, robust futexes).
    Exit(Status),
    /// The task was stopped at an arbitrary instruction: to let another one run, or because a signal came, whose own event
    /// follows at once. `stop` is `Point` and `after` equals `before`. `writes` changes nothing but what instructions leave to the
    /// processor: how much of the register images that lie in the pages was stored (`xsavec`).
    Point(Box<PointInfo>),
    /// The task's tracer, another task of the recording, changed it while it was stopped (`ptrace`): `after`, `xstate` and `writes`
    /// hold what is new. Or it only came to its tracer's stop at a system call (`stop` is `Syscall`); else `stop` is `None`.
    Traced(TracedInfo),
}

/// By whom a task was changed, or held up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TracedInfo {
    /// Its tracer, or whoever else changed it.
    pub tracer: TaskId,
    /// What the tracer asked for (`PTRACE_POKEDATA` and the like), inside the system call it is in; `None` where the task came to a stop by
    /// itself, or where its memory was changed by the call that the other task has just finished (a write to `/proc/PID/mem`, or to a file that it maps).
    pub request: Option<u32>,
}

/// An execution point: enough of a task's state to find the one instruction at which it had it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PointInfo {
    /// The signal that came, or 0 where the task had to let another one run.
    pub signal: i32,
    /// The extended state.
    pub xstate: XState,
    /// Memory near what the registers, the stack and the code around the pc point to: tells most false candidates apart without
    /// hashing.
    pub key: Vec<KeyPiece>,
    /// Checksums of the pages that were written since the space's last point (the first time: of all).
    pub pages: Vec<PageSum>,
    /// CPU time of the task since it was last resumed, in nanoseconds; 0 where it is not known.
    pub cpu_nanos: u64,
    /// Conditional branches that the task retired since its previous event, as a counter had it: never too few, perhaps a few too many.
    /// Which are counted the header says. `None` where nothing counted. (Stored beside [`Stop::Point`].)
    #[serde(skip)]
    pub branches: Option<u64>,
}

/// Bytes of memory at an execution point.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyPiece {
    /// Where.
    pub addr: GuestAddr,
    /// What was there.
    pub bytes: Vec<u8>,
}

/// The checksum of a page at an execution point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageSum {
    /// Page number: address divided by the page size.
    pub page: u64,
    /// CRC-32 of its bytes.
    pub crc: u32,
}

impl Event {
    /// An event that needs no running and changes nothing by itself: `fact` happens where the task stands.
    pub fn in_place(task: TaskId, space: SpaceId, regs: Registers, fact: Fact) -> Self {
        Self {
            task,
            space,
            stop: Stop::None,
            before: regs,
            after: regs,
            xstate: None,
            maps: Vec::new(),
            writes: Vec::new(),
            fact,
        }
    }

    /// An event of [`Stop::Buffered`] or [`Stop::BufferedInstruction`] with all registers, which are those of the task at the stop: as if it
    /// had stopped there. Others are as they were.
    pub fn completed(self, at: &Registers) -> Self {
        if let Stop::BufferedInstruction(kind) = self.stop {
            let Registers { rip, rax, rdx, .. } = self.after;
            let rcx = if kind == Trapped::Rdtscp { self.after.rcx } else { at.rcx };
            let before = Registers { orig_rax: u64::MAX, ..*at };
            let after = Registers { rip, rax, rcx, rdx, ..before };
            return Self { stop: Stop::Instruction(kind), before, after, ..self };
        }
        if self.stop != Stop::Buffered {
            return self;
        }
        let before = Registers { rax: at.rax & 0xffff_ffff, rcx: 0, r11: 0, orig_rax: 0, ..*at };
        let after = Registers {
            rip: self.after.rip,
            rax: self.after.rax,
            rcx: self.after.rip,
            r11: at.eflags,
            orig_rax: u64::MAX,
            ..*at
        };
        Self { stop: Stop::Syscall, before, after, ..self }
    }
}

/// A program image that replaced a task's memory. The event's `maps` begin with `UnmapAll` and rebuild the whole space, its
/// `writes` hold all contents that differ from the backings, `after` and `xstate` are the initial registers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExecInfo {
    /// Thread id after the exec.
    pub tid: i32,
    /// Parent process id at that time.
    pub ppid: i32,
    /// Resolved path of the executable.
    pub exe: String,
    /// Argument vector.
    pub argv: Vec<Vec<u8>>,
    /// Environment.
    pub envp: Vec<Vec<u8>>,
    /// Working directory.
    pub cwd: String,
    /// Auxiliary vector as the program sees it.
    pub auxv: Vec<(u64, u64)>,
    /// Start of the heap (`brk`).
    pub brk: GuestAddr,
}

/// A syscall's number, arguments and result. Names and meanings come from the kernel crate's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyscallInfo {
    /// Number in the x86-64 table.
    pub nr: u32,
    /// Arguments as in the registers at entry.
    pub args: [u64; 6],
    /// What rax held on return (a negated errno on failure); `None` while unknown or where it never returns.
    pub result: Option<i64>,
    /// Where the call wrote bytes to the recorded run's standard output or error (through any descriptor), which one. The
    /// bytes are the `result` bytes of the buffers at `args[1]`.
    pub output: Option<OutputStream>,
    /// CRC-32 of those bytes, so that a replay can tell that it prints the same.
    pub output_crc: u32,
}

/// One of the recorded run's output streams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum OutputStream {
    /// The same open file as the recorder's standard output.
    Stdout,
    /// The same open file as the recorder's standard error.
    Stderr,
}

/// A task's birth. The new task goes on with `regs`; its extended state is its parent's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpawnInfo {
    /// The new task.
    pub child: TaskId,
    /// Its thread id.
    pub tid: Tid,
    /// Its process id (equal to `tid` unless it is a thread).
    pub pid: Tid,
    /// Its space: a new one, a copy of the parent's at this point, or the parent's own (`shares`).
    pub space: SpaceId,
    /// Whether it runs in its parent's space (CLONE_VM).
    pub shares: bool,
    /// Clone flags.
    pub flags: u64,
    /// Its registers when it first runs.
    pub regs: Registers,
    /// What the kernel wrote into the child's memory (CLONE_CHILD_SETTID).
    pub writes: Vec<MemWrite>,
}

/// A signal acted upon: delivered to a handler, ignored with an effect, or fatal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SignalInfo {
    /// Signal number.
    pub signo: i32,
    /// The kernel's `siginfo_t`, 128 bytes.
    pub siginfo: Vec<u8>,
    /// What was done.
    pub action: SignalAction,
}

/// What a signal did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SignalAction {
    /// A handler was entered: `writes` hold the frame, `after` the registers at its first instruction.
    Handler {
        /// Address of the handler.
        handler: GuestAddr,
    },
    /// The task dies of it; an `Exit` event follows.
    Fatal,
    /// Nothing but a possible restart of the interrupted call, seen in `after`.
    Ignored,
    /// The task was stopped (job control).
    Stopped,
    /// The task was stopped so that its tracer decides about the signal (`ptrace`). What becomes of it then is another event. `after` is
    /// behind a breakpoint instruction that raised it.
    Traced,
}

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Status {
    /// By `exit` or `exit_group` with this code (0 to 255).
    Exited(i32),
    /// By a signal.
    Killed(Killed),
}

/// Death by signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Killed {
    /// Signal number.
    pub signo: i32,
    /// Whether the kernel reported a core dump.
    pub core: bool,
    /// Whether it came at an instruction of user code after the task's last event, which no replay can find (a fatal
    /// SIGKILL while it ran): replay ends the task at its last event.
    pub unlocated: bool,
}
