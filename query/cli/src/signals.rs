//! Signal dispositions of this process. The language's runtime ignores SIGPIPE before `main`; a filter at the end of a pipe
//! must die of it quietly, and a recorded command must find it as our caller had set it. Ctrl-C is for gdb, while it runs.

#![expect(unsafe_code, reason = "a constructor that runs before the runtime, and signal(2)")]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::args::Command;

/// Whether our caller had SIGPIPE ignored.
static INHERITED_IGNORE: AtomicBool = AtomicBool::new(false);

/// Runs before `main` and before the runtime changes the disposition.
extern "C" fn remember() {
    // SAFETY: an all-zero sigaction is a valid value, and the call only writes to it.
    let ignored = unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    };
    INHERITED_IGNORE.store(ignored, Ordering::Relaxed);
}

#[used]
// SAFETY: the section holds pointers to functions that take no argument they need; `remember` touches an atomic and
// asks the kernel, both of which work before the runtime is up.
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

/// Sets SIGPIPE as `command` needs it: as inherited for `record`, ignored where a lost gdb must not kill us, else
/// fatal.
pub(crate) fn restore_for(command: &Command) {
    let ignore = match command {
        Command::Record(_) => INHERITED_IGNORE.load(Ordering::Relaxed),
        Command::Gdb(_) | Command::GdbServer(_) => true,
        _ => false,
    };
    let disposition = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: sets a disposition that runs no code of ours; no other thread exists yet.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
}

/// Leaves SIGINT and SIGQUIT from the terminal to the children in the foreground, in whom their dispositions are the
/// default ones again.
pub(crate) fn leave_interrupts_to_children() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int);
    for signo in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: the handler does nothing, so it may run at any time; execve resets a handler, where it would keep an
        // ignored signal ignored.
        unsafe { libc::signal(signo, handler as libc::sighandler_t) };
    }
}

/// Makes this process end when the one that started it does.
pub(crate) fn end_with_parent() {
    // SAFETY: sets an attribute of this process; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// From now on Ctrl-C calls `act`, on a thread of its own, and does not end this process. Call it before other threads start.
pub(crate) fn on_interrupt(act: impl Fn() + Send + 'static) {
    // SAFETY: the set is a plain value that the calls fill; blocking a signal affects this thread and its children only.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        let mut signo = 0;
        // SAFETY: both point to values that live for the call; the signal is blocked, as sigwait(3) asks.
        while unsafe { libc::sigwait(&set, &mut signo) } == 0 {
            act();
        }
    });
}
