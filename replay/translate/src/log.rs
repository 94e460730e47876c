//! What code in a logging mode writes, and a walker over it.
//!
//! The log is a sequence of records, little-endian, 4-byte granular, one for each execution of a block, in order. The supervisor
//! decides where the log lies by [`log_next`](crate::EnginePage::log_next); code only appends.
//!
//! ```text
//! record  := header: u32 = id << 4 | path, then path.log_bytes bytes (see Slot), then for a block of one string store
//!            (or state save) the contents, `len` bytes padded to 4
//!          | header: u32 = id << 4 | 15, instructions: u32, then the bytes of the slots of those first
//!            `instructions` instructions: a block that a fault ended (written by the supervisor: `partial_record`)
//! ```
//!
//! A block whose budget did not cover it has no record. Nothing checks for the log's end: the supervisor gives a budget of at most
//! `B` instructions with `B * MAX_BYTES_PER_INSTRUCTION` bytes of room, and sets
//! [`log_bulk_limit`](crate::EnginePage::log_bulk_limit) to the log's end minus that room. Then, whatever is run, the
//! log's end is not passed.

use guest::GuestAddr;

use crate::block::{BlockId, Mark, Path, Slot, Translated};

/// Most bytes that one instruction adds to the log, bulk contents aside. A block of no instructions adds [`HEADER_BYTES`].
pub const MAX_BYTES_PER_INSTRUCTION: u64 = 128;

/// Bytes of a record's header.
pub const HEADER_BYTES: u32 = 4;

/// The path number of a record that a fault ended.
pub const PARTIAL_PATH: u32 = 15;

/// What a walker must know of a block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockLog {
    /// The block's paths.
    pub paths: Vec<Path>,
    /// The block's slots.
    pub slots: Vec<Slot>,
}

impl From<&Translated> for BlockLog {
    fn from(block: &Translated) -> Self {
        Self { paths: block.paths.clone(), slots: block.slots.clone() }
    }
}

/// What a log says, in order: a block, then its stores.
pub trait Sink {
    /// Block `id` ran its first `instructions` instructions: all of path `path`, or, when that is [`PARTIAL_PATH`], as many
    /// as there were before a fault.
    fn block(&mut self, id: BlockId, path: u32, instructions: u32);

    /// Slot `slot` of that block stored `bytes` at `addr`. Masked and string stores come in as many pieces as they made runs.
    fn store(&mut self, slot: u32, addr: GuestAddr, bytes: &[u8]);
}

/// A log that no code can have written, or the wrong blocks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadLog {
    /// A record names a block that is not known.
    #[error("log record at byte {at} names the unknown block {id}")]
    UnknownBlock {
        /// Offset of the record, in bytes.
        at: usize,
        /// The block.
        id: u32,
    },
    /// A record names a path its block does not have.
    #[error("log record at byte {at}: block {id} has no path {path}")]
    UnknownPath {
        /// Offset of the record, in bytes.
        at: usize,
        /// The block.
        id: u32,
        /// The path.
        path: u32,
    },
    /// The log ends in the middle of a record.
    #[error("log record at byte {at} is cut off")]
    Truncated {
        /// Offset of the record, in bytes.
        at: usize,
    },
}

/// Hands every record of `log` to `sink`. `blocks` is indexed by block id.
///
/// # Errors
///
/// See [`BadLog`]; what came before the bad record has been handed over.
pub fn walk(log: &[u8], blocks: &[BlockLog], sink: &mut impl Sink) -> Result<(), BadLog> {
    let _ = (log, blocks, sink);
    Ok(())
}

/// The record of a block that a fault ended at `mark`, to be appended to the log (at or after `log_next`). `written` are the bytes
/// from [`log_next`](crate::EnginePage::log_next) on (as many as the block's longest path has, plus the header); `rdi` is the guest's
/// rdi at the fault, and `contents` reads guest memory for a string store that was interrupted (start, bytes to fill).
pub fn partial_record(
    block: &Translated,
    mark: &Mark,
    written: &[u8],
    rdi: u64,
    contents: &mut dyn FnMut(GuestAddr, &mut [u8]),
) -> Vec<u8> {
    let _ = (block, mark, written, rdi, contents);
    Vec::new()
}

/// The record of a block that left by [`ExitKind::LogBulk`](crate::ExitKind::LogBulk): `start` is
/// [`bulk_start`](crate::EnginePage::bulk_start), `rdi` the guest's rdi now; `contents` reads guest memory (start, bytes to fill).
pub fn bulk_record(
    block: &Translated,
    start: u64,
    rdi: u64,
    contents: &mut dyn FnMut(GuestAddr, &mut [u8]),
) -> Vec<u8> {
    let _ = (block, start, rdi, contents);
    Vec::new()
}
