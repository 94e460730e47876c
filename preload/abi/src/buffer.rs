//! The buffer: code that makes calls and notes what they did, the stubs that lead there, and the memory both use.
//!
//! One per address space: its tasks take turns at what is in there, as none is left standing in the code while another runs.

use crate::{PAGE, calls};

/// The part that is readable and executable: code, slots, stubs, rows, lists.
pub const FIXED: u64 = PAGE + 0x1000;
/// Its length in bytes.
pub const FIXED_LEN: u64 = STATE - FIXED;

/// The code, at most a page; it begins where stubs lead.
pub const CODE: u64 = FIXED;
/// Room for the code, in bytes.
pub const CODE_LEN: u64 = 0x1000;
/// Eight bytes per stub: the address of its code.
pub const SLOTS: u64 = CODE + CODE_LEN;
/// The stubs.
pub const STUBS: u64 = SLOTS + STUB_COUNT * 8;
/// Bytes per stub.
pub const STUB_LEN: u64 = 128;
/// Room for so many.
pub const STUB_COUNT: u64 = 1024;
/// A [`Row`] for each number of a call.
pub const ROWS: u64 = STUBS + STUB_COUNT * STUB_LEN;
/// How many rows there are.
pub const ROW_COUNT: u64 = 512;
/// Rows for requests, in lists.
pub const LISTS: u64 = ROWS + ROW_COUNT * 8;
/// Room for them, in bytes.
pub const LISTS_LEN: u64 = 0x1000;

/// The part that is written: the state and the ring.
pub const STATE: u64 = LISTS + LISTS_LEN;
/// Bytes of the ring in use, from its start on. A 32-bit word that is stored once a call is noted in full.
pub const HEAD: u64 = STATE;
/// Not 0 while a call may have been made that is not noted yet. Goes to 0 with the same store.
pub const CALLING: u64 = HEAD + 4;
/// Not 0 while calls may be made here.
pub const GO: u64 = STATE + 8;
/// The address of the [`crate::SiteDescriptor`] of the last call or reading.
pub const SITE: u64 = STATE + 16;
/// The task's stack pointer meanwhile.
pub const STACK_POINTER: u64 = STATE + 24;
/// Where the task goes on.
pub const RESUME: u64 = STATE + 32;
/// Not 0 while no other task waits for its turn.
pub const ALONE: u64 = STATE + 40;
/// A `struct iovec`, for calls that are made in another form.
pub const VECTOR: u64 = STATE + 48;
/// Not 0 where the call that is stopped at next was made already and failed with EFAULT: what it wrote before is not noted.
pub const FAULTED: u64 = STATE + 64;
/// Not 0 where the call that is stopped at next was tried, and would have waited.
pub const IN_VAIN: u64 = FAULTED + 4;
/// Readings of the time stamp counter are reckoned of the clock CLOCK_MONOTONIC_RAW, in nanoseconds: from this time on,
pub const TSC_FROM: u64 = STATE + 0x80;
/// for so long (0 where nothing is known),
pub const TSC_FOR: u64 = TSC_FROM + 8;
/// so many a nanosecond, in units of 1 / 2^32,
pub const TSC_RATE: u64 = TSC_FROM + 16;
/// and this many at first.
pub const TSC_TICKS: u64 = TSC_FROM + 24;
/// The number of the processor that is told with them.
pub const TSC_PROCESSOR: u64 = TSC_FROM + 32;
/// The newest reading.
pub const TSC_TOLD: u64 = TSC_FROM + 40;
/// A `struct timespec`: that clock.
pub const CLOCK: u64 = TSC_FROM + 48;
/// Where the kernel describes a file that is being opened.
pub const FILE: u64 = STATE + 0x240;
/// The end of a stack of the code's own.
pub const STACK_TOP: u64 = STATE + 0x200;
/// A byte per descriptor: the bits of [`Row::needs`] that it has, [`CLOSES`] and [`WHILE_EMPTY`].
pub const FDS: u64 = STATE + 0x400;
/// How many there are.
pub const FD_COUNT: u64 = 1024;
/// A copy of what a call works on: of its `struct iovec`s, or of its `struct pollfd`s.
pub const VECTORS: u64 = STATE + 0x800;
/// Most of the first. Calls that have more are not made here.
pub const MOST_VECTORS: u64 = 16;
/// Most of the second.
pub const MOST_POLLED: u64 = 32;
/// Where the copy ends.
pub const VECTORS_END: u64 = VECTORS + 0x100;
/// A `struct timespec` of no time.
pub const NO_TIME: u64 = VECTORS_END + 16;
/// Where mappings lie that are more than memory of the program's own, two words each: the first address, and the one behind the last. In
/// ascending order; where they end, the first is [`NO_AREA`].
pub const AREAS: u64 = NO_TIME + 16;
/// Most of them, besides their end.
pub const MOST_AREAS: usize = 100;
/// No area begins here.
pub const NO_AREA: u64 = u64::MAX;
/// Length of the state in bytes.
pub const STATE_LEN: u64 = 0x1000;
/// Where calls are noted.
pub const RING: u64 = STATE + STATE_LEN;
/// Its length in bytes.
pub const RING_LEN: u64 = 256 << 10;
/// Length of the part that is written, in bytes.
pub const WRITTEN_LEN: u64 = STATE_LEN + RING_LEN;

/// Calls that write more are not made here.
pub const MOST: u64 = 128 << 10;
/// Longer reads that need not be tried are not made here.
pub const LONG: u64 = 8 << 10;
/// Longer writes that must not wait would be cut short where there is not room for all (`PIPE_BUF`).
pub const WHOLE: u64 = 4096;

