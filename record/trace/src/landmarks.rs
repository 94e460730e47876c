//! Where the landmarks of a recording lie: its end, the command's exit, the first fatal signal.

use guest::{Landmarks, Moment, TaskId, When};

use crate::event::{Fact, Status};
use crate::reader::{ReadError, Trace};
use crate::ticks::Moments;

/// The moment that `when` means in `trace`: `Ok(Err(..))` when the recording has no such moment. Reads the events only for
/// landmarks that need them.
pub fn resolve_when(
    trace: &Trace,
    moments: &Moments,
    when: When,
) -> Result<Result<Moment, guest::WhenError>, ReadError> {
    let marks = match when {
        When::Exit | When::Signal => landmarks(trace, moments)?,
        _ => Landmarks { end: moments.total(), exit: None, signal: None },
    };
    Ok(when.resolve(&marks))
}

/// All landmarks. Reads all events.
pub fn landmarks(trace: &Trace, moments: &Moments) -> Result<Landmarks, ReadError> {
    let mut marks = Landmarks { end: moments.total(), exit: None, signal: None };
    for item in trace.events() {
        let (id, event) = item?;
        let Fact::Exit(status) = event.fact else { continue };
        if event.task == TaskId(0) {
            marks.exit = Some(moments.end(id));
        }
        if matches!(status, Status::Killed(_)) {
            marks.signal.get_or_insert(moments.end(id));
        }
    }
    Ok(marks)
}
