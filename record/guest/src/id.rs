//! Identities. Dense ids number things in the order the recording met them; `Tid` is what the guest saw.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! dense_id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// This id as an index into a vector that has one element per id.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

dense_id! {
    /// A recorded task (thread), numbered from 0 in order of appearance. Task 0 is the command itself.
    TaskId(u32)
}
dense_id! {
    /// A recorded address space, numbered from 0 in order of appearance. `fork` and `execve` make new ones; a
    /// child that shares its parent's memory (vfork, threads) shares the space.
    SpaceId(u32)
}
dense_id! {
    /// A file whose contents the trace keeps.
    FileId(u32)
}
dense_id! {
    /// A piece of what calls read of files, kept by the trace.
    PieceId(u32)
}
dense_id! {
    /// The position of an event in the event stream, from 0.
    EventId(u64)
}

/// A thread id as the recorded program saw it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Tid(pub i32);

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
