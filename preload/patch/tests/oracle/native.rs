//! A traced child and the memory it shares with the test. It steps through plain code, and through patched code with a
//! common entry that does nothing but make the call. What reads the time stamp counter reads the same each time.
//!
//! A filter answers the child's calls, so that whatever number a real window asks for, nothing happens.
#![expect(unsafe_code, reason = "mmap, fork, seccomp and ptrace, for tests only")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use iced_x86::code_asm::*;

use crate::scene::{COMMON, HIGH, LOW, NOTED, READS, READS_BOTH};

/// Data: readable and writable.
pub(crate) const DATA: u64 = 0x5000_0000;
pub(crate) const DATA_LEN: usize = 0x2000;
/// Where code lies, from each base.
pub(crate) const CODE_LEN: usize = 0x3000;
/// Slot, stub and common entry.
pub(crate) const PAGE: u64 = COMMON;
const PAGE_LEN: usize = 0x1000;
/// What the common entry keeps aside: the address of the descriptor, first.
pub(crate) const SCRATCH: u64 = PAGE + 0xF00;

const REGIONS: [(u64, usize); 4] = [(DATA, DATA_LEN), (HIGH, CODE_LEN), (LOW, CODE_LEN), (PAGE, PAGE_LEN)];

/// One test at a time: the addresses are fixed.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct World {
    child: libc::pid_t,
    _turn: MutexGuard<'static, ()>,
}

/// The state of the child between two instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(crate) pc: u64,
    /// In the kernel's order, without the pc.
    pub(crate) registers: [u64; 26],
    pub(crate) vectors: Vec<u8>,
    pub(crate) memory: Vec<u8>,
}

/// The index of r11 among the registers.
pub(crate) const R11: usize = 6;
const RAX: usize = 10;
const RCX: usize = 11;
const RDX: usize = 12;
const EFLAGS: usize = 17;
const RIP: usize = 16;
const ORIG_RAX: usize = 15;

impl World {
    pub(crate) fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, len) in REGIONS {
            let prot = libc::PROT_READ | libc::PROT_WRITE | if at == DATA { 0 } else { libc::PROT_EXEC };
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a fresh anonymous mapping at an address that NOREPLACE checks to be free.
            let got = unsafe { libc::mmap(at as *mut libc::c_void, len, prot, flags, -1, 0) };
            assert_eq!(got as u64, at, "mmap: {}", std::io::Error::last_os_error());
        }
        let world = Self { child: fork_traced(), _turn: turn };
        for (at, common) in [
            (COMMON, common_entry()),
            (READS, reading_entry(READS, false)),
            (READS_BOTH, reading_entry(READS_BOTH, true)),
        ] {
            world.bytes(at, common.len()).copy_from_slice(&common);
        }
        world
    }

    /// Shared memory. The child is stopped whenever the test runs.
    #[expect(clippy::mut_from_ref, reason = "it belongs to the child as much as to this value")]
    pub(crate) fn bytes(&self, at: u64, len: usize) -> &mut [u8] {
        assert!(REGIONS.iter().any(|&(start, size)| start <= at && at + len as u64 <= start + size as u64));
        // SAFETY: mapped in `new`, read and written by one thread; callers do not hold two overlapping slices.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) }
    }

    /// What the child's state is.
    pub(crate) fn state(&self) -> State {
        let mut registers = [0u64; 27];
        self.ptrace(libc::PTRACE_GETREGS, registers.as_mut_ptr().cast());
        let mut vectors = vec![0u8; size_of::<libc::user_fpregs_struct>()];
        self.ptrace(libc::PTRACE_GETFPREGS, vectors.as_mut_ptr().cast());
        let pc = registers[RIP];
        registers[ORIG_RAX] = 0;
        let mut rest = [0; 26];
        rest[..RIP].copy_from_slice(&registers[..RIP]);
        rest[RIP..].copy_from_slice(&registers[RIP + 1..]);
        State { pc, registers: rest, vectors, memory: self.bytes(DATA, DATA_LEN).to_vec() }
    }

    /// Makes it another one.
    pub(crate) fn set_state(&self, state: &State) {
        let mut registers = [0u64; 27];
        registers[..RIP].copy_from_slice(&state.registers[..RIP]);
        registers[RIP] = state.pc;
        registers[RIP + 1..].copy_from_slice(&state.registers[RIP..]);
        registers[ORIG_RAX] = u64::MAX;
        self.ptrace(libc::PTRACE_SETREGS, registers.as_mut_ptr().cast());
        self.ptrace(libc::PTRACE_SETFPREGS, state.vectors.as_ptr().cast_mut().cast());
        self.bytes(DATA, DATA_LEN).copy_from_slice(&state.memory);
    }

    /// Runs one instruction. `Err` is a signal that it raised, which is not delivered.
    pub(crate) fn step(&self) -> Result<(), i32> {
        self.ptrace(libc::PTRACE_SINGLESTEP as _, std::ptr::null_mut());
        let mut status = 0;
        // SAFETY: waits for our own child.
        let got = unsafe { libc::waitpid(self.child, &mut status, libc::__WALL) };
        assert_eq!(got, self.child);
        assert!(libc::WIFSTOPPED(status), "the child ended: {status:#x}");
        match libc::WSTOPSIG(status) {
            libc::SIGTRAP => Ok(()),
            libc::SIGSEGV if self.reads() => Ok(()),
            signal => Err(signal),
        }
    }

    /// Whether the child was trapped as it read the time stamp counter: then it has read it.
    fn reads(&self) -> bool {
        let state = self.state();
        if !REGIONS.iter().any(|&(start, size)| (start..start + size as u64 - 3).contains(&state.pc)) {
            return false;
        }
        let (len, both) = match *self.bytes(state.pc, 3) {
            [0x0F, 0x31, _] => (2, false),
            [0x0F, 0x01, 0xF9] => (3, true),
            _ => return false,
        };
        let mut after = State { pc: state.pc + len, ..state };
        (after.registers[RAX], after.registers[RDX]) = (0x9999_8888, 0x77);
        if both {
            after.registers[RCX] = 0x66;
        }
        // RF, which a fault sets.
        after.registers[EFLAGS] &= !0x1_0000;
        self.set_state(&after);
        true
    }

    fn ptrace(&self, request: libc::c_uint, data: *mut libc::c_void) {
        // SAFETY: the child is ours and stopped; `data` points to what the request wants.
        let got = unsafe { libc::ptrace(request, self.child, std::ptr::null_mut::<libc::c_void>(), data) };
        assert_eq!(got, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: kills and reaps our own child, unmaps our own mappings.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, std::ptr::null_mut(), libc::__WALL);
            for (at, len) in REGIONS {
                libc::munmap(at as *mut libc::c_void, len);
            }
        }
    }
}

