//! The end of a task: what the kernel still writes for it, and how the end of a process's leader shows.
#![expect(unsafe_code, reason = "get_robust_list(2)")]

use guest::{GuestAddr, GuestMemory, GuestRange};
use ptrace::{HostTid, Report, Stopped};
use trace::{Data, MemWrite};

use crate::session::Core;
use crate::stop::{Next, StopError};
use crate::task::{Exiting, Resume, Task};
use crate::{point, shared};

/// At `PTRACE_EVENT_EXIT`: the task is about to go, its memory still there.
pub(crate) fn on_exit(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let status = stopped.event_message()? as i32;
    let in_call = task.pending.is_some() || task.cut_short;
    let located = in_call || task.dying != 0 || point::at_death(core, task, &stopped)?;
    if task.pending.take().is_some() {
        task.space.count_call(-1);
    }
    let mut words = Vec::new();
    if task.clear_tid != GuestAddr(0) {
        words.push(task.clear_tid);
    }
    words.extend(robust_futexes(task));
    task.exiting = Some(Exiting { status, words, located });
    Ok((stopped, Resume::Cont(0)))
}

/// What the kernel left in memory that others use, once the task is gone.
pub(crate) fn last_writes(core: &Core, task: &Task) -> Vec<MemWrite> {
    let words = match &task.exiting {
        Some(exiting) => &exiting.words[..],
        None => std::slice::from_ref(&task.clear_tid),
    };
    words
        .iter()
        .filter(|addr| addr.0 != 0)
        .filter_map(|&addr| {
            let bytes = if task.space.tasks.get() == 0 {
                shared::seen_by_others(core, &task.space, GuestRange::new(addr, 4))?
            } else {
                task.space.memory.read_vec(addr, 4).ok()?
            };
            Some(MemWrite { addr, data: Data::Inline(bytes) })
        })
        .collect()
}

/// What a wait would report of a task that ended with `status`.
pub(crate) fn reported(status: i32) -> Report {
    if libc::WIFSIGNALED(status) {
        Report::Killed(libc::WTERMSIG(status), libc::WCOREDUMP(status))
    } else {
        Report::Exited(libc::WEXITSTATUS(status))
    }
}

/// The futexes on a task's robust list (`struct robust_list_head` of `linux/futex.h`).
fn robust_futexes(task: &Task) -> Vec<GuestAddr> {
    /// As far as the kernel follows it.
    const LONGEST: usize = 2048;
    const PI: u64 = 1;
    let memory = &task.space.memory;
    let Some(head) = robust_list(task.host) else { return Vec::new() };
    let word = |at: GuestAddr| memory.read_u64(at).unwrap_or(0);
    let offset = word(head.wrapping_add(8));
    let mut found = Vec::new();
    let mut entry = word(head) & !PI;
    while entry != head.0 && entry != 0 && found.len() < LONGEST {
        found.push(GuestAddr(entry.wrapping_add(offset)));
        entry = word(GuestAddr(entry)) & !PI;
    }
    let pending = word(head.wrapping_add(16)) & !PI;
    if pending != 0 {
        found.push(GuestAddr(pending.wrapping_add(offset)));
    }
    found
}

fn robust_list(tid: HostTid) -> Option<GuestAddr> {
    let (mut head, mut len) = (0u64, 0usize);
    // SAFETY: the kernel stores a pointer and a length into the two variables, which outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid.0, &mut head, &mut len) };
    (result == 0 && head != 0).then_some(GuestAddr(head))
}
