//! Memory that more than this space's own stores can change: writable shared mappings, and the files behind them.
//!
//! Spaces that descend from one program share an object by its kept file's id; they take turns at their stops only, so a
//! replay in event order sees the same contents. What else could change an object is written down or refused.

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::rc::{Rc, Weak};

use guest::{FileId, GuestMemory, GuestRange, SpaceId};
use kernel::Call;
use trace::{Backing, MapOp, MemWrite};

use crate::session::Core;
use crate::stop::StopError;
use crate::task::{Space, Task};
use crate::{image, procfs};

/// Something that shared mappings show.
#[derive(Debug)]
pub(crate) struct Object {
    /// Device and inode, or `None` where it is anonymous.
    file: Option<(u64, u64)>,
    /// The kept file that stands for it.
    kept: Cell<FileId>,
    /// The space of the program that mapped it first, or that program's ancestor by fork.
    unit: SpaceId,
}

/// A mapping of an object.
#[derive(Clone, Debug)]
pub(crate) struct SharedMapping {
    pub(crate) range: GuestRange,
    pub(crate) object: Rc<Object>,
    /// File offset of its first byte.
    pub(crate) offset: u64,
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Notes an anonymous shared mapping.
pub(crate) fn map_anonymous(task: &Task, range: GuestRange) {
    let object = Object { file: None, kept: Cell::new(FileId(0)), unit: task.space.unit };
    task.space.shared.borrow_mut().push(SharedMapping { range, object: Rc::new(object), offset: 0 });
}

/// The kept file for a new mapping of an open file.
pub(crate) fn map_file(
    core: &mut Core,
    task: &Task,
    opened: (&File, &Metadata, &str),
    place: (GuestRange, u64),
    shared_and_writable: (bool, bool),
) -> Result<FileId, StopError> {
    let ((file, meta, name), (range, offset), (shared, writable)) = (opened, place, shared_and_writable);
    let live =
        core.objects.iter().filter_map(Weak::upgrade).find(|object| object.file == Some(identity(meta)));
    let object = match live {
        // A private mapping shows the contents of this moment, which the file's times do not tell.
        Some(_) if !shared => return Ok(core.sink.writer.keep_anew(file, name)?),
        Some(object) if object.unit != task.space.unit => {
            return Err(StopError::Refused(format!(
                "{name} mapped shared by programs that were executed separately is not supported"
            )));
        }
        Some(object) => object,
        None if !(shared && writable) => return Ok(core.sink.writer.keep_file(file, name)?),
        None => {
            let kept = Cell::new(core.sink.writer.keep_anew(file, name)?);
            let object = Rc::new(Object { file: Some(identity(meta)), kept, unit: task.space.unit });
            core.objects.retain(|weak| weak.strong_count() > 0);
            core.objects.push(Rc::downgrade(&object));
            object
        }
    };
    let kept = object.kept.get();
    task.space.shared.borrow_mut().push(SharedMapping { range, object, offset });
    Ok(kept)
}

/// Forgets shared mappings in a range that is mapped anew or unmapped; what sticks out stays.
pub(crate) fn forget(space: &Space, range: GuestRange) {
    let mut shared = space.shared.borrow_mut();
    if !shared.iter().any(|mapping| mapping.range.overlaps(range)) {
        return;
    }
    let parts = |mapping: SharedMapping| {
        let low = GuestRange { start: mapping.range.start, end: range.start.min(mapping.range.end) };
        let high = GuestRange { start: range.end.max(mapping.range.start), end: mapping.range.end };
        [low, high].into_iter().filter(|part| !part.is_empty()).map(move |part| SharedMapping {
            range: part,
            object: Rc::clone(&mapping.object),
            offset: mapping.offset + (part.start.0 - mapping.range.start.0),
        })
    };
    let rest = shared.drain(..).flat_map(parts).collect();
    *shared = rest;
}

/// A shared mapping moved.
pub(crate) fn moved(space: &Space, from: GuestRange, to: GuestRange) {
    let moving = space.shared.borrow().iter().find(|shared| shared.range.start == from.start).cloned();
    forget(space, from);
    forget(space, to);
    if let Some(mapping) = moving {
        space.shared.borrow_mut().push(SharedMapping { range: to, ..mapping });
    }
}

/// A finished call changed a file: what thereby changed in the task's memory.
pub(crate) fn file_changes(
    core: &mut Core,
    task: &Task,
    call: &Call,
) -> Result<(Vec<MapOp>, Vec<MemWrite>), StopError> {
    let nothing = (Vec::new(), Vec::new());
    if core.objects.is_empty() || !call.succeeded() {
        return Ok(nothing);
    }
    let Some(position) = kernel::changes_file(call.nr, &call.args) else { return Ok(nothing) };
    let fd = call.args[position] as i32;
    let Ok(meta) = std::fs::metadata(format!("/proc/{}/fd/{fd}", task.host)) else { return Ok(nothing) };
    let live = core.objects.iter().filter_map(Weak::upgrade);
    let Some(object) = live.into_iter().find(|object| object.file == Some(identity(&meta))) else {
        return Ok(nothing);
    };
    let own: Vec<SharedMapping> = task
        .space
        .shared
        .borrow()
        .iter()
        .filter(|mapping| Rc::ptr_eq(&mapping.object, &object))
        .cloned()
        .collect();
    let name = procfs::link(task.host, &format!("fd/{fd}"));
    if !own.is_empty() && matches!(kernel::output(call, &task.space.memory), Ok(Some(_))) {
        return Ok((Vec::new(), written(core, task, call, fd, &own)?));
    }
    let others: Vec<Rc<Space>> = core
        .spaces
        .iter()
        .filter_map(Weak::upgrade)
        .filter(|space| !Rc::ptr_eq(space, &task.space) && shows(space, &object))
        .collect();
    if !others.iter().all(|space| space.in_call.get()) {
        return Err(StopError::Refused(format!(
            "a change of {name} while another process runs that has it mapped shared is not supported"
        )));
    }
    if own.is_empty() && others.is_empty() {
        return Ok(nothing);
    }
    let cannot = |error| StopError::Refused(format!("{name} was changed and cannot be kept: {error}"));
    let file = File::open(format!("/proc/{}/fd/{fd}", task.host)).map_err(cannot)?;
    object.kept.set(core.sink.writer.keep_anew(&file, &name)?);
    for space in others {
        let ops = remapped(&space, &name, &object).map_err(cannot)?;
        space.owed.borrow_mut().extend(ops);
    }
    Ok((remapped(&task.space, &name, &object).map_err(cannot)?, Vec::new()))
}

fn shows(space: &Space, object: &Rc<Object>) -> bool {
    space.shared.borrow().iter().any(|mapping| Rc::ptr_eq(&mapping.object, object))
}

/// What a `write` or the like put into mapped parts of the file.
fn written(
    core: &mut Core,
    task: &Task,
    call: &Call,
    fd: i32,
    own: &[SharedMapping],
) -> Result<Vec<MemWrite>, StopError> {
    const AT_OFFSET: [u32; 3] =
        [kernel::number("pwrite64"), kernel::number("pwritev"), kernel::number("pwritev2")];
    let len = call.result as u64;
    let start = if AT_OFFSET.contains(&call.nr) {
        call.args[3]
    } else {
        procfs::fd_offset(task.host, fd).unwrap_or(len).saturating_sub(len)
    };
    let mut writes = Vec::new();
    for mapping in own {
        let from = start.max(mapping.offset);
        let to = (start + len).min(mapping.offset + mapping.range.len());
        if from < to {
            let addr = mapping.range.start.wrapping_add(from - mapping.offset);
            let bytes = task.space.memory.read_vec(addr, (to - from) as usize)?;
            writes.push(MemWrite { addr, data: image::data(bytes, &mut core.sink.writer)? });
        }
    }
    Ok(writes)
}

/// A file got another length, or contents that no buffer held: its mappings are as if made anew from the file as it is.
fn remapped(space: &Space, name: &str, object: &Rc<Object>) -> io::Result<Vec<MapOp>> {
    let shared = space.shared.borrow();
    let mut own = shared.iter().filter(|mapping| Rc::ptr_eq(&mapping.object, object)).peekable();
    let maps = if own.peek().is_some() { procfs::maps(space.owner)? } else { Vec::new() };
    let mut ops = Vec::new();
    for mapping in own {
        for piece in maps.iter().filter(|piece| piece.range.overlaps(mapping.range)) {
            let range = piece.range.intersect(mapping.range);
            let offset = mapping.offset + (range.start.0 - mapping.range.start.0);
            ops.push(MapOp::Map {
                range,
                prot: piece.prot,
                shared: true,
                grows_down: false,
                no_reserve: false,
                backing: Backing::File { file: object.kept.get(), offset },
                name: name.to_owned(),
            });
        }
    }
    Ok(ops)
}
