//! The guest's own seccomp filters: kept and applied here, for every call stops anyway.
//!
//! The kernel gets a filter that allows everything in place of each, so that it checks privileges and flags, and counts. A call
//! that the guest's filters deny is not made: it returns the error they want, or the kernel is made to end it as they want (see
//! [`Ends`]). Knows nothing of what other calls do.
#![expect(unsafe_code, reason = "prctl(2)")]

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use guest::{GuestAddr, GuestMemory, Registers};
use kernel::{Call, Class, Errno};
use ptrace::{HostTid, Stopped};
use seccompiler::sock_filter;
use trace::SyscallInfo;

use crate::bpf::{CallData, Program};
use crate::filter::{AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, Ends};
use crate::scratch::Plan;
use crate::session::Core;
use crate::sink::Ended;
use crate::stop::{Next, StopError};
use crate::task::{Held, Pending, Resume, Task};
use crate::{procfs, signal};

const PRCTL: u32 = kernel::number("prctl");

/// `si_code` of a SIGSYS that a filter raised.
pub(crate) const SYS_SECCOMP: i32 = 1;

// Modes of `PR_GET_SECCOMP`.
const STRICT: i64 = 1;
const FILTERED: i64 = 2;

/// What a thread has forbidden itself.
#[derive(Debug, Default)]
pub(crate) struct Sandbox {
    /// Oldest first.
    filters: RefCell<Vec<Rc<Program>>>,
    /// How many filters, not applied here, it was started with.
    outer: Cell<usize>,
    mode: Cell<i64>,
    no_new_privs: Cell<bool>,
    /// Those of all threads of the process.
    threads: Rc<RefCell<Vec<Weak<Sandbox>>>>,
}

impl Sandbox {
    /// Of a command that this process starts.
    pub(crate) fn of_command() -> Rc<Self> {
        let sandbox = Self::default();
        // SAFETY: both take numbers only.
        let [mode, forbidden] = unsafe {
            [libc::prctl(libc::PR_GET_SECCOMP), libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)]
        };
        sandbox.no_new_privs.set(forbidden == 1);
        if mode != 0 {
            let status = procfs::status(HostTid(std::process::id() as i32));
            let field =
                |name| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<i64>().ok());
            sandbox.mode.set(field("Seccomp:").unwrap_or(0));
            sandbox.outer.set(field("Seccomp_filters:").unwrap_or(0) as usize);
        }
        sandbox.listed()
    }

    /// A child's.
    pub(crate) fn inherited(&self, is_thread: bool) -> Rc<Self> {
        Self {
            filters: self.filters.clone(),
            outer: self.outer.clone(),
            mode: self.mode.clone(),
            no_new_privs: self.no_new_privs.clone(),
            threads: if is_thread { Rc::clone(&self.threads) } else { Rc::default() },
        }
        .listed()
    }

    fn listed(self) -> Rc<Self> {
        let threads = Rc::clone(&self.threads);
        let shared = Rc::new(self);
        threads.borrow_mut().retain(|thread| thread.strong_count() > 0);
        threads.borrow_mut().push(Rc::downgrade(&shared));
        shared
    }

    /// As `PR_GET_SECCOMP` tells.
    pub(crate) fn mode(&self) -> i64 {
        self.mode.get()
    }

    /// As `/proc/PID/status` tells.
    pub(crate) fn filter_count(&self) -> usize {
        self.outer.get() + self.filters.borrow().len()
    }

    /// As `PR_GET_NO_NEW_PRIVS` tells.
    pub(crate) fn no_new_privs(&self) -> bool {
        self.no_new_privs.get()
    }

    /// `PR_SET_NO_NEW_PRIVS`.
    pub(crate) fn forbid_new_privs(&self) {
        self.no_new_privs.set(true);
    }

    fn others(&self) -> Vec<Rc<Sandbox>> {
        let threads = self.threads.borrow();
        threads
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|other| !std::ptr::eq(&raw const **other, self))
            .collect()
    }

    fn install(&self, program: Rc<Program>, for_all_threads: bool) {
        self.filters.borrow_mut().push(program);
        self.mode.set(FILTERED);
        let others = if for_all_threads { self.others() } else { Vec::new() };
        for other in others {
            other.filters.replace(self.filters.borrow().clone());
            other.mode.set(FILTERED);
            if self.no_new_privs() {
                other.forbid_new_privs();
            }
        }
    }

    /// What becomes of a call; `None` if it may be made.
    fn denial(&self, data: &CallData) -> Option<Denial> {
        let action = |word: &u32| (word & 0xffff_0000) as i32;
        let words = self.filters.borrow().iter().map(|program| program.run(data)).collect::<Vec<_>>();
        // The most severe; of equals the newest.
        words.into_iter().rev().min_by_key(action).and_then(Denial::of)
    }
}

