//! Instructions for which memory shows other bytes than those that run, as it did while recording: loads see what a recorder wrote there.

use std::collections::{BTreeMap, BTreeSet};

use guest::{GuestAddr, GuestMemory, GuestRange, PAGE_SIZE, Unmapped};

use crate::space::Space;
use crate::{HostError, WriteError};

/// No jump takes more bytes, with what is left of the instructions that it was written over.
const LONGEST: u64 = 32;

/// What was written over instructions, by address: a jump to code of the recorder's, perhaps by way of others.
#[derive(Clone, Default, Debug)]
pub(crate) struct Rewritten {
    jumps: BTreeMap<u64, Jump>,
    /// Pages of the recorder's memory that such jumps go through, as far as they are mapped here.
    slots: BTreeSet<GuestAddr>,
}

/// One of them.
#[derive(Clone, Debug)]
struct Jump {
    shown: Vec<u8>,
    own: Vec<u8>,
    /// Memory shows it. Where it was put back, it may yet be written again, by the program.
    stands: bool,
    /// Another jump leads here, where no instruction of the program's is.
    island: bool,
}

/// Where a jump leads.
#[derive(Clone, Copy)]
enum Target {
    /// To where these eight bytes say.
    Slot(u32),
    /// To another jump.
    Island(u64),
}

impl Jump {
    fn range(&self, at: u64) -> GuestRange {
        GuestRange::new(GuestAddr(at), self.own.len() as u64)
    }

    fn target(&self, at: u64) -> Option<Target> {
        let behind = |len: u64, by: i64| Target::Island((at + len).wrapping_add_signed(by));
        match *self.shown {
            [0xff, 0x24, 0x25, a, b, c, d, ..] => Some(Target::Slot(u32::from_le_bytes([a, b, c, d]))),
            [0xeb, by, ..] => Some(behind(2, i64::from(by.cast_signed()))),
            [0xe9, a, b, c, d, ..] => Some(behind(5, i64::from(i32::from_le_bytes([a, b, c, d])))),
            _ => None,
        }
    }
}

/// For whom memory is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// Those who look at the program.
    People,
    /// What runs it: jumps that lead elsewhere than the program's own go on to there.
    Translation,
}

impl Rewritten {
    /// Puts what is the program's own into bytes that were read at an address. `read` tells what memory shows.
    pub(crate) fn put(
        &self,
        at: GuestAddr,
        bytes: &mut [u8],
        whom: For,
        read: &dyn Fn(u64, &mut [u8]) -> bool,
    ) {
        for (start, jump) in self.within(GuestRange::new(at, bytes.len() as u64)) {
            if jump.island && whom == For::Translation || !self.is_shown(start, jump, read) {
                continue;
            }
            for (addr, own) in (start..).zip(&jump.own) {
                let place = addr.checked_sub(at.0).and_then(|offset| bytes.get_mut(offset as usize));
                place.into_iter().for_each(|place| *place = *own);
            }
        }
    }

    /// Whether memory shows a jump, and those that it leads to.
    fn is_shown(&self, at: u64, jump: &Jump, read: &dyn Fn(u64, &mut [u8]) -> bool) -> bool {
        let mut now = vec![0; jump.shown.len()];
        let here = jump.stands || read(at, &mut now) && now == jump.shown;
        here && match jump.target(at) {
            Some(Target::Island(next)) if !jump.stands => {
                self.jumps.get(&next).is_some_and(|island| island.island && self.is_shown(next, island, read))
            }
            _ => true,
        }
    }

    /// Those that overlap a range.
    fn within(&self, range: GuestRange) -> impl Iterator<Item = (u64, &Jump)> {
        let from = range.start.0.saturating_sub(LONGEST);
        let near = self.jumps.range(from..range.end.0.max(from));
        near.map(|(&at, jump)| (at, jump)).filter(move |(at, jump)| jump.range(*at).overlaps(range))
    }

    /// Memory in a range is other memory from now on.
    pub(crate) fn forget(&mut self, range: GuestRange) {
        self.jumps.retain(|&at, jump| !jump.range(at).overlaps(range));
        self.slots.retain(|page| !range.contains(*page));
    }

    /// Something is written into a range. Whether it concerns what was rewritten there.
    pub(crate) fn written(&mut self, range: GuestRange) -> bool {
        let concerned = self.jumps.iter_mut().filter(|(at, jump)| jump.range(**at).overlaps(range));
        concerned.map(|(_, jump)| jump.stands = false).count() > 0
    }

    /// Whether anything was rewritten in a range.
    pub(crate) fn overlaps(&self, range: GuestRange) -> bool {
        self.within(range).next().is_some()
    }

    fn set(&mut self, at: GuestAddr, shown: &[u8], own: &[u8]) {
        let range = GuestRange::new(at, own.len() as u64);
        if shown == own {
            self.written(range);
            return;
        }
        self.jumps.retain(|&other, jump| !jump.range(other).overlaps(range));
        let jump = Jump { shown: shown.to_vec(), own: own.to_vec(), stands: true, island: false };
        self.jumps.insert(at.0, jump);
    }

    /// Makes what the jump at `at` leads to islands. These, and the slot at the end.
    fn follow(&mut self, mut at: u64) -> (Vec<GuestRange>, Option<GuestAddr>) {
        let mut islands = Vec::new();
        let mut target = self.jumps.get(&at).and_then(|jump| jump.target(at));
        while let Some(Target::Island(next)) = target
            && let Some(island) = self.jumps.get_mut(&next).filter(|_| next != at && islands.len() < 2)
        {
            island.island = true;
            islands.push(island.range(next));
            at = next;
            target = island.target(at);
        }
        match target {
            Some(Target::Slot(slot)) => (islands, Some(GuestAddr(u64::from(slot)))),
            _ => (islands, None),
        }
    }
}

