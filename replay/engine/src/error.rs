//! What can go wrong, one enum per operation.

use std::io;

use guest::{GuestAddr, GuestRange};

/// The host refused something, or the replaying process is gone.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A system call failed, here or injected into the replaying process.
    #[error("{call} failed")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The replaying process ended by itself.
    #[error("replaying process is gone (wait status {status:#x})")]
    Gone {
        /// Status as `waitpid` gave it.
        status: i32,
    },
    /// The replaying process stopped in a way that nothing here causes.
    #[error("replaying process stopped unexpectedly (wait status {status:#x}, at {rip:#x})")]
    UnexpectedStop {
        /// Status as `waitpid` gave it.
        status: i32,
        /// Host instruction pointer.
        rip: u64,
    },
}

/// Why a space could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// The host refused.
    #[error("cannot start a replaying process")]
    Host(#[from] HostError),
    /// The translator refused the engine's layout.
    #[error("cannot lay out the engine's memory")]
    Layout(#[from] translate::Refusal),
    /// The footprint leaves no place below 2 GiB for the engine's own memory.
    #[error("the recorded program leaves no room for {bytes} bytes below 2 GiB")]
    NoRoom {
        /// How much was looked for.
        bytes: u64,
    },
}

/// Why a space could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// The host refused.
    #[error("cannot copy a replaying process")]
    Host(#[from] HostError),
}

/// Why the address space could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The host refused.
    #[error("cannot change mapping {range:?}")]
    Host {
        /// Where.
        range: GuestRange,
        /// Why.
        #[source]
        source: HostError,
    },
    /// The range is the engine's: the footprint given to [`Config`](crate::Config) left it out.
    #[error("range {range:?} is used by the engine")]
    Reserved {
        /// Where.
        range: GuestRange,
    },
    /// Address or length is not a multiple of the page size, or the length is 0.
    #[error("range {range:?} is not whole pages")]
    Unaligned {
        /// Where.
        range: GuestRange,
    },
}

/// Why bytes could not be put into guest memory.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing is mapped there.
    #[error("no memory to write at {addr}")]
    Unmapped {
        /// The first address that could not be written.
        addr: GuestAddr,
    },
    /// What runs there is not what it was said to be.
    #[error("the code at {addr} is not what was rewritten while recording")]
    OtherCode {
        /// Where.
        addr: GuestAddr,
    },
    /// The host refused.
    #[error("cannot write at {addr}")]
    Host {
        /// Where.
        addr: GuestAddr,
        /// Why.
        #[source]
        source: HostError,
    },
}

/// Why running failed (an error of the engine or the host; what the guest did is an [`Exit`](crate::Exit)).
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host refused.
    #[error("cannot run the replaying process")]
    Host(#[from] HostError),
    /// The translator was asked for something impossible: a bug of the engine.
    #[error("the translator refused a request")]
    Translation(#[source] translate::Refusal),
    /// No place for translated code within reach of the guest's code.
    #[error("no room for translated code near {pc}")]
    NoRoom {
        /// The guest code.
        pc: GuestAddr,
    },
    /// A fault in translated code that no guest instruction explains: a bug of the engine or the translator.
    #[error("fault (signal {signo}) at cache address {cache:#x}, which belongs to no guest instruction")]
    Unexplained {
        /// Signal number.
        signo: i32,
        /// Host instruction pointer.
        cache: u64,
    },
    /// Indexed mode was asked of a space without a log.
    #[error("indexed mode needs a log")]
    NoLog,
    /// More code was translated than a log can tell apart.
    #[error("more than {} blocks of code in one process", translate::log::MAX_BLOCKS)]
    TooManyBlocks,
    /// More words to search for than [`Search::MAX_WORDS`](crate::Search::MAX_WORDS).
    #[error("{count} words to search for, more than {}", crate::Search::MAX_WORDS)]
    TooManyWords {
        /// How many.
        count: usize,
    },
    /// More watched bytes than the debug registers can cover.
    #[error("more watchpoints than the CPU has debug registers")]
    TooManyWatches,
}