/// What becomes of a call that is not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denial {
    /// It returns this.
    Returns(i64),
    /// It is its tracer's to decide, who is told this number; `ENOSYS` where there is none.
    Trace(u16),
    /// A SIGSYS with this number in `si_errno`.
    Trap(u16),
    /// The end of the thread by SIGSYS.
    Thread,
    /// The end of the process by SIGSYS.
    Process,
    /// The end by SIGKILL, as strict mode has it.
    Strict,
}

impl Denial {
    /// What a returned word means (`linux/seccomp.h`).
    fn of(word: u32) -> Option<Self> {
        const MAX_ERRNO: u16 = 4095;
        let data = word as u16;
        Some(match word & 0xffff_0000 {
            // Allow, log.
            0x7fff_0000 | 0x7ffc_0000 => return None,
            0x7ff0_0000 => Self::Trace(data),
            // Ask a listener where there is none.
            0x7fc0_0000 => Self::Returns(Errno::ENOSYS.as_result()),
            0x0005_0000 => Self::Returns(-i64::from(data.min(MAX_ERRNO))),
            0x0003_0000 => Self::Trap(data),
            0x0000_0000 => Self::Thread,
            _ => Self::Process,
        })
    }
}

/// What filters have to do with a pending call.
#[derive(Debug, Default)]
pub(crate) enum Part {
    #[default]
    None,
    /// It is not made.
    Denied(Denial),
    /// It installs this one.
    Installs(Rc<Program>),
}

/// What becomes of the call that a task is about to make; `None` if its filters let it.
pub(crate) fn denial(task: &Task, regs: &Registers) -> Option<Denial> {
    let sandbox = &task.sandbox;
    let (nr, args) = (regs.orig_rax as u32, regs.syscall_args());
    if sandbox.mode() == STRICT {
        return (!matches!(kernel::name(nr), Some("read" | "write" | "exit" | "rt_sigreturn")))
            .then_some(Denial::Strict);
    }
    let data = |nr| CallData::new(nr, AUDIT_ARCH_X86_64, regs.rip, &args);
    let denial = sandbox.denial(&data(nr))?;
    // Without us this would perhaps have been no call at all. A filter that names the call means it; one that denies what it
    // does not name does not.
    let by_default = || sandbox.denial(&data(NO_CALL)) == Some(denial);
    (!(may_be_ours(nr, args[0]) && by_default())).then_some(denial)
}

/// Whether a task's filters do anything but let a call of the 32-bit table be made.
pub(crate) fn denies_narrow(task: &Task, nr: u32, pointer: u64, args: &[u64; 6]) -> bool {
    let data = CallData::new(nr, AUDIT_ARCH_I386, pointer, args);
    task.sandbox.mode() == STRICT || task.sandbox.denial(&data).is_some()
}

/// The number of no call.
const NO_CALL: u32 = 0x3fff_ff00;

/// Whether a call may come about by our doing: because the vDSO is hidden, or because our stop cut a call short.
fn may_be_ours(nr: u32, clock: u64) -> bool {
    match kernel::name(nr) {
        Some("gettimeofday" | "time" | "getcpu" | "restart_syscall") => true,
        // Realtime, monotonic, raw, coarse, boot and atomic time.
        Some("clock_gettime" | "clock_getres") => matches!(clock, 0 | 1 | 4..=7 | 11),
        _ => false,
    }
}

/// A call of the vsyscall page: the kernel makes it at the stop's end, and cannot be kept from it.
pub(crate) fn check_vsyscall(task: &Task, regs: &Registers) -> Result<(), StopError> {
    match denial(task, regs) {
        None => Ok(()),
        Some(_) => {
            Err(StopError::Refused("a filter that denies calls of the vsyscall page is not supported".into()))
        }
    }
}

