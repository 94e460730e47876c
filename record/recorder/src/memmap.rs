//! Calls that change the address space, as map operations. Results are taken as they are: a replay puts mappings where they were.

use std::fs::{File, Metadata};
use std::os::unix::fs::FileTypeExt;

use guest::{EventId, GuestAddr, GuestRange, Prot, TaskId};
use kernel::{Call, MapCall};
use trace::{Backing, MapOp};

use crate::image::ImageError;
use crate::session::Core;
use crate::stop::StopError;
use crate::task::Task;
use crate::{buffer, procfs, shared, sysv, unrepeatable};

/// End of user space as programs get it.
pub(crate) const USER_END: u64 = 1 << 47;

/// The map operations of a finished call.
pub(crate) fn ops(
    core: &mut Core,
    task: &mut Task,
    kind: MapCall,
    call: &Call,
) -> Result<Vec<MapOp>, StopError> {
    if !call.succeeded() {
        return failed(task, kind, call);
    }
    buffer::changed(task, kind, call);
    let [addr, len, third, fourth, ..] = call.args;
    let range = GuestRange::new(GuestAddr(addr), len).pages();
    let mut changed = range;
    let op = match kind {
        MapCall::Mmap => return mmap(core, task, call),
        MapCall::Brk => return Ok(brk(task, GuestAddr(call.result as u64)).into_iter().collect()),
        MapCall::Munmap => {
            shared::forget(&task.space, range);
            MapOp::Unmap { range }
        }
        MapCall::Mprotect => MapOp::Protect { range, prot: Prot::from_bits(third) },
        MapCall::Mremap => {
            changed = GuestRange::new(GuestAddr(call.result as u64), third).pages();
            mremap(task, range, changed, fourth)?
        }
        MapCall::Discard | MapCall::DiscardLater => MapOp::Discard { range },
        // What it removes is told by bytes: all that show the object see them change. Of the other advice, only what undoes what is never done
        // gets this far.
        MapCall::Remove | MapCall::ForkRule => return Ok(Vec::new()),
        MapCall::Shmat => return sysv::attach(core, task, call),
        MapCall::Shmdt => return Ok(sysv::detach(task, call)),
    };
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let mut ops = vec![op];
    if kind == MapCall::Mremap {
        ops.extend(shared::lengthened(core, task, changed)?);
    }
    if kind != MapCall::Munmap && (kind != MapCall::Mprotect || Prot::from_bits(third).exec) {
        ops.extend(unrepeatable::after_map(core, task, changed));
    }
    Ok(ops)
}

/// The map operations of a call that was made without a stop: it succeeded, and concerned nothing but memory of the program's own.
pub(crate) fn of_noted(task: &Task, kind: MapCall, call: &Call) -> Vec<MapOp> {
    task.space.remapped.set(true);
    let [addr, len, third, ..] = call.args;
    let range = GuestRange::new(GuestAddr(addr), len).pages();
    let op = match kind {
        MapCall::Mmap => return vec![zeroes(call, String::new())],
        MapCall::Brk => return brk(task, GuestAddr(call.result as u64)).into_iter().collect(),
        MapCall::Munmap => MapOp::Unmap { range },
        MapCall::Mprotect => MapOp::Protect { range, prot: Prot::from_bits(third) },
        MapCall::Discard | MapCall::DiscardLater => MapOp::Discard { range },
        MapCall::Mremap | MapCall::ForkRule | MapCall::Remove | MapCall::Shmat | MapCall::Shmdt => {
            return Vec::new();
        }
    };
    if range.is_empty() { Vec::new() } else { vec![op] }
}

