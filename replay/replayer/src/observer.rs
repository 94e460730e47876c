//! What others may see while a replay runs. All methods do nothing unless overridden.

use std::error::Error;
use std::io::Write;

use engine::Space;
use guest::{SpaceId, TaskId};
use trace::{Event, OutputStream, SyscallInfo};

use crate::options::Position;

/// What an observer may answer: an error ends the replay.
pub type Watched = Result<(), Box<dyn Error + Send + Sync>>;

/// How an observer wants to learn of a call or a reading that the recorded program made without a stop
/// ([`Stop::Buffered`](trace::Stop::Buffered), [`Stop::BufferedInstruction`](trace::Stop::BufferedInstruction)).
/// The less it wants the faster is the replay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Look {
    /// As of any other event.
    There,
    /// [`Observer::before_event`] and [`Observer::after_event`] may be called later, before anything else is: the space is farther then,
    /// but hands out its log up to there, and of the event's registers those are known that were noted.
    Afterwards,
    /// Not at all, if that is easier.
    No,
}

/// Watches a replay. What a space ran since the last call that named it was run by the task of this call.
///
/// In each call `at.moment` is the number of instructions retired over all tasks, `at.event` the event that
/// happens next (or now).
pub trait Observer {
    /// The log of `space` is nearly full ([`engine::Mode::Indexed`]): drain it.
    fn log_full(&mut self, id: SpaceId, space: &mut Space, task: TaskId, at: Position) -> Watched {
        let _ = (id, space, task, at);
        Ok(())
    }

    /// How it wants to learn of a call made without a stop, or (`None`) of an instruction answered without one.
    fn looks_at(&self, call: Option<&SyscallInfo>) -> Look {
        let _ = call;
        Look::There
    }

    /// The event's task stands at the event's stop; nothing of the event has happened and its own instruction has not
    /// retired. `id` and `space` are where the task comes from (for an exec: the old space).
    fn before_event(&mut self, id: SpaceId, space: &mut Space, event: &Event, at: Position) -> Watched {
        let _ = (id, space, event, at);
        Ok(())
    }

    /// The event has happened. `space` is `event.space`, for an exec the new one. `at.event` is still this event.
    /// Called for an exit while the space is still there.
    fn after_event(&mut self, space: &mut Space, event: &Event, at: Position) -> Watched {
        let _ = (space, event, at);
        Ok(())
    }

    /// The last task of `space` is gone, and `space` goes now.
    fn space_ends(&mut self, id: SpaceId, space: &mut Space, at: Position) -> Watched {
        let _ = (id, space, at);
        Ok(())
    }

    /// The recorded program printed `bytes`. Called only for syscalls that have an `output`, after their checksum was found right.
    fn output(&mut self, stream: OutputStream, bytes: &[u8], at: Position) -> Watched {
        let _ = (stream, bytes, at);
        Ok(())
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn looks_at(&self, _call: Option<&SyscallInfo>) -> Look {
        Look::No
    }
}

/// Prints what the recorded program printed, to the same streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Printer;

impl Observer for Printer {
    fn looks_at(&self, _call: Option<&SyscallInfo>) -> Look {
        Look::No
    }

    fn output(&mut self, stream: OutputStream, bytes: &[u8], _at: Position) -> Watched {
        match stream {
            OutputStream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()?;
            }
            OutputStream::Stderr => std::io::stderr().lock().write_all(bytes)?,
        }
        Ok(())
    }
}
