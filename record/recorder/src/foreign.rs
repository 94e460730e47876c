//! Memory that a call changed as if it were a file or another process's: `process_vm_writev`, and writes to `/proc/PID/mem`.
//!
//! What is changed in the caller's own memory is part of the call. What is changed in that of another recorded process is part of the
//! call in which that one is, or an event of its own while it is held for its tracer or stands still for this. Where it does not come to that, the
//! recording ends.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::rc::{Rc, Weak};

use guest::{GuestAddr, GuestMemory, GuestRange};
use kernel::{Call, FileName};
use ptrace::HostTid;

use crate::buffer;
use crate::procfs;
use crate::session::Core;
use crate::shared::{extent, identity};
use crate::stop::StopError;
use crate::task::{Space, Task};

const PROCESS_VM_WRITEV: u32 = kernel::number("process_vm_writev");

/// A file was opened to be written: if it is a process's memory, notes whose.
pub(crate) fn opened(core: &mut Core, task: &Task, fd: i32, meta: &Metadata) {
    // `/proc` has no device behind it, and its files no length.
    if meta.len() != 0 || meta.dev() >> 8 != 0 {
        return;
    }
    let path = procfs::link(task.host, &format!("fd/{fd}"));
    let Some(owner) = path.strip_suffix("/mem").and_then(|path| path.rsplit('/').next()?.parse().ok()) else {
        return;
    };
    if let Some(space) = core.named(task.host, owner).and_then(|tid| space_of(core, tid)) {
        // Code may be written.
        buffer::turn_off(&space);
        core.memory_files.insert(identity(meta), Rc::downgrade(&space));
    }
}

/// Whose memory a call is about to change so, or changed.
enum Target {
    /// A recorded process's.
    Space(Rc<Space>),
    /// That of one which is gone or not recorded, or none.
    Nobodys,
    /// It cannot be told.
    Unknown,
}

fn target(core: &Core, task: &Task, call: &Call) -> Target {
    if call.nr == PROCESS_VM_WRITEV {
        let Some(target) = core.named(task.host, call.args[0] as i32) else { return Target::Nobodys };
        return space_of(core, target).map_or(Target::Unknown, Target::Space);
    }
    if core.memory_files.is_empty() {
        return Target::Nobodys;
    }
    let Some(FileName::Descriptor(fd)) = kernel::changes_file(call, &task.space.memory) else {
        return Target::Nobodys;
    };
    let meta = fs::metadata(format!("/proc/{}/fd/{fd}", task.host));
    let known = meta.ok().and_then(|meta| core.memory_files.get(&identity(&meta))?.upgrade());
    known.map_or(Target::Nobodys, Target::Space)
}

/// The space whose tasks must stand still before the call that a task is about to make can be let through.
pub(crate) fn awaited(core: &Core, task: &Task, call: &Call) -> Option<Rc<Space>> {
    match target(core, task, call) {
        Target::Space(space) if !Rc::ptr_eq(&space, &task.space) => Some(space),
        _ => None,
    }
}

/// What a finished call changed so in the caller's memory; others are told by [`Space::changed`].
pub(crate) fn changes(core: &mut Core, task: &Task, call: &Call) -> Result<Vec<GuestRange>, StopError> {
    let refused = |what: &str| {
        let shown = kernel::format_call(call.nr, &call.args, None, None);
        Err(StopError::Refused(format!("{shown}: {what} is not supported")))
    };
    if call.result <= 0 {
        return Ok(Vec::new());
    }
    let space = match target(core, task, call) {
        Target::Space(space) => space,
        Target::Nobodys => return Ok(Vec::new()),
        Target::Unknown => return refused("a change of memory that a process has borrowed"),
    };
    let ranges = if call.nr == PROCESS_VM_WRITEV {
        remote_ranges(task, call)?
    } else {
        let (start, end) = extent(task, call);
        vec![GuestRange { start: GuestAddr(start), end: GuestAddr(end) }]
    };
    if Rc::ptr_eq(&space, &task.space) {
        return Ok(ranges);
    }
    if space.in_call() {
        space.changed.borrow_mut().extend(ranges);
    } else if space.is_calm() {
        core.tracing.changed(space, ranges);
    } else {
        return refused("a change of another process's memory while that runs");
    }
    Ok(Vec::new())
}

/// The space of a recorded task's process.
fn space_of(core: &Core, tid: HostTid) -> Option<Rc<Space>> {
    let process = procfs::process(tid)?;
    core.spaces.iter().filter_map(Weak::upgrade).find(|space| space.owner == process)
}

/// The bytes that a `process_vm_writev` wrote, from the vector of `struct iovec` in its fourth argument.
fn remote_ranges(task: &Task, call: &Call) -> Result<Vec<GuestRange>, StopError> {
    const ENTRY: u64 = 16;
    let [_, _, _, vector, count, _] = call.args;
    let memory = &task.space.memory;
    let mut left = call.result as u64;
    let mut ranges = Vec::new();
    for at in (0..count).map(|entry| GuestAddr(vector).wrapping_add(entry * ENTRY)) {
        let len = memory.read_u64(at.wrapping_add(8))?.min(left);
        ranges.push(GuestRange::new(GuestAddr(memory.read_u64(at)?), len));
        left -= len;
        if left == 0 {
            break;
        }
    }
    ranges.retain(|range| !range.is_empty());
    Ok(ranges)
}
