//! The clock tick that ends slices and wakes the main loop. Knows nothing of tasks.
#![expect(unsafe_code, reason = "sigaction(2) and timer_create(2)")]

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Milliseconds between ticks.
pub(crate) const TICK_MS: u64 = 10;

/// Signals that a terminal, or the guest itself, sends to the whole process group: the guest's affair. (An abort of this process
/// overrides that.)
const OF_THE_GROUP: [i32; 10] = [
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGXCPU,
    libc::SIGSTKFLT,
];

/// Signals that ask for the end.
pub(crate) const REQUESTS: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

static TICKS: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicU32 = AtomicU32::new(0);
/// Whether SIGINT and SIGQUIT are requests also where a terminal sends them, to the command as well.
static HEED_TERMINAL: AtomicBool = AtomicBool::new(false);

extern "C" fn on_tick(_: i32) {
    TICKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn on_stop(signal: i32, info: *const libc::siginfo_t) {
    // SAFETY: the kernel passes the signal's information, as SA_SIGINFO asks.
    let by_kernel = unsafe { (*info).si_code } > 0;
    let of_terminal = by_kernel && matches!(signal, libc::SIGINT | libc::SIGQUIT);
    if !of_terminal || HEED_TERMINAL.load(Ordering::Relaxed) {
        STOP.store(signal as u32, Ordering::Relaxed);
    }
}

/// Signal dispositions as a recording needs them, and the running timer. Dropping it puts back what was there.
pub(crate) struct Timer {
    saved: Vec<(i32, libc::sigaction)>,
    alarm: Option<Alarm>,
}

impl Timer {
    /// Starts the tick; ignores what is meant for the guest; notes requests to end.
    pub(crate) fn start() -> io::Result<Self> {
        let mut timer = Self { saved: Vec::new(), alarm: None };
        STOP.store(0, Ordering::Relaxed);
        HEED_TERMINAL.store(false, Ordering::Relaxed);
        for signal in OF_THE_GROUP {
            timer.set(signal, libc::SIG_IGN)?;
        }
        timer.set(libc::SIGALRM, on_tick as extern "C" fn(i32) as usize)?;
        for signal in REQUESTS {
            timer.set(signal, on_stop as extern "C" fn(i32, *const libc::siginfo_t) as usize)?;
            timer.keep_ignored(signal)?;
        }
        // Waits tell of stops; a signal for each as well would only cost.
        timer.set_with(libc::SIGCHLD, libc::SIG_DFL, libc::SA_NOCLDSTOP)?;
        timer.keep_ignored(libc::SIGCHLD)?;
        timer.alarm = Some(Alarm::start()?);
        timer.next_in(TICK_MS * 1_000_000);
        Ok(timer)
    }

    /// Lets the next tick come in so many nanoseconds, and ticks follow as usual from there.
    pub(crate) fn next_in(&self, nanos: u64) {
        if let Some(Err(error)) = self.alarm.as_ref().map(|alarm| alarm.set(nanos)) {
            tracing::debug!(%error, "the tick stays as it was");
        }
    }

    /// The number of ticks so far, wrapping.
    pub(crate) fn now(&self) -> u32 {
        TICKS.load(Ordering::Relaxed)
    }

    /// The signal by which somebody asked this process to end since the last call.
    pub(crate) fn take_request(&self) -> Option<i32> {
        Some(STOP.swap(0, Ordering::Relaxed) as i32).filter(|signal| *signal != 0)
    }

    /// From now on the terminal, too, asks for the end.
    pub(crate) fn heed_terminal(&self) {
        HEED_TERMINAL.store(true, Ordering::Relaxed);
    }

    /// Ignores a signal that was ignored when this program began, as `nohup` has it.
    fn keep_ignored(&mut self, signal: i32) -> io::Result<()> {
        let ignored =
            self.saved.iter().any(|(saved, old)| *saved == signal && old.sa_sigaction == libc::SIG_IGN);
        if ignored { self.set(signal, libc::SIG_IGN) } else { Ok(()) }
    }

    fn set(&mut self, signal: i32, handler: usize) -> io::Result<()> {
        self.set_with(signal, handler, 0)
    }

    fn set_with(&mut self, signal: i32, handler: usize, flags: i32) -> io::Result<()> {
        // SAFETY: an all-zero sigaction is valid (without SA_RESTART waits are interrupted); the handlers above only
        // store to atomics and read what the kernel hands them.
        let (result, old) = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_SIGINFO | flags;
            let mut old: libc::sigaction = mem::zeroed();
            (libc::sigaction(signal, &action, &mut old), old)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        self.saved.push((signal, old));
        Ok(())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.alarm = None;
        // Ignoring it discards a tick that is still on its way, which must not meet what was there before: perhaps death.
        let _ = self.set(libc::SIGALRM, libc::SIG_IGN);
        for (signal, old) in self.saved.iter().rev() {
            // SAFETY: `old` is what sigaction gave for this signal.
            unsafe { libc::sigaction(*signal, old, ptr::null_mut()) };
        }
    }
}

/// A periodic signal to the thread that made it, which is the one that waits for tracees.
struct Alarm(libc::timer_t);

impl Alarm {
    fn start() -> io::Result<Self> {
        // SAFETY: an all-zero sigevent is valid, and the fields that SIGEV_THREAD_ID needs are set; both structures outlive
        // the call; the timer is deleted once, when this is dropped.
        unsafe {
            let mut event: libc::sigevent = mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = ptr::null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(timer))
        }
    }

    fn set(&self, first_nanos: u64) -> io::Result<()> {
        let span = |nanos: u64| libc::timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as i64,
        };
        let ticks =
            libc::itimerspec { it_interval: span(TICK_MS * 1_000_000), it_value: span(first_nanos.max(1)) };
        // SAFETY: the timer exists until this is dropped; `ticks` outlives the call.
        match unsafe { libc::timer_settime(self.0, 0, &ticks, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: the timer exists and is not used again.
        unsafe { libc::timer_delete(self.0) };
    }
}
