//! Files that mappings follow without storing to them: private mappings, and shared ones of files opened for reading only.
//!
//! A page of such a mapping that is not a private copy shows the file, so a call that changes the file changes memory. That is
//! written down as part of the call: bytes put into pages as the kernel's own writes, or, where the file got another length or
//! contents that no buffer held, the mapping made anew from the file as it then is, with the private copies put back. What is
//! a private copy is asked of the kernel each time. In a trace all of these mappings are private. Stores through shared mappings are not calls: `shared` refuses those of a
//! followed file.
//!
//! Nothing is looked at while no followed file was ever opened for writing.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};

use guest::{FileId, GuestAddr, GuestMemory, GuestRange, PAGE_SIZE};
use kernel::{Call, MapCall};
use trace::{MapOp, MemWrite};

use crate::inherited::Inherited;
use crate::memmap::gaps;
use crate::session::Core;
use crate::shared::{Identity, identity, of_file, outside};
use crate::stop::StopError;
use crate::task::{Space, Task};
use crate::{foreign, image, procfs};

/// Which files are followed, and which could change.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Opened for writing by anything recorded, ever.
    writable: HashSet<Identity>,
    mapped: HashMap<Identity, Weak<Followed>>,
    /// Those of `mapped` that are in `writable`.
    hot: Vec<Weak<Followed>>,
}

/// A file that mappings follow.
#[derive(Debug)]
pub(crate) struct Followed {
    identity: Identity,
    name: String,
    /// Counts the changes that mappings could show.
    version: Cell<u64>,
    /// The contents kept last, of which version, and their length in pages.
    kept: Cell<(FileId, u64, u64)>,
    /// Open since its first change.
    file: RefCell<Option<File>>,
}

/// A mapping that follows a file.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    range: GuestRange,
    file: Rc<Followed>,
    /// File offset of its first byte.
    offset: u64,
    shared: bool,
    /// The version that the trace has it show.
    seen: u64,
    /// The version that its backing in the trace holds.
    base: u64,
}

impl Follower {
    /// The part of the file that it shows.
    fn extent(&self) -> (u64, u64) {
        (self.offset, self.offset + self.range.len())
    }

    fn part(&self, range: GuestRange) -> Self {
        let offset = self.offset + range.start.0.wrapping_sub(self.range.start.0);
        Self { range, offset, file: Rc::clone(&self.file), ..*self }
    }
}

/// What changed in memory.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) maps: Vec<MapOp>,
    pub(crate) writes: Vec<MemWrite>,
}

impl Files {
    /// Of a process about to run: what it inherits open for writing.
    pub(crate) fn inherited(all: &[Inherited]) -> Self {
        let writable = all.iter().filter_map(|one| one.written_file()).collect();
        Self { writable, ..Self::default() }
    }

    /// Whether anything recorded ever opened a file for writing.
    pub(crate) fn was_writable(&self, identity: Identity) -> bool {
        self.writable.contains(&identity)
    }

    /// Whether some file that is followed could change.
    pub(crate) fn any_hot(&self) -> bool {
        !self.hot.is_empty()
    }

    /// The file of that identity, while a mapping follows it.
    pub(crate) fn live(&self, identity: Identity) -> Option<Rc<Followed>> {
        self.mapped.get(&identity)?.upgrade()
    }

    fn live_hot(&mut self, identity: Identity) -> Option<Rc<Followed>> {
        self.hot.retain(|weak| weak.strong_count() > 0);
        self.hot.iter().filter_map(Weak::upgrade).find(|file| file.identity == identity)
    }

    fn opened_to_write(&mut self, identity: Identity) {
        if self.writable.insert(identity)
            && let Some(file) = self.live(identity)
        {
            self.hot.push(Rc::downgrade(&file));
        }
    }

    fn follow(&mut self, identity: Identity, name: &str, kept: FileId, len: u64) -> Rc<Followed> {
        let pages = len.div_ceil(PAGE_SIZE);
        if let Some(file) = self.live(identity) {
            file.kept.set((kept, file.version.get(), pages));
            return file;
        }
        let file = Rc::new(Followed {
            identity,
            name: name.to_owned(),
            version: Cell::new(0),
            kept: Cell::new((kept, 0, pages)),
            file: RefCell::default(),
        });
        self.mapped.retain(|_, weak| weak.strong_count() > 0);
        self.mapped.insert(identity, Rc::downgrade(&file));
        if self.writable.contains(&identity) {
            self.hot.push(Rc::downgrade(&file));
        }
        file
    }
}

