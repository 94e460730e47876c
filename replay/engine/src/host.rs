//! The replaying process seen from outside: started, stopped, resumed, made to perform system calls, copied, killed.
//!
//! It knows nothing of guests: its registers are whatever was loaded last.
#![expect(unsafe_code, reason = "fork(2), execveat(2) and the calls between them are made here")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use guest::{GuestAddr, GuestMemory, Registers, Unmapped, XState};
use ptrace::{HostTid, Memory, Options, Report, Stopped, wait_for};

use crate::HostError;
use crate::stub;

/// The descriptor, in the replaying process, of the memory it shares with this one.
pub(crate) const SHARED_FD: u64 = 3;

/// End of user addresses with four-level page tables.
pub(crate) const TASK_SIZE: u64 = 0x7fff_ffff_f000;

/// A process of ours that is stopped whenever nobody runs it.
#[derive(Debug)]
pub(crate) struct Host {
    tid: HostTid,
    /// `None` only while it runs.
    stopped: Option<Stopped>,
    memory: Memory,
    /// Address of the stub page.
    base: u64,
    /// Segment registers and flags with which injected calls are made.
    user: Registers,
}

/// Why the process stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// A system call that the filter caught.
    Seccomp,
    /// A signal that has not been delivered, and will not be.
    Signal(i32),
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> HostError {
    move |source| HostError::Call { call, source }
}

fn ended(gone: ptrace::Gone) -> HostError {
    HostError::Call { call: gone.request, source: io::Error::from_raw_os_error(gone.errno) }
}

/// Signals that reach the process: those that its own instructions raise. All others wait for ever.
fn blocked() -> u64 {
    let raised = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    raised.iter().fold(!0, |mask, signal| mask & !(1 << (signal - 1)))
}

impl Host {
    /// Starts the process with its stub page at `base` and nothing else mapped. `shared` becomes its [`SHARED_FD`].
    pub(crate) fn spawn(base: u32, shared: BorrowedFd<'_>) -> Result<Self, HostError> {
        let program = stub_file(base)?;
        let tid = start(program.as_raw_fd(), shared.as_raw_fd())?;
        let stopped = match wait_for(tid, 0).map_err(failed("wait4"))?.map(|waited| waited.report) {
            Some(Report::Signal(libc::SIGTRAP, stopped)) => stopped,
            Some(Report::Exited(code)) => return Err(HostError::Gone { status: code << 8 }),
            Some(Report::Killed(signal, _)) => return Err(HostError::Gone { status: signal }),
            _ => {
                tid.kill();
                return Err(HostError::UnexpectedStop { status: 0, rip: 0 });
            }
        };
        let user = stopped.registers().map_err(ended)?;
        let memory = Memory::open(tid).map_err(failed("open /proc/PID/mem"))?;
        let mut host = Self { tid, stopped: Some(stopped), memory, base: u64::from(base), user };
        let options = Options(Options::BASE.0 | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACECLONE);
        host.tracee()?.set_options(options).map_err(ended)?;
        host.tracee()?.set_signal_mask(blocked()).map_err(ended)?;
        host.confine(base)?;
        host.call("munmap", libc::SYS_munmap, [0, u64::from(base), 0, 0, 0, 0])?;
        let above = u64::from(base) + guest::PAGE_SIZE;
        host.call("munmap", libc::SYS_munmap, [above, TASK_SIZE - above, 0, 0, 0, 0])?;
        Ok(host)
    }

