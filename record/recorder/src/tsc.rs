//! The recording thread traps `rdtsc` as those that it records do.
//!
//! The kernel switches trapping by a register of the processor at each change between threads that trap and threads that do not. In a
//! virtual machine that costs more than all else at a system call's two stops. So this thread traps, too, while it records, and
//! what reads the time stamp counter on its behalf (the vDSO's clocks) is answered by a signal handler: rarely, for what is asked often reads
//! coarse clocks, which need no counter. What recorded programs are told is reckoned ([`Stamps`]).
#![expect(unsafe_code, reason = "prctl(2), and a signal handler")]

use std::arch::asm;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The two instructions that read it.
const RDTSC: [u8; 2] = [0x0f, 0x31];
const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];

/// What handled SIGSEGV before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether the recording thread traps.
static TRAPS: AtomicBool = AtomicBool::new(false);

/// This thread traps until this is dropped.
#[derive(Debug)]
pub(crate) struct Trapping(());

impl Trapping {
    /// Begins to trap, where that can be done.
    pub(crate) fn begin() -> Option<Self> {
        if let Err(error) = install() {
            tracing::debug!(%error, "recording goes on without trapping rdtsc itself");
            return None;
        }
        let traps = set(libc::PR_TSC_SIGSEGV);
        TRAPS.store(traps, Ordering::Relaxed);
        traps.then_some(Self(()))
    }
}

impl Drop for Trapping {
    fn drop(&mut self) {
        TRAPS.store(false, Ordering::Relaxed);
        set(libc::PR_TSC_ENABLE);
    }
}

/// What a recorded program is told that the time stamp counter says. To read it takes two changes of that register: so it is reckoned
/// from a clock that the kernel derives from it, and seldom read. All tell the same, who has a stop and who reckons it himself ([`Line`]):
/// none of these lines begins lower or earlier than another one ended.
#[derive(Debug)]
pub(crate) struct Stamps {
    first: Look,
    newest: Look,
    /// Once it is known how fast the counter is.
    line: Option<Line>,
    /// What was told last.
    told: u64,
}

/// How the counter is reckoned for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// The clock in nanoseconds from which on it holds.
    pub(crate) from: u64,
    /// So long.
    pub(crate) lasts: u64,
    /// What the counter does in a nanosecond, in units of 1 / 2^32.
    pub(crate) rate: u64,
    /// The counter at first.
    pub(crate) ticks: u64,
    /// The number of the processor.
    pub(crate) processor: u32,
}

impl Line {
    /// The counter at a time of the clock.
    fn at(&self, clock: Duration) -> Option<u64> {
        let since = nanos(clock).checked_sub(self.from).filter(|since| *since < self.lasts)?;
        Some(self.after(since))
    }

    /// The same so many nanoseconds after the beginning. What a line says must not need more than 64 bits on the way.
    fn after(&self, since: u64) -> u64 {
        self.ticks + ((since * self.rate) >> 32)
    }
}

fn nanos(clock: Duration) -> u64 {
    u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX)
}

/// The counter and the clock at one time.
#[derive(Clone, Copy, Debug)]
struct Look {
    ticks: u64,
    processor: u32,
    clock: Duration,
}

impl Stamps {
    /// How long what was read is reckoned from, and the least time between two readings from which to tell how fast the counter is.
    const FRESH: Duration = Duration::from_millis(100);
    const APART: Duration = Duration::from_millis(1);

    /// Reads the counter for the first time.
    pub(crate) fn begin() -> Self {
        let first = look();
        Self { first, newest: first, line: None, told: 0 }
    }

    /// The counter, which never stands still, and the processor's number. `told` is what was told by others, as far as it is known.
    pub(crate) fn now(&mut self, told: u64) -> (u64, u32) {
        self.told = self.told.max(told);
        let ticks = self.line.and_then(|line| line.at(clock())).unwrap_or_else(|| self.look_again());
        self.told = ticks.max(self.told + 1);
        (self.told, self.newest.processor)
    }

    /// How it is reckoned at present.
    pub(crate) fn line(&self) -> Option<Line> {
        self.line
    }

    /// Reads the counter, and what it says now.
    fn look_again(&mut self) -> u64 {
        self.newest = look();
        let ended = self.line.map_or(0, |line| line.after(line.lasts));
        let ticks = self.newest.ticks.max(ended).max(self.told);
        self.line = self.drawn(ticks);
        ticks
    }

    /// The line from the newest look on. Where what was told is ahead of the counter, it is slower than that, and they meet.
    fn drawn(&self, ticks: u64) -> Option<Line> {
        let Look { ticks: counter, processor, clock } = self.newest;
        let apart = clock.checked_sub(self.first.clock).filter(|apart| *apart >= Self::APART)?;
        let more = u128::from(counter.checked_sub(self.first.ticks)?) << 32;
        let rate = u64::try_from(more / apart.as_nanos()).ok()?;
        let lasts = nanos(Self::FRESH);
        let ahead = u64::try_from((u128::from(ticks - counter) << 32) / u128::from(lasts)).ok()?;
        let rate = rate.saturating_sub(ahead).max(rate / 2);
        rate.checked_mul(lasts)?;
        Some(Line { from: nanos(clock), lasts, rate, ticks, processor })
    }
}

fn look() -> Look {
    let traps = TRAPS.load(Ordering::Relaxed);
    if traps {
        set(libc::PR_TSC_ENABLE);
    }
    let before = clock();
    let [low, high, processor] = counter();
    let clock = before + (clock().saturating_sub(before)) / 2;
    if traps {
        set(libc::PR_TSC_SIGSEGV);
    }
    Look { ticks: u64::from(high) << 32 | u64::from(low), processor, clock }
}

