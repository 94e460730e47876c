//! The process that replays: one live host process per guest address space, which holds the guest's memory at the guest's
//! addresses and runs translated code.
//!
//! It knows nothing of events or of the trace: a caller shapes the memory, sets the registers, runs, and is told why
//! running stopped.
//!
//! - `config`, `exit`, `error`, `mapping`: what callers say and are told
//! - `space`: `Space`, the public face: making, copying, registers; `memory`, `run`, `search`, `debug`, `logging` are
//!   its other parts
//! - `host`, `stub`: the process from outside, and the program it starts as
//! - `place`, `family`, `areas`: where things lie, what is shared between processes, what the guest has mapped
//! - `block`, `table`, `arena`, `patch`: translated blocks, how they are found and linked, where their code lies
//! - `calls`: system calls whose effects are put back in the cache
//! - `source`, `ahead`: reading guest code, translating it
//! - `fault`, `selfmod`: signals raised in the cache, and code that is written
//! - `rewritten`: code that memory shows as a recorder changed it

mod ahead;
mod areas;
mod arena;
mod block;
mod calls;
mod config;
mod debug;
mod error;
mod exit;
mod family;
mod fault;
mod host;
mod logging;
mod mapping;
mod memory;
mod patch;
mod place;
mod rewritten;
mod run;
mod search;
mod selfmod;
mod source;
mod space;
mod stub;
mod table;

pub use block::Block;
pub use calls::{Call, Made, Reading};
pub use config::{Config, Watch, WatchKind, has_rtm};
pub use error::{ForkError, HostError, MapError, NewError, RunError, WriteError};
pub use exit::{Exit, Fault, Trapped};
pub use mapping::{MapRequest, MapSource, Mapping};
pub use rewritten::Own;
pub use run::Counters;
pub use search::Search;
pub use space::{Group, Sharing, Space};
pub use translate::{Branches, Mode};
