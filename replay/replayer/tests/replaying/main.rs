//! Real recordings replayed, and altered ones found out.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

extern crate backstory_replayer as replayer;

mod altered;
mod counted;
mod preempted;
mod recorded;
mod together;
mod whole;
