//! Signals that a process ignores: they wake none of its calls.
//!
//! The kernel drops an ignored signal where it is sent, unless its receiver is traced: then it interrupts what the receiver waits for,
//! which comes back with EINTR or with less than it was asked for. So such signals are blocked while a call may wait, and are met as it
//! returns.

use std::cell::Cell;

use guest::{GuestAddr, GuestMemory};
use kernel::{Call, Class};
use ptrace::{HostTid, Stopped};

use crate::procfs;
use crate::signal::bit;
use crate::stop::StopError;
use crate::task::Task;

/// Without SIGCONT: a tracer that seized is told of it by a stop of its own, which interrupts a call whatever is blocked.
pub(crate) const BY_DEFAULT: [i32; 3] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH];
const SIGNALS: u64 = 64;

const EPOLL_PWAIT: u32 = kernel::number("epoll_pwait");
const EPOLL_PWAIT2: u32 = kernel::number("epoll_pwait2");
const PPOLL: u32 = kernel::number("ppoll");
const PSELECT6: u32 = kernel::number("pselect6");
const RT_SIGSUSPEND: u32 = kernel::number("rt_sigsuspend");

/// What those that share their signal handlers ignore.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ignored {
    /// A set, bit `n - 1` for signal `n`, once it was asked for.
    known: Cell<Option<u64>>,
    /// A signal was taken out of it, for which calls may wait.
    fewer: Cell<bool>,
    /// They do not want to hear of stops of their children (`SA_NOCLDSTOP`).
    stops: Cell<bool>,
}

impl Ignored {
    fn set(&self, host: HostTid) -> u64 {
        self.known.get().unwrap_or_else(|| {
            let [caught, ignored] = procfs::signal_sets(host, ["SigCgt", "SigIgn"]);
            let by_default = BY_DEFAULT.into_iter().map(bit).fold(0, |set, signal| set | signal);
            let set = ignored | by_default & !caught;
            self.known.set(Some(set));
            set
        })
    }

    /// A signal has got another action, the kernel's `struct sigaction` at an address.
    pub(crate) fn acted(&self, memory: &dyn GuestMemory, signal: u64, action: GuestAddr) {
        const FLAGS: u64 = 8;
        if signal == libc::SIGCHLD as u64 {
            let flags = memory.read_u64(action.wrapping_add(FLAGS)).unwrap_or(0);
            self.stops.set(flags & libc::SA_NOCLDSTOP as u64 != 0);
        }
        let Some(set) = self.known.get().filter(|_| (1..=SIGNALS).contains(&signal)) else { return };
        let one = bit(signal as i32);
        let ignores = match memory.read_u64(action).map(|handler| handler as usize) {
            Ok(libc::SIG_IGN) => true,
            Ok(libc::SIG_DFL) => BY_DEFAULT.contains(&(signal as i32)),
            _ => false,
        };
        self.known.set(Some(if ignores { set | one } else { set & !one }));
        if !ignores && set & one != 0 {
            self.fewer.set(true);
        }
    }

    /// Whether stops of children are not told.
    pub(crate) fn stops_of_children(&self) -> bool {
        self.stops.get()
    }

    /// Whether a signal was taken out of it since this was last asked.
    pub(crate) fn take_fewer(&self) -> bool {
        self.fewer.take()
    }
}

/// Blocks what a task ignores for the time of a call. Returns the signals that it has blocked itself, if that made a difference.
pub(crate) fn block(
    task: &Task,
    stopped: &mut Stopped,
    class: Class,
    call: &Call,
) -> Result<Option<u64>, StopError> {
    // A tracer wants to hear of them.
    if class != Class::MayBlock || task.tracing.is_some() || has_own_mask(call) {
        return Ok(None);
    }
    let ignored = task.ignored.set(task.host);
    let mask = stopped.signal_mask()?;
    if ignored & !mask == 0 {
        return Ok(None);
    }
    stopped.set_signal_mask(mask | ignored)?;
    Ok(Some(mask))
}

/// Whether a call brings along the signals that are blocked meanwhile.
fn has_own_mask(Call { nr, args, .. }: &Call) -> bool {
    match *nr {
        RT_SIGSUSPEND => true,
        PPOLL => args[3] != 0,
        EPOLL_PWAIT | EPOLL_PWAIT2 => args[4] != 0,
        PSELECT6 => args[5] != 0,
        _ => false,
    }
}
