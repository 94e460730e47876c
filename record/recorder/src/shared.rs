//! Memory that more than this space's own stores can change: writable shared mappings, and the files behind them.
//!
//! Spaces share an object by its kept file's id; they take turns at their stops only, so a replay in event order sees the same
//! contents. What else could change an object is written down or refused.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use guest::{FileId, GuestAddr, GuestMemory, GuestRange, PAGE_SIZE, Prot};
use kernel::{Call, FileName};
use trace::{Backing, MapOp, MemWrite};

use crate::follow::{self, Changes};
use crate::session::Core;
use crate::stop::StopError;
use crate::task::{Space, Task};
use crate::{buffer, image, procfs, unrepeatable};

const FALLOCATE: u32 = kernel::number("fallocate");
const FTRUNCATE: u32 = kernel::number("ftruncate");
const MMAP: u32 = kernel::number("mmap");
const PWRITE: u32 = kernel::number("pwrite64");
const TRUNCATE: u32 = kernel::number("truncate");
const WRITE: u32 = kernel::number("write");

/// Something that shared mappings show.
#[derive(Debug)]
pub(crate) struct Object {
    /// Device and inode, or `None` where it is anonymous.
    file: Option<Identity>,
    /// The kept file that stands for it.
    kept: Cell<FileId>,
    /// Whether a part of it changed since then that nothing mapped shows.
    stale: Cell<bool>,
    /// Its length in bytes.
    len: Cell<u64>,
}

impl Object {
    const fn new(file: Option<Identity>, kept: Cell<FileId>, len: u64) -> Self {
        Self { file, kept, stale: Cell::new(false), len: Cell::new(len) }
    }

    /// Whether it is what has that identity.
    pub(crate) fn is(&self, identity: Identity) -> bool {
        self.file == Some(identity)
    }

    /// Whether no file is behind it, by which calls could change it.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.file.is_none()
    }

    /// Whether its identity is on that device.
    pub(crate) fn is_on(&self, device: u64) -> bool {
        self.file.is_some_and(|(on, _)| on == device)
    }

    /// The parts of it that change where an extent is written. Past its end, so does what mappings show behind that of its last page.
    fn changed_by(&self, (start, end): (u64, u64)) -> Vec<GuestRange> {
        let last = GuestAddr(self.len.get());
        let rest = GuestRange { start: last, end: last.page_up().min(GuestAddr(start)).max(last) };
        let written = GuestRange { start: GuestAddr(start), end: GuestAddr(end) };
        [rest, written].into_iter().filter(|part| !part.is_empty()).collect()
    }

    /// The kept file that stands for it.
    pub(crate) fn kept(&self) -> FileId {
        self.kept.get()
    }
}

/// A mapping of an object.
#[derive(Clone, Debug)]
pub(crate) struct SharedMapping {
    pub(crate) range: GuestRange,
    pub(crate) object: Rc<Object>,
    /// File offset of its first byte.
    pub(crate) offset: u64,
}

/// Device and inode.
pub(crate) type Identity = (u64, u64);

pub(crate) fn identity(meta: &Metadata) -> Identity {
    (meta.dev(), meta.ino())
}

/// A file that is mapped: opened, described, named.
pub(crate) type Opened<'a> = (&'a File, &'a Metadata, &'a str);

/// Notes an anonymous shared mapping.
pub(crate) fn map_anonymous(task: &Task, range: GuestRange) {
    let object = Rc::new(Object::new(None, Cell::new(FileId(0)), range.len()));
    task.space.shared.borrow_mut().push(SharedMapping { range, object, offset: 0 });
}