/// The map operations of a call that failed: it may have done a part before it met what it failed of, so they are what there is.
fn failed(task: &Task, kind: MapCall, call: &Call) -> Result<Vec<MapOp>, StopError> {
    let has = |flags: u64, flag: i32| flags & flag as u64 != 0;
    let [addr, len, third, flags, fifth, _] = call.args;
    let ranges = match kind {
        MapCall::Mprotect | MapCall::Munmap | MapCall::Discard | MapCall::DiscardLater => vec![(addr, len)],
        MapCall::Mmap if has(flags, libc::MAP_FIXED) => vec![(addr, len)],
        MapCall::Mremap if has(flags, libc::MREMAP_FIXED) => vec![(addr, len), (fifth, third)],
        MapCall::Mremap if third < len => vec![(addr, len)],
        _ => Vec::new(),
    };
    let mut ops = Vec::new();
    for (addr, len) in ranges {
        let start = GuestAddr(addr);
        let Some(end) = start.checked_add(len).filter(|end| end.0 <= USER_END && start.page_offset() == 0)
        else {
            continue;
        };
        let range = GuestRange { start, end }.pages();
        let maps = procfs::maps(task.host).map_err(ImageError::Proc)?;
        let pieces: Vec<(GuestRange, Prot)> = maps
            .iter()
            .filter(|piece| piece.range.overlaps(range))
            .map(|piece| (piece.range.intersect(range), piece.prot))
            .collect();
        match kind {
            MapCall::Mprotect => {
                ops.extend(pieces.iter().map(|&(range, prot)| MapOp::Protect { range, prot }))
            }
            MapCall::Discard | MapCall::DiscardLater => {
                for (piece, _) in pieces {
                    let own = procfs::own_pages(task.host, piece).map_err(ImageError::Proc)?;
                    ops.extend(gaps(piece, own).map(|range| MapOp::Discard { range }));
                }
            }
            _ => {
                for range in gaps(range, pieces.into_iter().map(|(piece, _)| piece)) {
                    shared::forget(&task.space, range);
                    ops.push(MapOp::Unmap { range });
                }
            }
        }
    }
    Ok(ops)
}

/// What lies in a range between ascending pieces of it.
pub(crate) fn gaps(
    range: GuestRange,
    pieces: impl IntoIterator<Item = GuestRange>,
) -> impl Iterator<Item = GuestRange> {
    let mut start = range.start;
    let end = GuestRange { start: range.end, end: range.end };
    pieces.into_iter().chain([end]).filter_map(move |piece| {
        let gap = GuestRange { start, end: piece.start };
        start = piece.end;
        (gap.start < gap.end).then_some(gap)
    })
}

/// Advice that gives a forked child other memory than its parent's is answered as by a kernel that does not know it.
pub(crate) fn fork_rule(args: &[u64; 6]) -> Option<i64> {
    const DONTFORK: i32 = libc::MADV_DONTFORK;
    const WIPEONFORK: i32 = libc::MADV_WIPEONFORK;
    matches!(args[2] as i32, DONTFORK | WIPEONFORK).then_some(kernel::Errno::EINVAL.as_result())
}

const MAP_SHARED: u64 = libc::MAP_SHARED as u64;
const MAP_TYPE: u64 = 0xf;

/// A file that is mapped.
#[derive(Debug)]
struct Opened {
    name: String,
    /// Nothing where it is one of zeroes.
    file: Option<(File, Metadata)>,
}

/// The file that a task mapped last, while nothing else has happened: a dynamic linker maps each in several pieces.
#[derive(Debug)]
pub(crate) struct LastMapped {
    task: TaskId,
    fd: i32,
    /// The event that came next then.
    next: EventId,
    opened: Opened,
}

