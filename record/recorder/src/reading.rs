//! Which file a call read from, and where: what it put into memory is then kept as that file's. Only a name for the bytes: whether they
//! are what was kept of that place before is seen when they are compared.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use kernel::{Call, FilePlace};
use ptrace::HostTid;
use trace::SourceFile;

use crate::{borrowed, procfs};

/// Shorter reads are not looked at.
pub(crate) const SHORTEST: u64 = 4096;

/// What a call read of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadOf {
    pub(crate) file: SourceFile,
    /// Where the first byte stood.
    pub(crate) offset: u64,
    process: HostTid,
    fd: i32,
}

impl ReadOf {
    /// What comes so many bytes later in the file.
    pub(crate) fn after(self, len: u64) -> Self {
        Self { offset: self.offset + len, ..self }
    }

    /// The file, opened anew: most likely, for the descriptor may be another's by now.
    pub(crate) fn open(&self) -> Option<File> {
        let path = format!("/proc/{}/fd/{}", self.process, self.fd);
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
    }
}

/// Looks at files through the descriptors of processes.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    /// The process looked at last.
    process: Option<(HostTid, OwnedFd)>,
}

impl Looking {
    /// What a finished call of a process read of a regular file.
    pub(crate) fn of_call(&mut self, process: HostTid, call: &Call) -> Option<ReadOf> {
        let len = u64::try_from(call.result).ok().filter(|&len| len >= SHORTEST)?;
        let place = kernel::reads_file(call)?;
        // Some kernels have no such call, some do not allow it.
        let (file, end) = match self.borrowed(process, place.fd) {
            Ok(file) => through(file, place)?,
            Err(_) => by_name(process, place)?,
        };
        let offset = place.offset.or_else(|| end.checked_sub(len))?;
        Some(ReadOf { file, offset, process, fd: place.fd })
    }

    /// A process's open file. It must be closed before the process goes on, which may wait for that.
    pub(crate) fn borrowed(&mut self, process: HostTid, fd: i32) -> io::Result<File> {
        if let Some((last, pidfd)) = &self.process
            && *last == process
            && let Ok(file) = borrowed::descriptor(pidfd, fd)
        {
            return Ok(file.into());
        }
        let pidfd = borrowed::handle(process)?;
        let file = borrowed::descriptor(&pidfd, fd);
        self.process = Some((process, pidfd));
        file.map(File::from)
    }
}

/// Identity and the descriptor's offset, where that is asked for.
fn through(mut file: File, place: FilePlace) -> Option<(SourceFile, u64)> {
    let source = regular(&file.metadata().ok()?)?;
    let offset = place.offset.map_or_else(|| file.stream_position().ok(), |_| Some(0));
    Some((source, offset?))
}

/// The same by what `/proc` tells.
fn by_name(process: HostTid, place: FilePlace) -> Option<(SourceFile, u64)> {
    let source = regular(&fs::metadata(format!("/proc/{process}/fd/{}", place.fd)).ok()?)?;
    let offset = place.offset.map_or_else(|| procfs::fd_offset(process, place.fd), |_| Some(0));
    Some((source, offset?))
}

fn regular(meta: &fs::Metadata) -> Option<SourceFile> {
    meta.is_file().then(|| SourceFile { dev: meta.dev(), ino: meta.ino() })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn both_ways_to_look_agree() {
        let me = HostTid(std::process::id() as i32);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 9000]).unwrap();
        let fd = file.as_raw_fd();
        let mut looking = Looking::default();
        let source = regular(&file.metadata().unwrap()).unwrap();
        for offset in [0, 8000] {
            file.seek(io::SeekFrom::Start(offset)).unwrap();
            let own = FilePlace { fd, offset: None };
            assert_eq!(by_name(me, own), Some((source, offset)));
            if let Ok(borrowed) = looking.borrowed(me, fd) {
                assert_eq!(through(borrowed, own), Some((source, offset)));
            }
        }
        // A call that read 5000 bytes to the end, and one that says where it read.
        file.read_to_end(&mut Vec::new()).unwrap();
        let args = |offset| [fd as u64, 0x1000, 5000, offset, 0, 0];
        let call = |name, offset| Call::finished(kernel::number(name), args(offset), 5000);
        let read = |offset| Some(ReadOf { file: source, offset, process: me, fd });
        assert_eq!(looking.of_call(me, &call("read", 0)), read(4000));
        assert_eq!(looking.of_call(me, &call("pread64", 77)), read(77));
        let opened = read(0).and_then(|read| read.open()).unwrap();
        assert_eq!(regular(&opened.metadata().unwrap()), Some(source));
        assert_eq!(looking.of_call(me, &call("write", 77)), None);
        let (pipe, _writer) = io::pipe().unwrap();
        let args = [pipe.as_raw_fd() as u64, 0x1000, 5000, 0, 0, 0];
        let from_pipe = Call::finished(kernel::number("read"), args, 5000);
        assert_eq!(looking.of_call(me, &from_pipe), None);
    }
}