    /// Installs the filter. The stack that exec made is still there to hold its program.
    fn confine(&mut self, base: u32) -> Result<(), HostError> {
        let program = stub::filter(base);
        let at = (self.user.rsp - 1024) & !15;
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&((program.len() / 8) as u64).to_le_bytes());
        bytes.extend_from_slice(&(at + 16).to_le_bytes());
        bytes.extend_from_slice(&program);
        let unmapped =
            |_| HostError::Call { call: "write", source: io::Error::from_raw_os_error(libc::EFAULT) };
        self.memory.write(GuestAddr(at), &bytes).map_err(unmapped)?;
        self.call("prctl", libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0])?;
        let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
        let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        self.call("seccomp", libc::SYS_seccomp, [mode, flags, at, 0, 0, 0]).map(drop)
    }

    /// Copies the process: memory, registers, everything.
    pub(crate) fn fork(&mut self) -> Result<Self, HostError> {
        let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
        self.load_call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0])?;
        let child = match self.resume_to_report()? {
            Report::Event(_, stopped) => {
                let child = stopped.event_message().map_err(ended)?;
                self.stopped = Some(stopped);
                HostTid(child as i32)
            }
            other => return Err(self.unexpected(other)),
        };
        match self.resume_to_report()? {
            Report::Signal(libc::SIGTRAP, stopped) => self.stopped = Some(stopped),
            other => return Err(self.unexpected(other)),
        }
        let stopped = match wait_for(child, 0).map_err(failed("wait4"))?.map(|waited| waited.report) {
            Some(Report::Signal(libc::SIGSTOP, stopped)) => stopped,
            _ => {
                child.kill();
                return Err(HostError::UnexpectedStop { status: 0, rip: 0 });
            }
        };
        let memory = Memory::open(child).map_err(failed("open /proc/PID/mem"))?;
        Ok(Self { tid: child, stopped: Some(stopped), memory, base: self.base, user: self.user })
    }

    fn tracee(&mut self) -> Result<&mut Stopped, HostError> {
        self.stopped.as_mut().ok_or(HostError::Gone { status: 0 })
    }

    fn load_call(&mut self, nr: i64, args: [u64; 6]) -> Result<(), HostError> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        // orig_rax of -1 drops a caught system call that is pending, and keeps the kernel from restarting one.
        let rip = self.base + stub::INJECT;
        let regs =
            Registers { rip, rax: nr as u64, orig_rax: u64::MAX, rdi, rsi, rdx, r10, r8, r9, ..self.user };
        self.tracee()?.set_registers(&regs).map_err(ended)
    }

    /// Makes the process perform a system call; `Err` inside is its error. Leaves its general registers changed (segment
    /// bases too: the caller loads all registers before it resumes).
    pub(crate) fn try_call(&mut self, nr: i64, args: [u64; 6]) -> Result<Result<u64, io::Error>, HostError> {
        self.load_call(nr, args)?;
        match self.resume_to_report()? {
            Report::Signal(libc::SIGTRAP, stopped) => {
                let result = stopped.registers().map_err(ended)?.rax as i64;
                self.stopped = Some(stopped);
                Ok(if (-4095..0).contains(&result) {
                    Err(io::Error::from_raw_os_error(-result as i32))
                } else {
                    Ok(result as u64)
                })
            }
            other => Err(self.unexpected(other)),
        }
    }

    /// As [`Self::try_call`], for calls that must succeed.
    pub(crate) fn call(&mut self, name: &'static str, nr: i64, args: [u64; 6]) -> Result<u64, HostError> {
        self.try_call(nr, args)?.map_err(failed(name))
    }

    /// Lets the process go on from the registers last loaded until it stops again.
    pub(crate) fn resume(&mut self) -> Result<Stop, HostError> {
        let report = self.resume_to_report()?;
        self.stop(report)
    }

    /// Lets the process execute one host instruction.
    pub(crate) fn step(&mut self) -> Result<Stop, HostError> {
        let stopped = self.stopped.take().ok_or(HostError::Gone { status: 0 })?;
        stopped.step(0).map_err(ended)?;
        let report = self.report()?;
        self.stop(report)
    }

    fn stop(&mut self, report: Report) -> Result<Stop, HostError> {
        let (stop, stopped) = match report {
            Report::Seccomp(stopped) => (Stop::Seccomp, stopped),
            Report::Signal(signo, stopped) => (Stop::Signal(signo), stopped),
            other => return Err(self.unexpected(other)),
        };
        self.stopped = Some(stopped);
        Ok(stop)
    }

    fn resume_to_report(&mut self) -> Result<Report, HostError> {
        let stopped = self.stopped.take().ok_or(HostError::Gone { status: 0 })?;
        stopped.cont(0).map_err(ended)?;
        self.report()
    }

    fn report(&self) -> Result<Report, HostError> {
        let waited = wait_for(self.tid, 0).map_err(failed("wait4"))?;
        waited.map(|waited| waited.report).ok_or(HostError::Gone { status: 0 })
    }

    fn unexpected(&mut self, report: Report) -> HostError {
        let (status, stopped) = match report {
            Report::Exited(code) => return HostError::Gone { status: code << 8 },
            Report::Killed(signal, _) => return HostError::Gone { status: signal },
            Report::Seccomp(stopped) => (libc::PTRACE_EVENT_SECCOMP << 16, stopped),
            Report::Syscall(stopped) => (0x80, stopped),
            Report::Event(_, stopped) => (1 << 16, stopped),
            Report::Signal(signal, stopped) | Report::Group(signal, stopped) => (signal << 8 | 0x7f, stopped),
        };
        let rip = stopped.registers().map_or(0, |regs| regs.rip);
        self.stopped = Some(stopped);
        HostError::UnexpectedStop { status, rip }
    }

    /// The host registers.
    pub(crate) fn registers(&mut self) -> Result<Registers, HostError> {
        self.tracee()?.registers().map_err(ended)
    }

    /// Loads the host registers; a caught system call that is pending is dropped.
    pub(crate) fn set_registers(&mut self, regs: &Registers) -> Result<(), HostError> {
        let regs = Registers { orig_rax: u64::MAX, ..*regs };
        self.tracee()?.set_registers(&regs).map_err(ended)
    }

    pub(crate) fn xstate(&self) -> Result<XState, HostError> {
        self.stopped.as_ref().ok_or(HostError::Gone { status: 0 })?.xstate().map_err(ended)
    }

    pub(crate) fn set_xstate(&mut self, state: &XState) -> Result<(), HostError> {
        self.tracee()?.set_xstate(state).map_err(ended)
    }

    /// The `siginfo_t` of the signal it stopped for.
    pub(crate) fn siginfo(&mut self) -> Result<[u8; 128], HostError> {
        self.tracee()?.siginfo().map_err(ended)
    }

    /// Debug register `n`.
    pub(crate) fn debug_register(&mut self, n: usize) -> Result<u64, HostError> {
        self.tracee()?.peek_user(debug_offset(n)).map_err(ended)
    }

    /// Sets debug register `n`.
    pub(crate) fn set_debug_register(&mut self, n: usize, value: u64) -> Result<(), HostError> {
        self.tracee()?.poke_user(debug_offset(n), value).map_err(ended)
    }

    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        self.memory.read(GuestAddr(addr), into)
    }

    /// Writes whatever the protection.
    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), Unmapped> {
        self.memory.write(GuestAddr(addr), bytes)
    }

    /// Writes consecutive runs of `bytes` at many places: `pieces` are addresses and lengths. Protections count.
    pub(crate) fn write_pieces(&self, bytes: &[u8], pieces: &[(u64, usize)]) -> Result<(), Unmapped> {
        self.memory.write_pieces(bytes, pieces)
    }

    /// The segment registers and flags that the process began with.
    pub(crate) fn initial_registers(&self) -> &Registers {
        &self.user
    }

    pub(crate) fn tid(&self) -> HostTid {
        self.tid
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.tid.kill();
        while let Ok(Some(waited)) = wait_for(self.tid, 0) {
            if matches!(waited.report, Report::Exited(_) | Report::Killed(..)) {
                break;
            }
        }
    }
}

