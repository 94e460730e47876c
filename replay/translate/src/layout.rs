//! What generated code finds at fixed addresses below 2 GiB, where `[disp32]` reaches without a register: the engine
//! page, the lookup table, the common stubs. Must not know who maps them.

use std::fmt;

use guest::GuestAddr;

/// An address in the code cache of the process that runs translated code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct CacheAddr(pub u64);

impl CacheAddr {
    /// The address `n` bytes further on.
    pub const fn offset(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

impl fmt::Debug for CacheAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cache:{:#x}", self.0)
    }
}

/// The system call number by which translated code leaves for the supervisor. No kernel has it; the supervisor's
/// seccomp filter answers it with `SECCOMP_RET_TRACE`.
pub const EXIT_SYSCALL: u32 = 0x00B5_0001;

/// The largest value [`EnginePage::counter`] may be set to: the flag-free count takes a set high half for "below
/// zero".
pub const MAX_BUDGET: i64 = u32::MAX as i64;

/// [`EnginePage::exit_block`] when a common stub, not a block, was left; `exit_index` is then a
/// [`crate::RuntimeExit`].
pub const RUNTIME_BLOCK: u32 = u32::MAX;

/// Bytes to map for the engine page.
pub const ENGINE_PAGE_SIZE: usize = 4096;
/// Bytes to map for the common stubs.
pub const RUNTIME_PAGE_SIZE: usize = 4096;
/// Slots in the lookup table.
pub const LOOKUP_TABLE_SLOTS: usize = 1 << 16;
/// Bytes to map for the lookup table.
pub const LOOKUP_TABLE_BYTES: usize = LOOKUP_TABLE_SLOTS * 8;

/// Which slot of the lookup table (8-byte cache addresses) an indirect branch to `pc` jumps through. The slot holds
/// the [`crate::Translated::lookup`] address of the first block of its chain, or [`crate::Runtime::miss`].
pub const fn lookup_slot(pc: GuestAddr) -> usize {
    (pc.0 & (LOOKUP_TABLE_SLOTS as u64 - 1)) as usize
}

/// Words of memory that are compared at a searched instruction.
pub const SEARCH_WORDS: usize = 16;

/// What is compared, without leaving the cache, before an instruction that blocks were told to search at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SearchPage {
    /// The general registers' values, by their numbers in x86 encoding.
    pub registers: [u64; 16],
    /// The same, negated.
    pub negated: [u64; 16],
    /// The arithmetic flags as `lahf; seto al` leaves them in ax: see [`SearchPage::flags`].
    pub flags: u64,
    /// Addresses of words; the first 0 ends them.
    pub addresses: [u64; SEARCH_WORDS],
    /// Their values.
    pub words: [u64; SEARCH_WORDS],
    /// The first word's value, negated.
    pub first: u64,
    /// Where the guest goes on when something differs.
    pub(crate) resume: u64,
    /// Where all being equal is told.
    pub(crate) found: u64,
}

impl SearchPage {
    /// Nothing to compare yet.
    pub const fn new() -> Self {
        Self {
            registers: [0; 16],
            negated: [0; 16],
            flags: 0,
            addresses: [0; SEARCH_WORDS],
            words: [0; SEARCH_WORDS],
            first: 0,
            resume: 0,
            found: 0,
        }
    }

    /// The form of `eflags` that is compared: CF, PF, AF, ZF, SF and OF.
    pub const fn flags(eflags: u64) -> u64 {
        const OVERFLOW: u64 = 1 << 11;
        (eflags & 0xD5 | 2) << 8 | (eflags & OVERFLOW) >> 11
    }
}

impl Default for SearchPage {
    fn default() -> Self {
        Self::new()
    }
}

/// Where things lie. All three are page aligned and end below 2 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The [`EnginePage`]: readable and writable.
    pub page: u32,
    /// The common stubs: executable.
    pub runtime: u32,
    /// The lookup table: readable, written by the supervisor.
    pub table: u32,
}

/// The layout used unless something is in the way: above `vm.mmap_min_addr`, below where non-PIE programs lie.
pub const DEFAULT_LAYOUT: Layout = Layout { page: 0x2_0000, runtime: 0x2_1000, table: 0x3_0000 };

