//! Guest addresses. Knows nothing about what is mapped where.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes in a page of the guest (x86-64 base page).
pub const PAGE_SIZE: u64 = 4096;

/// A virtual address in the guest. Arithmetic is explicit: wrapping as the CPU does it, or checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct GuestAddr(pub u64);

impl GuestAddr {
    /// The address `n` bytes further on, wrapping at 2^64 as address arithmetic does.
    pub const fn wrapping_add(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// The address `n` bytes before, wrapping at 0.
    pub const fn wrapping_sub(self, n: u64) -> Self {
        Self(self.0.wrapping_sub(n))
    }

    /// The address `n` bytes further on, or `None` past the end of the address space.
    pub const fn checked_add(self, n: u64) -> Option<Self> {
        match self.0.checked_add(n) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The start of the page this address lies in.
    pub const fn page(self) -> Self {
        Self(self.0 & !(PAGE_SIZE - 1))
    }

    /// The offset of this address in its page, in bytes.
    pub const fn page_offset(self) -> u64 {
        self.0 & (PAGE_SIZE - 1)
    }

    /// Whether a call here is one of the vsyscall page, which the kernel performs as a system call and returns from: `gettimeofday`,
    /// `time`, `getcpu` (`arch/x86/entry/vsyscall/vsyscall_64.c`).
    pub const fn is_vsyscall_entry(self) -> bool {
        matches!(self.0, 0xffff_ffff_ff60_0000 | 0xffff_ffff_ff60_0400 | 0xffff_ffff_ff60_0800)
    }

    /// This address rounded up to a page boundary, wrapping at 2^64.
    pub const fn page_up(self) -> Self {
        Self(self.0.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1))
    }
}

impl fmt::Debug for GuestAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for GuestAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A half-open range of guest addresses, `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct GuestRange {
    /// First address in the range.
    pub start: GuestAddr,
    /// First address past the range.
    pub end: GuestAddr,
}

impl GuestRange {
    /// The `len` bytes at `start`, cut off at the end of the address space.
    pub const fn new(start: GuestAddr, len: u64) -> Self {
        Self { start, end: GuestAddr(start.0.saturating_add(len)) }
    }

    /// Length in bytes.
    pub const fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether the range holds no byte.
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }

    /// Whether `addr` lies in the range.
    pub const fn contains(self, addr: GuestAddr) -> bool {
        self.start.0 <= addr.0 && addr.0 < self.end.0
    }

    /// Whether the two ranges share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end.0 && other.start.0 < self.end.0
    }

    /// The bytes both ranges share; empty when there are none.
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// The smallest page-aligned range that covers this one.
    pub const fn pages(self) -> Self {
        Self { start: self.start.page(), end: self.end.page_up() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_share_bytes_only_where_they_meet() {
        let low = GuestRange::new(GuestAddr(0x1000), 0x1000);
        let high = GuestRange::new(GuestAddr(0x2000), 0x1000);
        assert!(!low.overlaps(high));
        assert!(low.intersect(high).is_empty());
        assert!(low.overlaps(GuestRange::new(GuestAddr(0x1fff), 1)));
        assert_eq!(GuestRange::new(GuestAddr(0x1fff), 2).pages(), GuestRange::new(GuestAddr(0x1000), 0x2000));
    }
}