fn debug_offset(n: usize) -> usize {
    std::mem::offset_of!(libc::user, u_debugreg) + 8 * n
}

/// The stub program in a file without a name.
fn stub_file(base: u32) -> Result<std::fs::File, HostError> {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let fd = nix::sys::memfd::memfd_create(c"backstory-stub", flags).map_err(io::Error::from);
    let file = std::fs::File::from(fd.map_err(failed("memfd_create"))?);
    std::os::unix::fs::FileExt::write_all_at(&file, &stub::elf(u64::from(base)), 0)
        .map_err(failed("write"))?;
    Ok(file)
}

/// Forks and executes `program`, traced, in a session of its own, with no descriptor but [`SHARED_FD`].
fn start(program: i32, shared: i32) -> Result<HostTid, HostError> {
    // SAFETY: the child makes only async-signal-safe system calls on values that lie on its copied stack and in
    // static memory, allocates nothing, and ends in execveat or _exit.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(failed("fork")(io::Error::last_os_error())),
        0 => {
            // SAFETY: as above; every pointer is to a local or a static NUL-terminated string.
            unsafe {
                become_stub(program, shared);
                libc::_exit(127)
            }
        }
        _ => Ok(HostTid(pid)),
    }
}

/// # Safety
///
/// Only in a freshly forked child: it rearranges all descriptors and replaces the program.
unsafe fn become_stub(program: i32, shared: i32) {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let null: *const libc::c_char = std::ptr::null();
    // SAFETY: plain system calls; `no_core`, `null` and the empty string outlive them.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        let high = libc::fcntl(shared, libc::F_DUPFD, 16);
        let stub = libc::fcntl(program, libc::F_DUPFD_CLOEXEC, 16);
        libc::dup2(high, SHARED_FD as i32);
        libc::dup2(stub, 4);
        libc::fcntl(4, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::syscall(libc::SYS_close_range, 5, u32::MAX, 0);
        libc::syscall(libc::SYS_close_range, 0, 2, 0);
        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        libc::syscall(libc::SYS_execveat, 4, c"".as_ptr(), &null, &null, libc::AT_EMPTY_PATH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_process_starts_empty_performs_calls_and_forks() {
        let shared = stub_file(0).unwrap();
        let mut host = Host::spawn(0x20000, shared.as_fd()).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", host.tid())).unwrap();
        let ranges: Vec<_> = maps.lines().map(|line| line.split(' ').next().unwrap()).collect();
        let ours: Vec<_> = ranges.into_iter().filter(|range| !range.starts_with("ffff")).collect();
        assert_eq!(ours, ["00020000-00021000"], "{maps}");
        let args = [0x4000_0000, 4096, 3, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64, u64::MAX, 0];
        assert_eq!(host.call("mmap", libc::SYS_mmap, args).unwrap(), 0x4000_0000);
        host.write(0x4000_0000, b"before").unwrap();
        let mut copy = host.fork().unwrap();
        host.write(0x4000_0000, b"after!").unwrap();
        let mut bytes = [0; 6];
        copy.read(0x4000_0000, &mut bytes).unwrap();
        assert_eq!(&bytes, b"before");
        assert_eq!(copy.call("getpid", libc::SYS_getpid, [0; 6]).unwrap(), copy.tid().0 as u64);
        // A call from anywhere else is stopped.
        host.call("mprotect", libc::SYS_mprotect, [0x4000_0000, 4096, 7, 0, 0, 0]).unwrap();
        host.write(0x4000_0000, &[0x0f, 0x05, 0xcc]).unwrap();
        let start = Registers { rip: 0x4000_0000, rax: 39, ..*host.initial_registers() };
        host.set_registers(&start).unwrap();
        assert_eq!(host.resume().unwrap(), Stop::Seccomp);
        let regs = host.registers().unwrap();
        assert_eq!((regs.rip, regs.orig_rax), (0x4000_0002, 39));
        // Skipped, all registers as loaded.
        host.set_registers(&Registers { rax: 77, rcx: 5, r11: 6, ..regs }).unwrap();
        assert_eq!(host.resume().unwrap(), Stop::Signal(libc::SIGTRAP));
        let regs = host.registers().unwrap();
        assert_eq!((regs.rip, regs.rax, regs.rcx, regs.r11), (0x4000_0003, 77, 5, 6));
    }
}
