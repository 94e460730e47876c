//! The nouns every stage shares: addresses, identities, points in time, registers, protections and the
//! guest-memory trait.
//!
//! Pure: no system calls, no formats, no policy. Everything here is a plain value.
//!
//! - `addr`: guest addresses and ranges of them
//! - `time`: `Moment`, `Ticks`, `TickDelta`
//! - `id`: tasks, spaces, events, thread ids
//! - `regs`: the general registers and the extended state
//! - `image`: where what lies in a register image in memory
//! - `when`: moments as people type them
//! - `memory`: protections and the trait by which guest memory is read

mod addr;
mod id;
mod image;
mod memory;
mod regs;
mod time;
mod when;

pub use addr::{GuestAddr, GuestRange, PAGE_SIZE};
pub use id::{EventId, FileId, PieceId, SpaceId, TaskId, Tid};
pub use image::{COMPACTED, IMAGE_HEADER, image_len, image_parts};
pub use memory::{GuestMemory, Prot, Unmapped};
pub use regs::{RegisterName, Registers, XState};
pub use time::{Moment, TickDelta, Ticks};
pub use when::{Landmarks, When, WhenError};
