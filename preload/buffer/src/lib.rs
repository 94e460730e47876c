//! The code that makes a recorded program's system calls without a stop, and reads the time stamp counter for it, and notes what that
//! did. It is copied into the program.
//!
//! Assembly throughout (`code.s`, and `reads.s` for the counter), which keeps every register and flag. Calls that it may not make, or has no room for, are made by an
//! instruction that the recorder's filter stops; what it cannot read is read by one that is trapped.
//!
//! Knows neither the recorder nor which calls may be made: the rows in memory say that.
//!
//! - `undone`: what a task was about to do that stands in the code for good
#![no_std]
#![expect(unsafe_code, reason = "assembly; the bytes between its labels")]

mod undone;

use core::arch::global_asm;

use abi::buffer::{
    ALONE, AREAS, ASKS, BY_REQUEST, CALLING, CLOCK, CLOSES, CODE, FAULTED, FD_COUNT, FDS, FILE, GO, HEAD,
    IN_VAIN, LONG, MOST, MOST_POLLED, MOST_VECTORS, NO_TIME, ORDINARY, READS, RESUME, RING, RING_LEN,
    ROW_COUNT, ROWS, SITE, STACK_POINTER, STACK_TOP, THIRD, TRIED, TSC_FOR, TSC_FROM, TSC_PROCESSOR,
    TSC_RATE, TSC_TICKS, TSC_TOLD, VECTOR, VECTORS, VECTORS_END, WHILE_EMPTY, WHOLE,
};

pub use undone::{Standing, Used, standing};

/// What a call takes in the ring besides what it writes as its result says: its head, its arguments, filling, and the most that a row of
/// fixed size writes, or the heads of several places.
const LEAST: u64 = 24 + 48 + 16 + 24 * MOST_POLLED;

/// Less `read`, which is 0, or `write`, which is 1: what reads or writes a vector, with flags.
const PREADV2: u32 = 327;
/// The same, less `readv`, or `writev`.
const PREADV2_OF_VECTORS: u32 = 327 - 19;
const POLL: u32 = 7;
/// Looks at a signal mask before it looks at what it shall do with it.
const RT_SIGPROCMASK: u32 = 14;
const RWF_NOWAIT: u32 = 8;
const MSG_DONTWAIT: u32 = 0x40;
const MSG_WAITALL: u32 = 0x100;
/// `struct msghdr`: its length, and where it has its vector, and its control data.
const MESSAGE_LEN: u32 = 56;
const MESSAGE_VECTOR: u32 = 16;
const MESSAGE_CONTROL: u32 = 32;
const EAGAIN: u32 = 11;
const EFAULT: u32 = 14;
const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;
const FUTEX_PRIVATE_FLAG: u32 = 0x80;
const FUTEX_CLOCK_REALTIME: u32 = 0x100;
const FUTEX_CMP_REQUEUE: u32 = 4;
const FUTEX_WAIT_BITSET: u32 = 9;
const MUNMAP: u32 = 11;
const MAP_FIXED: u32 = 0x10;
const MAP_PRIVATE_ANONYMOUS: u32 = 0x22;
/// `MAP_NORESERVE`, `MAP_STACK`: what makes no difference to what is mapped; and `MAP_FIXED`.
const FRESH: u32 = 0x4000 | 0x2_0000 | MAP_FIXED;
/// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
const PROTECTION: u32 = 7;
const MADVISE: u32 = 28;
const MADV_DONTFORK: u32 = 10;
const MADV_DONTNEED: u32 = 4;
const MADV_FREE: u32 = 8;
const AT_FDCWD: i32 = -100;
const NEWFSTATAT: u32 = 262;
const FSTATFS: u32 = 138;
const IOCTL: u32 = 16;
/// Tells how much is on its way.
const SIOCOUTQ: u32 = 0x5411;
const O_NOFOLLOW: u32 = 0x2_0000;
/// `O_NONBLOCK`, `O_LARGEFILE`, `O_DIRECTORY`, `O_NOATIME`, `O_CLOEXEC`: what may be asked for besides reading.
const READING: u32 = O_NOFOLLOW | 0x800 | 0x8000 | 0x1_0000 | 0x4_0000 | 0x8_0000;
const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
/// Where `struct stat` has the kind of file.
const MODE: u32 = 24;
const S_IFMT: u32 = 0xf000;
const S_IFREG: u32 = 0x8000;
const S_IFDIR: u32 = 0x4000;
const CLOCK_GETTIME: u32 = 228;
const CLOCK_MONOTONIC_RAW: u32 = 4;
/// In nanoseconds.
const SECOND: u32 = 1_000_000_000;
/// In place of a row: a clock is read, of which the counter is reckoned. As a call in another form, it comes back to its own code.
pub(crate) const CLOCK_READ: u64 = BY_REQUEST | 0x400_0000;
/// The head of what is noted of a reading ([`abi::calls`]).
const NOTED_READING: u32 = (abi::calls::NOTHING as u32) << 24 | (abi::calls::READING as u32) << 16;

