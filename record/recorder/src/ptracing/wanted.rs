//! What a wait wants: whom, and how. Knows nothing of what there is.

use guest::{GuestAddr, GuestMemory};
use ptrace::HostTid;

use crate::procfs;
use crate::task::Task;

const WAIT4: u32 = kernel::number("wait4");
const WAITID: u32 = kernel::number("waitid");

const CHECKED_BY_WAIT4: i32 =
    libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED | libc::__WNOTHREAD | libc::__WCLONE | libc::__WALL;
const ENDS: i32 = libc::WEXITED;

/// Whose stops and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Any,
    One(i32),
    Group(i32),
}

/// A wait that is well-formed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    whose: Whose,
    options: i32,
    /// Where `wait4` stores the status and the usage; where `waitid` stores its.
    pub(super) status: u64,
    pub(super) usage: u64,
    /// Whether it is `waitid`.
    pub(super) by_id: bool,
}

impl Wanted {
    /// Of a call; `None` if it is no wait, or one of which the kernel tells what is wrong.
    pub(super) fn of(task: &Task, (nr, args): (u32, [u64; 6])) -> Option<Self> {
        match nr {
            WAIT4 => {
                let options = args[2] as i32;
                let whose = match args[0] as i32 {
                    -1 => Whose::Any,
                    0 => Whose::Group(procfs::group(task.host)),
                    pid if pid > 0 => Whose::One(pid),
                    i32::MIN => return None,
                    group => Whose::Group(-group),
                };
                let wanted =
                    Self { whose, options: options | ENDS, status: args[1], usage: args[3], by_id: false };
                (options & !CHECKED_BY_WAIT4 == 0).then_some(wanted)
            }
            WAITID => {
                const ALL: i32 = CHECKED_BY_WAIT4 | libc::WNOWAIT | ENDS;
                let options = args[3] as i32;
                let whose = match (args[0] as u32, args[1] as i32) {
                    (libc::P_ALL, _) => Whose::Any,
                    (libc::P_PID, pid) if pid > 0 => Whose::One(pid),
                    (libc::P_PGID, 0) => Whose::Group(procfs::group(task.host)),
                    (libc::P_PGID, group) if group > 0 => Whose::Group(group),
                    (libc::P_PIDFD, fd) => Whose::One(procfs::of_pidfd(task.host, fd)?),
                    _ => return None,
                };
                let some = options & (ENDS | libc::WSTOPPED | libc::WCONTINUED) != 0;
                let wanted = Self { whose, options, status: args[2], usage: args[4], by_id: true };
                (options & !ALL == 0 && some).then_some(wanted)
            }
            _ => None,
        }
    }

    /// Whether it is about a task, which the caller knows by an id.
    pub(super) fn includes(&self, tid: HostTid, seen_as: i32) -> bool {
        match self.whose {
            Whose::Any => true,
            Whose::One(pid) => seen_as == pid,
            Whose::Group(group) => procfs::group(tid) == group,
        }
    }

    fn has(&self, option: i32) -> bool {
        self.options & option != 0
    }

    pub(super) fn returns_at_once(&self) -> bool {
        self.has(libc::WNOHANG)
    }

    pub(super) fn leaves_it(&self) -> bool {
        self.has(libc::WNOWAIT)
    }

    pub(super) fn wants_ends(&self) -> bool {
        self.has(ENDS)
    }

    /// Whether tracees of a thread are the caller's to wait for.
    pub(super) fn concerns(&self, caller: &Task, tracer: HostTid, process: HostTid) -> bool {
        if self.has(libc::__WNOTHREAD) { tracer == caller.host } else { process == caller.process }
    }

    /// Whether there is a child that the kernel's own wait could report.
    pub(super) fn has_child(&self, caller: &Task) -> bool {
        let threads =
            if self.has(libc::__WNOTHREAD) { vec![caller.host] } else { procfs::threads(caller.process) };
        let children = threads.into_iter().flat_map(|thread| procfs::children(caller.process, thread));
        children.into_iter().any(|child| self.includes(child, procfs::seen_by(caller.host, child)))
    }

    /// The result of a wait that reports a task.
    pub(super) fn result(&self, seen_as: i32) -> i64 {
        if self.by_id { 0 } else { i64::from(seen_as) }
    }

    /// What the caller's memory holds where the kernel's wait would have reported a stopped task: that one.
    pub(super) fn stopped_by_kernel(&self, caller: &Task, result: i64) -> Option<i32> {
        let memory = &caller.space.memory;
        if self.by_id {
            let code = memory.read_u32(GuestAddr(self.status.wrapping_add(8))).ok()? as i32;
            let pid = memory.read_u32(GuestAddr(self.status.wrapping_add(16))).ok()?;
            let stops = matches!(code, libc::CLD_STOPPED | libc::CLD_TRAPPED);
            return (result == 0 && stops).then_some(pid as i32);
        }
        let status = memory.read_u32(GuestAddr(self.status)).ok()? as i32;
        (result > 0 && libc::WIFSTOPPED(status)).then_some(result as i32)
    }
}
