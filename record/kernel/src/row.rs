//! What a row of a table is made of. Holds no rows.

use crate::errno::Errno;
use crate::flags::FlagSet;
use crate::inside::Mark;
use crate::requests::Requests;

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Number in the x86-64 table.
    pub nr: u32,
    /// Name as in the kernel's table.
    pub name: &'static str,
    /// The arguments the kernel looks at.
    pub args: &'static [Arg],
    /// What the recorder does. Flags and requests may decide otherwise: see [`crate::decide`].
    pub class: Class,
    /// How far it is supported.
    pub support: Support,
    /// The memory the kernel writes.
    pub effect: Effect,
    /// The table that says more, where one argument picks what the call does.
    pub requests: Option<&'static Requests>,
    /// A look at flags before the call runs, in code.
    pub check: Option<Check>,
    /// What makes a call that may wait return at once.
    pub no_wait: Option<NoWait>,
    /// The argument that names the file whose contents the call changes, by position: memory that maps the file changes with it.
    pub changes_file: Option<u8>,
    /// Where a call that opens a file says how.
    pub opens: Option<Opens>,
    /// Whether it takes bytes from the memory behind its second argument and puts them into its first, a descriptor.
    pub sends: bool,
    /// Where in a file, its first argument, the bytes stand that it puts into memory.
    pub reads: Option<Reads>,
    /// How it may be made without a stop; `None` where it never is, or its requests say.
    pub inside: Option<Mark>,
}

/// Where in a file a call reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// At the descriptor's own offset, which moves.
    AtOwn,
    /// At the offset in the argument at this position; at the descriptor's own where that is -1.
    At(u8),
}

/// Where a call that opens a file says how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opens {
    /// In the argument at this position.
    Flags(u8),
    /// In the first word of the memory behind the argument at this position.
    How(u8),
    /// Always with these.
    Always(u64),
}

/// One argument.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// What an argument is, and whether the kernel writes through it. Numbers in variants are positions of other arguments.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A signed 32-bit number.
    Int,
    /// A signed 64-bit number.
    Long,
    /// An unsigned number.
    Uint,
    /// A number best read in hexadecimal; also a pointer that is never followed.
    Hex,
    /// A file mode or mask, read in octal.
    Mode,
    /// A file descriptor.
    Fd,
    /// A directory descriptor or `AT_FDCWD`.
    DirFd,
    /// A signal number.
    Signal,
    /// Named bits or named values.
    Flags(&'static FlagSet),
    /// Which of the call's requests it is.
    Request,
    /// A C string that names a file.
    Path,
    /// A C string.
    Str,
    /// A NULL-terminated vector of C strings.
    StrVec,
    /// Memory the kernel reads.
    In(Size),
    /// Memory the kernel writes.
    Out(Size, When),
    /// Memory the kernel reads and then writes.
    InOut(Size, When),
    /// A vector of `struct iovec`, this argument's count, whose buffers the kernel reads.
    InIov(u8),
    /// A vector of `struct iovec`, this argument's count, whose buffers the kernel fills with as many bytes as the result says.
    OutIov(u8),
    /// A `struct msghdr` that is sent.
    InMsg,
    /// A `struct msghdr` that is filled.
    OutMsg,
}

/// A structure of the kernel's interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Struct {
    /// Its name without `struct`.
    pub name: &'static str,
    /// Its size in bytes on x86-64.
    pub size: u32,
}

/// How many bytes there are behind a pointer. Positions are those of other arguments.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// This many.
    Fixed(u32),
    /// One of these.
    One(Struct),
    /// As the argument at this position says.
    Arg(u8),
    /// As many structures as the argument at this position says.
    Items(u8, Struct),
    /// As the result says, and at most what the argument at this position says.
    Result(u8),
    /// A structure, and then as many bytes as the result says, at most what the argument at this position says.
    ResultAfter(Struct, u8),
    /// As many structures as the result says, and at most what the argument at this position says.
    ResultItems(u8, Struct),
    /// A byte for each page of as many bytes as the argument at this position says.
    Pages(u8),
    /// An `fd_set` of as many bits as the argument at this position says, in 64-bit words.
    Bits(u8),
    /// What the 32-bit word behind the pointer at this position said at entry, and at most what it says afterwards.
    Length(u8),
}

