//! The recording thread traps `rdtsc` as those that it records do.
//!
//! The kernel switches trapping by a register of the processor at each change between threads that trap and threads that do not. In a
//! virtual machine that costs more than all else at a system call's two stops. So this thread traps, too, while it records, and
//! what reads the time stamp counter on its behalf (the vDSO's clocks) is answered by a signal handler: rarely, for what is asked often reads
//! coarse clocks, which need no counter.
#![expect(unsafe_code, reason = "prctl(2), and a signal handler")]

use std::arch::asm;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// The two instructions that read it.
const RDTSC: [u8; 2] = [0x0f, 0x31];
const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];

/// What handled SIGSEGV before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

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
        set(libc::PR_TSC_SIGSEGV).then_some(Self(()))
    }
}

impl Drop for Trapping {
    fn drop(&mut self) {
        set(libc::PR_TSC_ENABLE);
    }
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
        let [low, high, processor] = counter();
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

/// The time stamp counter and the processor's number, of a thread that traps.
fn counter() -> [u32; 3] {
    set(libc::PR_TSC_ENABLE);
    let (low, high, processor): (u32, u32, u32);
    // SAFETY: changes the named registers only.
    unsafe {
        asm!("rdtscp", out("eax") low, out("edx") high, out("ecx") processor, options(nomem, nostack, preserves_flags));
    }
    set(libc::PR_TSC_SIGSEGV);
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
}
