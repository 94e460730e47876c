//! The process that replays: one live host process per guest address space, which holds the guest's memory at the guest's
//! addresses and runs translated code.
//!
//! It knows nothing of events or of the trace: a caller shapes the memory, sets the registers, runs, and is told why
//! running stopped.
//!
//! - `block`: a translated block
//! - `config`: what a space is made for: footprint, mode, log; watchpoints
//! - `exit`: why running stopped
//! - `error`: what can go wrong, one enum per operation
//! - `host`, `stub`: the process itself, from outside
//! - `mapping`: mappings of the guest and what they hold
//! - `space`: `Space`, the public face

mod block;
mod config;
mod error;
mod exit;
mod host;
mod mapping;
mod space;
mod stub;

pub use block::Block;
pub use config::{Config, Watch, WatchKind};
pub use error::{ForkError, HostError, MapError, NewError, RunError, WriteError};
pub use exit::{Exit, Fault, Trapped};
pub use mapping::{MapRequest, MapSource, Mapping};
pub use space::{Sharing, Space};
pub use translate::Mode;
