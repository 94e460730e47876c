//! Guest memory for tests: the pages of the bytes that were put there, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use guest::{GuestAddr, GuestMemory, Unmapped};

/// Memory that has the bytes put into it, zeroes around them in their pages, and no other pages.
#[derive(Default)]
pub(crate) struct Bytes {
    bytes: BTreeMap<u64, u8>,
    pages: BTreeSet<GuestAddr>,
}

impl Bytes {
    /// Puts `bytes` at `at`.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes.extend((at..).zip(bytes.iter().copied()));
        self.pages.extend((at..).zip(bytes).map(|(at, _)| GuestAddr(at).page()));
    }

    /// Puts `len` zero bytes at `at`.
    pub(crate) fn zero(&mut self, at: u64, len: usize) {
        self.put(at, &vec![0; len]);
    }

    /// Puts a 32-bit word at `at`.
    pub(crate) fn put_u32(&mut self, at: u64, word: u32) {
        self.put(at, &word.to_le_bytes());
    }

    /// Puts a 64-bit word at `at`.
    pub(crate) fn put_u64(&mut self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }
}

impl GuestMemory for Bytes {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
        for (offset, byte) in into.iter_mut().enumerate() {
            let at = addr.wrapping_add(offset as u64).0;
            if !self.pages.contains(&GuestAddr(at).page()) {
                return Err(Unmapped { addr: GuestAddr(at) });
            }
            *byte = self.bytes.get(&at).copied().unwrap_or(0);
        }
        Ok(())
    }
}
