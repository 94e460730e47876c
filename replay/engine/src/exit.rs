//! Why running stopped.

use guest::GuestAddr;

/// An instruction whose result must come from outside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Trapped {
    /// `rdtsc`
    Rdtsc,
    /// `rdtscp`
    Rdtscp,
    /// `cpuid`
    Cpuid,
    /// `rdrand`
    Rdrand,
    /// `rdseed`
    Rdseed,
    /// `rdpid`
    Rdpid,
}

/// A synchronous fault as the guest's kernel would report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Signal number: SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGTRAP.
    pub signo: i32,
    /// `si_code`.
    pub code: i32,
    /// `si_addr`: the address accessed, or of the instruction.
    pub addr: GuestAddr,
    /// Whether the arithmetic flags in `registers()` are the guest's. Where they are not, the guest cannot see them but in
    /// a signal frame.
    pub flags_exact: bool,
}

/// Why [`run`](crate::Space::run) returned. In all cases `registers().rip` is the next instruction to run, and all
/// earlier ones are in `retired()`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exit {
    /// A `syscall` instruction is next (or a call of the vsyscall page: rip is then an entry point of that page). The caller performs it, sets the registers that come after it, and counts it.
    /// `rcx` and `r11` are still the guest's; flags are exact.
    Syscall,
    /// An instruction whose result must come from outside is next. The caller performs and counts it.
    Instruction(Trapped),
    /// The next instruction faults. Not counted, and not retired unless the caller makes it possible and runs again.
    Fault(Fault),
    /// Exactly the budgeted number of instructions was retired. All registers and flags are exact.
    Budget,
    /// The next instruction has a breakpoint (never reported for the instruction a `run` begins at).
    Breakpoint,
    /// The next instruction is at the searched state's pc, and its general registers, flags and words are what they are now. All
    /// registers and flags are exact. Never reported for the instruction a `run` begins at; told before anything else about its
    /// instruction, but after the end of the budget and after a watchpoint touched by the one before.
    Candidate,
    /// An instruction touched watched bytes; it has been retired.
    Watchpoint {
        /// The start of the watched range, as it was given.
        addr: GuestAddr,
        /// The instruction that touched it.
        pc: GuestAddr,
    },
    /// Indexed mode: the log is nearly full. Drain it and run on.
    LogFull,
    /// The next instruction is one that replay refuses.
    Unsupported {
        /// Where.
        pc: GuestAddr,
        /// Its name.
        name: String,
    },
}
