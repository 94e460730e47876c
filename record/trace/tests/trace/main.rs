//! The trace from outside: round trips, damage, old versions.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

extern crate backstory_trace as trace;

mod batch;
mod damage;
mod golden;
mod pieces;
mod roundtrip;
mod sample;
