//! A gdb server over a timeline: real gdb sees one moment of a recording as a stopped process and moves it both ways.
//!
//! Nothing of the guest can be changed: writes are refused. Knows nothing of the index.
//!
//! - `session`: the moment, the process shown, and how it moves
//! - `lives`: when each process lives and runs in an address space, and its program
//! - `maps`: the names of mappings
//! - `arch`, `xsave`: the registers as gdb numbers them
//! - `files`: the kept files, as gdb reads them through us
//! - `sysroot`: the kept files, as a gdb on this machine reads them itself
//! - `tls`: where a thread has its own copy of a variable
//! - `server`: the loop over packets and movements
//! - `wire`: the connection
//! - `target`, `resume`, `breakpoints`, `catch`, `host_io`, `xfer`, `monitor`: the protocol, a file per feature

mod arch;
mod breakpoints;
mod catch;
mod files;
mod host_io;
mod lives;
mod maps;
mod monitor;
mod resume;
mod server;
mod session;
mod sysroot;
mod target;
mod tls;
mod wire;
mod xfer;
mod xsave;

pub use server::{Parting, ServeError, serve};
pub use session::{News, Session, SessionError, Shown};
pub use sysroot::{Sysroot, make_sysroot, path_in};