global_asm!(
    include_str!("code.s"),
    include_str!("reads.s"),
    SITE = const SITE,
    STACK_POINTER = const STACK_POINTER,
    STACK_TOP = const STACK_TOP,
    GO = const GO,
    ALONE = const ALONE,
    AREAS = const AREAS,
    CALLING = const CALLING,
    BY_REQUEST = const BY_REQUEST,
    THIRD = const THIRD.ilog2(),
    ROW_COUNT = const ROW_COUNT,
    ROWS = const ROWS,
    FD_COUNT = const FD_COUNT,
    FDS = const FDS,
    HEAD = const HEAD,
    RING = const RING,
    RING_LEN = const RING_LEN,
    LEAST = const LEAST,
    MOST = const MOST,
    RESUME = const RESUME,
    TRIED = const TRIED,
    VECTOR = const VECTOR,
    VECTORS = const VECTORS,
    VECTORS_END = const VECTORS_END,
    MOST_VECTORS = const MOST_VECTORS,
    MOST_POLLED = const MOST_POLLED,
    NO_TIME = const NO_TIME,
    SEVERAL = const abi::calls::SEVERAL,
    WHOLE = const WHOLE,
    LONG = const LONG,
    PREADV2 = const PREADV2,
    PREADV2_OF_VECTORS = const PREADV2_OF_VECTORS,
    RT_SIGPROCMASK = const RT_SIGPROCMASK,
    POLL = const POLL,
    MESSAGE_LEN = const MESSAGE_LEN,
    MESSAGE_VECTOR = const MESSAGE_VECTOR,
    MESSAGE_CONTROL = const MESSAGE_CONTROL,
    RWF_NOWAIT = const RWF_NOWAIT,
    MSG_DONTWAIT = const MSG_DONTWAIT,
    MSG_WAITALL = const MSG_WAITALL,
    EAGAIN = const EAGAIN,
    EFAULT = const EFAULT,
    FAULTED = const FAULTED,
    IN_VAIN = const IN_VAIN,
    NOTHING = const abi::calls::NOTHING,
    EINVAL = const EINVAL,
    EOPNOTSUPP = const EOPNOTSUPP,
    NO_FUTEX_FLAG = const !(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME) as i32,
    FUTEX_PRIVATE_FLAG = const FUTEX_PRIVATE_FLAG,
    FUTEX_CLOCK_REALTIME = const FUTEX_CLOCK_REALTIME,
    FUTEX_CMP_REQUEUE = const FUTEX_CMP_REQUEUE,
    FUTEX_WAIT_BITSET = const FUTEX_WAIT_BITSET,
    MUNMAP = const MUNMAP,
    MAP_FIXED = const MAP_FIXED,
    MAP_PRIVATE_ANONYMOUS = const MAP_PRIVATE_ANONYMOUS,
    NOT_FRESH = const !FRESH as i32,
    NO_PROTECTION = const !PROTECTION as i32,
    MADVISE = const MADVISE,
    MADV_DONTFORK = const MADV_DONTFORK,
    MADV_DONTNEED = const MADV_DONTNEED,
    MADV_FREE = const MADV_FREE,
    AT_FDCWD = const AT_FDCWD,
    NOT_READING = const !READING as i32,
    TO_NOFOLLOW = const (O_NOFOLLOW / AT_SYMLINK_NOFOLLOW).ilog2(),
    AT_SYMLINK_NOFOLLOW = const AT_SYMLINK_NOFOLLOW,
    FILE = const FILE,
    NEWFSTATAT = const NEWFSTATAT,
    FSTATFS = const FSTATFS,
    MODE = const MODE,
    WHILE_EMPTY = const WHILE_EMPTY,
    SIOCOUTQ = const SIOCOUTQ,
    IOCTL = const IOCTL,
    S_IFMT = const S_IFMT,
    S_IFREG = const S_IFREG,
    S_IFDIR = const S_IFDIR,
    CLOSES = const CLOSES,
    READS = const READS,
    OPENED = const CLOSES | READS | ASKS,
    ORDINARY_0 = const ORDINARY[0] as i32,
    ORDINARY_1 = const ORDINARY[1] as i32,
    ORDINARY_2 = const ORDINARY[2] as i32,
    ORDINARY_3 = const ORDINARY[3] as i32,
    ORDINARY_4 = const ORDINARY[4] as i32,
    ORDINARY_5 = const ORDINARY[5] as i32,
    ORDINARY_6 = const ORDINARY[6] as i32,
    ORDINARY_7 = const ORDINARY[7] as i32,
    ORDINARY_8 = const ORDINARY[8] as i32,
    CLOCK = const CLOCK,
    CLOCK_READ = const CLOCK_READ,
    CLOCK_GETTIME = const CLOCK_GETTIME,
    CLOCK_MONOTONIC_RAW = const CLOCK_MONOTONIC_RAW,
    SECOND = const SECOND,
    TSC_FROM = const TSC_FROM,
    TSC_FOR = const TSC_FOR,
    TSC_RATE = const TSC_RATE,
    TSC_TICKS = const TSC_TICKS,
    TSC_PROCESSOR = const TSC_PROCESSOR,
    TSC_TOLD = const TSC_TOLD,
    NOTED_READING = const NOTED_READING,
);

