//! Processors: everything recorded runs on one, but a guest sees, and believes to set, what it would have without us.
#![expect(unsafe_code, reason = "sched_getaffinity(2) and sched_setaffinity(2) with a mask of any size")]

use std::io;

use guest::{GuestAddr, GuestMemory};
use kernel::{Call, Errno};

use crate::api::RecordError;
use crate::session::{Core, StopError};
use crate::task::Task;

const GET: u32 = kernel::number("sched_getaffinity");
const SET: u32 = kernel::number("sched_setaffinity");
/// Room for as many processors as any kernel is built for.
const ROOM: usize = 1024;

/// This thread, pinned to the processor it was on; dropping it undoes that.
pub(crate) struct Pinned {
    before: Vec<u8>,
}

/// Pins this thread, and with it everything it forks.
pub(crate) fn pin() -> Result<Pinned, RecordError> {
    let system = |what| move |source| RecordError::System { what, source };
    let before = current().map_err(system("cannot tell which processors may be used"))?;
    ptrace::pin_to_cpu(ptrace::current_cpu()).map_err(system("cannot stay on one processor"))?;
    Ok(Pinned { before })
}

impl Pinned {
    /// The processors the guest believes it may run on.
    pub(crate) fn believed(&self) -> Vec<u8> {
        self.before.clone()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the kernel reads the mask, which outlives the call; thread 0 is this one.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, self.before.len(), self.before.as_ptr()) };
    }
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

fn concerns_guest(core: &Core, pid: u64) -> bool {
    let pid = pid as i32;
    pid == 0 || core.is_ours(pid)
}

/// `sched_setaffinity` of a recorded task: noted, not made. `None` for every other call.
pub(crate) fn set(core: &Core, task: &mut Task, nr: u32, args: &[u64; 6]) -> Option<i64> {
    if nr != SET || !concerns_guest(core, args[0]) {
        return None;
    }
    let len = (args[1] as usize).min(task.affinity.len());
    let Ok(asked) = task.space.memory.read_vec(GuestAddr(args[2]), len) else {
        return Some(Errno::EFAULT.as_result());
    };
    let online = current_online(&task.affinity);
    let mut mask: Vec<u8> =
        online.iter().zip(asked.iter().chain(std::iter::repeat(&0))).map(|(a, b)| a & b).collect();
    if mask.iter().all(|byte| *byte == 0) {
        return Some(Errno::EINVAL.as_result());
    }
    let itself = args[0] == 0 || args[0] as i32 == task.tid.0;
    if itself {
        std::mem::swap(&mut task.affinity, &mut mask);
    }
    Some(0)
}

/// The processors that are online, as a mask as long as `like`.
fn current_online(like: &[u8]) -> Vec<u8> {
    let mut mask = vec![0; like.len()];
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last {
            if let Some(byte) = mask.get_mut(cpu / 8) {
                *byte |= 1 << (cpu % 8);
            }
        }
    }
    if mask.iter().all(|byte| *byte == 0) { like.to_vec() } else { mask }
}

/// After `sched_getaffinity` of a recorded task: puts what the guest believes in place of the truth.
pub(crate) fn answer(core: &Core, task: &Task, call: &Call) -> Result<(), StopError> {
    if call.nr != GET || call.result <= 0 || !concerns_guest(core, call.args[0]) {
        return Ok(());
    }
    let len = (call.result as usize).min(task.affinity.len());
    Ok(task.space.memory.write(GuestAddr(call.args[2]), &task.affinity[..len])?)
}
