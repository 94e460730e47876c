//! What handling a stop comes to: how the task goes on, or why that is not decided yet.

use guest::Registers;
use ptrace::{Gone, HostTid, PtraceEvent, Report, Running, Stopped};
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

/// Why something of ours, for which a task was used that stood at these registers, came to nothing. Killed in that, it shall be seen to end where it
/// stood.
pub(crate) fn as_it_stood(why: StopError, tid: HostTid, stood: &Registers) -> StopError {
    let report = match why {
        StopError::Instead(report) => report,
        StopError::Gone(_) => match wait_one(tid) {
            Ok(report) => report,
            Err(other) => return other,
        },
        other => return other,
    };
    let Report::Event(PtraceEvent::Exit, mut stopped) = report else { return StopError::Instead(report) };
    match stopped.set_registers(stood) {
        Ok(()) => StopError::Instead(Report::Event(PtraceEvent::Exit, stopped)),
        Err(gone) => gone.into(),
    }
}

/// Runs a tracee on towards its own calls, at all of which it stops and no signal but SIGSTOP can come. That one, which nothing holds off, takes effect
/// as it comes, for the process may be asked to go on at any time: the tracee runs nevertheless, and stops with the process [afterwards](Self::over).
#[derive(Default, Debug)]
pub(crate) struct Onward {
    stops: bool,
}

impl Onward {
    /// Goes on to the next stop at a call, and tells whether it is a filter's: that comes between the entry of the call and its end.
    pub(crate) fn next_call(
        &mut self,
        mut stopped: Stopped,
        resume: fn(Stopped, i32) -> Result<Running, Gone>,
    ) -> Result<(Stopped, bool), StopError> {
        let tid = stopped.tid();
        let mut signal = 0;
        loop {
            check_alive(tid)?;
            resume(stopped, signal)?;
            (stopped, signal) = match wait_one(tid)? {
                Report::Syscall(stopped) => return Ok((stopped, false)),
                Report::Seccomp(stopped) => return Ok((stopped, true)),
                Report::Signal(libc::SIGSTOP, stopped) => (stopped, libc::SIGSTOP),
                Report::Group(_, stopped) | Report::Event(PtraceEvent::Stop, stopped) => {
                    self.stops = true;
                    (stopped, 0)
                }
                report @ (Report::Exited(_) | Report::Killed(..) | Report::Event(PtraceEvent::Exit, _)) => {
                    return Err(StopError::Instead(report));
                }
                other => return Err(StopError::bug(format!("on its way to a call, a tracee met {other:?}"))),
            };
        }
    }

    /// The tracee is to go on by itself: it first stops where its process does.
    pub(crate) fn over(&self, stopped: &Stopped) -> Result<(), StopError> {
        if self.stops {
            Running::assume(stopped.tid()).interrupt()?;
        }
        Ok(())
    }
}
