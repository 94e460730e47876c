//! Writes to the recorded run's standard output and error, by whatever descriptor.
#![expect(unsafe_code, reason = "kcmp(2)")]

use guest::GuestMemory;
use kernel::Call;
use ptrace::HostTid;
use trace::OutputStream;

use crate::session::Core;
use crate::stop::StopError;
use crate::task::Task;

const SENDFILE: u32 = kernel::number("sendfile");
const SPLICE: u32 = kernel::number("splice");
const TEE: u32 = kernel::number("tee");
const VMSPLICE: u32 = kernel::number("vmsplice");
const COPY_FILE_RANGE: u32 = kernel::number("copy_file_range");

/// The open files that stand for the recorded run's output.
pub(crate) struct Streams {
    me: HostTid,
    /// Whether `kcmp` can tell; else device and inode are compared.
    kcmp: bool,
}

impl Streams {
    /// This process's standard streams, which the command inherits.
    pub(crate) fn ours() -> Self {
        let me = HostTid(std::process::id() as i32);
        Self { me, kcmp: same_open_file(me, 1, me, 1).is_some() }
    }

    /// Which stream a descriptor of a task leads to.
    pub(crate) fn of(&self, task: HostTid, fd: i32) -> Option<OutputStream> {
        let order = if fd == 2 { [2, 1] } else { [1, 2] };
        let stream = order.into_iter().find(|ours| self.same(*ours, task, fd))?;
        Some(if stream == 1 { OutputStream::Stdout } else { OutputStream::Stderr })
    }

    fn same(&self, ours: i32, task: HostTid, fd: i32) -> bool {
        if self.kcmp
            && let Some(same) = same_open_file(self.me, ours, task, fd)
        {
            return same;
        }
        let identity = |tid: HostTid, fd: i32| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(format!("/proc/{tid}/fd/{fd}")).map(|meta| (meta.dev(), meta.ino())).ok()
        };
        let ours = identity(self.me, ours);
        ours.is_some() && ours == identity(task, fd)
    }
}

/// Whether two descriptors are one open file; `None` where that cannot be told.
fn same_open_file(a: HostTid, a_fd: i32, b: HostTid, b_fd: i32) -> Option<bool> {
    const KCMP_FILE: i32 = 0;
    // SAFETY: kcmp takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILE, a_fd, b_fd) };
    match result {
        0 => Some(true),
        1..=3 => Some(false),
        // A descriptor that is not open is no stream of ours.
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) => Some(false),
        _ => None,
    }
}

/// The stream a finished call wrote to, if it is one of ours, and the CRC-32 of the bytes.
pub(crate) fn of_call(
    core: &Core,
    task: &Task,
    call: &Call,
) -> Result<(Option<OutputStream>, u32), StopError> {
    let memory = &task.space.memory;
    let Ok(Some(output)) = kernel::output(call, memory) else {
        return Ok((None, 0));
    };
    let Some(stream) = core.streams.of(task.host, output.fd) else {
        return Ok((None, 0));
    };
    let mut hasher = crc32fast::Hasher::new();
    for range in output.ranges {
        hasher.update(&memory.read_vec(range.start, range.len() as usize)?);
    }
    Ok((Some(stream), hasher.finalize()))
}

/// Whether a call would move bytes to our streams past guest memory, where no replay could see them. Such calls are answered
/// with `EINVAL`, which every program must expect of them: it then reads and writes.
pub(crate) fn moves_unseen(streams: &Streams, task: &Task, nr: u32, args: &[u64; 6]) -> bool {
    let to = match nr {
        SENDFILE | VMSPLICE => args[0],
        TEE => args[1],
        SPLICE | COPY_FILE_RANGE => args[2],
        _ => return false,
    };
    streams.of(task.host, to as i32).is_some()
}
