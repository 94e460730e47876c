//! What to build and what is told meanwhile. Plain values.

use std::time::Duration;

/// How far a build is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Instructions indexed, those of an earlier build that was killed included.
    pub instructions: u64,
    /// Of how many, where that is known.
    pub total: Option<u64>,
    /// Since the build began.
    pub elapsed: Duration,
    /// Instructions that were there when it began.
    pub resumed: u64,
}

/// How to build.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// How many workers; 0 for one per CPU.
    pub jobs: usize,
    /// Called a few times a second, on the thread that builds.
    pub progress: Option<&'a dyn Fn(&Progress)>,
    /// As [`replayer::Options::one_by_one`].
    pub one_by_one: bool,
}

/// What a build did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BuildReport {
    /// Instructions in the index.
    pub instructions: u64,
    /// Of these, how many an earlier build had put there.
    pub resumed: u64,
    /// Events.
    pub events: u64,
    /// Bytes of the index.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}
