//! What a translated block is: code, how it is left, and how every place in it maps back to the guest.

use guest::{GuestAddr, GuestRange};

use crate::layout::CacheAddr;

/// A block's number, chosen by the engine, below 2^28, never reused while logs that hold it are undecoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct BlockId(pub u32);

impl BlockId {
    /// One more than the largest id.
    pub const LIMIT: u32 = 1 << 28;

    /// This id as an index into a vector with one element per id.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A translated block: one entry, any number of exits. Nothing in it is position independent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Translated {
    /// As requested.
    pub id: BlockId,
    /// Guest address of the first instruction.
    pub pc: GuestAddr,
    /// Bytes to place at `Request::hot`.
    pub code: Vec<u8>,
    /// Bytes to place at `Request::cold` (rarely run: exits, constants). Executable too.
    pub cold: Vec<u8>,
    /// Where the block is entered: link targets, and where the supervisor enters.
    pub entry: CacheAddr,
    /// What a lookup slot or another block's chain site goes to: checks that the branch is to this block, without
    /// touching flags, else follows the chain.
    pub lookup: CacheAddr,
    /// The chain: the next block of the same lookup slot. At first it goes to a stub that misses. Chains
    /// may be in any order.
    pub chain: Link,
    /// The guest bytes the block came from, the first range beginning at `pc` (empty for a block that only exits).
    /// Also the bytes of an instruction that the block exits before, and of those beyond its end that say which flags
    /// matter. A write to any of them makes the block stale.
    pub sources: Vec<GuestRange>,
    /// Guest address of each instruction, in the order they run on the longest path, which may lead along jumps and
    /// through conditional branches.
    pub pcs: Vec<GuestAddr>,
    /// The ways out through the supervisor, by [`exit_index`](crate::EnginePage::exit_index).
    pub exits: Vec<Exit>,
    /// The patchable direct branches. Each goes to its own stub (an [`ExitKind::Link`]) until patched.
    pub links: Vec<Link>,
    /// Return addresses of calls in this block, worth translating and entering in the lookup table ahead.
    pub return_sites: Vec<GuestAddr>,
    /// For a block that ends with an indirect branch: how to take it back. A processor refuses to branch to an
    /// address that is not canonical, where the branch does not retire: SIGSEGV with rip at it. Here it has retired
    /// when the lookup misses.
    pub indirect: Option<Indirect>,
    /// Sorted by `offset`; each holds from its offset in `code` to the next one's.
    pub marks: Vec<Mark>,
    /// Stores in order (logging modes; else empty).
    pub slots: Vec<Slot>,
    /// The ways through the block, by the path number in log records. The first is the longest; the others leave it
    /// at a conditional branch.
    pub paths: Vec<Path>,
}

impl Translated {
    /// The most instructions the block runs: fewer in the budget, and it leaves at entry.
    pub fn instructions(&self) -> u32 {
        self.pcs.len() as u32
    }

    /// What holds at cache address `at` (a fault's rip) when `code` lies at `hot`; `None` outside the block's guest
    /// instructions.
    pub fn mark_at(&self, hot: CacheAddr, at: CacheAddr) -> Option<&Mark> {
        let offset =
            u32::try_from(at.0.checked_sub(hot.0)?).ok().filter(|&o| (o as usize) < self.code.len())?;
        let next = self.marks.partition_point(|mark| mark.offset <= offset);
        self.marks.get(next.checked_sub(1)?)
    }
}

/// How to take back the indirect branch (the last of [`Translated::pcs`]) of the block
/// [`indirect_block`](crate::EnginePage::indirect_block) when its target is not canonical: set rip to `pc`, add
/// `stack` to rsp, add 1 to the counter, and for a call (`stack` is 8) put
/// [`below_stack`](crate::EnginePage::below_stack) back below rsp. In logging modes the block's record is the log's
/// last: take its bytes off `log_next`, and append [`log::partial_record`](crate::log::partial_record) with
/// [`Indirect::mark`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Indirect {
    /// The branch.
    pub pc: GuestAddr,
    /// What to add to rsp.
    pub stack: i32,
    /// What held before the branch (nothing is spilled any more but rcx, which the exit has put right).
    pub mark: Mark,
}

impl Indirect {
    /// Whether a processor would refuse to branch to `target`.
    pub const fn refuses(target: GuestAddr) -> bool {
        let sign = target.0 as i64 >> 47;
        sign != 0 && sign != -1
    }
}

/// A patchable rel32 of a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Address of the 4 displacement bytes.
    pub site: CacheAddr,
    /// What it goes to until patched, and again when unlinked.
    pub unlinked: CacheAddr,
    /// The guest address it goes to. For [`Translated::chain`], the block's own pc.
    pub target: GuestAddr,
}

