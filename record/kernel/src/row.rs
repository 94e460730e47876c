//! What a row of a table is made of. Holds no rows.

use crate::errno::Errno;

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
}

/// One argument.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// What an argument is, and whether the kernel writes through it.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A signed 32-bit number.
    Int,
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
    /// A C string that names a file.
    Path,
    /// A C string.
    Str,
    /// Memory the kernel reads.
    In(Size),
    /// Memory the kernel writes.
    Out(Size, When),
    /// Memory the kernel reads and then writes.
    InOut(Size, When),
}

/// How many bytes there are behind a pointer.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// This many.
    Fixed(u32),
    /// As the argument at this position says.
    Arg(u8),
    /// As the result says, and at most what the argument at this position says.
    Result(u8),
}

/// On which results memory is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// When the call succeeds.
    Success,
    /// When a signal interrupts it.
    Interrupted,
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
    /// `madvise` whose advice changes contents: pages are dropped.
    Discard,
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
    Hand,
}
