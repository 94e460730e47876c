//! Moving about in real recordings: wherever one goes, by whatever way, the state is that of a straight run.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

extern crate backstory_timeline as timeline;

mod guests;
mod seek;
mod stops;
mod truth;