/// Everything: where no memory of the program's own may lie.
pub const START: u64 = FIXED;
/// Its end.
pub const END: u64 = STATE + WRITTEN_LEN;

/// How a call is made here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// What the descriptor in the first argument must be good for; 0 where there is none.
    pub needs: u8,
    /// How many arguments it has.
    pub args: u8,
    /// The argument that points to what it writes.
    pub out: Option<(u8, Size)>,
    /// Arguments that must be 0.
    pub zero: [Option<u8>; 2],
    /// How it is kept from waiting.
    pub form: Form,
}

/// How a call is made that might wait. One that would have waited is made again, stopped at. Those of odd numbers may be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// As it is.
    #[default]
    Plain = 0,
    /// As it is where the descriptor is good for that; as `preadv2` or `pwritev2` with `RWF_NOWAIT` where it may be tried.
    Vector = 1,
    /// With 0 for a timeout, the fourth argument.
    NoTime = 2,
    /// With `MSG_DONTWAIT` among the flags, the fourth argument, where the descriptor may be tried.
    NoWait = 3,
    /// `openat`, to read regular files and folders.
    Open = 4,
    /// `close`, of a descriptor that is good for that.
    Close = 8,
    /// `poll`, `ppoll`: with no time, on entries that are put back where nothing was found.
    Poll = 5,
    /// With no time behind the fourth argument, which must be 0: what waits for ever.
    NoTimeAt = 6,
    /// `readv`, `writev`: as [`Form::Vector`].
    Vectors = 7,
    /// `recvmsg`, `sendmsg`: with `MSG_DONTWAIT`, where there are neither an address nor control data.
    Message = 9,
    /// `open`: as [`Form::Open`].
    OpenAs = 10,
    /// `sched_yield`: while there is nobody to go first.
    Alone = 11,
    /// `sendfile`, from a descriptor that can be read without waiting.
    Send = 12,
    /// `futex` that waits for ever, where the word is not as expected. (To wait for no time takes long.)
    Compare = 13,
    /// `mprotect`, `munmap`, `madvise` that drops contents: of no [`AREAS`]. One that fails is made again, stopped at.
    Range = 14,
    /// `mmap`, of memory of the program's own, and over no [`AREAS`]. Likewise.
    Fresh = 15,
}

/// How much a call writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// This many bytes if it succeeds.
    Fixed(u32),
    /// As its result says, at most what the argument at this position says, in units of so many bytes.
    Result(u8, u16),
    /// In several places, as its form knows.
    Several,
}

/// It can be closed without anybody else needing to know. (Not needed of the descriptor that a row is about.)
pub const CLOSES: u8 = 1;
/// The descriptor can be read from without waiting.
pub const READS: u8 = 2;
/// It can be written to without waiting, and nothing else needs to know.
pub const WRITES: u8 = 4;
/// It can be asked about.
pub const ASKS: u8 = 8;

/// It may be tried with short writes while nothing is on its way from there.
pub const WHILE_EMPTY: u8 = 0x80;

/// File systems whose regular files are read and written without waiting for another process (`linux/magic.h`).
pub const ORDINARY: [u32; 9] = [
    0xef53,      // ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
    0x8584_58f6, // ramfs
    0x7371_7368, // squashfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
];

/// What is good for reads that must not wait, and may be tried with those: the bits of what is good for reads, and so on, so many to the
/// left.
pub const TRIED: u32 = 4;

/// The call is made here.
pub(crate) const MADE: u64 = 1;
const FIXED_SIZE: u64 = 1 << 24;
const RESULT_SIZE: u64 = 2 << 24;

impl Row {
    /// As the code reads it, from the lowest bit on: 1, since the call is made here; what is needed; the form, from bit 4; the number of
    /// arguments, from bit 8; which one points to what is written, or [`calls::SEVERAL`], or [`calls::NOTHING`], from 16; 1 for a fixed
    /// size and 2 for the result's, from 24; an argument that must be 0, plus 1, from 28. In the high half the fixed size, or the argument
    /// that limits the result, and the unit from bit 40; another argument that must be 0, plus 1, from 56.
    pub const fn to_word(self) -> u64 {
        let (out, size) = match self.out {
            None => (calls::NOTHING, 0),
            Some((_, Size::Several)) => (calls::SEVERAL, 0),
            Some((at, Size::Fixed(len))) => (at, FIXED_SIZE | (len as u64) << 32),
            Some((at, Size::Result(most, unit))) => {
                (at, RESULT_SIZE | (most as u64) << 32 | (unit as u64) << 40)
            }
        };
        MADE | self.needs as u64
            | (self.form as u64) << 4
            | (self.args as u64) << 8
            | (out as u64) << 16
            | size
            | after(self.zero[0]) << 28
            | after(self.zero[1]) << 56
    }
}

/// Of a call whose requests have rows of their own: where those are. It has the list's address in the high half.
pub const BY_REQUEST: u64 = 1 << 27;
/// The request is the third argument; else the second.
pub const THIRD: u64 = 1 << 28;

/// The head of a list of requests, 16 bytes: which bits of the low half of the argument say what the request is. Its entries follow, and then
/// 16 zero bytes.
pub const fn list_head(mask: u32) -> [u64; 2] {
    [mask as u64, 0]
}

/// An entry of such a list.
pub const fn list_entry(request: u32, row: Row) -> [u64; 2] {
    [request as u64, row.to_word()]
}

/// The row of a call whose requests are listed at an address.
pub const fn by_request(list: u64, third: bool) -> u64 {
    MADE | BY_REQUEST | if third { THIRD } else { 0 } | list << 32
}

const fn after(position: Option<u8>) -> u64 {
    match position {
        None => 0,
        Some(at) => at as u64 + 1,
    }
}
