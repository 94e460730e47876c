//! The first complete replay: finds every event's instruction count and stores them beside the trace.

use trace::{Moments, Trace, write_ticks};

use crate::error::ReplayError;
use crate::observer::{Observer, Silent};
use crate::options::{Options, Until};
use crate::replay::Replay;

/// Why counts could not be learned.
pub type LearnError = ReplayError;

/// The moments of a recording: as an earlier replay learned them, else by replaying it now, silently.
pub fn learn(trace: &Trace, options: &Options) -> Result<Moments, LearnError> {
    match Moments::load(trace)? {
        Some(moments) => Ok(moments),
        None => {
            let mut replay = Replay::open(trace, options)?;
            replay.finish(&mut Silent)
        }
    }
}

impl Replay {
    /// Runs a whole replay to its end and stores what it learned, unless that was known.
    pub fn finish(&mut self, observer: &mut dyn Observer) -> Result<Moments, ReplayError> {
        self.run(Until::End, observer)?;
        if let Some(moments) = &self.moments {
            return Ok(moments.clone());
        }
        let moments = Moments::from_counts(self.cursor.counts.iter().copied());
        write_ticks(&self.trace, &self.cursor.counts)?;
        self.moments = Some(moments.clone());
        Ok(moments)
    }
}