/// The operations for a new mapping of an open file: its own, and those of mappings that thereby become the object's.
pub(crate) fn map_file(
    core: &mut Core,
    task: &Task,
    opened: Opened<'_>,
    (range, offset, prot): (GuestRange, u64, Prot),
    (shared, writable): (bool, bool),
) -> Result<Vec<MapOp>, StopError> {
    let (file, meta, name) = opened;
    buffer::is_mapped(core, identity(meta));
    let mut renewed = Vec::new();
    let object = match live(core, identity(meta)) {
        Some(_) if !shared => return Err(mixed(name)),
        Some(object) => {
            if object.stale.get() {
                renewed = renew(core, task, &object, (file, name))?;
            }
            object
        }
        None if !(shared && writable) => {
            let kept = core.sink.writer.keep_file(file, name)?;
            let known = (identity(meta), name, meta.len());
            follow::map(core, &task.space, known, kept, (range, offset, shared));
            let mut ops = vec![of_file(range, prot, false, (kept, offset), name)];
            if !shared {
                ops.extend(unrepeatable::mapped(core, &task.space, (file, meta), (range, offset, prot)));
            }
            return Ok(ops);
        }
        None => new_object(core, opened)?,
    };
    let followers = follow::take_shared(core, &task.space, identity(meta)).map_err(|name| mixed(&name))?;
    is_shown_by(core, task, &object);
    let kept = object.kept.get();
    let mut ops = renewed;
    ops.push(of_file(range, prot, true, (kept, offset), name));
    let readable = Prot { read: true, write: false, exec: false };
    ops.extend(
        followers.iter().map(|(range, offset)| of_file(*range, readable, true, (kept, *offset), name)),
    );
    let mut mappings = task.space.shared.borrow_mut();
    for (range, offset) in [(range, offset)].into_iter().chain(followers) {
        mappings.push(SharedMapping { range, object: Rc::clone(&object), offset });
    }
    Ok(ops)
}

/// What is mapped of that identity, shared for writing.
fn live(core: &Core, identity: Identity) -> Option<Rc<Object>> {
    core.objects.iter().filter_map(Weak::upgrade).find(|object| object.file == Some(identity))
}

fn mixed(name: &str) -> StopError {
    StopError::Refused(format!(
        "{name} mapped private while it is also mapped shared for writing is not supported"
    ))
}

fn new_object(core: &mut Core, (file, meta, name): Opened<'_>) -> Result<Rc<Object>, StopError> {
    let kept = Cell::new(core.sink.writer.keep_anew(file, name)?);
    Ok(add_object(core, (identity(meta), meta.len()), kept))
}

/// Notes a new object.
pub(crate) fn add_object(
    core: &mut Core,
    (identity, len): (Identity, u64),
    kept: Cell<FileId>,
) -> Rc<Object> {
    let object = Rc::new(Object::new(Some(identity), kept, len));
    core.objects.retain(|weak| weak.strong_count() > 0);
    core.objects.push(Rc::downgrade(&object));
    object
}

/// A task is about to show an object: from now on its space and all others that show it take turns.
pub(crate) fn is_shown_by(core: &Core, task: &Task, object: &Rc<Object>) {
    for space in core.spaces.iter().filter_map(Weak::upgrade) {
        if !Rc::ptr_eq(&space, &task.space) && shows(&space, object) {
            space.sharing.set(true);
            task.space.sharing.set(true);
        }
    }
}

/// A mapping of a kept file.
pub(crate) fn of_file(
    range: GuestRange,
    prot: Prot,
    shared: bool,
    (file, offset): (FileId, u64),
    name: &str,
) -> MapOp {
    MapOp::Map {
        range,
        prot,
        shared,
        grows_down: false,
        no_reserve: false,
        backing: Backing::File { file, offset },
        name: name.to_owned(),
    }
}

/// The parts of a range that lie outside another.
pub(crate) fn outside(range: GuestRange, cut: GuestRange) -> impl Iterator<Item = GuestRange> {
    let low = GuestRange { start: range.start, end: cut.start.min(range.end) };
    let high = GuestRange { start: cut.end.max(range.start), end: range.end };
    [low, high].into_iter().filter(|part| !part.is_empty())
}

/// Forgets mappings of files and objects in a range that is mapped anew or unmapped; what sticks out stays.
pub(crate) fn forget(space: &Space, range: GuestRange) {
    follow::forget(space, range);
    forget_shared(space, range);
}

fn forget_shared(space: &Space, range: GuestRange) {
    let mut shared = space.shared.borrow_mut();
    if !shared.iter().any(|mapping| mapping.range.overlaps(range)) {
        return;
    }
    let parts = |mapping: SharedMapping| {
        outside(mapping.range, range).map(move |part| SharedMapping {
            range: part,
            object: Rc::clone(&mapping.object),
            offset: mapping.offset + (part.start.0 - mapping.range.start.0),
        })
    };
    let rest = shared.drain(..).flat_map(parts).collect();
    *shared = rest;
}

/// A mapping moved.
pub(crate) fn moved(space: &Space, from: GuestRange, to: GuestRange) {
    follow::moved(space, from, to);
    let moving = space.shared.borrow().iter().find(|shared| shared.range.start == from.start).cloned();
    forget_shared(space, from);
    forget_shared(space, to);
    if let Some(mapping) = moving {
        space.shared.borrow_mut().push(SharedMapping { range: to, ..mapping });
    }
}

