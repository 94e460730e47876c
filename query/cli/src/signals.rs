//! Signal dispositions of this process. The language's runtime ignores SIGPIPE before `main`; a filter at the end of a pipe
//! must die of it quietly, and a recorded command must find it as our caller had set it. Ctrl-C is for gdb, while it runs.

#![expect(unsafe_code, reason = "a constructor that runs before the runtime, and signal(2)")]

use std::io::Read;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

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

/// The pipe through which [`on_end`]'s handler tells its thread of a signal.
static TOLD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn tell(signo: libc::c_int) {
    let byte = u8::try_from(signo).unwrap_or(0);
    // SAFETY: write(2) may be called in a handler; it reads one byte of this frame. A full or closed pipe changes nothing.
    unsafe { libc::write(TOLD.load(Ordering::Relaxed), std::ptr::from_ref(&byte).cast(), 1) };
}

/// From now on SIGTERM and SIGHUP, unless our caller ignores them, call `act` on a thread of its own and do not end this process. Children
/// have them as ever.
pub(crate) fn on_end(act: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
    let (mut told, tell_it) = std::io::pipe()?;
    TOLD.store(tell_it.into_raw_fd(), Ordering::Relaxed);
    for signo in [libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler loads an atomic and calls write(2); both may be done anywhere.
        unsafe {
            let handler = tell as extern "C" fn(libc::c_int);
            if libc::signal(signo, handler as libc::sighandler_t) == libc::SIG_IGN {
                libc::signal(signo, libc::SIG_IGN);
            }
        }
    }
    std::thread::spawn(move || {
        let mut byte = [0];
        while told.read_exact(&mut byte).is_ok() {
            act(byte[0].into());
        }
    });
    Ok(())
}

/// Sends a signal to a child that was not waited for yet.
pub(crate) fn send(child: u32, signo: i32) {
    // SAFETY: no memory is involved. A process that is gone already is no matter.
    unsafe { libc::kill(libc::pid_t::try_from(child).unwrap_or(0), signo) };
}

/// Waits until a child has ended; it still has to be waited for.
pub(crate) fn wait_to_end(child: u32) {
    // SAFETY: an all-zero siginfo_t is a valid value, and the call only writes to it.
    while unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, child, &mut info, libc::WEXITED | libc::WNOWAIT) != 0
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    } {}
}

/// Dies of a signal, as if it had not been handled.
pub(crate) fn die_of(signo: i32) -> ! {
    // SAFETY: no memory is involved, and no code of ours runs by them.
    unsafe {
        libc::signal(signo, libc::SIG_DFL);
        libc::raise(signo);
    }
    std::process::exit(128 + signo)
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
