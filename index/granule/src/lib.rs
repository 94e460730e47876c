//! The granule codec: what up to a few million instructions of one address space executed and wrote, in columns.
//!
//! Pure: bytes in, bytes out. Knows nothing of SQLite, processes or the trace. Times here are *ticks*: the number of
//! instructions the space has retired, over all its tasks in the order they took turns.

mod frames;
mod granule;
mod shape;
mod wire;
mod writes;

pub use frames::CallKind;
pub use granule::DecodeError;
pub use shape::{BlockEnd, BlockId, BlockShape, BlockTable, StoreShape, StoreSize};
pub use wire::WireError;
pub use writes::{Origin, Write};
