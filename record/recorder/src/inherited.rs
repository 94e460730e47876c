//! The descriptors that a command inherits. They are this process's own, so the kernel is asked about these: files of `/proc` that tell the
//! same cost a short recording more than all of its events.
#![expect(unsafe_code, reason = "fcntl(2), lseek(2) and fstat(2) on descriptors by number")]

use std::mem::MaybeUninit;

/// A descriptor of this process that a program it executes keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Inherited {
    pub(crate) fd: i32,
    /// Open-file flags, as in `open(2)`.
    flags: i32,
}

/// Those there are.
pub(crate) fn all() -> std::io::Result<Vec<Inherited>> {
    let numbers = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut all: Vec<Inherited> = numbers.filter_map(Inherited::of).collect();
    all.sort_unstable_by_key(|one| one.fd);
    Ok(all)
}

impl Inherited {
    fn of(fd: i32) -> Option<Self> {
        // SAFETY: both take numbers only.
        let [of_number, flags] = unsafe { [libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL)] };
        (of_number != -1 && of_number & libc::FD_CLOEXEC == 0 && flags != -1).then_some(Self { fd, flags })
    }

    /// Where it is read and written next; 0 where that has no place.
    pub(crate) fn offset(self) -> u64 {
        // SAFETY: takes numbers only, and moves nothing.
        u64::try_from(unsafe { libc::lseek(self.fd, 0, libc::SEEK_CUR) }).unwrap_or(0)
    }

    /// Device and inode of its file, if that may be written through it.
    pub(crate) fn written_file(self) -> Option<(u64, u64)> {
        if self.flags & libc::O_ACCMODE == libc::O_RDONLY {
            return None;
        }
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel fills `stat` where it does not fail.
        let stat = unsafe { (libc::fstat(self.fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }?;
        Some((stat.st_dev, stat.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use ptrace::HostTid;

    use super::*;
    use crate::procfs::Descriptor;

    #[test]
    fn descriptors_are_what_the_kernel_tells_in_files() {
        let me = HostTid(std::process::id() as i32);
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        file.seek(SeekFrom::Start(7)).unwrap();
        let dup = |cloexec| {
            let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
            // SAFETY: takes numbers only.
            unsafe { libc::fcntl(file.as_raw_fd(), command, 100) }
        };
        let (kept, closed) = (dup(false), dup(true));
        let all = all().unwrap();
        assert!(all.iter().all(|one| one.fd != closed));
        let one = *all.iter().find(|one| one.fd == kept).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((one.offset(), one.written_file()), (7, Some((meta.dev(), meta.ino()))));
        for one in all.iter().filter(|one| one.fd == kept || one.fd <= 2) {
            let told = Descriptor::of(me, one.fd).unwrap();
            assert_eq!(one.flags & libc::O_ACCMODE, told.flags & libc::O_ACCMODE, "{one:?}");
            assert_eq!(one.offset(), told.offset, "{one:?}");
        }
        // SAFETY: both were made above.
        unsafe { (libc::close(kept), libc::close(closed)) };
    }
}
