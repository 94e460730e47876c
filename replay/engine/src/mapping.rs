//! Mappings of the guest and what they hold.

use std::path::PathBuf;

use guest::{GuestRange, Prot};

/// What a fresh mapping holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapSource {
    /// Zeroes.
    Zero,
    /// A file's bytes from `offset` on; pages past its end fault with SIGBUS. The file itself is never changed.
    File {
        /// A file on this host.
        path: PathBuf,
        /// Offset of the first byte.
        offset: u64,
        /// For shared mappings, which object this is: mappings with the same number alias each other, in this space and
        /// in all that were forked from a common ancestor. (Its contents come from the `path` named first.)
        object: u64,
    },
}

/// A request to map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapRequest {
    /// Where; replaces whatever was there.
    pub range: GuestRange,
    /// With which protection.
    pub prot: Prot,
    /// `MAP_SHARED` rather than `MAP_PRIVATE`.
    pub shared: bool,
    /// `MAP_GROWSDOWN`: a stack.
    pub grows_down: bool,
    /// `MAP_NORESERVE`.
    pub no_reserve: bool,
    /// What it holds at first.
    pub source: MapSource,
}

/// A mapping of the guest as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Where.
    pub range: GuestRange,
    /// The guest's protection (the host's lacks execution, and writing where code was translated from).
    pub prot: Prot,
    /// Whether it is a shared mapping.
    pub shared: bool,
    /// Whether it grows downwards.
    pub grows_down: bool,
}
