//! Signals that a process ignores: they wake none of its calls.
//!
//! The kernel drops an ignored signal where it is sent, unless its receiver is traced: then it interrupts what the receiver waits for,
//! which comes back with EINTR or with less than it was asked for. So such signals are blocked while a call may wait, and are met as it
//! returns. A call that brings along which signals are blocked meanwhile goes on by itself after one that is ignored, but for
//! `epoll_pwait` and its like: that reads a copy, with such signals in it, but for those that its task blocks otherwise: these the
//! kernel keeps, ignored or not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use guest::{GuestAddr, GuestMemory, GuestRange};
use kernel::{Call, Class, Place, Pointer};
use ptrace::{HostTid, Stopped};

use crate::procfs;
use crate::scratch::Plan;
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
    /// What the handlers of signals want blocked besides (`sa_mask`).
    handlers: RefCell<BTreeMap<u64, u64>>,
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
        const MASK: u64 = 24;
        let blocks = memory.read_u64(action.wrapping_add(MASK)).unwrap_or(0);
        self.handlers.borrow_mut().insert(signal, blocks);
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

/// Where a call reads what is blocked meanwhile, if it is to read a copy.
pub(crate) fn mask_to_copy(task: &Task, class: Class, call: &Call) -> Option<Place> {
    const SET: u64 = 8;
    let ends_early = matches!(call.nr, EPOLL_PWAIT | EPOLL_PWAIT2) && has_own_mask(call);
    let range = GuestRange::new(GuestAddr(call.args[4]), SET);
    let copied = ends_early && class == Class::MayBlock && task.tracing.is_none();
    copied.then_some(Place { range, read: true, pointer: Pointer::Argument(4) })
}

/// Adds what a task ignores to the copy of what its call wants blocked. Returns what was added.
pub(crate) fn block_in_copy(task: &Task, stopped: &Stopped, plan: &mut Plan) -> Result<u64, StopError> {
    let Plan::Moved(scratch) = plan else { return Ok(0) };
    let Some(at) = scratch.take_copied() else { return Ok(0) };
    let memory = &task.space.memory;
    let wanted = memory.read_u64(at)?;
    let more = task.ignored.set(task.host) & !wanted & !stopped.signal_mask()?;
    memory.write(at, &(wanted | more).to_le_bytes())?;
    Ok(more)
}

/// A handler was entered after such a call: what was added is no longer blocked, but for what the handler wants.
pub(crate) fn in_handler(task: &mut Task, signal: i32, stopped: &mut Stopped) -> Result<(), StopError> {
    let added = std::mem::take(&mut task.deafened);
    let wanted = task.ignored.handlers.borrow().get(&(signal as u64)).copied().unwrap_or(0);
    if added & !wanted != 0 {
        let mask = stopped.signal_mask()?;
        stopped.set_signal_mask(mask & !(added & !wanted))?;
    }
    Ok(())
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