/// At the entry of a call that is not to be made. `before` are the registers as events have them.
pub(crate) fn deny(
    core: &mut Core,
    task: &mut Task,
    mut stopped: Stopped,
    before: Registers,
    denial: Denial,
) -> Result<Next, StopError> {
    let regs = stopped.registers()?;
    let (nr, args) = (regs.orig_rax as u32, regs.syscall_args());
    let info = SyscallInfo { nr, args, result: None, output: None, output_crc: 0 };
    core.sink.begin(task.id, task.space.id, before, info);
    task.after = before;
    task.space.count_call(1);
    task.pending = Some(Pending {
        call: Call::enter(nr, args, &task.space.memory),
        class: Class::Plain,
        writes: Plan::AsItIs,
        alone: false,
        made: (nr, args),
        new_action: None,
        narrow: None,
        emulated: None,
        filters: Part::Denied(denial),
        idle: false,
        waits: false,
        announced: false,
        mask: None,
        snapshot: None,
    });
    let ending = |ends| Registers { orig_rax: u64::from(ends as u32), rip: abi::SYSCALL_RETURN, ..regs };
    let (registers, resume) = match denial {
        Denial::Trace(_) => {
            (Registers { orig_rax: u64::MAX, rax: Errno::ENOSYS.as_result() as u64, ..regs }, Resume::ToExit)
        }
        Denial::Returns(result) => {
            (Registers { orig_rax: u64::MAX, rax: result as u64, ..regs }, Resume::ToExit)
        }
        Denial::Trap(_) => (ending(Ends::Trap), Resume::ToExit),
        Denial::Thread => (ending(Ends::Thread), Resume::Cont(0)),
        Denial::Process => (ending(Ends::Process), Resume::Cont(0)),
        Denial::Strict => (regs, Resume::Cont(0)),
    };
    stopped.set_registers(&registers)?;
    match resume {
        Resume::ToExit => signal::raise_held(task),
        _ => core.sink.announce(task.id)?,
    }
    if denial == Denial::Strict {
        task.host.kill();
    }
    Ok((stopped, resume))
}

/// At the exit of a call that was not made.
pub(crate) fn on_exit(
    core: &mut Core,
    task: &mut Task,
    mut stopped: Stopped,
    (nr, args): (u32, [u64; 6]),
    denial: Denial,
) -> Result<Next, StopError> {
    let mut raw = stopped.registers()?;
    let mut info = SyscallInfo { nr, args, result: None, output: None, output_crc: 0 };
    match denial {
        Denial::Trace(_) => info.result = Some(Errno::ENOSYS.as_result()),
        Denial::Returns(result) => info.result = Some(result),
        Denial::Trap(data) => {
            let caller = past_instruction(&task.after);
            raw = Registers { rip: caller, rax: task.after.rax, orig_rax: u64::MAX, ..raw };
            stopped.set_registers(&raw)?;
            let siginfo = siginfo(nr, caller, data);
            task.raised.insert(0, Held { signal: libc::SIGSYS, siginfo, since: 0 });
        }
        Denial::Thread | Denial::Process | Denial::Strict => {
            return Err(StopError::bug("a task outlived a call that ends it".into()));
        }
    }
    let after = Registers { orig_rax: u64::MAX, ..raw };
    let ended = Ended { info, after, xstate: None, maps: Vec::new(), writes: Vec::new() };
    core.sink.end(task.id, task.space.id, task.after, ended)?;
    task.goes_on(after, raw);
    Ok((stopped, Resume::Cont(0)))
}

fn past_instruction(before: &Registers) -> u64 {
    const LENGTH: u64 = 2;
    before.rip.wrapping_add(LENGTH)
}

/// The `siginfo_t` of a SIGSYS that a filter raises.
fn siginfo(nr: u32, caller: u64, data: u16) -> [u8; 128] {
    let mut info = [0; 128];
    let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &libc::SIGSYS.to_le_bytes());
    put(4, &u32::from(data).to_le_bytes());
    put(8, &SYS_SECCOMP.to_le_bytes());
    put(16, &caller.to_le_bytes());
    put(24, &nr.to_le_bytes());
    put(28, &AUDIT_ARCH_X86_64.to_le_bytes());
    info
}

/// What a request to restrict the caller comes to.
pub(crate) enum Asked {
    /// This, without being made.
    Answer(i64),
    /// It is made, with a filter of ours in place of this one.
    Install(Rc<Program>),
    /// The kernel will say what is wrong with it.
    Fails,
}

/// At the entry of `seccomp` or `prctl(PR_SET_SECCOMP)`.
pub(crate) fn asked(task: &mut Task, nr: u32, args: &[u64; 6]) -> Result<Asked, StopError> {
    let by_prctl = nr == PRCTL;
    // Strict mode is 1 for one call, 0 for the other.
    let (mode, flags) = if by_prctl { (args[1], 0) } else { (u64::from(args[0] as u32) + 1, args[1] as u32) };
    match mode as i64 {
        STRICT if !by_prctl && (flags != 0 || args[2] != 0) => Ok(Asked::Fails),
        STRICT => strict(task).map(Asked::Answer),
        FILTERED => filter(task, flags, GuestAddr(args[2])),
        _ => Ok(Asked::Fails),
    }
}

fn strict(task: &mut Task) -> Result<i64, StopError> {
    if task.sandbox.mode() == FILTERED {
        return Ok(Errno::EINVAL.as_result());
    }
    if !task.sandbox.others().is_empty() {
        return Err(StopError::Refused("strict seccomp in a process with threads is not supported".into()));
    }
    task.sandbox.mode.set(STRICT);
    task.guise.forbid_tsc();
    Ok(0)
}

