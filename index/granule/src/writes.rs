//! A lazy walk over the writes of a granule.

use guest::{EventId, GuestAddr, GuestRange};

use crate::shape::BlockId;

/// Who made a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// A store of an executed block.
    Store {
        /// Which block.
        block: BlockId,
        /// Which of its stores, from 0.
        store: u16,
        /// The address of the storing instruction.
        pc: GuestAddr,
    },
    /// The kernel, in an event.
    System {
        /// Which.
        event: EventId,
    },
}

/// One write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Write {
    /// The tick of its instruction; for the kernel's, the tick at which the event happened, before that tick's
    /// instruction.
    pub tick: u64,
    /// First byte written.
    pub addr: GuestAddr,
    /// Number of bytes, at least 1.
    pub len: u32,
    /// Who.
    pub origin: Origin,
    /// Which execution of its store it is, or which of the kernel's writes; where its value lies.
    pub(crate) occurrence: u32,
}

impl Write {
    /// The bytes written.
    pub fn range(&self) -> GuestRange {
        GuestRange::new(self.addr, u64::from(self.len))
    }
}
