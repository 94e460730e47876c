//! Instructions for which memory shows other bytes than those that run, as it did while recording: loads see what a recorder wrote there.

use std::collections::BTreeMap;

use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};

use crate::WriteError;
use crate::space::Space;

/// The bytes that run, by address, where memory shows others.
#[derive(Clone, Default, Debug)]
pub(crate) struct Rewritten(BTreeMap<u64, u8>);

impl Rewritten {
    /// Puts what runs into bytes that were read at an address.
    pub(crate) fn put(&self, at: GuestAddr, bytes: &mut [u8]) {
        if self.0.is_empty() {
            return;
        }
        for (addr, own) in self.0.range(at.0..at.0.saturating_add(bytes.len() as u64)) {
            bytes[(addr - at.0) as usize] = *own;
        }
    }

    /// What lies in a range runs as memory shows it.
    pub(crate) fn forget(&mut self, range: GuestRange) {
        if !self.0.is_empty() {
            self.0.retain(|addr, _| !range.contains(GuestAddr(*addr)));
        }
    }

    /// Whether something in a range runs otherwise than memory shows it.
    pub(crate) fn overlaps(&self, range: GuestRange) -> bool {
        !self.0.is_empty() && self.0.range(range.start.0..range.end.0).next().is_some()
    }

    fn set(&mut self, at: GuestAddr, shown: &[u8], own: &[u8]) {
        for ((addr, shown), own) in (at.0..).zip(shown).zip(own) {
            match shown == own {
                true => self.0.remove(&addr),
                false => self.0.insert(addr, *own),
            };
        }
    }
}

/// Memory as the program has it: its own instructions where memory shows what a recorder wrote there.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a>(&'a Space);

impl GuestMemory for Own<'_> {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
        self.0.read(addr, into)?;
        self.0.rewritten.put(addr, into);
        Ok(())
    }
}

impl Space {
    /// Memory with the program's own instructions, for those who look at it from outside. Loads see [`Space`]'s.
    pub fn own(&self) -> Own<'_> {
        Own(self)
    }

    /// Memory at `addr` holds `shown` from now on, while what runs there stays `own`.
    ///
    /// # Errors
    ///
    /// What runs there is something else, or nothing is mapped.
    pub fn rewrite(&mut self, addr: GuestAddr, shown: &[u8], own: &[u8]) -> Result<(), WriteError> {
        let unmapped = |hole: Unmapped| WriteError::Unmapped { addr: hole.addr };
        let mut now = vec![0; own.len()];
        self.own().read(addr, &mut now).map_err(unmapped)?;
        if now != own {
            return Err(WriteError::OtherCode { addr });
        }
        self.host.write(addr.0, shown).map_err(unmapped)?;
        self.rewritten.set(addr, shown, own);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rewritten: &Rewritten, at: u64, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        rewritten.put(GuestAddr(at), &mut bytes);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn bytes_are_put_where_they_run() {
        let mut rewritten = Rewritten::default();
        rewritten.set(GuestAddr(0x1000), &[9, 9, 3], &[1, 2, 3]);
        rewritten.set(GuestAddr(0x1010), &[9, 9], &[4, 5]);
        check(&rewritten, 0xfff, &[0, 1, 2, 0]);
        check(&rewritten, 0x1001, &[2, 0]);
        let equal = GuestRange::new(GuestAddr(0x1002), 0xe);
        assert!(!rewritten.overlaps(equal), "the same bytes run as are shown");
        rewritten.forget(GuestRange::new(GuestAddr(0x1001), 0x10));
        check(&rewritten, 0x1000, &[1, 0]);
        check(&rewritten, 0x1010, &[0, 5]);
        rewritten.set(GuestAddr(0x1011), &[5], &[5]);
        check(&rewritten, 0x1010, &[0, 0]);
    }
}
