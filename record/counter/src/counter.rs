//! A counter on one thread: `perf_event_open(2)` and the calls on what it returns.
#![expect(unsafe_code, reason = "perf_event_open(2) and its ioctls are called here")]

use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use perf_event_open_sys::bindings::{
    HW_BREAKPOINT_X, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_BREAKPOINT, perf_event_attr,
};
use perf_event_open_sys::{ioctls, perf_event_open};
use ptrace::HostTid;

use crate::error::{CallFailed, OpenError, ReadError};
use crate::event::Event;

/// A period that never ends: the kernel allows less than 2^63, and adds to it.
const NEVER: u64 = 1 << 62;
/// `fcntl(2)`: who gets the signal, and that it is a single thread (`include/uapi/asm-generic/fcntl.h`).
const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;
const F_SETSIG: i32 = 10;
/// `si_code` of such a signal (`include/uapi/asm-generic/siginfo.h`): that the file can be read, or, for signals whose codes
/// mean something else, that it is one.
const POLL_IN: i32 = 1;
const SI_SIGIO: i32 = -5;

/// `struct f_owner_ex`
#[repr(C)]
struct Owner {
    kind: i32,
    id: i32,
}

/// A counter of what one thread does in user mode. Closed when dropped.
///
/// It stays with the thread through an exec, though the signal may not (an exec by another thread than the first changes the thread's
/// id): open anew then. Threads and processes that the thread makes are not counted. When the thread has ended, the count stays readable
/// and all else does nothing.
///
/// All calls are best made while the thread is stopped: they then take effect exactly there. A tracer that sees its thread through from
/// one point to another makes `reset`, `arm`, `start` at the first, and `stop`, `read` at the second; what it has the thread do in between
/// for itself (injected calls) is not to be counted, so it is stopped around that, too.
///
/// ```no_run
/// use std::num::NonZeroU64;
/// use backstory_counter::{Counter, Event, EventCode};
///
/// fn slice(tid: ptrace::HostTid, code: EventCode, length: NonZeroU64) -> Result<u64, Box<dyn std::error::Error>> {
///     let counter = Counter::open(Event::RetiredConditionalBranches(code), tid, libc::SIGSTKFLT)?;
///     counter.arm(length)?;
///     counter.start()?;
///     // Resume the thread, and wait: a stop by SIGSTKFLT for which `counter.sent(&siginfo)` is the end of the slice.
///     counter.stop()?;
///     Ok(counter.read()?)
/// }
/// ```
#[derive(Debug)]
pub struct Counter {
    file: File,
    tid: HostTid,
    signal: i32,
}

impl Counter {
    /// A counter on a thread of the caller's or one that it may trace. It is at 0, does not count yet and is not armed. `signal` is
    /// what [`Counter::arm`] has sent to the thread: one that it does not block (a blocked one stays pending and does not stop it) and
    /// that nothing else sends. A tracer sees it even if the thread ignores it.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(event: Event, tid: HostTid, signal: i32) -> Result<Self, OpenError> {
        let mut attributes = attributes(event);
        let (any_cpu, no_group) = (-1, -1);
        // SAFETY: `attributes` is initialized, its size field says how long it is, and it outlives the call.
        let fd = unsafe {
            perf_event_open(&mut attributes, tid.0, any_cpu, no_group, u64::from(PERF_FLAG_FD_CLOEXEC))
        };
        if fd < 0 {
            return Err(open_error(io::Error::last_os_error(), event, tid));
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let counter = Self { file, tid, signal };
        counter.send_signals_to_the_thread()?;
        Ok(counter)
    }

