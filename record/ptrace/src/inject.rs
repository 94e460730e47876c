//! System calls made in a stopped tracee on its behalf.
//!
//! The tracee must hold a `syscall` instruction at a known address that no seccomp filter stops (the `abi` crate's page). It
//! must not itself be inside a system call: at a seccomp or entry stop, the pending call comes first.

use guest::{GuestAddr, Registers};

use crate::tracee::{Gone, Stopped};
use crate::wait::{Report, wait_for};

/// Why a call could not be made.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The tracee vanished.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The wait failed.
    #[error("waiting for an injected system call failed")]
    Wait(#[from] std::io::Error),
    /// Something else happened than the call's end.
    #[error("injected system call {nr} was interrupted: {report}")]
    Interrupted {
        /// Its number.
        nr: u64,
        /// What the wait reported.
        report: String,
    },
}

/// Makes a call with `PTRACE_SYSCALL` stops at both ends: leaves the tracee's signal state alone. `syscall` is the address of
/// the instruction. Returns the tracee, its registers as they were, and what the call returned.
pub fn inject_with_stops(
    mut tracee: Stopped,
    syscall: GuestAddr,
    nr: u64,
    args: [u64; 6],
) -> Result<(Stopped, i64), InjectError> {
    let saved = tracee.registers()?;
    tracee.set_registers(&prepared(&saved, syscall, nr, args))?;
    for _ in 0..2 {
        let tid = tracee.tid();
        tracee.cont_to_syscall(0)?;
        tracee = match wait_for(tid, 0)?.map(|waited| waited.report) {
            Some(Report::Syscall(stopped)) => stopped,
            other => return Err(InjectError::Interrupted { nr, report: format!("{other:?}") }),
        };
    }
    finish(tracee, &saved)
}

/// Makes a call that ends at the `int3` after the instruction: one stop instead of two, for tracees in which SIGTRAP is neither
/// blocked nor ignored.
pub fn inject_with_trap(
    mut tracee: Stopped,
    syscall: GuestAddr,
    nr: u64,
    args: [u64; 6],
) -> Result<(Stopped, i64), InjectError> {
    let saved = tracee.registers()?;
    tracee.set_registers(&prepared(&saved, syscall, nr, args))?;
    let tid = tracee.tid();
    tracee.cont(0)?;
    match wait_for(tid, 0)?.map(|waited| waited.report) {
        Some(Report::Signal(libc::SIGTRAP, stopped)) => finish(stopped, &saved),
        other => Err(InjectError::Interrupted { nr, report: format!("{other:?}") }),
    }
}

fn prepared(saved: &Registers, syscall: GuestAddr, nr: u64, args: [u64; 6]) -> Registers {
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    // orig_rax of -1 keeps the kernel from treating the resumed registers as a call to restart.
    Registers { rip: syscall.0, rax: nr, orig_rax: u64::MAX, rdi, rsi, rdx, r10, r8, r9, ..*saved }
}

fn finish(mut tracee: Stopped, saved: &Registers) -> Result<(Stopped, i64), InjectError> {
    let result = tracee.registers()?.rax as i64;
    tracee.set_registers(saved)?;
    Ok((tracee, result))
}
