//! System V shared memory: a segment is an object like a file that is mapped shared, known by its id.

use std::cell::Cell;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::rc::{Rc, Weak};

use guest::{GuestAddr, GuestRange, PAGE_SIZE};
use kernel::Call;
use trace::MapOp;

use crate::api::RecordError;
use crate::procfs;
use crate::session::Core;
use crate::shared::{self, Identity, Object, SharedMapping};
use crate::stop::StopError;
use crate::task::Task;

/// A device number that no file has: the inode is then a segment's id.
const SEGMENTS: u64 = u64::MAX;

fn identity(id: u64) -> Identity {
    (SEGMENTS, id)
}

/// `shmat`: the segment appears at the address that the call returned.
pub(crate) fn attach(core: &mut Core, task: &Task, call: &Call) -> Result<Vec<MapOp>, StopError> {
    let start = GuestAddr(call.result as u64);
    let id = call.args[0] & 0xffff_ffff;
    let maps = procfs::maps(task.host)
        .map_err(|source| RecordError::System { what: "cannot read a tracee's mappings", source })?;
    let Some(mapping) = maps.into_iter().find(|mapping| mapping.range.start == start) else {
        return Err(StopError::bug(format!("segment {id} is not where it was attached")));
    };
    shared::forget(&task.space, mapping.range);
    let known = core.objects.iter().filter_map(Weak::upgrade).find(|o| o.is(identity(id)));
    let object = match known {
        Some(object) => object,
        None => {
            let cannot = |source| RecordError::System { what: "cannot keep a shared memory segment", source };
            let copy = contents(task, mapping.range).map_err(cannot)?;
            let kept = core.sink.writer.keep_anew(&copy, &mapping.name)?;
            shared::add_object(core, (identity(id), 0), Cell::new(kept))
        }
    };
    shared::is_shown_by(core, task, &object);
    let kept = object.kept();
    task.space.shared.borrow_mut().push(SharedMapping { range: mapping.range, object, offset: 0 });
    Ok(vec![shared::of_file(mapping.range, mapping.prot, true, (kept, 0), &mapping.name)])
}

/// `shmdt`: the segment that was attached at an address goes.
pub(crate) fn detach(task: &Task, call: &Call) -> Vec<MapOp> {
    let start = GuestAddr(call.args[0]);
    let segment: Option<Rc<Object>> = {
        let shared = task.space.shared.borrow();
        let at_start = shared.iter().find(|mapping| mapping.range.start == start);
        at_start.filter(|mapping| mapping.object.is_on(SEGMENTS)).map(|mapping| Rc::clone(&mapping.object))
    };
    let Some(segment) = segment else { return Vec::new() };
    // What is left of it, where parts were unmapped, goes as a whole.
    let ranges: Vec<GuestRange> = {
        let shared = task.space.shared.borrow();
        let parts = shared.iter().filter(|mapping| {
            let first = mapping.range.start.0.wrapping_sub(mapping.offset);
            Rc::ptr_eq(&mapping.object, &segment) && first == start.0
        });
        parts.map(|mapping| mapping.range).collect()
    };
    for range in &ranges {
        shared::forget(&task.space, *range);
    }
    ranges.into_iter().map(|range| MapOp::Unmap { range }).collect()
}

/// A copy of a range of memory, with holes where it is zero.
fn contents(task: &Task, range: GuestRange) -> io::Result<File> {
    let file = memory_file(c"segment")?;
    file.set_len(range.len())?;
    let mut page = [0; PAGE_SIZE as usize];
    for at in (0..range.len()).step_by(PAGE_SIZE as usize) {
        let read = task.space.memory.read_forced(range.start.wrapping_add(at), &mut page);
        if page[..read].iter().any(|byte| *byte != 0) {
            file.write_all_at(&page[..read], at)?;
        }
    }
    Ok(file)
}

#[expect(unsafe_code, reason = "memfd_create(2)")]
fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: the name is a C string that outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
