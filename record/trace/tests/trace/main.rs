//! The trace from outside: round trips, damage, old versions.

extern crate backstory_trace as trace;

mod damage;
mod golden;
mod roundtrip;
mod sample;
