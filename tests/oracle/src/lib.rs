//! Oracles: independent ways to know what a recording must say, slow and exact.
//!
//! - `stub`: an empty process whose memory is built by injected calls
//! - `stepper`: a recording walked natively, one `PTRACE_SINGLESTEP` at a time: the third clock
//! - `stores`: what each instruction wrote, by decoding it and looking
//! - `programs`: building and finding the guest programs under `tests/programs`
//! - `command`: running the `backstory` binary
//! - `signalled`: recordings of programs that signals from outside interrupt
//!
//! Nothing here uses the translator, the engine or the index: an oracle that shares their code shares their bugs.

pub mod command;
pub mod programs;
pub mod signalled;
pub mod stepper;
pub mod stores;
pub mod stub;
