//! What stands in the way, by name.

use crate::addr::CodeAddr;

/// Why a site stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no instruction that can be rewritten there.
    #[error("no instruction at {at} that can be rewritten")]
    NoTarget {
        /// The address.
        at: CodeAddr,
    },
    /// The code by which signal handlers return. Unwinders and debuggers know it by its bytes.
    #[error("the signal restorer at {at}")]
    Restorer {
        /// The `syscall` in it.
        at: CodeAddr,
    },
    /// The code before the instruction asks for a call that the caller does not want patched.
    #[error("system call {number} at {at}")]
    Number {
        /// The instruction.
        at: CodeAddr,
        /// The call's number.
        number: u32,
    },
    /// No method works.
    #[error(
        "no method for the instruction at {at} (island: {island}; forward: {forward}; backward: {backward})"
    )]
    NoMethod {
        /// The instruction.
        at: CodeAddr,
        /// Against a jump to an island.
        island: Obstacle,
        /// Against a window from the instruction on.
        forward: Obstacle,
        /// Against a window that ends with the instruction.
        backward: Obstacle,
    },
}

/// Why a method does not work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Obstacle {
    /// No unreachable padding is near enough and long enough.
    #[error("no padding in reach")]
    NoPadding,
    /// The code comes to an end before there is room.
    #[error("no room: the code ends at {at}")]
    NoRoom {
        /// Where nothing follows, or nothing is known to precede.
        at: CodeAddr,
    },
    /// Something may enter the window.
    #[error("entered at {at}")]
    Entered {
        /// Where.
        at: CodeAddr,
    },
    /// What lies there decodes to no instruction.
    #[error("no instruction at {at}")]
    Undecodable {
        /// Where.
        at: CodeAddr,
    },
    /// Instructions before the site are not known: there are too few starts to decode from, or they disagree.
    #[error("instructions before {at} are not known")]
    Unknown {
        /// The first that is known.
        at: CodeAddr,
    },
    /// An instruction that does something else elsewhere.
    #[error("{mnemonic:?} at {at} cannot be moved")]
    Immovable {
        /// The instruction.
        at: CodeAddr,
        /// What it is.
        mnemonic: iced_x86::Mnemonic,
    },
    /// An operand relative to rip.
    #[error("{target}, which the instruction at {at} addresses, is out of the stub's reach")]
    OutOfReach {
        /// The instruction.
        at: CodeAddr,
        /// What it addresses.
        target: CodeAddr,
    },
    /// Other patches lie there.
    #[error("taken by another patch at {at}")]
    Taken {
        /// Where.
        at: CodeAddr,
    },
}
