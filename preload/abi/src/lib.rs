//! What lies inside a tracee of ours, and where: the one page through which system calls are made on its behalf.
//!
//! Layout only, compiled by both sides of the ptrace boundary; knows nothing of who uses it. The page holds no data: it is
//! mapped readable and executable, so a tracee can neither be disturbed by it nor disturb it.
#![no_std]

/// Version of this layout. Both sides are built together; a mismatch is a build error elsewhere, not a run-time case.
pub const VERSION: u32 = 1;

/// Address of the page in every tracee. Below every usual mapping (static executables start at 0x40_0000) and above
/// `vm.mmap_min_addr` (65,536 at most by default), so that an ordinary user may map it.
pub const PAGE: u64 = 0x1_0000;

/// Length of the page in bytes.
pub const PAGE_LEN: u64 = 0x1000;

/// Address of a `syscall` instruction that the seccomp filter lets pass, followed by `int3`.
pub const SYSCALL: u64 = PAGE;

/// The instruction pointer such a call has in the kernel: just past the instruction.
pub const SYSCALL_RETURN: u64 = SYSCALL + 2;

/// The page's first bytes: `syscall; int3; int3`. The rest is `int3` (0xcc) throughout.
pub const CODE: [u8; 4] = [0x0f, 0x05, 0xcc, 0xcc];

/// The whole page.
pub const fn page_bytes() -> [u8; PAGE_LEN as usize] {
    let mut page = [0xcc; PAGE_LEN as usize];
    let mut i = 0;
    while i < CODE.len() {
        page[i] = CODE[i];
        i += 1;
    }
    page
}
