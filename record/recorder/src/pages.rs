//! Which pages of a space were written since they were last asked for, by asynchronous write protection (`userfaultfd(2)` and
//! `PAGEMAP_SCAN`). Where the kernel or a container forbids it, all writable memory counts as written.
#![expect(unsafe_code, reason = "ioctl(2)")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use guest::{GuestAddr, GuestRange};
use ptrace::{HostTid, Stopped};

use crate::api::RecordError;
use crate::borrowed;
use crate::exec;
use crate::procfs;
use crate::stop::StopError;

/// `struct uffdio_api` and `struct uffdio_register` (`linux/userfaultfd.h`).
#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterRequest {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct pm_scan_arg` (`linux/fs.h`).
#[repr(C)]
#[derive(Default)]
struct ScanRequest {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` (`linux/fs.h`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const API_VERSION: u64 = 0xaa;
const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const WP_UNPOPULATED: u64 = 1 << 13;
const WP_ASYNC: u64 = 1 << 15;
const MODE_WP: u64 = 1 << 1;
const USER_MODE_ONLY: u64 = 1;
const SCAN_WP_MATCHING: u64 = 1;
const IS_WPALLOWED: u64 = 1;
const IS_WRITTEN: u64 = 1 << 1;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_PFNZERO: u64 = 1 << 5;
/// End of what a process may map.
const USER_END: u64 = 0x7fff_ffff_f000;

/// Follows the written pages of one space.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// The tracee's userfaultfd, where it could be had.
    faults: Option<OwnedFd>,
    pagemap: File,
    /// Writable memory that the kernel does not track: always counts as written.
    untracked: Vec<GuestRange>,
}

impl Tracker {
    /// Begins to follow: all memory counts as written at first.
    pub(crate) fn new(stopped: Stopped, process: HostTid) -> Result<(Self, Stopped), StopError> {
        let mut tracker = Self::without_faults(stopped.tid())
            .map_err(|source| RecordError::System { what: "cannot open a tracee's pagemap", source })?;
        let (faults, stopped) = userfaultfd(stopped, process)?;
        let faults = faults.filter(|fd| enable(fd).is_ok());
        if faults.is_none() {
            tracing::debug!("no write tracking: all memory is hashed");
        }
        tracker.faults = faults;
        Ok((tracker, stopped))
    }

    /// Follows nothing: all memory counts as written each time.
    pub(crate) fn without_faults(tid: HostTid) -> io::Result<Self> {
        Ok(Self { faults: None, pagemap: File::open(format!("/proc/{tid}/pagemap"))?, untracked: Vec::new() })
    }

    /// Takes in that mappings changed.
    pub(crate) fn cover(&mut self, tid: HostTid) -> io::Result<()> {
        self.untracked.clear();
        for mapping in procfs::maps(tid)? {
            if !mapping.prot.write {
                continue;
            }
            let tracked = self.faults.as_ref().is_some_and(|fd| register(fd, mapping.range).is_ok());
            if !tracked {
                self.untracked.push(mapping.range);
            }
        }
        Ok(())
    }

    /// The pages written since the last call, as ranges in ascending order; from now on they count as not written.
    pub(crate) fn take_written(&self, tid: HostTid) -> io::Result<Vec<GuestRange>> {
        let mut found = if self.faults.is_some() { self.scan()? } else { Vec::new() };
        for &range in &self.untracked {
            found.extend(procfs::own_pages(tid, range)?);
        }
        found.sort_unstable_by_key(|range| range.start);
        Ok(found)
    }

    /// All pages of writable memory that hold contents of their own, whatever was written when.
    pub(crate) fn all(tid: HostTid) -> io::Result<Vec<GuestRange>> {
        let writable = procfs::maps(tid)?.into_iter().filter(|mapping| mapping.prot.write && !mapping.shared);
        let mut found = Vec::new();
        for mapping in writable {
            found.extend(procfs::own_pages(tid, mapping.range)?);
        }
        Ok(found)
    }

    fn scan(&self) -> io::Result<Vec<GuestRange>> {
        const ROOM: usize = 512;
        let mut found = Vec::new();
        let mut room = [Region::default(); ROOM];
        let mut start = 0;
        while start < USER_END {
            let mut request = ScanRequest {
                size: size_of::<ScanRequest>() as u64,
                flags: SCAN_WP_MATCHING,
                start,
                end: USER_END,
                vec: room.as_mut_ptr() as u64,
                vec_len: ROOM as u64,
                category_inverted: IS_PFNZERO,
                category_mask: IS_WPALLOWED | IS_WRITTEN | IS_PFNZERO,
                category_anyof_mask: IS_PRESENT | IS_SWAPPED,
                return_mask: IS_WRITTEN,
                ..ScanRequest::default()
            };
            // SAFETY: the request names `room`, which has `ROOM` elements and outlives the call.
            let count =
                result_of(unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut request) })?;
            let regions = &room[..count as usize];
            found.extend(
                regions
                    .iter()
                    .map(|region| GuestRange { start: GuestAddr(region.start), end: GuestAddr(region.end) }),
            );
            if request.walk_end <= start {
                break;
            }
            start = request.walk_end;
        }
        Ok(found)
    }
}

/// Makes a userfaultfd of the tracee's and takes it over. The tracee keeps nothing. All signals wait meanwhile.
fn userfaultfd(mut stopped: Stopped, process: HostTid) -> Result<(Option<OwnedFd>, Stopped), StopError> {
    let site = GuestAddr(abi::SYSCALL);
    let mask = stopped.signal_mask()?;
    stopped.set_signal_mask(u64::MAX)?;
    let flags = libc::O_CLOEXEC as u64 | USER_MODE_ONLY;
    let make = [flags, 0, 0, 0, 0, 0];
    let (mut stopped, fd) = exec::make_call(stopped, site, libc::SYS_userfaultfd as u64, make)?;
    let mut ours = None;
    if fd >= 0 {
        ours = fetch(process, fd as i32).ok();
        let close = [fd as u64, 0, 0, 0, 0, 0];
        (stopped, _) = exec::make_call(stopped, site, libc::SYS_close as u64, close)?;
    }
    stopped.set_signal_mask(mask)?;
    Ok((ours, stopped))
}

fn fetch(process: HostTid, fd: i32) -> io::Result<OwnedFd> {
    borrowed::descriptor(&borrowed::handle(process)?, fd)
}

fn enable(fd: &OwnedFd) -> io::Result<()> {
    let features = WP_ASYNC | WP_UNPOPULATED | WP_HUGETLBFS_SHMEM;
    let mut request = ApiRequest { api: API_VERSION, features, ioctls: 0 };
    // SAFETY: the request outlives the call and has the layout that this ioctl reads and writes.
    result_of(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &mut request) }).map(drop)
}

fn register(fd: &OwnedFd, range: GuestRange) -> io::Result<()> {
    let mut request = RegisterRequest { start: range.start.0, len: range.len(), mode: MODE_WP, ioctls: 0 };
    // SAFETY: the request outlives the call and has the layout that this ioctl reads and writes; the addresses in it
    // are another process's.
    result_of(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &mut request) }).map(drop)
}

/// What a call returned, or why it failed.
fn result_of(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