fn filter(task: &Task, flags: u32, at: GuestAddr) -> Result<Asked, StopError> {
    const KNOWN: u32 = 0x3f;
    const NEW_LISTENER: u32 = 8;
    let Some(program) = read_program(task, at).filter(|_| flags & !KNOWN == 0) else {
        return Ok(Asked::Fails);
    };
    if flags & NEW_LISTENER != 0 {
        return Err(StopError::Refused(
            "seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER) is not supported: another program decides about calls"
                .into(),
        ));
    }
    // What the recorder itself needed does not count for the guest.
    if !task.sandbox.no_new_privs() && !procfs::may_administer(task.host) {
        return Ok(Asked::Answer(Errno::EACCES.as_result()));
    }
    Ok(Asked::Install(Rc::new(program)))
}

/// The program that a `struct sock_fprog` names, if the kernel would take it.
fn read_program(task: &Task, at: GuestAddr) -> Option<Program> {
    const STEP: usize = 8;
    let memory = &task.space.memory;
    let mut len = [0; 2];
    memory.read(at, &mut len).ok()?;
    let start = GuestAddr(memory.read_u64(at.wrapping_add(8)).ok()?);
    let bytes = memory.read_vec(start, usize::from(u16::from_le_bytes(len)) * STEP).ok()?;
    let steps = bytes.as_chunks::<STEP>().0.iter().map(|&[c0, c1, jt, jf, k0, k1, k2, k3]| sock_filter {
        code: u16::from_le_bytes([c0, c1]),
        jt,
        jf,
        k: u32::from_le_bytes([k0, k1, k2, k3]),
    });
    Program::checked(steps.collect())
}

/// At the exit of `seccomp` or `prctl(PR_SET_SECCOMP)`, where it was made.
pub(crate) fn installed(
    task: &Task,
    part: Part,
    (nr, args): (u32, [u64; 6]),
    result: i64,
) -> Result<(), StopError> {
    const FOR_ALL_THREADS: u64 = 1;
    match part {
        _ if result != 0 => {}
        Part::Installs(program) => {
            let for_all_threads = nr != PRCTL && args[1] & FOR_ALL_THREADS != 0;
            task.sandbox.install(program, for_all_threads);
        }
        _ => return Err(StopError::bug("the kernel took a filter that the recorder did not".into())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returning(words: &[u32]) -> Rc<Sandbox> {
        let sandbox = Sandbox::default().listed();
        for &k in words {
            let steps = vec![sock_filter { code: 0x06, jt: 0, jf: 0, k }];
            sandbox.install(Rc::new(Program::checked(steps).expect("a program")), false);
        }
        sandbox
    }

    fn verdict(sandbox: &Sandbox) -> Option<Denial> {
        sandbox.denial(&CallData::new(0, AUDIT_ARCH_X86_64, 0, &[0; 6]))
    }

    #[test]
    fn the_most_severe_filter_decides_and_of_equals_the_newest() {
        for (words, expected) in [
            (&[][..], None),
            (&[0x7fff_0000, 0x7ffc_0000], None),
            (&[0x7fff_0000, 0x0005_0001, 0x0005_0002], Some(Denial::Returns(-2))),
            (&[0x0005_ffff], Some(Denial::Returns(-4095))),
            (&[0x7ff0_0001], Some(Denial::Trace(1))),
            (&[0x7fc0_0000], Some(Denial::Returns(-38))),
            (&[0x0003_0007, 0x0005_0002], Some(Denial::Trap(7))),
            (&[0x0000_0000, 0x0003_0007], Some(Denial::Thread)),
            (&[0x8000_0000, 0x0000_0000], Some(Denial::Process)),
            (&[0x1234_0000], Some(Denial::Process)),
        ] {
            assert_eq!(verdict(&returning(words)), expected, "{words:x?}");
        }
    }

    #[test]
    fn threads_are_synchronised_and_children_inherit() {
        let first = returning(&[0x0005_0001]);
        let thread = first.inherited(true);
        let child = first.inherited(false);
        let steps = vec![sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0002 }];
        first.forbid_new_privs();
        first.install(Rc::new(Program::checked(steps).expect("a program")), true);
        assert_eq!(verdict(&thread), Some(Denial::Returns(-2)));
        assert_eq!(verdict(&child), Some(Denial::Returns(-1)));
        assert!(thread.no_new_privs() && !child.no_new_privs());
        drop(thread);
        assert!(first.others().is_empty() && child.others().is_empty());
    }

    #[test]
    fn calls_of_the_hidden_vdso_are_told_by_clock() {
        let check = |name, clock| may_be_ours(kernel::number(name), clock);
        assert!(check("time", 99) && check("clock_gettime", 1) && check("clock_gettime", 6));
        assert!(!check("clock_gettime", 2) && !check("clock_settime", 1) && !check("read", 0));
    }
}
