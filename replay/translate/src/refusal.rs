//! What cannot be translated, by name.

use guest::GuestAddr;

/// Why there is no block at an address. Nothing is refused in the middle of a block: it ends before, and the refusal
/// comes when the instruction is asked for as the first of its own.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The first instruction cannot be fetched. Running on is a fault of the guest (SIGSEGV at `pc`, `addr` being the
    /// faulting address).
    #[error("no code at {addr} (instruction at {pc})")]
    Unreadable {
        /// The instruction.
        pc: GuestAddr,
        /// Its first byte that could not be read.
        addr: GuestAddr,
    },
    /// An instruction that Backstory does not support.
    #[error("unsupported instruction at {pc}: {name}")]
    Unsupported {
        /// The instruction.
        pc: GuestAddr,
        /// Its mnemonic or a description.
        name: String,
    },
    /// A rip-relative operand lies too far from where the block is to be placed.
    #[error("instruction at {pc} addresses {target}, out of reach of the code cache at {cache:#x}")]
    OutOfReach {
        /// The instruction.
        pc: GuestAddr,
        /// What it addresses.
        target: GuestAddr,
        /// Where the block was to lie.
        cache: u64,
    },
    /// The request itself is wrong (cold code too far from hot code, a block id of more than 28 bits, ...).
    #[error("bad translation request: {what}")]
    BadRequest {
        /// Which part.
        what: &'static str,
    },
}
