//! Which descriptors are good for which calls: those on which a call neither waits nor changes what others need to know of.
#![expect(unsafe_code, reason = "statfs(2), pidfd_getfd(2)")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, Metadata};
use std::io;
use std::mem;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::rc::Weak;

use abi::buffer::{ASKS, CLOSES, FD_COUNT, FDS, ORDINARY, READS, TRIED, WHILE_EMPTY, WRITES};
use abi::calls::Noted;
use guest::{GuestAddr, Unmapped};
use nix::sys::socket::{SockType, getsockopt, sockopt};
use ptrace::Memory;

use crate::procfs;
use crate::session::Core;
use crate::shared::{Identity, identity};
use crate::task::{Space, Task};

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    good: u8,
    file: Identity,
}

/// Devices of memory: `null`, `zero`, `full`, `urandom`, by their minor numbers.
const MEMORY_MAJOR: u32 = 1;
const NULL: u32 = 3;
const ZERO: u32 = 5;
const FULL: u32 = 7;
const URANDOM: u32 = 9;

/// What a descriptor is good for.
pub(super) fn good_for(core: &Core, task: &Task, fd: u32) -> u8 {
    if u64::from(fd) >= FD_COUNT {
        return 0;
    }
    if let Some(known) = task.space.buffer.borrow().files.get(&fd) {
        return known.good;
    }
    let path = format!("/proc/{}/fd/{fd}", task.host);
    let Ok(meta) = fs::metadata(&path) else { return 0 };
    let good = judge(core, task, fd, &path, &meta);
    let mut buffer = task.space.buffer.borrow_mut();
    buffer.files.insert(fd, Known { good, file: identity(&meta) });
    if buffer.inside.is_some() {
        tell(&task.space.memory, fd, &[good]);
    }
    good
}

/// Whether a descriptor is known to lead to an ordinary file, or to what a read may wait for.
pub(crate) fn is_plain(task: &Task, fd: u32) -> bool {
    const PLAIN: u8 = READS | READS << TRIED;
    task.space.buffer.borrow().files.get(&fd).is_some_and(|known| known.good & PLAIN != 0)
}

fn judge(core: &Core, task: &Task, fd: u32, path: &str, meta: &Metadata) -> u8 {
    let (reads, mut writes) = if meta.is_file() || meta.is_dir() {
        let ordinary = file_system(path).is_some_and(|kind| ORDINARY.contains(&(kind as u32)));
        (ordinary, ordinary && !shows(core, identity(meta)))
    } else if meta.file_type().is_char_device() && libc::major(meta.rdev()) == MEMORY_MAJOR {
        let minor = libc::minor(meta.rdev());
        (matches!(minor, NULL | ZERO | FULL | URANDOM), matches!(minor, NULL | ZERO | FULL))
    } else {
        (false, false)
    };
    let kind = meta.file_type();
    let may_wait = kind.is_fifo() || kind.is_socket();
    // What waits on a socket may be cut short where it must not.
    let never = may_wait && never_waits(task, fd);
    let while_empty = kind.is_socket() && !never && is_roomy_stream(task, fd);
    let tries = kind.is_fifo() || never || while_empty;
    let is_stream = core.streams.of(task.host, fd as i32).is_some();
    writes = (writes || never) && !is_stream;
    let tries = tries && !is_stream;
    // What is sent on a socket may have to be waited for when that is closed.
    let closes = !is_stream && (meta.is_file() || meta.is_dir() || kind.is_fifo());
    let bits = [
        (closes, CLOSES),
        (reads, READS),
        (writes, WRITES),
        (may_wait, READS << TRIED),
        (tries, WRITES << TRIED),
        (while_empty, WHILE_EMPTY),
    ];
    bits.into_iter().filter(|(has, _)| *has).fold(ASKS, |all, (_, bit)| all | bit)
}

