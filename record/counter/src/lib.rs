//! A hardware counter of retired conditional branches, one per thread: how far a thread has come, and a signal to it when it has come
//! as far as it was told. Optional: recordings need no clock, a count only says where to look first.
//!
//! Knows nothing of recording; what a count is good for is its caller's business.
//!
//! - `event`: what is counted
//! - `codes`: the one table of event codes by processor
//! - `machine`: which row of the table this machine is
//! - `counter`: a counter on one thread
//! - `quality`: measuring whether a counter can be relied on, and the verdict
//! - `child`: the process that is measured
//! - `error`: why a counter cannot be had

mod child;
mod codes;
mod counter;
mod error;
mod event;
mod machine;
mod quality;

pub use counter::Counter;
pub use error::{CallFailed, MeasureError, OpenError, ReadError, Unavailable};
pub use event::{Event, EventCode};
pub use machine::code_of_cpu;
pub use quality::{Quality, Verdict, measure, probe, probed_branch};
