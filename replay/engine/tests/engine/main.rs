//! Tests of the engine against programs run natively, one file for each thing that can be asked of it.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod branches;
mod calls;
mod clock;
mod copies;
mod debugging;
mod faults;
mod logging;
mod oracle;
mod searching;
mod written_code;