/// The time since the machine was started, asked of the kernel itself: the vDSO reads the counter.
pub(crate) fn clock() -> Duration {
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel fills `now`, for which zeroes do where it does not.
    let now = unsafe {
        libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC_RAW, now.as_mut_ptr());
        now.assume_init()
    };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// This thread does not trap any more.
pub(crate) fn do_not_trap() {
    set(libc::PR_TSC_ENABLE);
}

fn set(state: i32) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_TSC, state, 0, 0, 0) == 0 }
}

/// Has the handler handle SIGSEGV from now on.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, and fills `before`.
    let asked = unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), before.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above filled it.
    BEFORE.get_or_init(|| unsafe { before.assume_init() });
    // SAFETY: all of its fields may be zero.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_fault as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what a handler may, and lives as long as the program.
    match unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Answers an instruction that reads the time stamp counter; leaves everything else to whoever handled it before.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the signal's information and the state of the thread, as SA_SIGINFO asks.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let at = registers[libc::REG_RIP as usize] as *const u8;
    // A trapped instruction is a general protection fault, which has no address.
    let len = if code == libc::SI_KERNEL { length(at) } else { None };
    if let Some(len) = len {
        set(libc::PR_TSC_ENABLE);
        let [low, high, processor] = counter();
        set(libc::PR_TSC_SIGSEGV);
        registers[libc::REG_RAX as usize] = i64::from(low);
        registers[libc::REG_RDX as usize] = i64::from(high);
        if len == RDTSCP.len() {
            registers[libc::REG_RCX as usize] = i64::from(processor);
        }
        registers[libc::REG_RIP as usize] += len as i64;
    } else if let Some(before) = BEFORE.get() {
        // SAFETY: sigaction may be called here; the fault happens again, and is that one's.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}

/// The length of the instruction that a general protection fault came from, if it reads the time stamp counter.
fn length(at: *const u8) -> Option<usize> {
    // SAFETY: the processor has read the instruction there, which has three bytes if the first two are those of `rdtscp`, and two
    // if the first is 0x0f.
    unsafe {
        if *at != RDTSC[0] {
            return None;
        }
        match *at.add(1) {
            second if second == RDTSC[1] => Some(RDTSC.len()),
            second if second == RDTSCP[1] && *at.add(2) == RDTSCP[2] => Some(RDTSCP.len()),
            _ => None,
        }
    }
}

/// The time stamp counter and the processor's number.
fn counter() -> [u32; 3] {
    let (low, high, processor): (u32, u32, u32);
    // SAFETY: changes the named registers only.
    unsafe {
        asm!("rdtscp", out("eax") low, out("edx") high, out("ecx") processor, options(nomem, nostack, preserves_flags));
    }
    [low, high, processor]
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn state() -> i32 {
        let mut state = 0;
        // SAFETY: the kernel fills the number.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut state, 0, 0, 0) }, 0);
        state
    }

    #[test]
    fn clocks_go_on_while_the_thread_traps() {
        let before = Instant::now();
        let trapping = Trapping::begin().unwrap();
        assert_eq!(state(), libc::PR_TSC_SIGSEGV);
        let first = Instant::now();
        while first.elapsed() < Duration::from_millis(2) {}
        let (low, high, processor): (u32, u32, u32);
        // SAFETY: changes the named registers only.
        unsafe { asm!("rdtscp", out("eax") low, out("edx") high, out("ecx") processor) };
        let trapped = u64::from(high) << 32 | u64::from(low);
        assert_eq!(state(), libc::PR_TSC_SIGSEGV, "it still traps");
        drop(trapping);
        assert_eq!(state(), libc::PR_TSC_ENABLE);
        // SAFETY: reads the counter.
        let after = unsafe { std::arch::x86_64::_rdtsc() };
        assert!(first > before && trapped < after && processor < 1 << 24);
    }

    #[test]
    fn what_is_told_is_the_counter_and_never_stands_still() {
        // SAFETY: reads the counter.
        let counter = || unsafe { std::arch::x86_64::_rdtsc() };
        let mut stamps = Stamps::begin();
        let begun = (counter(), Instant::now());
        while begun.1.elapsed() < Duration::from_millis(3) {}
        // What the counter does in a tenth of a millisecond.
        let near = (counter() - begun.0) / 30;
        let mut last = 0;
        for _ in 0..1000 {
            let before = counter();
            let (told, _) = stamps.now(0);
            assert!(told > last && told + near > before, "{told}, not before {before} and {last}");
            assert!(told < counter() + near);
            last = told;
        }
        assert!(stamps.line().is_some());
    }

    #[test]
    fn lines_go_on_where_others_ended() {
        let mut stamps = Stamps::begin();
        let begun = Instant::now();
        while begun.elapsed() < 2 * Stamps::APART {}
        let mut former: Option<Line> = None;
        for ahead in [0, 1 << 20, 0, 0] {
            let ticks = stamps.look_again();
            let line = stamps.line().unwrap();
            if let Some(former) = former {
                assert!(ticks >= former.after(former.lasts) && line.ticks == ticks, "{former:?} {line:?}");
                assert!(line.from >= former.from, "{former:?} {line:?}");
            }
            assert!((line.at(clock()).unwrap() - ticks) >> 40 == 0 && line.rate > 1 << 30, "{line:?}");
            assert_eq!(line.at(Duration::from_nanos(line.from + line.lasts)), None);
            stamps.told += ahead;
            former = Some(line);
        }
        let (told, _) = stamps.now(1 << 62);
        assert_eq!(told, (1 << 62) + 1);
    }
}
