//! What a space is made for. Plain values.

use guest::GuestRange;

/// What translated code does besides running the guest. The guest-visible result of all modes is identical.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Count retired instructions.
    #[default]
    Plain,
    /// Count, and log executed blocks and memory writes.
    Indexed,
    /// Count, with flags exact at every instruction and breakpoints honoured.
    Exact,
}

/// How to make a space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// Every range the guest ever maps, in any order. The engine keeps out of them; what is left out may collide
    /// with translated code, which then is an error of `map`.
    pub footprint: Vec<GuestRange>,
    /// The mode to begin in.
    pub mode: Mode,
    /// Size of the log of indexed mode, in bytes; rounded up to pages. 0 for none, which makes
    /// [`Mode::Indexed`] unusable.
    pub log_bytes: usize,
    /// The CPU for the replaying process; the calling thread is pinned to it, too (a stop across cores costs
    /// twenty times as much). `None`: the one the thread is on.
    pub cpu: Option<usize>,
}

/// Which accesses a watchpoint reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WatchKind {
    /// Stores.
    Write,
    /// Loads and stores.
    Access,
}

/// A watchpoint: up to four, each covering naturally aligned 1, 2, 4 or 8 bytes; longer or unaligned ranges use
/// several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Watch {
    /// The bytes watched.
    pub range: GuestRange,
    /// Which accesses count.
    pub kind: WatchKind,
}
