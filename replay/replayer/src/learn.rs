//! The first complete replay: finds every event's instruction count and stores them beside the trace.

use trace::{Moments, TicksError, Trace, write_ticks};

use crate::error::ReplayError;
use crate::observer::{Observer, Silent};
use crate::options::{Options, Until};
use crate::replay::Replay;

/// Why counts could not be learned.
pub type LearnError = ReplayError;

/// The moments of a recording: as an earlier replay learned them, else by replaying it now, silently.
pub fn learn(trace: &Trace, options: &Options) -> Result<Moments, LearnError> {
    match known(trace) {
        Some(moments) => Ok(moments),
        None => Replay::open(trace, options)?.finish(&mut Silent),
    }
}

/// What an earlier replay learned. What cannot be used is as good as nothing: it is learned again.
pub(crate) fn known(trace: &Trace) -> Option<Moments> {
    Moments::load(trace).unwrap_or_else(|error| {
        tracing::warn!(%error, "ignoring the learned counts");
        None
    })
}

impl Replay {
    /// Runs a whole replay to its end and stores what it learned, unless that was known. A trace that may not be
    /// written to is replayed all the same.
    pub fn finish(&mut self, observer: &mut dyn Observer) -> Result<Moments, ReplayError> {
        self.run(Until::End, observer)?;
        if let Some(moments) = &self.moments {
            return Ok(moments.clone());
        }
        let moments = Moments::from_counts(self.cursor.counts.iter().copied());
        match write_ticks(&self.trace, &self.cursor.counts) {
            Err(error) if is_forbidden(&error) => tracing::warn!(%error, "the learned counts are not kept"),
            written => written?,
        }
        self.moments = Some(moments.clone());
        Ok(moments)
    }
}

/// Whether the trace lies where this user, or nobody, can write: the replay itself needs no room.
fn is_forbidden(error: &TicksError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let TicksError::Io { source, .. } = error else { return false };
    matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem | StorageFull | QuotaExceeded)
}
