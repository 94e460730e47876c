//! A traced child and the memory it shares with the test, at the same addresses in both.
#![expect(unsafe_code, reason = "mmap, fork and ptrace, for tests only")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest::Registers;
use iced_x86::{Decoder, DecoderOptions};
use translate::{ENGINE_PAGE_SIZE, EnginePage, LOOKUP_TABLE_BYTES, Layout, RUNTIME_PAGE_SIZE};

/// Guest data: readable and writable, nothing mapped on either side.
pub(crate) const DATA: u64 = 0x5000_0000;
pub(crate) const DATA_LEN: usize = 0x4000;
/// Guest code lies here; high, as in a PIE.
pub(crate) const CODE: u64 = 0x5555_0001_0000;
pub(crate) const CODE_LEN: usize = 0x2000;
/// The same for a program below 2 GiB.
pub(crate) const LOW_CODE: u64 = 0x0040_0000;
pub(crate) const HOT: u64 = 0x5555_1000_0000;
pub(crate) const COLD: u64 = 0x5555_1200_0000;
pub(crate) const LOW_HOT: u64 = 0x7A5B_0000;
pub(crate) const LOW_COLD: u64 = 0x7A7D_0000;
pub(crate) const ARENA_LEN: usize = 0x0010_0000;
/// Small, as the addresses that random programs make are low ones.
const LOW_ARENA_LEN: usize = 0x1_0000;
pub(crate) const LOG: u64 = 0x1234_5678_0000;
pub(crate) const LOG_LEN: usize = 0x0400_0000;

/// Where random programs do not come by.
pub(crate) const LAYOUT: Layout = Layout { page: 0x6FFF_0000, runtime: 0x6FFF_1000, table: 0x6FF0_0000 };

/// Whether translated code, or what it needs, may lie at an address.
pub(crate) fn is_arena(at: u64) -> bool {
    let engine = u64::from(LAYOUT.table)..u64::from(LAYOUT.runtime) + RUNTIME_PAGE_SIZE as u64;
    engine.contains(&at)
        || [LOW_HOT, LOW_COLD]
            .iter()
            .any(|&start| at.wrapping_add(64).wrapping_sub(start) < LOW_ARENA_LEN as u64 + 64)
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const RWX: i32 = RW | libc::PROT_EXEC;

/// One test at a time: the addresses are fixed.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct World {
    child: libc::pid_t,
    regions: Vec<(u64, usize)>,
    _turn: MutexGuard<'static, ()>,
}

/// Why the child stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    Syscall,
    Signal(i32),
}

/// The XSAVE image of a task, as the kernel gives it.
pub(crate) type XState = Vec<u8>;

