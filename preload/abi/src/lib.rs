//! What lies inside a tracee of ours, and where: the page through which system calls are made on its behalf, and the buffer.
//!
//! Layout only, compiled by both sides of the ptrace boundary; knows nothing of who uses it. The page holds nothing that
//! changes: it is mapped readable and executable, so a tracee can neither be disturbed by it nor disturb it. The buffer, by which
//! calls are made without a stop, is mapped where a space first has a use for it:
//!
//! - [`buffer`]: where its code, its stubs and its memory lie
//! - [`calls`]: how it notes the calls it makes, and what it reads
#![no_std]

pub mod buffer;
pub mod calls;

/// Version of this layout. Both sides are built together; a mismatch is a build error elsewhere, not a run-time case.
pub const VERSION: u32 = 7;

/// Address of the page in every tracee. Below every usual mapping (static executables start at 0x40_0000) and above
/// `vm.mmap_min_addr` (65,536 at most by default), so that an ordinary user may map it.
pub const PAGE: u64 = 0x1_0000;

/// Length of the page in bytes.
pub const PAGE_LEN: u64 = 0x1000;

/// Address of a `syscall` instruction that the seccomp filter lets pass, followed by `int3`.
pub const SYSCALL: u64 = PAGE;

/// The instruction pointer such a call has in the kernel: just past the instruction.
pub const SYSCALL_RETURN: u64 = SYSCALL + 2;

/// The page's first bytes: `syscall; int3; int3`.
pub const CODE: [u8; 4] = [0x0f, 0x05, 0xcc, 0xcc];

/// Address of a `struct sock_fprog` (`linux/filter.h`): a seccomp filter of one instruction, which allows every call.
pub const ALLOW_ALL: u64 = PAGE + 0x10;

/// From here on lie instructions that stand for some of the dynamic linker's.
pub const RESOLVER: u64 = PAGE + 0x100;

/// The filter's length, padding, and the address of its instruction.
const ALLOW_ALL_PROGRAM: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 1, 0, 0, 0, 0, 0];
/// Return `SECCOMP_RET_ALLOW`.
const ALLOW_ALL_STEP: [u8; 8] = [6, 0, 0, 0, 0, 0, 0xff, 0x7f];

/// What the stub of a patched instruction says about it. Of a `syscall`, r11 holds this value's address at the common entry; of an
/// instruction that leaves r11 alone, [`buffer::SITE`] does.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteDescriptor {
    /// The address after the instruction: what it leaves in rcx.
    pub after: u64,
    /// Where to go on, every register being as the instruction leaves it: `after`, or instructions moved from there.
    pub resume: u64,
}

impl SiteDescriptor {
    /// The value in memory.
    pub const fn to_bytes(self) -> [u8; size_of::<Self>()] {
        with(with([0; size_of::<Self>()], 0, &self.after.to_le_bytes()), 8, &self.resume.to_le_bytes())
    }
}

/// The whole page: [`CODE`], the filter, and `int3` everywhere else.
pub const fn page_bytes() -> [u8; PAGE_LEN as usize] {
    let page = with([0xcc; PAGE_LEN as usize], 0, &CODE);
    let page = with(page, 0x10, &ALLOW_ALL_PROGRAM);
    with(page, 0x20, &ALLOW_ALL_STEP)
}

const fn with<const N: usize>(mut page: [u8; N], at: usize, bytes: &[u8]) -> [u8; N] {
    let mut i = 0;
    while i < bytes.len() {
        page[at + i] = bytes[i];
        i += 1;
    }
    page
}