impl Link {
    /// The 4 bytes to write at `site` so that it goes to `to`, or `None` if that is out of reach (±2 GiB).
    pub fn displacement(&self, to: CacheAddr) -> Option<[u8; 4]> {
        let distance = to.0.wrapping_sub(self.site.0.wrapping_add(4)) as i64;
        i32::try_from(distance).ok().map(i32::to_le_bytes)
    }
}

/// A way out of a block through the supervisor. The guest's rip is then `pc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// Guest address to go on at: the target of a link, or the instruction the block ended before.
    pub pc: GuestAddr,
    /// Why.
    pub kind: ExitKind,
}

/// Why a block was left for the supervisor. Unless said otherwise all instructions before `Exit::pc` are retired and
/// counted, the one at it is not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExitKind {
    /// Through a direct branch (or fall-through) that is not linked: `links[link]` may be patched.
    Link {
        /// Index into [`Translated::links`].
        link: u16,
    },
    /// The budget does not cover the block, of which nothing was run or counted (`pc` is its start); or the requested
    /// number of instructions has run (`pc` is the next one).
    Budget,
    /// `pc` is a breakpoint.
    Breakpoint,
    /// A `syscall` instruction (or `int 0x80`) at `pc`, to which no [`PreparedCall`](crate::PreparedCall) fits.
    Syscall,
    /// An instruction at `pc` with a result of its own each time, to which no [`PreparedCall`](crate::PreparedCall) fits.
    Special(Special),
    /// The instruction at `pc` raises a signal whatever the state: it was not run. (Natively rip is after an `int3`
    /// or `int1` then, and at all others.) Privileged instructions are not among these: they fault in the cache.
    Raises(Signal),
    /// The block's source bytes are no longer what was translated. Nothing was run or counted.
    Stale,
    /// Logging modes: a string store (or state save) has retired, but its record does not fit. Drain the log, append
    /// [`log::bulk_record`](crate::log::bulk_record) with [`bulk_start`](crate::EnginePage::bulk_start), and go on at
    /// `pc`.
    LogBulk,
    /// The registers, the arithmetic flags and the words that [`EnginePage::search`](crate::EnginePage::search) holds are those of the
    /// guest before the instruction at `pc`, which is [`Request::search`](crate::Request::search). Flags are exact. Add `unretired`
    /// to the counter.
    Candidate {
        /// As [`Mark::unretired`].
        unretired: i32,
    },
    /// An instruction has just stored an x87 state image (`fnstenv`, `fnsave`, `fxsave`, `xsave`...) at
    /// [`bulk_start`](crate::EnginePage::bulk_start), and retired. Where the instruction pointer in it, at the given
    /// offset, is a cache address (`mark_at`), replace it by the guest's; in logging modes then drain the log and
    /// append [`log::bulk_record`](crate::log::bulk_record); go on at `pc`.
    /// Outside logging modes an `xsave` without x87 state in its image does not leave.
    X87Pointer {
        /// Offset of the field in the image, in bytes.
        offset: u8,
        /// Its width in bytes, 2, 4 or 8.
        width: u8,
    },
}

/// Instructions that the supervisor must answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Special {
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
    /// `rdpru`, `rdpmc`: performance counters
    Counter,
    /// `umwait`, `tpause`: waits that end by the time stamp counter
    TimedWait,
}

/// Signals that an instruction raises whatever the state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Signal {
    /// SIGTRAP
    Trap,
    /// SIGILL
    Illegal,
    /// SIGSEGV, as of a general protection fault: no address.
    Protection,
}

/// Guest registers held in [`EnginePage::spill`](crate::EnginePage::spill) rather than in place: bit `n` is register
/// `n` in x86 encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spilled(pub u16);

impl Spilled {
    /// Whether register `n` (x86 encoding) is spilled.
    pub const fn contains(self, n: u8) -> bool {
        self.0 >> n & 1 != 0
    }

    /// The spilled registers' numbers, ascending.
    pub fn registers(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |&n| self.contains(n))
    }
}

/// What holds from one offset in a block's code on. At a fault anywhere there: the guest's rip is `pc`, the spilled
/// registers are in the engine page, all others in place; add `unretired` to the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Offset in [`Translated::code`], in bytes.
    pub offset: u32,
    /// The guest instruction.
    pub pc: GuestAddr,
    /// Instructions of this block retired before it.
    pub retired: u32,
    /// Instructions subtracted from the counter that have not retired; negative when more have retired than were
    /// subtracted.
    pub unretired: i32,
    /// Registers to be taken from the engine page.
    pub spilled: Spilled,
    /// Whether the arithmetic flags in place are the guest's (in exact modes always, once `flags_defined`).
    pub flags_exact: bool,
    /// The code is the log's: what it accesses, the guest does not. It may not be aligned.
    pub logging: bool,
}