impl World {
    pub(crate) fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let layout = LAYOUT;
        let regions = [
            (u64::from(layout.page), ENGINE_PAGE_SIZE, RW),
            (u64::from(layout.runtime), RUNTIME_PAGE_SIZE, RWX),
            (u64::from(layout.table), LOOKUP_TABLE_BYTES, RW),
            (DATA, DATA_LEN, RW),
            (CODE, CODE_LEN, RWX),
            (LOW_CODE, CODE_LEN, RWX),
            (HOT, ARENA_LEN, RWX),
            (COLD, ARENA_LEN, RWX),
            (LOW_HOT, LOW_ARENA_LEN, RWX),
            (LOW_COLD, LOW_ARENA_LEN, RWX),
            (LOG, LOG_LEN, RW),
        ];
        for (at, len, prot) in regions {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a fresh anonymous mapping at an address that NOREPLACE checks to be free.
            let got = unsafe { libc::mmap(at as *mut libc::c_void, len, prot, flags, -1, 0) };
            assert_eq!(got as u64, at, "mmap: {}", std::io::Error::last_os_error());
        }
        let child = fork_traced();
        let regions = regions.iter().map(|&(at, len, _)| (at, len)).collect();
        Self { child, regions, _turn: turn }
    }

    /// Shared memory. The child is stopped whenever the test runs.
    #[expect(clippy::mut_from_ref, reason = "it belongs to the child as much as to this value")]
    pub(crate) fn bytes(&self, at: u64, len: usize) -> &mut [u8] {
        assert!(
            self.regions.iter().any(|&(start, size)| start <= at && at + len as u64 <= start + size as u64)
        );
        // SAFETY: mapped in `new`, read and written by one thread; callers do not hold two overlapping slices.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) }
    }

    /// The same, or as much as there is of it.
    pub(crate) fn readable(&self, at: u64, len: usize) -> Option<&mut [u8]> {
        let (start, size) =
            *self.regions.iter().find(|&&(start, size)| (start..start + size as u64).contains(&at))?;
        Some(self.bytes(at, len.min((start + size as u64 - at) as usize)))
    }

    #[expect(clippy::mut_from_ref, reason = "it belongs to the child as much as to this value")]
    pub(crate) fn page(&self) -> &mut EnginePage {
        // SAFETY: mapped, aligned, any bit pattern is valid; the child is stopped.
        unsafe { &mut *(u64::from(LAYOUT.page) as *mut EnginePage) }
    }

    pub(crate) fn set_registers(&self, regs: &Registers) {
        self.ptrace(libc::PTRACE_SETREGS, std::ptr::null_mut(), std::ptr::from_ref(regs).cast_mut().cast());
    }

    pub(crate) fn registers(&self) -> Registers {
        let mut regs = Registers::default();
        self.ptrace(libc::PTRACE_GETREGS, std::ptr::null_mut(), std::ptr::from_mut(&mut regs).cast());
        regs
    }

    pub(crate) fn xstate(&self) -> XState {
        let mut image = vec![0u8; 8192];
        let mut iov = libc::iovec { iov_base: image.as_mut_ptr().cast(), iov_len: image.len() };
        const NT_X86_XSTATE: usize = 0x202;
        self.ptrace(libc::PTRACE_GETREGSET, NT_X86_XSTATE as *mut _, std::ptr::from_mut(&mut iov).cast());
        image.truncate(iov.iov_len);
        image
    }

    pub(crate) fn set_xstate(&self, image: &XState) {
        let mut iov = libc::iovec { iov_base: image.as_ptr().cast_mut().cast(), iov_len: image.len() };
        const NT_X86_XSTATE: usize = 0x202;
        self.ptrace(libc::PTRACE_SETREGSET, NT_X86_XSTATE as *mut _, std::ptr::from_mut(&mut iov).cast());
    }

    /// Processor time the child has used.
    pub(crate) fn cpu_time(&self) -> Duration {
        let mut clock = 0;
        // SAFETY: all zeroes is a valid timespec, and the pointers are to locals.
        let time = unsafe {
            let mut time: libc::timespec = std::mem::zeroed();
            assert_eq!(libc::clock_getcpuclockid(self.child, &mut clock), 0);
            assert_eq!(libc::clock_gettime(clock, &mut time), 0);
            time
        };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Runs one instruction.
    pub(crate) fn step(&self) -> Stop {
        self.resume(libc::PTRACE_SINGLESTEP)
    }

    /// One instruction, by a breakpoint behind it.
    pub(crate) fn step_over(&self, pc: u64) -> Stop {
        const INT3: u8 = 0xCC;
        let bytes = self.bytes(pc, 15);
        let next = pc + Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode().len() as u64;
        let before = std::mem::replace(&mut self.bytes(next, 1)[0], INT3);
        let stop = self.resume(libc::PTRACE_CONT);
        self.bytes(next, 1)[0] = before;
        let regs = self.registers();
        if regs.rip == next + 1 {
            self.set_registers(&Registers { rip: next, ..regs });
        }
        stop
    }

    /// Runs to a system call (which is not made) or a signal (which is not delivered).
    pub(crate) fn run(&self) -> Stop {
        self.resume(libc::PTRACE_SYSEMU as _)
    }

    fn resume(&self, request: libc::c_uint) -> Stop {
        self.ptrace(request, std::ptr::null_mut(), std::ptr::null_mut());
        let mut status = 0;
        // SAFETY: waits for our own child.
        let got = unsafe { libc::waitpid(self.child, &mut status, libc::__WALL) };
        assert_eq!(got, self.child);
        assert!(libc::WIFSTOPPED(status), "child ended: {status:#x}");
        match libc::WSTOPSIG(status) {
            signal if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            signal => Stop::Signal(signal),
        }
    }

    fn ptrace(&self, request: libc::c_uint, addr: *mut libc::c_void, data: *mut libc::c_void) {
        // SAFETY: the child is ours and stopped; `data` points to what the request wants.
        let got = unsafe { libc::ptrace(request, self.child, addr, data) };
        assert_eq!(got, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: kills and reaps our own child, unmaps our own mappings.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, std::ptr::null_mut(), libc::__WALL);
            for &(at, len) in &self.regions {
                libc::munmap(at as *mut libc::c_void, len);
            }
        }
    }
}

/// Processor time this thread has used.
pub(crate) fn own_cpu_time() -> Duration {
    // SAFETY: all zeroes is a valid timespec, and the pointer is to a local.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        assert_eq!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time), 0);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A stopped child on the same processor as this thread: stops across processors are far dearer.
fn fork_traced() -> libc::pid_t {
    // SAFETY: plain system calls; the child calls nothing but async-signal-safe functions.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one);
        let child = libc::fork();
        if child == 0 {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            libc::_exit(1);
        }
        assert!(child > 0, "fork");
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, libc::__WALL), child);
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        assert_eq!(libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, options), 0);
        child
    }
}