/// The other spaces that must stand still before a call can be let through: it changes a file that they show, or maps one of which a part
/// is out of date.
pub(crate) fn awaited(core: &Core, task: &Task, call: &Call) -> Vec<Rc<Space>> {
    if core.objects.is_empty() && !core.follow.any_hot() {
        return Vec::new();
    }
    let is_map = call.nr == MMAP && call.args[3] & libc::MAP_ANONYMOUS as u64 == 0;
    let place = match is_map {
        true => Some(PathBuf::from(format!("/proc/{}/fd/{}", task.host, call.args[4] as i32))),
        // It tells only when it returns.
        false if kernel::opens_to_write(call, &task.space.memory).is_some() => None,
        false => changed_file(task, call),
    };
    let Some(meta) = place.and_then(|place| std::fs::metadata(place).ok()) else { return Vec::new() };
    match live(core, identity(&meta)) {
        Some(object) if is_map && object.stale.get() => others(core, task, &object),
        _ if is_map || changes_nothing(call, meta.len()) => Vec::new(),
        Some(object) => match extent_to_be(task, call, meta.len()) {
            Some(extent) if !concerns_others(core, task, &object, &object.changed_by(extent)) => Vec::new(),
            _ => others(core, task, &object),
        },
        None => follow::awaited(core, task, identity(&meta), extent_to_be(task, call, meta.len())),
    }
}

/// Whether a call about to be made leaves its file as it is, whatever it returns.
pub(crate) fn is_idle(task: &Task, call: &Call) -> bool {
    let file =
        [FTRUNCATE, TRUNCATE, FALLOCATE].contains(&call.nr).then(|| changed_file(task, call)).flatten();
    let meta = file.and_then(|place| std::fs::metadata(place).ok());
    meta.is_some_and(|meta| changes_nothing(call, meta.len()))
}

/// The same of a file of that length. Of a page that it ends in, the rest may be cleared.
fn changes_nothing(call: &Call, len: u64) -> bool {
    const KEEP_SIZE: u64 = libc::FALLOC_FL_KEEP_SIZE as u64;
    match call.nr {
        FTRUNCATE | TRUNCATE => call.args[1] == len && len.is_multiple_of(PAGE_SIZE),
        FALLOCATE if call.args[1] == KEEP_SIZE => true,
        FALLOCATE => call.args[1] == 0 && call.args[2].saturating_add(call.args[3]) <= len,
        _ => false,
    }
}

/// The bytes of its file that a call about to be made writes at most, if that can be told.
fn extent_to_be(task: &Task, call: &Call, len: u64) -> Option<(u64, u64)> {
    let start = match call.nr {
        PWRITE => call.args[3],
        WRITE => {
            let descriptor = procfs::Descriptor::of(task.host, call.args[0] as i32)?;
            if descriptor.flags & libc::O_APPEND != 0 { len } else { descriptor.offset }
        }
        _ => return None,
    };
    Some((start, start.saturating_add(call.args[2])))
}

/// A finished call changed a file: what thereby changed in the task's memory.
pub(crate) fn file_changes(
    core: &mut Core,
    task: &Task,
    call: &Call,
    idle: bool,
) -> Result<Changes, StopError> {
    if !call.succeeded() || idle {
        return Ok(Changes::default());
    }
    follow::opened(core, task, call);
    if core.objects.is_empty() && !core.follow.any_hot() {
        return Ok(Changes::default());
    }
    let Some(place) = changed_file(task, call) else { return Ok(Changes::default()) };
    let Ok(meta) = std::fs::metadata(&place) else { return Ok(Changes::default()) };
    let from_buffer = matches!(kernel::output(call, &task.space.memory), Ok(Some(_)));
    let extent = from_buffer.then(|| extent(task, call));
    match live(core, identity(&meta)) {
        Some(object) => object_changes(core, task, &object, (&place, extent)),
        None => follow::changed(core, task, identity(&meta), &place, extent),
    }
}