/// Notes a mapping of a file whose contents of this moment were kept.
pub(crate) fn map(
    core: &mut Core,
    space: &Space,
    (identity, name, len): (Identity, &str, u64),
    kept: FileId,
    (range, offset, shared): (GuestRange, u64, bool),
) {
    let file = core.follow.follow(identity, name, kept, len);
    let version = file.version.get();
    let follower = Follower { range, file, offset, shared, seen: version, base: version };
    space.followers.borrow_mut().push(follower);
}

/// Whether a private mapping of a file lies in a range.
pub(crate) fn shows_file(space: &Space, range: GuestRange) -> bool {
    space.followers.borrow().iter().any(|follower| !follower.shared && follower.range.overlaps(range))
}

/// Forgets mappings in a range that is mapped anew or unmapped; what sticks out stays.
pub(crate) fn forget(space: &Space, range: GuestRange) {
    let mut followers = space.followers.borrow_mut();
    if followers.iter().any(|follower| follower.range.overlaps(range)) {
        let rest = followers
            .drain(..)
            .flat_map(|follower| outside(follower.range, range).map(move |part| follower.part(part)))
            .collect();
        *followers = rest;
    }
}

/// A mapping moved.
pub(crate) fn moved(space: &Space, from: GuestRange, to: GuestRange) {
    let found = space.followers.borrow().iter().find(|follower| follower.range.contains(from.start)).cloned();
    forget(space, from);
    forget(space, to);
    if let Some(follower) = found {
        let start = follower.part(GuestRange { start: from.start, end: from.start });
        space.followers.borrow_mut().push(Follower { range: to, ..start });
    }
}

/// A descriptor was opened with which a file may be changed.
pub(crate) fn opened(core: &mut Core, task: &Task, call: &Call) {
    if let Some(fd) = kernel::opens_to_write(call, &task.space.memory)
        && let Ok(meta) = fs::metadata(format!("/proc/{}/fd/{fd}", task.host))
        && meta.is_file()
    {
        core.follow.opened_to_write(identity(&meta));
        foreign::opened(core, task, fd, &meta);
    }
}

/// What a finished call that drops or lengthens mappings made them show, where the trace's backing is out of date.
pub(crate) fn uncovered(
    core: &mut Core,
    task: &Task,
    kind: MapCall,
    call: &Call,
) -> Result<Vec<MemWrite>, StopError> {
    let [addr, old, new, ..] = call.args;
    if kind == MapCall::Remove {
        return removed(core, task, (addr, old));
    }
    if !core.follow.any_hot() || (kind == MapCall::Mremap && !call.succeeded()) {
        return Ok(Vec::new());
    }
    let range = match kind {
        MapCall::Discard | MapCall::DiscardLater => GuestRange::new(GuestAddr(addr), old),
        MapCall::Mremap => {
            let start = GuestAddr(call.result as u64);
            GuestRange { start: start.wrapping_add(old).page_up(), end: start.wrapping_add(new) }
        }
        _ => return Ok(Vec::new()),
    };
    let range = range.pages();
    let followers = task.space.followers.borrow();
    let stale = followers.iter().filter(|follower| follower.base != follower.file.version.get());
    let mut writes = Vec::new();
    for piece in stale.map(|follower| follower.range.intersect(range)).filter(|piece| !piece.is_empty()) {
        copy_readable(core, &task.space, piece, &mut writes)?;
    }
    Ok(writes)
}

/// What shared mappings show in a range of which contents were removed, also by a call that failed of a later part of it.
fn removed(core: &mut Core, task: &Task, (addr, len): (u64, u64)) -> Result<Vec<MemWrite>, StopError> {
    let range = GuestRange { start: GuestAddr(addr), end: GuestAddr(addr.saturating_add(len)) };
    let shared = task.space.shared.borrow();
    let shown = shared.iter().map(|shared| shared.range.intersect(range).pages());
    let mut writes = Vec::new();
    for piece in shown.filter(|piece| !piece.is_empty()) {
        copy_readable(core, &task.space, piece, &mut writes)?;
    }
    Ok(writes)
}