fn never_waits(task: &Task, fd: u32) -> bool {
    procfs::fd_flags(task.host, fd as i32).is_some_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// Whether a descriptor is a socket for a stream that has room for any short write while nothing is on its way from there.
fn is_roomy_stream(task: &Task, fd: u32) -> bool {
    const ROOMY: usize = 64 << 10;
    let Ok(copy) = copy_of(task, fd) else { return false };
    let sends = getsockopt(&copy, sockopt::SockType).is_ok_and(|kind| kind == SockType::Stream);
    sends && getsockopt(&copy, sockopt::SndBuf).is_ok_and(|room| room >= ROOMY)
}

/// A descriptor of a task's, as one of ours.
fn copy_of(task: &Task, fd: u32) -> io::Result<OwnedFd> {
    let owned = |result: i64| match result {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: what the calls below return is new, and nobody else's.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    };
    // SAFETY: the call takes numbers only.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, task.process.0, 0) })?;
    // SAFETY: as above.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
}

/// Whether some mapping shows a file.
fn shows(core: &Core, file: Identity) -> bool {
    core.follow.live(file).is_some()
        || core.objects.iter().filter_map(Weak::upgrade).any(|object| object.is(file))
}

fn file_system(path: &str) -> Option<i64> {
    let path = CString::new(path).ok()?;
    // SAFETY: an all-zero statfs is valid, and the call fills it from a path that ends with a zero byte.
    let (result, found) = unsafe {
        let mut found: libc::statfs = mem::zeroed();
        (libc::statfs(path.as_ptr(), &mut found), found)
    };
    (result == 0).then_some(found.f_type)
}

/// Tells what this descriptor is good for, and those that follow.
fn tell(memory: &Memory, fd: u32, good: &[u8]) {
    if let Err(unmapped) = memory.write(GuestAddr(FDS + u64::from(fd)), good) {
        tracing::debug!(%unmapped, "what a descriptor is good for cannot be told");
    }
}

/// Tells a space that is just being mapped.
pub(super) fn tell_all(memory: &Memory, files: &BTreeMap<u32, Known>) -> Result<(), Unmapped> {
    let mut bytes = vec![0; FD_COUNT as usize];
    for (fd, known) in files {
        bytes[*fd as usize] = known.good;
    }
    memory.write(GuestAddr(FDS), &bytes)
}

/// What is open may be about to wait that did not, wherever it is open.
pub(super) fn may_wait_from_now_on(core: &Core) {
    core.spaces.iter().filter_map(Weak::upgrade).for_each(|space| forget(&space, 0..=u32::MAX));
}

/// Descriptors are about to be closed, or to stand for something else. What was opened without a stop is known in the space alone.
pub(super) fn forget(space: &Space, fds: RangeInclusive<u32>) {
    let last = (*fds.end()).min(FD_COUNT as u32 - 1);
    if *fds.start() > last {
        return;
    }
    let mut buffer = space.buffer.borrow_mut();
    buffer.files.retain(|fd, _| !fds.contains(fd));
    if buffer.inside.is_some() {
        let none = vec![0; (last - fds.start() + 1) as usize];
        tell(&space.memory, *fds.start(), &none);
    }
}

/// Descriptors were closed without a stop, as these calls tell.
pub(super) fn forget_closed(files: &mut BTreeMap<u32, Known>, mut calls: &[u8]) {
    while let Some((noted, len)) = abi::calls::first(calls) {
        if let Noted::Call(call) = noted
            && call.nr == super::CLOSE
        {
            files.remove(&(call.args[0] as u32));
        }
        calls = &calls[len..];
    }
}

/// A mapping is about to show a file: from now on calls that change it are stopped at.
pub(crate) fn is_mapped(core: &Core, file: Identity) {
    for space in core.spaces.iter().filter_map(Weak::upgrade) {
        let mut buffer = space.buffer.borrow_mut();
        let mapped = buffer.inside.is_some();
        for (fd, known) in buffer.files.iter_mut().filter(|(_, known)| known.file == file) {
            if known.good & WRITES != 0 {
                known.good &= !WRITES;
                if mapped {
                    tell(&space.memory, *fd, &[known.good]);
                }
            }
        }
    }
}