/// Where the file that a call changed can be opened.
fn changed_file(task: &Task, call: &Call) -> Option<PathBuf> {
    const LONGEST: usize = 4096;
    let memory = &task.space.memory;
    let proc = PathBuf::from(format!("/proc/{}", task.host));
    Some(match kernel::changes_file(call, memory)? {
        FileName::Descriptor(fd) => proc.join(format!("fd/{fd}")),
        FileName::Path(at) => {
            let path = PathBuf::from(OsString::from_vec(memory.read_cstr(at, LONGEST).ok()?));
            match path.strip_prefix("/") {
                Ok(below) => proc.join("root").join(below),
                Err(_) => proc.join("cwd").join(path),
            }
        }
    })
}

fn object_changes(
    core: &mut Core,
    task: &Task,
    object: &Rc<Object>,
    (place, extent): (&Path, Option<(u64, u64)>),
) -> Result<Changes, StopError> {
    let own = shown(&task.space, object);
    let parts = extent.map(|extent| object.changed_by(extent)).unwrap_or_default();
    if let Some((_, end)) = extent
        && !concerns_others(core, task, object, &parts)
    {
        object.len.set(object.len.get().max(end));
        if !not_shown(&parts, &own).is_empty() {
            object.stale.set(true);
        }
        return Ok(Changes { maps: Vec::new(), writes: written(core, task, &parts, &own)? });
    }
    let name = std::fs::read_link(place).map_or(String::new(), |path| path.to_string_lossy().into_owned());
    let file = File::open(place).map_err(|error| cannot_keep(&name, &error))?;
    let maps = renew(core, task, object, (&file, &name))?;
    Ok(Changes { maps, writes: Vec::new() })
}

fn cannot_keep(name: &str, error: &io::Error) -> StopError {
    StopError::Refused(format!("{name} was changed and cannot be kept: {error}"))
}

/// The mappings of an object in a space.
fn shown(space: &Space, object: &Rc<Object>) -> Vec<SharedMapping> {
    let of_object = |mapping: &&SharedMapping| Rc::ptr_eq(&mapping.object, object);
    space.shared.borrow().iter().filter(of_object).cloned().collect()
}

/// The other spaces that show an object.
fn others(core: &Core, task: &Task, object: &Rc<Object>) -> Vec<Rc<Space>> {
    let shows = |space: &Rc<Space>| !Rc::ptr_eq(space, &task.space) && shows(space, object);
    core.spaces.iter().filter_map(Weak::upgrade).filter(shows).collect()
}

/// Those parts of parts of a file that mappings of it do not show.
fn not_shown(parts: &[GuestRange], mappings: &[SharedMapping]) -> Vec<GuestRange> {
    let mut rest = parts.to_vec();
    for mapping in mappings {
        let part = GuestRange::new(GuestAddr(mapping.offset), mapping.range.len());
        rest = rest.into_iter().flat_map(|left| outside(left, part)).collect();
    }
    rest
}

/// Whether others show what a task does not of some parts of an object.
fn concerns_others(core: &Core, task: &Task, object: &Rc<Object>, parts: &[GuestRange]) -> bool {
    let rest = not_shown(parts, &shown(&task.space, object));
    let sees = |mapping: &SharedMapping| {
        let part = GuestRange::new(GuestAddr(mapping.offset), mapping.range.len());
        rest.iter().any(|left| left.overlaps(part))
    };
    !rest.is_empty() && others(core, task, object).iter().any(|space| shown(space, object).iter().any(sees))
}

/// A file got another length, or other contents where that is not told by bytes: all that show it show it anew, as it is.
fn renew(
    core: &mut Core,
    task: &Task,
    object: &Rc<Object>,
    (file, name): (&File, &str),
) -> Result<Vec<MapOp>, StopError> {
    let others = others(core, task, object);
    if !others.iter().all(|space| space.is_calm()) {
        return Err(StopError::Refused(format!(
            "a change of {name} while another process runs that has it mapped shared is not supported"
        )));
    }
    object.kept.set(core.sink.writer.keep_anew(file, name)?);
    object.stale.set(false);
    object.len.set(file.metadata().map_err(|error| cannot_keep(name, &error))?.len());
    for space in others {
        let ops = remapped(&space, name, object).map_err(|error| cannot_keep(name, &error))?;
        space.owed.borrow_mut().extend(ops);
        // At once: who shows it now may not live until that one's call returns.
        core.tracing.changed(space, Vec::new());
    }
    remapped(&task.space, name, object).map_err(|error| cannot_keep(name, &error))
}

fn shows(space: &Space, object: &Rc<Object>) -> bool {
    space.shared.borrow().iter().any(|mapping| Rc::ptr_eq(&mapping.object, object))
}

