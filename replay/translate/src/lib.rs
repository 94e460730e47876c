//! Guest bytes in; code-cache bytes, links and metadata out.
//!
//! Pure: no system call, no process, no clock. The same request always gives the same answer. What runs the code, and
//! where, is the engine's business; what is recorded, nobody's here.
//!
//! - `layout`: what generated code finds at fixed addresses: the engine page, the lookup table, the common stubs
//! - `runtime`: the bytes of the common stubs
//! - `request`: what to translate, and how
//! - `block`: what comes out: code, links, exits, marks, store slots, paths
//! - `class`: the one table of instruction classes
//! - `plan`: which instructions a block has, which way it goes and how it ends
//! - `flags`: where the arithmetic flags are dead
//! - `stores`: what an instruction stores
//! - `emit`: a small assembler
//! - `generate`: from a plan to code; `count`, `branch` and `observe` are its parts
//! - `search`: comparing the guest's state with one that is looked for
//! - `calls`: putting back what a system call did
//! - `log`: what observed code writes, and a walker over it
//! - `refusal`: what cannot be translated, by name
//!
//! Not supported: a guest that sets the trap flag (not noticed: its traps would come in the wrong places). Where it turns
//! alignment checks on, what the log's own code accesses may fault ([`Mark::logging`]): the supervisor steps over that.

mod block;
mod branch;
mod calls;
mod class;
mod count;
mod emit;
mod flags;
mod generate;
mod layout;
pub mod log;
mod observe;
mod plan;
mod refusal;
mod request;
mod runtime;
mod search;
mod stores;

pub use block::{
    Address, BlockId, Condition, Contents, Exit, ExitKind, Indirect, Link, Mark, Path, Signal, Slot, Special,
    Spilled, StateImage, StringOp, Terminator, Translated,
};
pub use calls::{PreparedCall, PreparedPiece, after_reading};
pub use class::{Class, classify};
pub use generate::translate;
pub use layout::{
    CacheAddr, DEFAULT_LAYOUT, ENGINE_PAGE_SIZE, EXIT_SYSCALL, EnginePage, LOOKUP_TABLE_BYTES,
    LOOKUP_TABLE_SLOTS, Layout, MAX_BUDGET, RUNTIME_BLOCK, RUNTIME_PAGE_SIZE, SEARCH_WORDS, SearchPage,
    lookup_slot,
};
pub use refusal::Refusal;
pub use request::{Branches, Bytes, Mode, Request, SearchAt, Source};
pub use runtime::{MayFault, Runtime, RuntimeExit, build_runtime};
