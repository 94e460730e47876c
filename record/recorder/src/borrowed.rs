//! Descriptors of other processes, taken from them as descriptors of ours.
#![expect(unsafe_code, reason = "pidfd_open(2) and pidfd_getfd(2)")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ptrace::HostTid;

/// A handle to a process.
pub(crate) fn handle(process: HostTid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process.0, 0) })
}

/// A descriptor of the process, as one of ours. Fails where the kernel has no such call, or does not allow it.
pub(crate) fn descriptor(process: &OwnedFd, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}
