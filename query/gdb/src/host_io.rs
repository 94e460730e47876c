//! `vFile` packets: gdb reads the kept files by the paths they had in the recording.

use std::os::unix::fs::MetadataExt;

use gdbstub::target::ext::host_io::{
    FsKind, HostIo, HostIoClose, HostIoCloseOps, HostIoErrno, HostIoError, HostIoFstat, HostIoFstatOps,
    HostIoOpen, HostIoOpenFlags, HostIoOpenMode, HostIoOpenOps, HostIoPread, HostIoPreadOps, HostIoResult,
    HostIoSetfs, HostIoSetfsOps, HostIoStat,
};

use crate::session::Session;

impl HostIo for Session {
    fn support_open(&mut self) -> Option<HostIoOpenOps<'_, Self>> {
        Some(self)
    }

    fn support_close(&mut self) -> Option<HostIoCloseOps<'_, Self>> {
        Some(self)
    }

    fn support_pread(&mut self) -> Option<HostIoPreadOps<'_, Self>> {
        Some(self)
    }

    fn support_fstat(&mut self) -> Option<HostIoFstatOps<'_, Self>> {
        Some(self)
    }

    fn support_setfs(&mut self) -> Option<HostIoSetfsOps<'_, Self>> {
        Some(self)
    }
}

impl HostIoOpen for Session {
    fn open(
        &mut self,
        name: &[u8],
        flags: HostIoOpenFlags,
        _mode: HostIoOpenMode,
    ) -> HostIoResult<u32, Self> {
        let changes = HostIoOpenFlags::O_WRONLY | HostIoOpenFlags::O_RDWR | HostIoOpenFlags::O_CREAT;
        if flags.intersects(changes) {
            return Err(HostIoError::Errno(HostIoErrno::EROFS));
        }
        let path = String::from_utf8_lossy(name);
        Ok(self.files.open(&path)?)
    }
}

impl HostIoClose for Session {
    fn close(&mut self, fd: u32) -> HostIoResult<(), Self> {
        Ok(self.files.close(fd)?)
    }
}

impl HostIoPread for Session {
    fn pread(&mut self, fd: u32, count: usize, offset: u64, into: &mut [u8]) -> HostIoResult<usize, Self> {
        let n = count.min(into.len());
        Ok(self.files.read(fd, offset, &mut into[..n])?)
    }
}

impl HostIoFstat for Session {
    fn fstat(&mut self, fd: u32) -> HostIoResult<HostIoStat, Self> {
        let meta = self.files.metadata(fd)?;
        Ok(HostIoStat {
            st_dev: 0,
            // gdb tells files apart by it.
            st_ino: meta.ino() as u32,
            st_mode: HostIoOpenMode::S_IFREG | HostIoOpenMode::S_IRUSR | HostIoOpenMode::S_IXUSR,
            st_nlink: 1,
            st_uid: 0,
            st_gid: 0,
            st_rdev: 0,
            st_size: meta.len(),
            st_blksize: 4096,
            st_blocks: meta.len().div_ceil(512),
            st_atime: 0,
            st_mtime: 0,
            st_ctime: 0,
        })
    }
}

impl HostIoSetfs for Session {
    /// All recorded processes see the same files here.
    fn setfs(&mut self, _fs: FsKind) -> HostIoResult<(), Self> {
        Ok(())
    }
}