/// What a range of a space that is gone holds for those that show the same object.
pub(crate) fn seen_by_others(core: &Core, gone: &Space, range: GuestRange) -> Option<Vec<u8>> {
    let holds =
        |mapping: &&SharedMapping| mapping.range.contains(range.start) && range.end <= mapping.range.end;
    let place = gone.shared.borrow().iter().find(holds).cloned()?;
    let offset = place.offset + (range.start.0 - place.range.start.0);
    core.spaces.iter().filter_map(Weak::upgrade).filter(|space| space.tasks.get() > 0).find_map(|space| {
        let shared = space.shared.borrow();
        let shown = |mapping: &&SharedMapping| {
            let (start, end) = (mapping.offset, mapping.offset + mapping.range.len());
            Rc::ptr_eq(&mapping.object, &place.object) && start <= offset && offset + range.len() <= end
        };
        let mapping = shared.iter().find(shown)?;
        let at = mapping.range.start.wrapping_add(offset - mapping.offset);
        space.memory.read_vec(at, range.len() as usize).ok()
    })
}

/// The bytes of its file that a `write` or the like put there: start and end.
pub(crate) fn extent(task: &Task, call: &Call) -> (u64, u64) {
    const AT_OFFSET: [u32; 3] =
        [kernel::number("pwrite64"), kernel::number("pwritev"), kernel::number("pwritev2")];
    let len = call.result as u64;
    let start = match call.args[3] {
        // `pwritev2` at the file's own offset, too.
        offset if AT_OFFSET.contains(&call.nr) && offset != u64::MAX => offset,
        _ => procfs::fd_offset(task.host, call.args[0] as i32).unwrap_or(len).saturating_sub(len),
    };
    (start, start + len)
}

/// What a call put into mapped parts of the file.
fn written(
    core: &mut Core,
    task: &Task,
    parts: &[GuestRange],
    own: &[SharedMapping],
) -> Result<Vec<MemWrite>, StopError> {
    let mut writes = Vec::new();
    for (mapping, part) in own.iter().flat_map(|mapping| parts.iter().map(move |part| (mapping, part))) {
        let from = part.start.0.max(mapping.offset);
        let to = part.end.0.min(mapping.offset + mapping.range.len());
        if from < to {
            let addr = mapping.range.start.wrapping_add(from - mapping.offset);
            let bytes = task.space.memory.read_vec(addr, (to - from) as usize)?;
            writes.push(MemWrite { addr, data: image::data(bytes, &mut core.sink.writer)? });
        }
    }
    Ok(writes)
}

/// A mapping moved here, and may show more than before.
pub(crate) fn lengthened(core: &mut Core, task: &Task, range: GuestRange) -> Result<Vec<MapOp>, StopError> {
    let stale = |mapping: &&SharedMapping| mapping.range.overlaps(range) && mapping.object.stale.get();
    let found = task.space.shared.borrow().iter().find(stale).map(|mapping| Rc::clone(&mapping.object));
    let Some(object) = found else { return Ok(Vec::new()) };
    let maps = procfs::maps(task.host).map_err(image::ImageError::Proc)?;
    let Some(mapping) = maps.iter().find(|mapping| mapping.range.overlaps(range)) else {
        return Ok(Vec::new());
    };
    // An ordinary user may not open what a mapping shows.
    let named = |_| File::open(format!("/proc/{}/root{}", task.host, mapping.name));
    let file = image::exactly(task.host, mapping.range).or_else(named);
    let file = file.map_err(|error| cannot_keep(&mapping.name, &error))?;
    renew(core, task, &object, (&file, &mapping.name))
}

/// A space's mappings of an object, as if made anew from the file as it is.
fn remapped(space: &Space, name: &str, object: &Rc<Object>) -> io::Result<Vec<MapOp>> {
    let shared = space.shared.borrow();
    let mut own = shared.iter().filter(|mapping| Rc::ptr_eq(&mapping.object, object)).peekable();
    let maps = if own.peek().is_some() { procfs::maps(space.owner)? } else { Vec::new() };
    let mut ops = Vec::new();
    for mapping in own {
        for piece in maps.iter().filter(|piece| piece.range.overlaps(mapping.range)) {
            let range = piece.range.intersect(mapping.range);
            let offset = mapping.offset + (range.start.0 - mapping.range.start.0);
            ops.push(of_file(range, piece.prot, true, (object.kept.get(), offset), name));
        }
    }
    Ok(ops)
}