fn mmap(core: &mut Core, task: &mut Task, call: &Call) -> Result<Vec<MapOp>, StopError> {
    let [_, len, _, flags, fd, _] = call.args;
    let range = GuestRange::new(GuestAddr(call.result as u64), len).pages();
    let shared = flags & MAP_TYPE & MAP_SHARED != 0;
    let has = |flag: i32| flags & flag as u64 != 0;
    shared::forget(&task.space, range);
    if has(libc::MAP_ANONYMOUS) {
        if shared {
            shared::map_anonymous(task, range);
        }
        return Ok(vec![zeroes(call, String::new())]);
    }
    let (fd, now) = (fd as i32, core.sink.writer.next_id());
    let still = |last: &LastMapped| (last.task, last.fd, last.next) == (task.id, fd, now);
    let opened = match core.last_mapped.take().filter(still) {
        Some(last) => last.opened,
        None => opened(task, fd)?,
    };
    let ops = match &opened.file {
        None => vec![zeroes(call, opened.name.clone())],
        Some((file, meta)) => mapped_file(core, task, call, (range, shared), (file, meta, &opened.name))?,
    };
    // Behind the event of this call.
    core.last_mapped = Some(LastMapped { task: task.id, fd, next: EventId(now.0 + 1), opened });
    Ok(ops)
}

/// A new mapping, which begins as zeroes.
fn zeroes(call: &Call, name: String) -> MapOp {
    let [_, len, prot, flags, ..] = call.args;
    let has = |flag: i32| flags & flag as u64 != 0;
    MapOp::Map {
        range: GuestRange::new(GuestAddr(call.result as u64), len).pages(),
        prot: Prot::from_bits(prot),
        shared: flags & MAP_TYPE & MAP_SHARED != 0,
        grows_down: has(libc::MAP_GROWSDOWN),
        no_reserve: has(libc::MAP_NORESERVE),
        backing: Backing::Zero,
        name,
    }
}

/// What a descriptor shows that is mapped.
fn opened(task: &Task, fd: i32) -> Result<Opened, StopError> {
    let name = procfs::link(task.host, &format!("fd/{fd}"));
    let cannot = |error| StopError::Refused(format!("mapping of {name}, which cannot be kept: {error}"));
    let path = format!("/proc/{}/fd/{fd}", task.host);
    let meta = std::fs::metadata(&path).map_err(cannot)?;
    if meta.file_type().is_char_device() && name == "/dev/zero" {
        return Ok(Opened { name, file: None });
    }
    if !meta.is_file() {
        let what = if meta.file_type().is_block_device() { "block device" } else { "device" };
        return Err(StopError::Refused(format!("mapping of {what} {name} is not supported")));
    }
    let file = File::open(&path).map_err(cannot)?;
    Ok(Opened { name, file: Some((file, meta)) })
}

/// The operations for a mapping of a file.
fn mapped_file(
    core: &mut Core,
    task: &Task,
    call: &Call,
    (range, shared): (GuestRange, bool),
    opened: shared::Opened<'_>,
) -> Result<Vec<MapOp>, StopError> {
    let [_, _, prot, _, fd, offset] = call.args;
    let writes = |flags| flags & libc::O_ACCMODE != libc::O_RDONLY;
    let writable = shared && procfs::fd_flags(task.host, fd as i32).is_some_and(writes);
    shared::map_file(core, task, opened, (range, offset, Prot::from_bits(prot)), (shared, writable))
}

fn brk(task: &Task, new: GuestAddr) -> Option<MapOp> {
    let old = task.space.brk.replace(new);
    let (old, new) = (old.page_up(), new.page_up());
    if new < old {
        return Some(MapOp::Unmap { range: GuestRange { start: new, end: old } });
    }
    (new > old).then(|| MapOp::Map {
        range: GuestRange { start: old, end: new },
        prot: Prot { read: true, write: true, exec: false },
        shared: false,
        grows_down: false,
        no_reserve: false,
        backing: Backing::Zero,
        name: "[heap]".into(),
    })
}

fn mremap(task: &Task, from: GuestRange, to: GuestRange, flags: u64) -> Result<MapOp, StopError> {
    if from.is_empty() {
        return Err(StopError::Refused("mremap that doubles a mapping is not supported".into()));
    }
    let keep = flags & libc::MREMAP_DONTUNMAP as u64 != 0;
    shared::moved(&task.space, from, to);
    Ok(MapOp::Remap { from, to, keep })
}
