//! A traced program whose threads each run a loop of one conditional branch, as often as they are told.
#![expect(unsafe_code, reason = "PTRACE_TRACEME is asked for in the forked child")]

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use guest::{GuestAddr, Registers};
use ptrace::{HostTid, Options, PtraceEvent, Report, Stopped, wait_for};

/// Tells by a breakpoint where its branch is and takes in r12 how many more threads to make. Each thread then takes in rcx how
/// many rounds to run, 0 to end.
const SOURCE: &str = r"
.globl _start
_start:
    lea branch(%rip), %rax
    int3
    test %r12, %r12
    jz worker
1:  mov $56, %eax
    mov $0x50f00, %edi
    mov %r12, %rsi
    shl $12, %rsi
    lea stacks(%rip), %rdx
    add %rdx, %rsi
    xor %edx, %edx
    xor %r10d, %r10d
    xor %r8d, %r8d
    syscall
    test %eax, %eax
    jz worker
    dec %r12
    jnz 1b
worker:
    int3
    test %rcx, %rcx
    jz 3f
2:  add $3, %rbx
    dec %rcx
branch:
    jnz 2b
    jmp worker
3:  mov $60, %eax
    xor %edi, %edi
    syscall
.bss
stacks: .skip 65536
";

/// A thread of the program, stopped where it takes orders or inside its loop.
pub(crate) struct Thread {
    pub(crate) tid: HostTid,
    stopped: Option<Stopped>,
}

/// Why a thread stopped.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It takes orders: all rounds are run. (The program's first stop is the exec's.)
    Done,
    /// A signal came.
    Signal(i32),
    /// It ended.
    Exited,
}

/// The program, its threads waiting for orders.
pub(crate) struct Program {
    pub(crate) threads: Vec<Thread>,
    /// The address of the branch.
    pub(crate) branch: GuestAddr,
    _dir: tempfile::TempDir,
}

impl Program {
    pub(crate) fn start(threads: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("loop.s"), dir.path().join("loop"));
        std::fs::write(&source, SOURCE).unwrap();
        let status = Command::new("gcc")
            .args(["-static", "-nostdlib", "-Wl,-z,noexecstack", "-o"])
            .arg(&program)
            .arg(&source)
            .status()
            .unwrap();
        assert!(status.success());
        let mut command = Command::new(&program);
        command.env_clear().stdin(Stdio::null());
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                Ok(())
            });
        }
        let tid = HostTid(command.spawn().unwrap().id() as i32);
        let mut first = Thread { tid, stopped: None };
        assert_eq!(first.wait(), Stop::Done);
        first
            .stopped
            .as_ref()
            .unwrap()
            .set_options(Options(Options::TREE.0 & !libc::PTRACE_O_TRACEEXIT))
            .unwrap();
        assert_eq!(first.go_on(), Stop::Done);
        let branch = GuestAddr(first.registers().rax);
        first.set(|regs| regs.r12 = threads - 1);
        let mut program = Self { threads: vec![first], branch, _dir: dir };
        for _ in 1..threads {
            program.meet_a_thread();
        }
        for thread in &mut program.threads {
            assert_eq!(thread.go_on(), Stop::Done);
        }
        program
    }

    /// The first thread makes another.
    fn meet_a_thread(&mut self) {
        let first = &mut self.threads[0];
        first.stopped.take().unwrap().cont(0).unwrap();
        let new = match wait_for(first.tid, 0).unwrap().unwrap().report {
            Report::Event(PtraceEvent::Clone, stopped) => {
                let tid = HostTid(stopped.event_message().unwrap() as i32);
                first.stopped = Some(stopped);
                tid
            }
            other => panic!("{other:?}"),
        };
        let mut thread = Thread { tid: new, stopped: None };
        assert_eq!(thread.wait(), Stop::Signal(libc::SIGSTOP));
        self.threads.push(thread);
    }

    /// The only thread.
    pub(crate) fn only(&mut self) -> &mut Thread {
        &mut self.threads[0]
    }
}

impl Thread {
    pub(crate) fn registers(&self) -> Registers {
        self.stopped.as_ref().unwrap().registers().unwrap()
    }

    pub(crate) fn siginfo(&self) -> [u8; 128] {
        self.stopped.as_ref().unwrap().siginfo().unwrap()
    }

    pub(crate) fn stopped(&mut self) -> &mut Stopped {
        self.stopped.as_mut().unwrap()
    }

    fn set(&mut self, change: impl FnOnce(&mut Registers)) {
        let mut regs = self.registers();
        change(&mut regs);
        self.stopped().set_registers(&regs).unwrap();
    }

    /// Orders so many rounds; it does not go on yet.
    pub(crate) fn order(&mut self, rounds: u64) {
        self.set(|regs| regs.rcx = rounds);
    }

    /// The rounds that it has left, the one whose branch it is at among them.
    pub(crate) fn left(&self, branch: GuestAddr) -> u64 {
        let regs = self.registers();
        regs.rcx + u64::from(regs.rip == branch.0)
    }

    /// Goes on without being waited for.
    pub(crate) fn let_go(&mut self) {
        self.stopped.take().unwrap().cont(0).unwrap();
    }

    /// Goes on until something stops it.
    pub(crate) fn go_on(&mut self) -> Stop {
        self.let_go();
        self.wait()
    }

    /// Runs ordered rounds, nothing stopping them.
    #[track_caller]
    pub(crate) fn run(&mut self, rounds: u64) {
        self.order(rounds);
        assert_eq!(self.go_on(), Stop::Done);
    }

    pub(crate) fn wait(&mut self) -> Stop {
        match wait_for(self.tid, 0).unwrap().unwrap().report {
            Report::Signal(signal, stopped) => {
                self.stopped = Some(stopped);
                if signal == libc::SIGTRAP { Stop::Done } else { Stop::Signal(signal) }
            }
            Report::Exited(0) => Stop::Exited,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let Some(first) = self.threads.first() else { return };
        first.tid.kill();
        for thread in self.threads.iter().rev() {
            while let Ok(Some(waited)) = wait_for(thread.tid, 0) {
                if matches!(waited.report, Report::Exited(_) | Report::Killed(..)) {
                    break;
                }
            }
        }
    }
}
