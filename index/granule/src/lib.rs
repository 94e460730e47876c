//! The granule codec: what up to a few million instructions of one address space executed and wrote, in columns.
//!
//! Pure: bytes in, bytes out. Knows nothing of SQLite, processes or the trace. Times here are *ticks*: the number of
//! instructions the space has retired, over all its tasks in the order they took turns. Marks inside a granule map
//! ticks to moments.
//!
//! - `shape`: what a basic block is to the index, and the table that numbers blocks
//! - `wire`: varints and zstd
//! - `raw`: a granule while it is being filled
//! - `encode`: from a filled granule to columns
//! - `digest`: what encoding needs of each block
//! - `scatter`: what log records hold, sorted by slot
//! - `addresses`: the address streams, one per store of a block
//! - `values`: the value pieces
//! - `dictionary`: which blocks a granule runs, and how each of their slots is coded
//! - `pages`: which words of which pages a granule writes
//! - `marks`: ticks to moments and tasks
//! - `system`: what the kernel wrote
//! - `granule`: the decoder
//! - `writes`, `runs`: lazy walks over a decoded granule
//! - `frames`: calls and returns, found from the block sequence and the return addresses pushed

mod addresses;
mod dictionary;
mod digest;
mod encode;
mod frames;
mod granule;
mod marks;
mod pages;
mod raw;
mod runs;
mod scatter;
mod shape;
mod system;
mod values;
mod wire;
mod writes;

pub use encode::{CodeUse, EncodeError, Encoded, Encoder};
pub use frames::{Call, CallKind, Frame, Frames, Hint, HintKind, Unfinished};
pub use granule::{ColumnSource, Counters, DecodeError, Granule};
pub use marks::{Mark, Marks};
pub use pages::PageMask;
pub use raw::{RawGranule, SystemWrite};
pub use runs::{BlockRun, Runs};
pub use shape::{
    BlockEnd, BlockId, BlockInterner, BlockShape, BlockTable, Seam, StoreAddress, StoreContents, StoreShape,
    StoreSize,
};
pub use wire::WireError;
pub use writes::{Origin, Write, WriteFilter, Writes};