/// Whether an extent lies beyond the end of a file, so that it grows, and what mappings of it may show of that. Without an extent, all.
fn affected(file: &Followed, extent: Option<(u64, u64)>) -> (bool, (u64, u64)) {
    let (_, _, pages) = file.kept.get();
    let end_of_file = pages * PAGE_SIZE;
    let grows = extent.is_none_or(|(_, end)| end > end_of_file);
    let affected = match extent {
        Some((start, end)) if grows => (start.min(end_of_file), end.next_multiple_of(PAGE_SIZE)),
        Some(extent) => extent,
        None => (0, u64::MAX),
    };
    (grows, affected)
}

/// Whether a space shows a part of a file.
fn sees(space: &Space, file: &Rc<Followed>, part: (u64, u64)) -> bool {
    space.followers.borrow().iter().any(|follower| {
        let (start, end) = follower.extent();
        Rc::ptr_eq(&follower.file, file) && start < part.1 && part.0 < end
    })
}

/// The other spaces that a call concerns which is about to change a file so.
pub(crate) fn awaited(
    core: &Core,
    task: &Task,
    identity: Identity,
    extent: Option<(u64, u64)>,
) -> Vec<Rc<Space>> {
    let Some(file) = core.follow.live(identity).filter(|_| core.follow.was_writable(identity)) else {
        return Vec::new();
    };
    let (_, affected) = affected(&file, extent);
    let concerned = |space: &Rc<Space>| !Rc::ptr_eq(space, &task.space) && sees(space, &file, affected);
    core.spaces.iter().filter_map(Weak::upgrade).filter(concerned).collect()
}

/// A finished call changed a file: what thereby changed in the task's memory. `place` is where the file can be opened, `extent` the
/// bytes that came out of a buffer.
pub(crate) fn changed(
    core: &mut Core,
    task: &Task,
    identity: Identity,
    place: &Path,
    extent: Option<(u64, u64)>,
) -> Result<Changes, StopError> {
    let Some(file) = core.follow.live_hot(identity) else { return Ok(Changes::default()) };
    let (grows, affected) = affected(&file, extent);
    let mut shown = false;
    for space in core.spaces.iter().filter_map(Weak::upgrade) {
        if !sees(&space, &file, affected) {
            continue;
        }
        shown = true;
        let elsewhere = !Rc::ptr_eq(&space, &task.space);
        if elsewhere && !space.is_calm() {
            return Err(StopError::Refused(format!(
                "a change of {} while another process runs that has it mapped is not supported",
                file.name
            )));
        }
        if elsewhere && !space.in_call() {
            core.tracing.changed(space, Vec::new());
        }
    }
    if !shown {
        return Ok(Changes::default());
    }
    if file.file.borrow().is_none() {
        let opened = File::open(place).map_err(|error| cannot_keep(&file, &error))?;
        file.file.replace(Some(opened));
    }
    let before = file.version.replace(file.version.get() + 1);
    let current = |follower: &Follower| !Rc::ptr_eq(&follower.file, &file) || follower.seen == before;
    match extent {
        Some(extent) if !grows && task.space.followers.borrow().iter().all(current) => {
            let writes = put(core, task, &file, extent)?;
            Ok(Changes { maps: Vec::new(), writes })
        }
        _ => {
            let mut changes = Changes::default();
            renew(core, task, &file, &mut changes)?;
            Ok(changes)
        }
    }
}

/// What other processes changed in files that the task's memory shows, while it was in the call that now returns.
pub(crate) fn caught_up(core: &mut Core, task: &Task) -> Result<Changes, StopError> {
    let mut changes = Changes::default();
    if !core.follow.any_hot() {
        return Ok(changes);
    }
    loop {
        let behind = |follower: &&Follower| follower.seen != follower.file.version.get();
        let file =
            task.space.followers.borrow().iter().find(behind).map(|follower| Rc::clone(&follower.file));
        let Some(file) = file else { return Ok(changes) };
        renew(core, task, &file, &mut changes)?;
    }
}

fn cannot_keep(file: &Followed, error: &dyn std::fmt::Display) -> StopError {
    StopError::Refused(format!("{} was changed and cannot be kept: {error}", file.name))
}

