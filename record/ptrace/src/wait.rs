//! What a wait reports, decoded.
#![expect(unsafe_code, reason = "wait4(2) is called here")]

use crate::tracee::{HostTid, Stopped};

/// One report of a wait.
#[derive(Debug)]
pub struct Waited {
    /// Which thread.
    pub tid: HostTid,
    /// What happened to it.
    pub report: Report,
}

/// What happened to a tracee. Variants with a `Stopped` hand over the right to inspect and resume it.
#[derive(Debug)]
pub enum Report {
    /// A seccomp filter stopped a system call before it was made.
    Seccomp(Stopped),
    /// A system call is entered or left, after `cont_to_syscall`.
    Syscall(Stopped),
    /// A ptrace event.
    Event(PtraceEvent, Stopped),
    /// A signal is about to be delivered.
    Signal(i32, Stopped),
    /// A group stop of a seized tracee, for this stop signal.
    Group(i32, Stopped),
    /// It exited with this code.
    Exited(i32),
    /// It was killed by a signal; the flag tells of a core dump.
    Killed(i32, bool),
}

/// A ptrace event other than seccomp and stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PtraceEvent {
    /// A child was made by `fork`.
    Fork,
    /// A child was made by `vfork`.
    Vfork,
    /// A child or thread was made by `clone`.
    Clone,
    /// The program was replaced; the system call has not returned yet.
    Exec,
    /// A `vfork` child is done with its parent's memory.
    VforkDone,
    /// The task is about to exit, its memory still there.
    Exit,
    /// `PTRACE_INTERRUPT`, or the first stop of an automatically seized child.
    Stop,
}

/// Waits for `tid`, whatever happens to it. `flags` as in `wait4` (`WNOHANG`); `__WALL` is added. `Ok(None)` only with `WNOHANG`.
pub fn wait_for(tid: HostTid, flags: i32) -> std::io::Result<Option<Waited>> {
    wait(tid.0, flags)
}

/// Waits for any tracee or child of this thread.
pub fn wait_any(flags: i32) -> std::io::Result<Option<Waited>> {
    wait(-1, flags)
}

/// Waits for any tracee or child of this thread. `Ok(None)` when a signal that this process handles came instead.
pub fn wait_any_or_signal() -> std::io::Result<Option<Waited>> {
    wait_or_signal(-1)
}

/// Waits for `tid`, whatever happens to it. `Ok(None)` when a signal that this process handles came instead.
pub fn wait_for_or_signal(tid: HostTid) -> std::io::Result<Option<Waited>> {
    wait_or_signal(tid.0)
}

fn wait_or_signal(who: i32) -> std::io::Result<Option<Waited>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call; a null rusage is allowed.
    let pid = unsafe { libc::wait4(who, &mut status, libc::__WALL, std::ptr::null_mut()) };
    if pid == -1 {
        let error = std::io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EINTR) { Ok(None) } else { Err(error) };
    }
    Ok(Some(Waited { tid: HostTid(pid), report: decode(HostTid(pid), status) }))
}

fn wait(who: i32, flags: i32) -> std::io::Result<Option<Waited>> {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call; a null rusage is allowed.
        let pid = unsafe { libc::wait4(who, &mut status, flags | libc::__WALL, std::ptr::null_mut()) };
        match pid {
            -1 => {
                let error = std::io::Error::last_os_error();
                if error.raw_os_error() != Some(libc::EINTR) {
                    return Err(error);
                }
            }
            0 => return Ok(None),
            _ => return Ok(Some(Waited { tid: HostTid(pid), report: decode(HostTid(pid), status) })),
        }
    }
}

fn decode(tid: HostTid, status: i32) -> Report {
    if libc::WIFEXITED(status) {
        return Report::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Report::Killed(libc::WTERMSIG(status), libc::WCOREDUMP(status));
    }
    let stopped = Stopped::assume(tid);
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Report::Syscall(stopped),
        0 => Report::Signal(signal, stopped),
        libc::PTRACE_EVENT_SECCOMP => Report::Seccomp(stopped),
        libc::PTRACE_EVENT_FORK => Report::Event(PtraceEvent::Fork, stopped),
        libc::PTRACE_EVENT_VFORK => Report::Event(PtraceEvent::Vfork, stopped),
        libc::PTRACE_EVENT_CLONE => Report::Event(PtraceEvent::Clone, stopped),
        libc::PTRACE_EVENT_EXEC => Report::Event(PtraceEvent::Exec, stopped),
        libc::PTRACE_EVENT_VFORK_DONE => Report::Event(PtraceEvent::VforkDone, stopped),
        libc::PTRACE_EVENT_EXIT => Report::Event(PtraceEvent::Exit, stopped),
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Report::Event(PtraceEvent::Stop, stopped),
        _ => Report::Group(signal, stopped),
    }
}
