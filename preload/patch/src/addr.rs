//! Addresses: in the program's code, and in the low region where stubs lie.

use std::fmt;

/// An address in the program's code, or, as a pc, where the plain program would be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CodeAddr(pub u64);

impl fmt::Display for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// An address below 2 GiB: what an absolute 32-bit displacement, which is sign-extended, can name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LowAddr(u32);

impl LowAddr {
    /// `None` where it does not lie below 2 GiB.
    pub const fn new(at: u64) -> Option<Self> {
        if at < 1 << 31 { Some(Self(at as u32)) } else { None }
    }

    /// The address.
    pub const fn get(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn displacement(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

impl fmt::Debug for LowAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
