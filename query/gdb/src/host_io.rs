//! `vFile` packets: gdb reads the kept files by the paths they had in the recording, and of `/proc/PID` what `info proc` and
//! `gcore` need.

use gdbstub::target::ext::host_io::{
    FsKind, HostIo, HostIoClose, HostIoCloseOps, HostIoErrno, HostIoError, HostIoFstat, HostIoFstatOps,
    HostIoOpen, HostIoOpenFlags, HostIoOpenMode, HostIoOpenOps, HostIoPread, HostIoPreadOps, HostIoReadlink,
    HostIoReadlinkOps, HostIoResult, HostIoSetfs, HostIoSetfsOps, HostIoStat,
};

use crate::files::part;
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

    fn support_readlink(&mut self) -> Option<HostIoReadlinkOps<'_, Self>> {
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
        let made = match (process_file(&path), self.program()) {
            (Some("maps"), _) => {
                let maps = self.maps().map_err(|_| HostIoError::Errno(HostIoErrno::EUNKNOWN))?;
                Some(maps.into_bytes())
            }
            (Some("cmdline"), Some(program)) => {
                Some(program.argv.iter().flat_map(|arg| arg.iter().copied().chain([0])).collect())
            }
            _ => None,
        };
        match made {
            Some(bytes) => Ok(self.files.open_made(bytes)),
            None => Ok(self.files.open(&path)?),
        }
    }
}

/// The last part of `/proc/PID/...`, whichever process: there is one to see.
fn process_file(path: &str) -> Option<&str> {
    let (pid, file) = path.strip_prefix("/proc/")?.split_once('/')?;
    pid.bytes().all(|byte| byte.is_ascii_digit()).then_some(file)
}

impl HostIoReadlink for Session {
    fn readlink(&mut self, name: &[u8], into: &mut [u8]) -> HostIoResult<usize, Self> {
        let path = String::from_utf8_lossy(name);
        let target = match (process_file(&path), self.program()) {
            (Some("exe"), Some(program)) => &program.exe,
            (Some("cwd"), Some(program)) => &program.cwd,
            _ => return Err(HostIoError::Errno(HostIoErrno::ENOENT)),
        };
        Ok(part(target.as_bytes(), 0, target.len(), into))
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
        let facts = self.files.facts(fd)?;
        Ok(HostIoStat {
            st_dev: 0,
            // gdb tells files apart by it.
            st_ino: facts.number as u32,
            st_mode: HostIoOpenMode::S_IFREG | HostIoOpenMode::S_IRUSR | HostIoOpenMode::S_IXUSR,
            st_nlink: 1,
            st_uid: 0,
            st_gid: 0,
            st_rdev: 0,
            st_size: facts.len,
            st_blksize: 4096,
            st_blocks: facts.len.div_ceil(512),
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
