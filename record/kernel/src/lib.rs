//! Linux x86-64 as data: one row per system call and per request, what each does to memory, and what a recorder does about it.
//!
//! Pure: no system calls, no processes, no trace. Numbers, bytes and a [`guest::GuestMemory`] in; rows, ranges and text
//! out. Facts are those of Linux 6.18.
//!
//! A recorder asks three things of a call, in this order:
//!
//! ```
//! # use backstory_kernel as kernel;
//! use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};
//! # struct Tracee;
//! # impl GuestMemory for Tracee {
//! #     fn read(&self, _: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
//! #         into.fill(0);
//! #         Ok(())
//! #     }
//! # }
//! # let memory = &Tracee;
//! const READ: u32 = kernel::number("read");
//! let args = [0, 0x1000, 512, 0, 0, 0];
//! assert_eq!(kernel::decide(READ, &args, memory), Ok(kernel::Class::MayBlock));
//! let call = kernel::Call::enter(READ, args, memory);
//! // The call runs, and returns 100.
//! let written = kernel::effects(&call.returned(100), memory);
//! assert_eq!(written, Ok(vec![GuestRange::new(GuestAddr(0x1000), 100)]));
//! ```
//!
//! - `row`: what a row is made of: arguments, sizes, class, support, effect
//! - `table`: the one table of system calls, by family
//! - `requests`: the tables behind `ioctl`, `fcntl`, `prctl`, socket options and the like
//! - `decide`: what a recorder does about a call, before it runs
//! - `change`: the files that calls open to write, and change
//! - `reading`: which part of a file a call put into memory
//! - `call`: a call's number, arguments, result, and the words in memory that must be read before it runs
//! - `effects`: the memory a finished call wrote
//! - `errno`, `signal`, `flags`: names
//! - `structs`: sizes of structures
//! - `inside`: calls that may be made without a stop
//! - `narrow`: the calls of `int 0x80`, and what they are here
//! - `filter`: what the seccomp filter stops
//! - `format`: calls as people read them
//! - `coverage`: the page that says what is supported
//! - `memory`: guest memory for tests

mod call;
mod change;
mod coverage;
mod decide;
mod effects;
mod errno;
mod filter;
mod flags;
mod format;
mod inside;
#[cfg(test)]
mod memory;
mod narrow;
mod reading;
mod requests;
mod row;
mod signal;
mod structs;
mod table;

pub use call::Call;
pub use change::{FileName, changes_file, opens_to_write};
pub use coverage::{Counts, call_counts, coverage, request_counts};
pub use decide::{CLONE_UNTRACED, Refusal, answered_unknown, decide, may_block, needs_space};
pub use effects::{
    EffectError, Output, Place, Pointer, child_effects, effects, marks_waiting, may_write, output, places,
};
pub use errno::Errno;
pub use filter::{FILTER, Filter};
pub use flags::FlagSet;
pub use format::format_call;
pub use inside::{Form, Good, Inside, Mark, Numbered, Wrote, changes_mappings, inside, numbered};
pub use narrow::{Narrow, narrow};
pub use reading::{FilePlace, reads_file};
pub use requests::{ALL as REQUEST_TABLES, Key, Request, Requests, UnknownRequest, ptrace_request};
pub use row::{
    Answer, Arg, Check, Class, Effect, Hand, Kind, MapCall, NoWait, Opens, Reads, Row, Size, Struct, Support,
    When,
};
pub use signal::signal_name;
pub use table::{MAX_NUMBER, all, name, number, row};