/// On which results memory is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// When the call succeeds.
    Success,
    /// When the result is greater than 0.
    Positive,
    /// When a signal interrupts it.
    Interrupted,
    /// When a signal interrupts it and the argument at this position has none of these bits.
    InterruptedUnless(u8, u64),
    /// When it succeeds and the argument at this position is not NULL.
    SuccessWith(u8),
    /// When it succeeds or fails with this error.
    SuccessOr(Errno),
    /// When it fails with this error.
    Failure(Errno),
    /// Whatever it returns.
    Always,
}

/// What the recorder does about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Lets it run; it returns without waiting for another task.
    Plain,
    /// Lets it run; it may wait for another task, a signal or time.
    MayBlock,
    /// Lets it run and notes how the address space changed.
    Map(MapCall),
    /// Makes a task.
    Spawn,
    /// Replaces the program.
    Exec,
    /// Ends the task, or all tasks of its process.
    Exit,
    /// `rt_sigreturn`: registers and extended state come from the signal frame.
    SignalReturn,
    /// Does not run it: the guest gets this error, as from a kernel without it.
    Emulate(Errno),
    /// Restricts the calls that the task may make (`seccomp`): keeps the filter, and decides by it in the kernel's place.
    Restrict,
    /// The recorder uses the feature itself, and answers from what it keeps for the guest.
    Answer(Answer),
    /// Lets it run, and takes out of what it wrote what is hidden from the guest.
    Adjusted,
    /// Lets it run, and stops the recording unless the kernel does not know the request either: see [`crate::answered_unknown`].
    Unknown,
    /// `ptrace`: the recorder is every task's one tracer, and does for the caller what it asks.
    Trace,
}

/// What a recorder answers in the kernel's place. The state is per process (`Dumpable`) or per task (the others), starts as
/// a fresh program has it, and what the answer writes is listed among the call's effects, by the result it gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// `prctl(PR_GET_DUMPABLE)` = the value kept, 1 after exec.
    GetDumpable,
    /// `prctl(PR_SET_DUMPABLE, 0 or 1)` = 0; `EINVAL` for other values.
    SetDumpable,
    /// `prctl(PR_GET_TSC, int *)` = 0, and 1 (`PR_TSC_ENABLE`) or 2 (`PR_TSC_SIGSEGV`) at the pointer.
    GetTsc,
    /// `prctl(PR_SET_TSC, 1 or 2)` = 0; under 2, `rdtsc` is the guest's own SIGSEGV.
    SetTsc,
    /// `prctl(PR_GET_SECCOMP)` = 0, or 1 or 2 once the guest restricted itself.
    GetSeccomp,
    /// `prctl(PR_GET_NO_NEW_PRIVS)` = the value kept, inherited by children and kept over exec.
    GetNoNewPrivs,
    /// `prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)` is noted and made; `EINVAL` for other arguments.
    SetNoNewPrivs,
    /// `sched_getaffinity` of recorded tasks = the processors the guest believes it may run on.
    GetAffinity,
    /// `sched_setaffinity` of recorded tasks: what it will believe. They stay on the recorder's processor.
    SetAffinity,
    /// `prctl(PR_SET_MM, what, ...)`: `EPERM`, as ordinary users get, for what would move the heap; the rest is made.
    SetMm,
    /// `perf_event_open`: made for counts of the kernel's own events that are only read; `EACCES` for others.
    OpenCounter,
    /// `bpf(BPF_PROG_LOAD)`: made for programs that cannot write a process's memory, `EPERM` for others.
    LoadProgram,
    /// `bpf(BPF_OBJ_GET_INFO_BY_FD)`: made where no further buffers are named, else `EPERM`.
    DescribeProgram,
    /// `arch_prctl(ARCH_GET_CPUID)` = 1 while `cpuid` is allowed.
    GetCpuid,
    /// `arch_prctl(ARCH_SET_CPUID, on)` = 0; when off, `cpuid` is the guest's own SIGSEGV.
    SetCpuid,
}

/// Calls that change the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapCall {
    /// `mmap`
    Mmap,
    /// `munmap`
    Munmap,
    /// `mprotect`, `pkey_mprotect`
    Mprotect,
    /// `mremap`
    Mremap,
    /// `brk`
    Brk,
    /// `madvise` whose advice drops contents at once.
    Discard,
    /// `madvise(MADV_FREE)`: the kernel may drop contents later, unseen. The recorder makes it `MADV_DONTNEED`.
    DiscardLater,
    /// `madvise(MADV_REMOVE)`: what shared mappings show is taken out of the object behind them.
    Remove,
    /// `madvise` whose advice decides what a forked child gets.
    ForkRule,
    /// `shmat`
    Shmat,
    /// `shmdt`
    Shmdt,
}