/// Memory as the program has it: its own instructions where memory shows what a recorder wrote there.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a>(&'a Space);

impl GuestMemory for Own<'_> {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
        self.0.read(addr, into)?;
        let shown = |at, into: &mut [u8]| self.0.host.read(at, into).is_ok();
        self.0.rewritten.put(addr, into, For::People, &shown);
        Ok(())
    }
}

impl Space {
    /// Memory with the program's own instructions, for those who look at it from outside. Loads see [`Space`]'s.
    pub fn own(&self) -> Own<'_> {
        Own(self)
    }

    /// Memory at `addr` holds `shown` from now on, a jump, while what runs there stays `own`. Where the program makes copies of the jump
    /// or puts it back where it was, what runs there is `own`, too.
    ///
    /// # Errors
    ///
    /// What runs there is something else, nothing is mapped, or the host refused.
    pub fn rewrite(&mut self, addr: GuestAddr, shown: &[u8], own: &[u8]) -> Result<(), WriteError> {
        let unmapped = |hole: Unmapped| WriteError::Unmapped { addr: hole.addr };
        let mut now = vec![0; own.len()];
        self.own().read(addr, &mut now).map_err(unmapped)?;
        if now != own || own.len() != shown.len() || own.len() as u64 > LONGEST {
            return Err(WriteError::OtherCode { addr });
        }
        self.host.write(addr.0, shown).map_err(unmapped)?;
        self.rewritten.set(addr, shown, own);
        if shown != own {
            self.lead_back(addr).map_err(|source| WriteError::Host { addr, source })?;
        }
        Ok(())
    }

    /// Lets what the jump at `addr` leads to lead back there: copies of it, and of islands on the way.
    fn lead_back(&mut self, addr: GuestAddr) -> Result<(), HostError> {
        let (islands, slot) = self.rewritten.follow(addr.0);
        islands.into_iter().for_each(|island| self.forget_code(island));
        let Some(slot) = slot.filter(|slot| self.areas.at(*slot).is_none()) else { return Ok(()) };
        let page = slot.page();
        if self.rewritten.slots.insert(page) {
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
            let args = [page.0, PAGE_SIZE, libc::PROT_READ as u64, flags, u64::MAX, 0];
            self.host.call("mmap", libc::SYS_mmap, args)?;
        }
        let failed = |_| HostError::Call { call: "mmap", source: std::io::ErrorKind::InvalidInput.into() };
        self.host.write(slot.0, &addr.0.to_le_bytes()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THROUGH: [u8; 7] = [0xff, 0x24, 0x25, 0, 0x20, 1, 0];

    /// Memory from 0x1000 on, and what is the program's own there.
    #[track_caller]
    fn check(rewritten: &Rewritten, memory: &[u8], whom: For, expected: &[u8]) {
        let shown = |at: u64, into: &mut [u8]| {
            let at = at as usize - 0x1000;
            memory.get(at..at + into.len()).map(|bytes| into.copy_from_slice(bytes)).is_some()
        };
        for from in 0..memory.len() {
            let mut bytes = memory[from..].to_vec();
            rewritten.put(GuestAddr(0x1000 + from as u64), &mut bytes, whom, &shown);
            assert_eq!(bytes, expected[from..], "from {from}");
        }
    }

    #[test]
    fn what_is_the_programs_own_is_put_where_memory_shows_a_jump() {
        let mut rewritten = Rewritten::default();
        rewritten.set(GuestAddr(0x1001), &THROUGH, &[1; 7]);
        let memory = [&[9][..], &THROUGH, &[8]].concat();
        let own = [&[9][..], &[1; 7], &[8]].concat();
        check(&rewritten, &memory, For::Translation, &own);
        // Put back; other bytes there are what they are.
        rewritten.set(GuestAddr(0x1001), &[1; 7], &[1; 7]);
        check(&rewritten, &own, For::Translation, &own);
        let others = [7; 9];
        check(&rewritten, &others, For::Translation, &others);
        // Written once more, by the program.
        check(&rewritten, &memory, For::Translation, &own);
        rewritten.forget(GuestRange::new(GuestAddr(0x1007), 1));
        check(&rewritten, &memory, For::Translation, &memory);
    }

    #[test]
    fn islands_run_as_they_are() {
        let mut rewritten = Rewritten::default();
        rewritten.set(GuestAddr(0x1004), &THROUGH, &[0x90; 7]);
        rewritten.set(GuestAddr(0x1000), &[0xeb, 2], &[0x0f, 5]);
        rewritten.jumps.get_mut(&0x1004).unwrap().island = true;
        let memory = [&[0xeb, 2, 3, 3][..], &THROUGH].concat();
        check(&rewritten, &memory, For::People, &[&[0x0f, 5, 3, 3][..], &[0x90; 7]].concat());
        check(&rewritten, &memory, For::Translation, &[&[0x0f, 5, 3, 3][..], &THROUGH].concat());
        // A jump to what is no island any more is the program's.
        rewritten.written(GuestRange::new(GuestAddr(0x1000), 11));
        let other = [&[0xeb, 2, 3, 3][..], &[0x90; 7]].concat();
        check(&rewritten, &other, For::Translation, &other);
        check(&rewritten, &memory, For::Translation, &[&[0x0f, 5, 3, 3][..], &THROUGH].concat());
    }
}
