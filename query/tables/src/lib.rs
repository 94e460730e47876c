//! SQL over a recording: virtual tables over the granules, views over the small tables, functions, and results as text.
//!
//! SQLite plans; what it may push down (address, pc, moment, task and the order of moments) goes to the index. Knows
//! nothing of replaying.
//!
//! Addresses and other 64-bit numbers are SQLite integers, which are signed: an address with its top bit set (none in user
//! space) shows as a negative number. `hex(n)` shows it as an address.
//!
//! - `database`: opening a recording for queries
//! - `writes`, `calls`, `executions`: one virtual table each
//! - `adapter`: between SQLite's interface and lazy queries
//! - `plan`: what is pushed down; `merged`: what comes in pieces; `counted`: what is only counted
//! - `views`: the small tables as users see them
//! - `functions`: `hex`, `sym`, `line`; `registers`: `arg`, `reg`
//! - `reference`: what tables and columns mean, for people
//! - `error`: what can go wrong with a query, SQLite's message and the place in the text
//! - `render`: results as a table, JSON or CSV
//! - `syscall`: a recorded syscall as people read it

mod adapter;
mod calls;
mod counted;
mod database;
mod error;
mod executions;
mod functions;
mod merged;
mod plan;
mod reference;
mod registers;
mod render;
mod syscall;
mod views;
mod writes;

pub use database::{Database, OpenError};
pub use error::SqlError;
pub use reference::{FUNCTIONS, TABLES, Table};
pub use registers::RegistersAt;
pub use render::{Format, RenderError};
pub use syscall::{describe_signal, describe_syscall};