/// How far something is supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    /// Recorded and replayed exactly.
    Full,
    /// Works, but for what is said.
    Partial(&'static str),
    /// Stops the recording, for the reason said.
    Refused(&'static str),
}

/// Where the memory effect of a row is described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// By the kinds of its arguments.
    Args,
    /// By code of its own.
    Hand(Hand),
}

/// Effects that need code: what is written depends on more than sizes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hand {
    /// `poll`, `ppoll`: the `revents` of each entry, and the time left.
    Poll,
    /// `select`, `pselect6`: three sets and the time left.
    Select,
    /// `recvmsg`: name, buffers, control data, and the header's own fields.
    Recvmsg,
    /// `recvmmsg`: as `recvmsg` per message, lengths, and the time left.
    Recvmmsg,
    /// `sendmmsg`: a length per message.
    Sendmmsg,
    /// `waitid`: the fields of `siginfo` it sets.
    Waitid,
    /// `clone`: thread ids and a pidfd, by flags.
    Clone,
    /// `clone3`: the same, from a structure.
    Clone3,
    /// `capget`: as the header's version says.
    Capget,
    /// `name_to_handle_at`: as much as the handle holds.
    NameToHandle,
    /// `getxattrat`: the value, through a pointer in a structure.
    Getxattrat,
    /// `get_mempolicy`: a set of nodes.
    GetMempolicy,
    /// `lsm_get_self_attr`: the size it reports.
    LsmAttr,
    /// `semctl` `GETALL`: as many semaphores as the set has.
    SemGetall,
    /// `SIOCGIFCONF`: as many interfaces as reported.
    Ifconf,
    /// `FS_IOC_FIEMAP`: as many extents as reported.
    Fiemap,
    /// `capset`: the header's version where it was not known.
    Capset,
    /// `lsm_list_modules`: the size it reports.
    LsmModules,
    /// `statmount`: the size it reports.
    Statmount,
    /// `futex` operations that change the lock word in their first argument.
    LockWord,
    /// `restart_syscall`: the call it resumes.
    Restart,
    /// `sysfs`: the name of a file system.
    Sysfs,
    /// `prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE)`: a size.
    SetMm,
    /// `perf_event_open`: the size of the structure that the kernel knows, where it knows a smaller one.
    CounterSize,
    /// `SIOCGIFBR`, `SIOCSIFBR`: the numbers of bridges.
    Bridges,
    /// `bpf` that stores a key or a value of a map.
    BpfElement,
    /// `BPF_PROG_LOAD`: the verifier's log.
    BpfLog,
    /// `BPF_PROG_QUERY`: lists of programs.
    BpfQuery,
    /// `BPF_OBJ_GET_INFO_BY_FD`: a description.
    BpfInfo,
    /// `BPF_PROG_GET_NEXT_ID` and the like: an id.
    BpfNextId,
    /// `IPT_SO_SET_REPLACE` and the like: the old table's counters, through a pointer in the new one.
    OldCounters,
    /// `ptrace(PTRACE_GETREGSET)`: a buffer and its length.
    RegisterSet,
    /// `ptrace(PTRACE_ARCH_PRCTL)`: a base that is asked for.
    SegmentBase,
}

impl Hand {
    /// All of them.
    pub const ALL: [Self; 33] = [
        Self::Poll,
        Self::Select,
        Self::Recvmsg,
        Self::Recvmmsg,
        Self::Sendmmsg,
        Self::Waitid,
        Self::Clone,
        Self::Clone3,
        Self::Capget,
        Self::NameToHandle,
        Self::Getxattrat,
        Self::GetMempolicy,
        Self::LsmAttr,
        Self::SemGetall,
        Self::Ifconf,
        Self::Fiemap,
        Self::Capset,
        Self::LsmModules,
        Self::Statmount,
        Self::LockWord,
        Self::Restart,
        Self::Sysfs,
        Self::SetMm,
        Self::CounterSize,
        Self::Bridges,
        Self::OldCounters,
        Self::RegisterSet,
        Self::SegmentBase,
        Self::BpfElement,
        Self::BpfLog,
        Self::BpfQuery,
        Self::BpfInfo,
        Self::BpfNextId,
    ];
}

/// Looks at flags that need code, before a call runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Check {
    /// `clone3`, by the flags in its structure.
    Clone3,
}

/// How a call that may wait says that it does not want to. Positions are those of arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NoWait {
    /// By any of these bits.
    Bits(u8, u64),
    /// By the 32-bit number 0.
    Zero(u8),
}