unsafe extern "C" {
    static backstory_buffer_start: u8;
    static backstory_buffer_call: u8;
    static backstory_buffer_traced: u8;
    static backstory_buffer_stored: u8;
    static backstory_buffer_headed: u8;
    static backstory_buffer_made: u8;
    static backstory_buffer_noted: u8;
    static backstory_buffer_forms: u8;
    static backstory_buffer_left: u8;
    static backstory_buffer_reads: u8;
    static backstory_buffer_reads_both: u8;
    static backstory_buffer_told: u8;
    static backstory_buffer_cannot_tell: u8;
    static backstory_buffer_end: u8;
}

/// The code, to lie at [`abi::buffer::CODE`].
pub fn code() -> &'static [u8] {
    // SAFETY: the labels delimit bytes of this program's text, which is readable and never changes.
    unsafe {
        core::slice::from_raw_parts(
            &raw const backstory_buffer_start,
            offset(&raw const backstory_buffer_end),
        )
    }
}

fn offset(label: *const u8) -> usize {
    label.addr() - (&raw const backstory_buffer_start).addr()
}

/// The instruction pointer that a call has in the kernel which the code makes itself.
pub fn call_return() -> u64 {
    CODE + offset(&raw const backstory_buffer_call) as u64
}

/// The same of a call that the recorder is to make.
pub fn traced_return() -> u64 {
    CODE + offset(&raw const backstory_buffer_traced) as u64
}

/// Where stubs lead of an instruction that reads the time stamp counter: alone, or `with_processor`.
pub fn reading(with_processor: bool) -> u64 {
    let entry = if with_processor {
        &raw const backstory_buffer_reads_both
    } else {
        &raw const backstory_buffer_reads
    };
    CODE + offset(entry) as u64
}

/// Whether a pc is one of the code for such instructions: what is trapped there is the program's.
pub fn is_reading(pc: u64) -> bool {
    (reading(false)..CODE + offset(&raw const backstory_buffer_end) as u64).contains(&pc)
}

/// Offsets in the code from which on something holds.
struct Steps {
    /// The arguments are where calls are noted.
    stored: u64,
    /// So is the number.
    headed: u64,
    /// The arguments are in their registers again, where they are not on the stack.
    made: u64,
    /// The call is noted.
    noted: u64,
    /// It is not, here.
    forms: u64,
    /// The registers are as at first, but for those that are on the stack.
    left: u64,
    /// The time stamp counter is read.
    reads: u64,
    /// It was, which is noted.
    told: u64,
    /// It is not, here.
    cannot_tell: u64,
    /// No code any more.
    end: u64,
}

fn steps() -> Steps {
    let at = |label: *const u8| offset(label) as u64;
    Steps {
        stored: at(&raw const backstory_buffer_stored),
        headed: at(&raw const backstory_buffer_headed),
        made: at(&raw const backstory_buffer_made),
        noted: at(&raw const backstory_buffer_noted),
        forms: at(&raw const backstory_buffer_forms),
        left: at(&raw const backstory_buffer_left),
        reads: at(&raw const backstory_buffer_reads),
        told: at(&raw const backstory_buffer_told),
        cannot_tell: at(&raw const backstory_buffer_cannot_tell),
        end: at(&raw const backstory_buffer_end),
    }
}
