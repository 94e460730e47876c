//! Signals that stand for the kernel's own: SIGCHLD to a tracer, SIGSTOP and SIGTRAP to a tracee. They are sent by the recorder, and
//! come with what the kernel would have put into them. Knows nothing of stops.
#![expect(unsafe_code, reason = "tgkill(2) and kill(2)")]

use guest::{GuestAddr, GuestMemory};
use kernel::Call;
use ptrace::{HostTid, Stopped};

use crate::procfs;
use crate::session::Core;
use crate::signal::si_code;
use crate::stop::StopError;
use crate::task::Task;

/// `si_code` of what the kernel sends of its own.
pub(super) const SI_KERNEL: i32 = 0x80;

/// What comes with a signal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Siginfo {
    pub(super) signo: i32,
    pub(super) code: i32,
    /// The sender, or the child.
    pub(super) pid: i32,
    pub(super) uid: u32,
    /// Of a child.
    pub(super) status: i32,
}

impl Siginfo {
    /// As `siginfo_t` has it (`asm-generic/siginfo.h`).
    pub(super) fn bytes(&self) -> [u8; 128] {
        let mut info = [0; 128];
        let mut put = |at: usize, word: i32| info[at..at + 4].copy_from_slice(&word.to_le_bytes());
        put(0, self.signo);
        put(8, self.code);
        put(16, self.pid);
        put(20, self.uid as i32);
        put(24, self.status);
        info
    }
}

/// `siginfo_t` of a fault at an address.
pub(super) fn at_address(signo: i32, code: i32, addr: u64) -> [u8; 128] {
    let mut info = Siginfo { signo, code, ..Siginfo::default() }.bytes();
    info[16..24].copy_from_slice(&addr.to_le_bytes());
    info
}

/// Sends a signal to a traced task, to come with `info`.
pub(super) fn send(task: &mut Task, signal: i32, info: [u8; 128]) {
    let Some(traced) = &mut task.tracing else { return };
    // SAFETY: tgkill takes numbers only; the task is a tracee, so its id is not reused.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, task.process.0, task.host.0, signal) };
    if result == 0 && signal != libc::SIGKILL {
        traced.sent.push((signal, info));
    }
}

/// Tells a tracer by SIGCHLD, where it wants to hear: a handler, or somebody who looks at what is blocked.
pub(super) fn tell(core: &mut Core, tracer: HostTid, process: HostTid, info: &Siginfo) {
    const BIT: u64 = 1 << (libc::SIGCHLD - 1);
    let heard = procfs::signal_set(process, "SigCgt") | procfs::signal_set(tracer, "SigBlk");
    let deaf = procfs::signal_set(process, "SigIgn") | procfs::signal_set(process, "ShdPnd");
    if heard & BIT == 0 || deaf & BIT != 0 {
        return;
    }
    core.tracing.notices.retain(|(to, _)| *to != process);
    core.tracing.notices.push((process, info.bytes()));
    // SAFETY: kill takes numbers only; the process is a tracee, so its id is not reused.
    unsafe { libc::kill(process.0, libc::SIGCHLD) };
}

/// Puts into a signal of ours what it stands for. Whether it was one.
pub(crate) fn authentic(
    core: &mut Core,
    task: &mut Task,
    signal: i32,
    stopped: &mut Stopped,
    info: &mut [u8; 128],
) -> Result<bool, StopError> {
    let code = si_code(info);
    // Another process id namespace knows us as 0.
    let by_us = info[16..20] == std::process::id().to_le_bytes() || info[16..20] == [0; 4];
    let original = match code {
        libc::SI_TKILL if by_us => {
            let Some(traced) = &mut task.tracing else { return Ok(false) };
            let at = traced.sent.iter().position(|(sent, _)| *sent == signal);
            at.map(|at| traced.sent.remove(at).1)
        }
        libc::SI_USER if by_us && signal == libc::SIGCHLD => {
            let notices = &mut core.tracing.notices;
            let at = notices.iter().position(|(process, _)| *process == task.process);
            at.map(|at| notices.remove(at).1)
        }
        _ => None,
    };
    let Some(original) = original else { return Ok(false) };
    stopped.set_siginfo(&original)?;
    *info = original;
    Ok(true)
}

/// The same of a signal that the task took out by itself (`rt_sigtimedwait`): in its memory.
pub(crate) fn authentic_in_memory(core: &mut Core, task: &Task, call: &Call) -> Result<(), StopError> {
    const SIGTIMEDWAIT: u32 = kernel::number("rt_sigtimedwait");
    let at = GuestAddr(call.args[1]);
    if call.nr != SIGTIMEDWAIT || call.result != i64::from(libc::SIGCHLD) || at.0 == 0 {
        return Ok(());
    }
    let code = task.space.memory.read_u32(at.wrapping_add(8))? as i32;
    let notices = &mut core.tracing.notices;
    if let Some(found) = notices.iter().position(|(process, _)| *process == task.process)
        && code == libc::SI_USER
    {
        let (_, info) = notices.remove(found);
        task.space.memory.write(at, &info)?;
    }
    Ok(())
}