/// The bytes of an extent of the file, in those pages that are not private copies.
fn put(
    core: &mut Core,
    task: &Task,
    file: &Rc<Followed>,
    (start, end): (u64, u64),
) -> Result<Vec<MemWrite>, StopError> {
    let mut writes = Vec::new();
    for follower in task.space.followers.borrow_mut().iter_mut() {
        if !Rc::ptr_eq(&follower.file, file) {
            continue;
        }
        follower.seen = file.version.get();
        let (first, last) = follower.extent();
        let (from, to) = (start.max(first), end.min(last));
        if from >= to {
            continue;
        }
        let at = |offset: u64| follower.range.start.wrapping_add(offset - first);
        let changed = GuestRange { start: at(from), end: at(to) };
        for page in pages_of_file(task, changed.pages())? {
            let part = page.intersect(changed);
            let bytes = task.space.memory.read_vec(part.start, part.len() as usize)?;
            writes.push(MemWrite { addr: part.start, data: image::data(bytes, &mut core.sink.writer)? });
        }
    }
    Ok(writes)
}

/// The runs of pages in a range that are no private copies.
fn pages_of_file(task: &Task, range: GuestRange) -> Result<Vec<GuestRange>, StopError> {
    Ok(gaps(range, own_pages(task, range)?).collect())
}

fn own_pages(task: &Task, range: GuestRange) -> Result<Vec<GuestRange>, StopError> {
    Ok(procfs::own_pages(task.host, range).map_err(image::ImageError::Proc)?)
}

/// Makes all of a space's mappings of a file anew from the file as it is, private copies as they are.
fn renew(core: &mut Core, task: &Task, file: &Rc<Followed>, changes: &mut Changes) -> Result<(), StopError> {
    let version = file.version.get();
    if file.kept.get().1 != version {
        let (kept, len) = keep(core, file).map_err(|error| cannot_keep(file, &error))?;
        file.kept.set((kept, version, len.div_ceil(PAGE_SIZE)));
    }
    let (kept, ..) = file.kept.get();
    let maps = procfs::maps(task.host).map_err(image::ImageError::Proc)?;
    for follower in task.space.followers.borrow_mut().iter_mut() {
        if !Rc::ptr_eq(&follower.file, file) {
            continue;
        }
        (follower.seen, follower.base) = (version, version);
        for piece in maps.iter().filter(|piece| piece.range.overlaps(follower.range)) {
            let range = piece.range.intersect(follower.range);
            let offset = follower.part(range).offset;
            changes.maps.push(of_file(range, piece.prot, false, (kept, offset), &file.name));
            for pages in own_pages(task, range)? {
                copy_readable(core, &task.space, pages, &mut changes.writes)?;
            }
        }
    }
    Ok(())
}

fn keep(core: &mut Core, file: &Followed) -> Result<(FileId, u64), Box<dyn std::error::Error>> {
    let opened = file.file.borrow();
    let opened = opened.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let len = opened.metadata()?.len();
    Ok((core.sink.writer.keep_anew(opened, &file.name)?, len))
}

/// What can be read of a range of whole pages: not what lies past the end of a file.
fn copy_readable(
    core: &mut Core,
    space: &Space,
    range: GuestRange,
    writes: &mut Vec<MemWrite>,
) -> Result<(), StopError> {
    const CHUNK: u64 = 64 * PAGE_SIZE;
    let mut at = range.start;
    while at < range.end {
        let mut bytes = vec![0; CHUNK.min(range.end.0 - at.0) as usize];
        let read = space.memory.read_forced(at, &mut bytes);
        bytes.truncate(read);
        if !bytes.is_empty() {
            writes.push(MemWrite { addr: at, data: image::data(bytes, &mut core.sink.writer)? });
        }
        // Past a page that is not there.
        at = at.wrapping_add((read as u64).max(1)).page_up();
    }
    Ok(())
}

/// The mappings that follow a file are shared ones: what they show, if nothing else follows it.
pub(crate) fn take_shared(
    core: &Core,
    space: &Rc<Space>,
    identity: Identity,
) -> Result<Vec<(GuestRange, u64)>, String> {
    let Some(file) = core.follow.live(identity) else { return Ok(Vec::new()) };
    let follows = |follower: &Follower| Rc::ptr_eq(&follower.file, &file);
    for other in core.spaces.iter().filter_map(Weak::upgrade) {
        let ours = Rc::ptr_eq(&other, space);
        if other.followers.borrow().iter().any(|follower| follows(follower) && !(ours && follower.shared)) {
            return Err(file.name.clone());
        }
    }
    let mut followers = space.followers.borrow_mut();
    let taken = followers.extract_if(.., |follower| follows(follower));
    Ok(taken.map(|follower| (follower.range, follower.offset)).collect())
}