    fn send_signals_to_the_thread(&self) -> Result<(), CallFailed> {
        let fd = self.file.as_raw_fd();
        let owner = Owner { kind: F_OWNER_TID, id: self.tid.0 };
        // SAFETY: F_SETOWN_EX reads a `struct f_owner_ex`, which outlives the call.
        checked("fcntl(F_SETOWN_EX)", unsafe { libc::fcntl(fd, F_SETOWN_EX, &owner) })?;
        // SAFETY: F_SETSIG takes a number.
        checked("fcntl(F_SETSIG)", unsafe { libc::fcntl(fd, F_SETSIG, self.signal) })?;
        // SAFETY: F_SETFL takes a number.
        checked("fcntl(F_SETFL)", unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC) })
    }

    /// Whose it is.
    pub fn tid(&self) -> HostTid {
        self.tid
    }

    /// Counts from now on.
    ///
    /// # Errors
    ///
    /// The kernel refused, which it has no reason to.
    pub fn start(&self) -> Result<(), CallFailed> {
        // SAFETY: the request takes a number.
        checked("ioctl(PERF_EVENT_IOC_ENABLE)", unsafe { ioctls::ENABLE(self.file.as_raw_fd(), 0) })
    }

    /// Does not count from now on. The count stays, and so does how many events are left until the signal.
    ///
    /// # Errors
    ///
    /// As [`Counter::start`].
    pub fn stop(&self) -> Result<(), CallFailed> {
        // SAFETY: the request takes a number.
        checked("ioctl(PERF_EVENT_IOC_DISABLE)", unsafe { ioctls::DISABLE(self.file.as_raw_fd(), 0) })
    }

    /// Sets the count to 0. How many events are left until the signal stays.
    ///
    /// # Errors
    ///
    /// As [`Counter::start`].
    pub fn reset(&self) -> Result<(), CallFailed> {
        // SAFETY: the request takes a number.
        checked("ioctl(PERF_EVENT_IOC_RESET)", unsafe { ioctls::RESET(self.file.as_raw_fd(), 0) })
    }

    /// Has the signal sent when so many events more have been counted, whatever was asked for before, and again each time that so many
    /// more have been. It comes some events late (see [`Quality::skid`](crate::Quality::skid)), and counting goes on meanwhile. 2^62 and
    /// more is never.
    ///
    /// # Errors
    ///
    /// As [`Counter::start`].
    pub fn arm(&self, after: NonZeroU64) -> Result<(), CallFailed> {
        let period = after.get().min(NEVER);
        // SAFETY: the kernel wants a pointer to the number; the bindings declare a number and pass it on as it is. What the
        // pointer shows outlives the call.
        let result = unsafe { ioctls::PERIOD(self.file.as_raw_fd(), std::ptr::from_ref(&period) as u64) };
        checked("ioctl(PERF_EVENT_IOC_PERIOD)", result)
    }

    /// Has no more signals sent.
    ///
    /// # Errors
    ///
    /// As [`Counter::start`].
    pub fn disarm(&self) -> Result<(), CallFailed> {
        self.arm(const { NonZeroU64::new(NEVER).expect("not 0") })
    }

    /// The number of events counted.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn read(&self) -> Result<u64, ReadError> {
        let mut bytes = [0; 8];
        match (&self.file).read(&mut bytes) {
            Ok(8) => Ok(u64::from_ne_bytes(bytes)),
            // What is pinned and cannot be scheduled reads as the end of a file.
            Ok(_) => Err(ReadError::Lost { tid: self.tid }),
            Err(source) => Err(ReadError::Failed(CallFailed { call: "read", source })),
        }
    }

    /// Whether a signal that stopped the thread, by its `siginfo_t`, is this counter's.
    pub fn sent(&self, siginfo: &[u8; 128]) -> bool {
        let word =
            |at: usize| i32::from_ne_bytes([siginfo[at], siginfo[at + 1], siginfo[at + 2], siginfo[at + 3]]);
        // si_signo, si_errno, si_code; then (aligned to 8) si_band, a long, and si_fd.
        let (number, code, fd) = (word(0), word(8), word(24));
        number == self.signal && matches!(code, POLL_IN | SI_SIGIO) && fd == self.file.as_raw_fd()
    }
}

fn attributes(event: Event) -> perf_event_attr {
    let mut attributes = perf_event_attr { size: size_of::<perf_event_attr>() as u32, ..Default::default() };
    match event {
        Event::RetiredConditionalBranches(code) => {
            attributes.type_ = code.unit;
            attributes.config = code.config;
        }
        Event::Breakpoint(addr) => {
            attributes.type_ = PERF_TYPE_BREAKPOINT;
            attributes.bp_type = HW_BREAKPOINT_X;
            attributes.__bindgen_anon_3.bp_addr = addr.0;
            // What the kernel asks for with an execution breakpoint (perf_event_open(2)).
            attributes.__bindgen_anon_4.bp_len = size_of::<libc::c_long>() as u64;
        }
    }
    attributes.__bindgen_anon_1.sample_period = NEVER;
    attributes.set_disabled(1);
    attributes.set_pinned(1);
    attributes.set_exclude_kernel(1);
    attributes.set_exclude_hv(1);
    // Virtual machines that the thread runs.
    attributes.set_exclude_guest(1);
    attributes
}

fn checked(call: &'static str, result: i32) -> Result<(), CallFailed> {
    if result < 0 { Err(CallFailed { call, source: io::Error::last_os_error() }) } else { Ok(()) }
}

/// What an error of `perf_event_open(2)` means.
fn open_error(source: io::Error, event: Event, tid: HostTid) -> OpenError {
    let is_branches = matches!(event, Event::RetiredConditionalBranches(_));
    match source.raw_os_error() {
        // The last: there are counters, but none that interrupt.
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::EOPNOTSUPP) if is_branches => OpenError::NoPmu,
        Some(libc::EACCES | libc::EPERM) => {
            let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok();
            let paranoid = level.and_then(|level| level.trim().parse().ok());
            OpenError::Permission { tid, paranoid }
        }
        Some(libc::EMFILE | libc::ENFILE) => OpenError::TooManyFiles,
        Some(libc::ENOSPC | libc::EBUSY) => OpenError::NoSlot { tid },
        Some(libc::ESRCH) => OpenError::NoThread { tid },
        Some(libc::ENOSYS) => OpenError::NoKernelSupport,
        _ => OpenError::Failed(CallFailed { call: "perf_event_open", source }),
    }
}
