//! The process that is measured: a traced child of this one that runs loops of a known number of conditional branches.
#![expect(unsafe_code, reason = "fork(2) and PTRACE_TRACEME are called here; the loops are assembly")]

use guest::{GuestAddr, Registers};
use ptrace::{HostTid, Options, Report, Stopped, set_affinity, wait_for};

use crate::error::MeasureError;

// Each takes the number of its rounds in rcx and ends in a breakpoint. The locked store is there because on some processors (AMD's Zen,
// unless a bit of the system's settings is set) a counter counts too much where such are.
std::arch::global_asm!(
    ".pushsection .text.backstory_counter, \"ax\", @progbits",
    ".balign 64",
    ".hidden backstory_counter_loop",
    ".globl backstory_counter_loop",
    "backstory_counter_loop:",
    "lock add qword ptr [rsp - 1024], 1",
    "dec rcx",
    ".hidden backstory_counter_branch",
    ".globl backstory_counter_branch",
    "backstory_counter_branch:",
    "jnz backstory_counter_loop",
    ".hidden backstory_counter_end",
    ".globl backstory_counter_end",
    "backstory_counter_end:",
    "int3",
    ".hidden backstory_counter_old_loop",
    ".globl backstory_counter_old_loop",
    "backstory_counter_old_loop:",
    "jrcxz 2f",
    "loop backstory_counter_old_loop",
    "2: int3",
    ".popsection",
);

unsafe extern "C" {
    fn backstory_counter_loop();
    fn backstory_counter_branch();
    fn backstory_counter_end();
    fn backstory_counter_old_loop();
}

fn address(code: unsafe extern "C" fn()) -> GuestAddr {
    GuestAddr(code as *const () as u64)
}

/// The conditional branch of [`Loop::Plain`].
pub(crate) fn branch() -> GuestAddr {
    address(backstory_counter_branch)
}

/// A loop to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loop {
    /// One `jnz` each round.
    Plain,
    /// One `jrcxz` and one `loop` each round.
    Old,
}

/// A traced child, stopped.
pub(crate) struct Child {
    tid: HostTid,
    stopped: Option<Stopped>,
}

/// Why the child stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// At the end of its loop.
    End,
    /// For a signal, whose `siginfo_t` this is.
    Signal(i32, Box<[u8; 128]>),
}

impl Child {
    /// A child of this thread, on one processor.
    pub(crate) fn start(cpu: usize) -> Result<Self, MeasureError> {
        // SAFETY: the child calls only what is async-signal-safe, and ends by itself if it is not traced.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: system calls without pointers; none allocates or takes a lock.
            unsafe {
                // Refused when something else traces it already: it must not stop then, as nobody would see it.
                if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0 {
                    libc::kill(libc::getpid(), libc::SIGSTOP);
                }
                libc::_exit(1);
            }
        }
        if pid < 0 {
            return Err(MeasureError::Process(std::io::Error::last_os_error()));
        }
        let tid = HostTid(pid);
        let mut child = Self { tid, stopped: None };
        match child.wait()? {
            Stop::Signal(libc::SIGSTOP, _) => {}
            other => return Err(MeasureError::Astray { report: format!("{other:?}") }),
        }
        child.stopped()?.set_options(Options::BASE)?;
        set_affinity(tid, &[cpu])?;
        Ok(child)
    }

    pub(crate) fn tid(&self) -> HostTid {
        self.tid
    }

    fn stopped(&mut self) -> Result<&mut Stopped, MeasureError> {
        self.stopped.as_mut().ok_or_else(|| MeasureError::Astray { report: "not stopped".to_owned() })
    }

    /// Puts it at the beginning of a loop of so many rounds.
    pub(crate) fn prepare(&mut self, which: Loop, rounds: u64) -> Result<(), MeasureError> {
        let start = address(match which {
            Loop::Plain => backstory_counter_loop,
            Loop::Old => backstory_counter_old_loop,
        });
        let stopped = self.stopped()?;
        let regs = Registers { rip: start.0, rcx: rounds, orig_rax: u64::MAX, ..stopped.registers()? };
        stopped.set_registers(&regs)?;
        Ok(())
    }

    /// Goes on until something stops it.
    pub(crate) fn go_on(&mut self) -> Result<Stop, MeasureError> {
        if let Some(stopped) = self.stopped.take() {
            stopped.cont(0)?;
        }
        self.wait()
    }

    fn wait(&mut self) -> Result<Stop, MeasureError> {
        match wait_for(self.tid, 0)?.map(|waited| waited.report) {
            Some(Report::Signal(signal, stopped)) => {
                let info = Box::new(stopped.siginfo()?);
                self.stopped = Some(stopped);
                Ok(if signal == libc::SIGTRAP { Stop::End } else { Stop::Signal(signal, info) })
            }
            other => Err(MeasureError::Astray { report: format!("{other:?}") }),
        }
    }

    /// Inside [`Loop::Plain`] of so many rounds: how many branches it has executed, and whether it is about to execute one.
    pub(crate) fn branches(&mut self, rounds: u64) -> Result<(u64, bool), MeasureError> {
        let regs = self.stopped()?.registers()?;
        let begun = rounds.wrapping_sub(regs.rcx);
        let is_at_branch = regs.rip == branch().0;
        let is_in_loop =
            (address(backstory_counter_loop).0..=address(backstory_counter_end).0 + 1).contains(&regs.rip);
        if !is_in_loop || begun > rounds {
            return Err(MeasureError::Astray { report: format!("at {:#x}, rcx {}", regs.rip, regs.rcx) });
        }
        Ok((begun - u64::from(is_at_branch), is_at_branch))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.tid.kill();
        while let Ok(Some(waited)) = wait_for(self.tid, 0) {
            if matches!(waited.report, Report::Exited(_) | Report::Killed(..)) {
                break;
            }
        }
    }
}
