//! Which 8-byte words of which pages a granule writes: what the page index holds.

use guest::{GuestAddr, GuestRange, PAGE_SIZE};

use crate::wire::WireError;

/// A bit for every aligned 8-byte word of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageMask {
    lines: [u8; 64],
}

impl Default for PageMask {
    fn default() -> Self {
        Self { lines: [0; 64] }
    }
}

impl PageMask {
    /// Marks the words that the `len` bytes at `offset` touch, as far as they lie in the page.
    fn set(&mut self, offset: u64, len: u64) {
        let last = (offset + len.max(1) - 1).min(PAGE_SIZE - 1);
        for word in offset >> 3..=last >> 3 {
            self.lines[(word >> 3) as usize] |= 1 << (word & 7);
        }
    }

    /// Whether a marked word shares a byte with `range`, for the mask of the page at `page`.
    pub fn touches(&self, page: GuestAddr, range: GuestRange) -> bool {
        let part = range.intersect(GuestRange::new(page, PAGE_SIZE));
        if part.is_empty() {
            return false;
        }
        let (first, last) = (part.start.page_offset() >> 3, (part.end.0 - 1 - page.0) >> 3);
        (first..=last).any(|word| self.lines[(word >> 3) as usize] >> (word & 7) & 1 != 0)
    }

    /// A bitmap of touched 64-byte lines, then a byte of word bits per touched line.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut lines = 0u64;
        for (line, &words) in self.lines.iter().enumerate() {
            lines |= u64::from(words != 0) << line;
        }
        let mut out = lines.to_le_bytes().to_vec();
        out.extend(self.lines.iter().filter(|&&words| words != 0));
        out
    }

    /// What [`PageMask::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let (head, mut words) = bytes.split_first_chunk::<8>().ok_or(WireError::Short)?;
        let lines = u64::from_le_bytes(*head);
        let mut mask = Self::default();
        for (line, slot) in mask.lines.iter_mut().enumerate() {
            if lines >> line & 1 != 0 {
                let (&first, rest) = words.split_first().ok_or(WireError::Short)?;
                *slot = first;
                words = rest;
            }
        }
        if words.is_empty() { Ok(mask) } else { Err(WireError::Invalid { what: "page mask" }) }
    }
}

/// Slots in the memo of recent pages.
const MEMO: usize = 1024;

/// The pages a granule writes.
#[derive(Clone, Debug)]
pub(crate) struct PageSummary {
    pages: Vec<(u64, PageMask)>,
    known: std::collections::HashMap<u64, u32>,
    memo: Vec<(u64, u32)>,
}

impl Default for PageSummary {
    fn default() -> Self {
        Self { pages: Vec::new(), known: std::collections::HashMap::new(), memo: vec![(u64::MAX, 0); MEMO] }
    }
}

impl PageSummary {
    /// Adds a write of `len` bytes, at least 1.
    #[inline]
    pub(crate) fn add(&mut self, addr: u64, len: u64) {
        let offset = addr & (PAGE_SIZE - 1);
        if offset + len <= PAGE_SIZE {
            let mask = self.mask(addr >> 12);
            let (first, last) = (offset >> 3, (offset + len - 1) >> 3);
            mask.lines[(first >> 3) as usize] |= 1 << (first & 7);
            if last != first {
                mask.set(offset, len);
            }
        } else {
            self.add_long(addr, len);
        }
    }

    #[cold]
    fn add_long(&mut self, mut addr: u64, mut len: u64) {
        while len > 0 {
            let offset = addr & (PAGE_SIZE - 1);
            let part = len.min(PAGE_SIZE - offset);
            self.mask(addr >> 12).set(offset, part);
            addr = addr.wrapping_add(part);
            len -= part;
        }
    }

    #[inline]
    fn mask(&mut self, page: u64) -> &mut PageMask {
        let slot = (page as usize) % MEMO;
        let (known, index) = self.memo[slot];
        if known == page {
            return &mut self.pages[index as usize].1;
        }
        let pages = &mut self.pages;
        let index = *self.known.entry(page).or_insert_with(|| {
            pages.push((page, PageMask::default()));
            pages.len() as u32 - 1
        });
        self.memo[slot] = (page, index);
        &mut self.pages[index as usize].1
    }

    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.known.clear();
        self.memo.fill((u64::MAX, 0));
    }

    /// The touched pages by number (address / 4096) with their masks.
    pub(crate) fn sorted(&self) -> Vec<(u64, PageMask)> {
        let mut pages = self.pages.clone();
        pages.sort_unstable_by_key(|&(page, _)| page);
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_know_words() {
        let mut summary = PageSummary::default();
        summary.add(0x1ff9, 16); // crosses into the next page
        summary.add(0x1000, 1);
        summary.add(0x5000, 0x2001);
        let pages = summary.sorted();
        assert_eq!(pages.iter().map(|&(page, _)| page).collect::<Vec<_>>(), [1, 2, 5, 6, 7]);
        let check = |page: u64, at: u64, len: u64| {
            let mask = pages.iter().find(|&&(number, _)| number == page).unwrap().1;
            let mask = PageMask::from_bytes(&mask.to_bytes()).unwrap();
            mask.touches(GuestAddr(page << 12), GuestRange::new(GuestAddr(at), len))
        };
        assert!(check(1, 0x1000, 1) && check(1, 0x0fff, 2) && check(1, 0x1fff, 1) && check(2, 0x2008, 1));
        assert!(!check(1, 0x1008, 8) && !check(1, 0x1ff0, 8) && !check(2, 0x2010, 100));
        assert!(check(6, 0x6ff8, 1) && check(7, 0x7007, 1) && !check(7, 0x7008, 1));
    }
}