/// One way through a block, from its entry to one of its ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Instructions retired on it: the first so many of [`Translated::pcs`].
    pub instructions: u32,
    /// Stores made on it: the first so many of [`Translated::slots`].
    pub slots: u32,
    /// Bytes of a log record of this path that follow its header, without bulk contents.
    pub log_bytes: u32,
    /// How it ends.
    pub end: Terminator,
}

/// How a path through a block ends. The instruction meant is the path's last, except for `Stop`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Terminator {
    /// It runs on into `to`: the block was cut.
    Fall {
        /// The next instruction.
        to: GuestAddr,
    },
    /// A direct jump.
    Jump {
        /// Where to.
        to: GuestAddr,
    },
    /// A conditional branch; the next block says which way it went.
    Conditional {
        /// Where to when taken.
        taken: GuestAddr,
        /// Where to when not.
        fall: GuestAddr,
    },
    /// An indirect jump; the next block says where to.
    JumpIndirect,
    /// A direct call.
    Call {
        /// The callee.
        to: GuestAddr,
        /// The pushed return address.
        returns_to: GuestAddr,
    },
    /// An indirect call; the next block is the callee.
    CallIndirect {
        /// The pushed return address.
        returns_to: GuestAddr,
    },
    /// A return; the next block is at the return address.
    Return,
    /// The block ends before an instruction that it does not run (a syscall, a trapped instruction, a breakpoint,
    /// ...).
    Stop {
        /// That instruction.
        at: GuestAddr,
    },
}

/// A store (or part of one) of a logged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Which of [`Translated::pcs`] stores.
    pub instruction: u32,
    /// Bytes stored; for a string store the bytes of one element.
    pub size: u32,
    /// Where its address is.
    pub address: Address,
    /// Where its contents are.
    pub contents: Contents,
    /// When it stores.
    pub condition: Condition,
}

/// Where a slot's address is. Offsets are in bytes from the end of the record's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// The same every time.
    Fixed(u64),
    /// Eight bytes of the record.
    Logged {
        /// Where.
        at: u32,
    },
    /// At a distance from an earlier slot's address.
    Derived {
        /// Index of that slot, whose address is not `Derived`.
        slot: u32,
        /// Distance in bytes (added, wrapping).
        delta: i64,
    },
}

/// Where a slot's contents are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The same every time: the low `size` (at most 8) bytes, little-endian.
    Fixed(u64),
    /// In the record: the first `size` bytes at this offset.
    Logged {
        /// Where.
        at: u32,
    },
    /// A string store, alone in its block. Record: `start: u64` (rdi before), `end: u64` (rdi after), `len: u32`,
    /// then `len` bytes padded to 4: the contents of the bytes that were stored, or 0 when they are zero long.
    String(StringOp),
    /// A state image (`fxsave`, `xsave`, `fnstenv`...), alone in its block; written by the supervisor after
    /// [`ExitKind::X87Pointer`]. Record as for strings, `start..end` being the area.
    State(StateImage),
}

/// String stores with a repeat prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StringOp {
    /// `rep movs`
    Move,
    /// `rep stos`
    Fill,
}

/// Forms of saved state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateImage {
    /// All bytes are written (`fnstenv`, `fnsave`).
    Whole,
    /// `fxsave`: the first 416 bytes are written.
    FxSave,
    /// `xsave`, `xsaveopt`: the components that its header shows.
    XSave,
    /// `xsavec`: compacted.
    XSaveCompact,
}

/// When a slot's instruction stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Always.
    Always,
    /// When the byte at this offset is not 0 (`cmpxchg` that succeeds; one that fails is no write).
    Logged {
        /// Where.
        at: u32,
    },
    /// Element `i` is stored when bit `i` of the 8 bytes at `at` is set.
    Mask {
        /// Where.
        at: u32,
        /// Bytes in an element.
        element: u8,
    },
    /// As many elements are stored, the first ones of the contents, as the first bits of the 8 bytes at `at`, one for each
    /// element, are set.
    Packed {
        /// Where.
        at: u32,
        /// Bytes in an element.
        element: u8,
    },
    /// As with `Mask`, but each element goes to the slot's address plus its own index times `scale`.
    Scatter {
        /// Where the 8 bytes of bits are.
        at: u32,
        /// The opmask register that had them: each is cleared when its element is stored.
        mask: u8,
        /// Where the indices are, signed.
        indices: u32,
        /// Bytes in an index.
        index: u8,
        /// What indices are multiplied by.
        scale: u8,
        /// Bytes in an element.
        element: u8,
    },
}
