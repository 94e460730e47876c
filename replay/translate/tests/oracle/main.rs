//! The translator's oracle: guest code runs natively, single-stepped, and translated, from equal states; registers,
//! flags, extended state, memory, instruction counts, faults and logs must be equal.
//!
//! `BACKSTORY_FUZZ_SECONDS=n` lets the fuzzer run longer, `BACKSTORY_FUZZ_SEED=n` elsewhere.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

extern crate backstory_translate as translate;

mod cache;
mod cases;
mod check;
mod edges;
mod fuzz;
mod native;
mod program;
mod speed;
mod world;
