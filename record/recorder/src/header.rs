//! The header of a recording about to begin.
#![expect(unsafe_code, reason = "getrandom(2)")]

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use ptrace::HostTid;
use trace::{Header, InheritedFd, Located, Version};

use crate::api::RecordError;
use crate::command::Prepared;
use crate::inherited::Inherited;
use crate::{machine, procfs};

/// Describes the command, what it inherits and this machine. The calling thread must be pinned already.
pub(crate) fn make(
    prepared: &Prepared,
    inherited: &[Inherited],
    located: Located,
) -> Result<Header, RecordError> {
    let system = |what| move |source| RecordError::System { what, source };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Header {
        version: Version::CURRENT,
        uuid: random_uuid().map_err(system("cannot draw random bytes"))?,
        started,
        argv: prepared.argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        envp: prepared.envp.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        cwd: std::env::current_dir().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default(),
        machine: machine::describe(located),
        fds: inherited.iter().map(|one| described(*one)).collect(),
    })
}

/// A random (version 4) UUID.
fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0u8; 16];
    // SAFETY: the kernel fills the array, which is as long as it is told. So few bytes come whole.
    let drawn = unsafe { libc::getrandom(uuid.as_mut_ptr().cast(), uuid.len(), 0) };
    if usize::try_from(drawn) != Ok(uuid.len()) {
        return Err(io::Error::last_os_error());
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

fn described(one: Inherited) -> InheritedFd {
    let me = HostTid(std::process::id() as i32);
    InheritedFd { fd: one.fd, path: procfs::link(me, &format!("fd/{}", one.fd)), offset: one.offset() }
}
