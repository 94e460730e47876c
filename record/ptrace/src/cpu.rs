//! Processors: which one runs this thread, and staying on it.
#![expect(unsafe_code, reason = "sched_setaffinity(2) is called here")]

use std::io;

use crate::tracee::HostTid;

/// The processor this thread is on.
pub fn current_cpu() -> usize {
    // SAFETY: sched_getcpu takes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// Keeps this thread (and what it forks) on one processor: a ptrace stop across processors costs many times as much.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    set_affinity(HostTid(0), &[cpu])
}

/// Sets the processors a thread may run on; thread 0 is the calling one.
pub fn set_affinity(tid: HostTid, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is valid; CPU_SET bounds-checks against its size by indexing; the set outlives the
    // call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(tid.0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
