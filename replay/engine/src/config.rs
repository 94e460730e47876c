//! What a space is made for. Plain values.

use guest::GuestRange;
use translate::{Branches, Mode};

/// How to make a space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Every range the guest ever maps, and the addresses of its faults (what lies there must not be the engine), in any order. The engine keeps out of them and clear of the stack; what
    /// is left out may collide with translated code, which then is an error of `map`.
    pub footprint: Vec<GuestRange>,
    /// The mode to begin in.
    pub mode: Mode,
    /// Room for the log of indexed mode, in bytes of address space; rounded up to pages. The more there is, the longer code runs
    /// without a stop; memory is taken only by what is written between two drains, 1 MiB or so. 0 for none, which makes
    /// [`Mode::Indexed`] unusable.
    pub log_bytes: usize,
    /// The CPU for the replaying process; the calling thread is pinned to it, too (a stop across cores costs
    /// twenty times as much). `None`: the one the thread is on.
    pub cpu: Option<usize>,
    /// Whether the recorded processor has restricted transactional memory, see [`has_rtm`]: without it, its instructions raise SIGILL;
    /// with it, every transaction aborts at once. By default as this processor.
    pub rtm: bool,
    /// Conditional branches to count besides instructions, see [`Space::branches`](crate::Space::branches): to search for where a hardware
    /// counter stood while recording. None by default, which costs nothing.
    pub branches: Branches,
}

/// Whether a processor has restricted transactional memory, from its answer (eax, ebx, ecx, edx) to CPUID leaf 7, subleaf 0: bit 11 of
/// EBX, or of EDX where transactions always abort (Intel SDM, volume 1, 16.3).
pub const fn has_rtm(leaf_7: [u32; 4]) -> bool {
    let [_, ebx, _, edx] = leaf_7;
    (ebx | edx) >> 11 & 1 != 0
}

impl Default for Config {
    fn default() -> Self {
        let leaf_7 = std::arch::x86_64::__cpuid_count(7, 0);
        let rtm = has_rtm([leaf_7.eax, leaf_7.ebx, leaf_7.ecx, leaf_7.edx]);
        Self {
            footprint: Vec::new(),
            mode: Mode::Plain,
            log_bytes: 0,
            cpu: None,
            rtm,
            branches: Branches::Uncounted,
        }
    }
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
