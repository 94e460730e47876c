//! Processors: everything recorded runs on one, but a guest sees, and believes to set, what it would have without us.
#![expect(unsafe_code, reason = "sched_getaffinity(2) and sched_setaffinity(2) with a mask of any size")]

use std::io;

use crate::api::RecordError;
use ptrace::HostTid;

use crate::session::Core;

/// Room for as many processors as any kernel is built for.
const ROOM: usize = 1024;

/// This thread, pinned to the processor it was on; dropping it undoes that.
pub(crate) struct Pinned {
    before: Vec<u8>,
    cpu: usize,
}

/// Pins this thread, and with it everything it forks.
pub(crate) fn pin() -> Result<Pinned, RecordError> {
    let system = |what| move |source| RecordError::System { what, source };
    let before = current().map_err(system("cannot tell which processors may be used"))?;
    let cpu = ptrace::current_cpu();
    ptrace::pin_to_cpu(cpu).map_err(system("cannot stay on one processor"))?;
    Ok(Pinned { before, cpu })
}

impl Pinned {
    /// The processors the guest believes it may run on.
    pub(crate) fn believed(&self) -> Vec<u8> {
        self.before.clone()
    }

    /// Has a thread of ours that calls this run on all processors but this one, if there is another.
    pub(crate) fn elsewhere(&self) -> impl FnOnce() + Send + use<> {
        let mut mask = self.before.clone();
        if let Some(byte) = mask.get_mut(self.cpu / 8) {
            *byte &= !(1 << (self.cpu % 8));
        }
        let mask = if mask.iter().all(|&byte| byte == 0) { self.before.clone() } else { mask };
        move || {
            if let Err(error) = set(HostTid(0), &mask) {
                tracing::debug!(%error, "a thread stays on the recorded processor");
            }
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = set(HostTid(0), &self.before);
    }
}

/// Sets the processors a thread may run on; thread 0 is this one.
fn set(thread: HostTid, mask: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads the mask, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, thread.0, mask.len(), mask.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn current() -> io::Result<Vec<u8>> {
    let mut mask = vec![0u8; ROOM];
    // SAFETY: the kernel writes at most `ROOM` bytes into the mask and returns how many.
    let result = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, mask.len(), mask.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    mask.truncate(result as usize);
    Ok(mask)
}

/// Whether a call of a task names itself or another recorded one, by the ids of its namespace.
pub(crate) fn concerns_guest(core: &Core, caller: HostTid, pid: u64) -> bool {
    pid == 0 || core.named(caller, pid as i32).is_some()
}

/// The processors that are online, as a mask of `len` bytes.
pub(crate) fn online(len: usize) -> Vec<u8> {
    let mut mask = vec![0; len];
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0".into());
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last {
            if let Some(byte) = mask.get_mut(cpu / 8) {
                *byte |= 1 << (cpu % 8);
            }
        }
    }
    mask
}
