//! What handling a stop comes to: how the task goes on, or why that is not decided yet.

use ptrace::{Gone, HostTid, Report, Stopped};
use trace::WriteError;

use crate::api::RecordError;
use crate::image::ImageError;
use crate::procfs;
use crate::task::Resume;

/// A stopped task and how it goes on.
pub(crate) type Next = (Stopped, Resume);

/// Why a stop was not dealt with to the end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StopError {
    /// The task was killed meanwhile; a wait will tell.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// Something else was reported than what was waited for, and comes first.
    #[error("the tracee did something else")]
    Instead(Report),
    /// The leader of a process ended while other threads of it live: no wait reports that.
    #[error("a leader ended before its process")]
    LeaderEnded,
    /// The guest did something that is not supported.
    #[error("{0}")]
    Refused(String),
    /// The recording cannot go on.
    #[error(transparent)]
    Fatal(#[from] RecordError),
}

impl StopError {
    pub(crate) fn bug(what: String) -> Self {
        Self::Fatal(RecordError::Bug { what })
    }
}

impl From<WriteError> for StopError {
    fn from(error: WriteError) -> Self {
        Self::Fatal(error.into())
    }
}

impl From<guest::Unmapped> for StopError {
    fn from(error: guest::Unmapped) -> Self {
        Self::bug(format!("cannot read the tracee's memory: {error}"))
    }
}

impl From<ImageError> for StopError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Write(error) => error.into(),
            ImageError::Memory(error) => error.into(),
            ImageError::Proc(source) => {
                Self::Fatal(RecordError::System { what: "cannot read /proc of a tracee", source })
            }
        }
    }
}

/// A stopped task is about to be resumed. Where it was killed meanwhile it may stand at its own end already, and that is what comes next: resumed from
/// there, it would not be seen to end.
pub(crate) fn check_alive(tid: HostTid) -> Result<(), StopError> {
    match ptrace::wait_for(tid, libc::WNOHANG) {
        Ok(Some(waited)) => Err(StopError::Instead(waited.report)),
        Ok(None) => Ok(()),
        Err(source) => Err(RecordError::System { what: "cannot wait for a tracee", source }.into()),
    }
}

/// The message of the ptrace event that a task stopped for. Where it was killed meanwhile, that of its end is there instead, which comes next.
pub(crate) fn message(stopped: &Stopped) -> Result<u64, StopError> {
    let message = stopped.event_message()?;
    check_alive(stopped.tid())?;
    Ok(message)
}

/// Waits for one task, whatever it does next.
pub(crate) fn wait_one(tid: HostTid) -> Result<Report, StopError> {
    loop {
        match ptrace::wait_for_or_signal(tid) {
            Ok(Some(waited)) => return Ok(waited.report),
            // A tick came instead.
            Ok(None) if procfs::is_dead(tid) => return Err(StopError::LeaderEnded),
            Ok(None) => {}
            Err(source) => {
                return Err(RecordError::System { what: "cannot wait for a tracee", source }.into());
            }
        }
    }
}