/// The page that translated code and supervisor share. Plain data; the supervisor reads and writes it only while
/// nothing runs.
///
/// On every exit the guest's rax, rcx and r11 are in `spill` (the exit is a `syscall` instruction and so destroys the
/// registers); all other general registers, the flags and the extended state are the guest's own, in place. To enter
/// the cache, load all registers as they are and jump to [`Translated::entry`](crate::Translated::entry).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct EnginePage {
    /// Remaining budget in instructions, `0..=MAX_BUDGET`. Each block subtracts the instructions it runs, and leaves
    /// with [`ExitKind::Budget`](crate::ExitKind::Budget), having subtracted nothing and run nothing, when it might
    /// run more than are left. On every exit and at every mark (with its correction) `budget - counter` is what was
    /// retired.
    pub counter: i64,
    /// Guest registers moved out of the way, by their number in x86 encoding (rax rcx rdx rbx rsp rbp rsi rdi r8 to
    /// r15). Valid where an exit or a [`Mark`](crate::Mark) says so.
    pub spill: [u64; 16],
    /// The guest address an indirect branch goes to, after [`RuntimeExit::Miss`](crate::RuntimeExit::Miss).
    pub indirect_target: u64,
    /// The 8 bytes below the stack pointer before an indirect call overwrote them.
    pub below_stack: u64,
    /// The block whose indirect branch went there.
    pub indirect_block: u32,
    /// Keeps what follows aligned.
    pub padding: u32,
    /// The block that was left ([`crate::BlockId`]), or [`RUNTIME_BLOCK`].
    pub exit_block: u32,
    /// Which of its [`Translated::exits`](crate::Translated::exits). One byte is written; the rest stays 0.
    pub exit_index: u32,
    /// Set to 1 by blocks translated exactly that define all six arithmetic flags, never cleared by code: after the
    /// switch from another mode the flags are the guest's from then on.
    pub flags_defined: u64,
    /// Where the next log record goes (indexed modes). The supervisor sets it when it has drained the log.
    pub log_next: u64,
    /// The contents of string stores are put into the log only if they end at or before this address; else the block
    /// leaves with [`ExitKind::LogBulk`](crate::ExitKind::LogBulk). See `log` for how to choose it.
    pub log_bulk_limit: u64,
    /// First byte of the string store (or state save) that is being logged: the guest's rdi before it.
    pub bulk_start: u64,
    /// The guest's fs base, as the supervisor last loaded it; `wrfsbase` in translated code updates it. Used to log
    /// addresses only.
    pub fs_base: u64,
    /// The guest's gs base, likewise.
    pub gs_base: u64,
    /// Private to the common stubs.
    pub scratch: [u64; 16],
    /// What is compared at a searched instruction.
    pub search: SearchPage,
    /// Conditional branches retired, where [`Request::branches`](crate::Request::branches) has them counted; only added to. Right on
    /// every exit and at every mark, without a correction.
    pub branches: u64,
    /// Where the next [`PreparedCall`](crate::PreparedCall) lies: at a `syscall` instruction that it fits its effects are put and the
    /// guest goes on, rcx and r11 as the kernel leaves them. Such instructions are not counted. 0 where there is none.
    pub calls: u64,
}

const _: () = assert!(size_of::<EnginePage>() <= ENGINE_PAGE_SIZE);

impl EnginePage {
    /// A page for code that has not run yet.
    pub const fn new() -> Self {
        Self {
            counter: 0,
            spill: [0; 16],
            indirect_target: 0,
            below_stack: 0,
            indirect_block: 0,
            padding: 0,
            exit_block: 0,
            exit_index: 0,
            flags_defined: 0,
            log_next: 0,
            log_bulk_limit: 0,
            bulk_start: 0,
            fs_base: 0,
            gs_base: 0,
            scratch: [0; 16],
            search: SearchPage::new(),
            branches: 0,
            calls: 0,
        }
    }
}

impl Default for EnginePage {
    fn default() -> Self {
        Self::new()
    }
}
