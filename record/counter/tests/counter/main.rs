//! Counters on real traced threads. Breakpoints stand in for retired branches, as machines without a performance monitoring unit have
//! them, too; all but the event's code is the same.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod counting;
mod overflow;
mod program;
mod quality;
mod refusals;
mod threads;