/// Makes the call. What it needs besides rcx and r11 lies in memory: one thread at a time.
pub(crate) fn common_entry() -> Vec<u8> {
    let mut asm = CodeAssembler::new(64).unwrap();
    let build = |asm: &mut CodeAssembler| {
        asm.mov(qword_ptr(SCRATCH), r11)?;
        asm.syscall()?;
        asm.mov(rcx, qword_ptr(SCRATCH))?;
        asm.mov(rcx, qword_ptr(rcx + 8))?;
        asm.mov(qword_ptr(SCRATCH + 8), rcx)?;
        asm.mov(rcx, qword_ptr(SCRATCH))?;
        asm.mov(rcx, qword_ptr(rcx))?;
        asm.jmp(qword_ptr(SCRATCH + 8))
    };
    build(&mut asm).unwrap();
    asm.assemble(COMMON).unwrap()
}

/// Reads the time stamp counter. It may change no register, and the stub has told of itself in memory.
fn reading_entry(at: u64, both: bool) -> Vec<u8> {
    let mut asm = CodeAssembler::new(64).unwrap();
    let build = |asm: &mut CodeAssembler| {
        if both {
            asm.rdtscp()?;
        } else {
            asm.rdtsc()?;
        }
        asm.mov(qword_ptr(SCRATCH + 16), rcx)?;
        asm.mov(rcx, qword_ptr(NOTED))?;
        asm.mov(rcx, qword_ptr(rcx + 8))?;
        asm.mov(qword_ptr(SCRATCH + 8), rcx)?;
        asm.mov(rcx, qword_ptr(SCRATCH + 16))?;
        asm.jmp(qword_ptr(SCRATCH + 8))
    };
    build(&mut asm).unwrap();
    asm.assemble(at).unwrap()
}

/// A stopped child whose calls fail, or succeed, by their first argument.
fn fork_traced() -> libc::pid_t {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    const ARGUMENT: u32 = std::mem::offset_of!(libc::seccomp_data, args) as u32;
    let mut filter = [
        statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, ARGUMENT),
        libc::sock_filter {
            jt: 0,
            jf: 1,
            ..statement((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, 1)
        },
        statement((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ERRNO),
        statement((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain system calls; the child calls nothing but async-signal-safe functions.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one);
        let child = libc::fork();
        if child == 0 {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV, 0, 0, 0);
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program);
            std::arch::asm!("ud2", options(noreturn));
        }
        assert!(child > 0, "fork");
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, libc::__WALL), child);
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGILL, "{status:#x}");
        assert_eq!(libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, libc::PTRACE_O_EXITKILL), 0);
        child
    }
}
