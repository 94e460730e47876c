//! Which bytes of which pages a granule writes: what the page index holds.

use guest::{GuestAddr, GuestRange, PAGE_SIZE};

use crate::wire::WireError;

/// Which bytes of a page were written: for each aligned 8-byte word a bit for each of its bytes.
///
/// Whole words alone would send a question about one of two small fields in a word through every granule that writes
/// the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageMask {
    words: [u8; 512],
}

impl Default for PageMask {
    fn default() -> Self {
        Self { words: [0; 512] }
    }
}

impl PageMask {
    /// Marks `len` bytes at `offset`, which lie in the page.
    #[inline]
    fn set(&mut self, offset: u64, len: u64) {
        if len <= 8 {
            let bits = ((1u16 << len) - 1) << (offset & 7);
            let word = (offset >> 3) as usize;
            self.words[word & 511] |= bits as u8;
            if bits > 0xff {
                self.words[(word + 1) & 511] |= (bits >> 8) as u8;
            }
        } else {
            self.set_long(offset, len);
        }
    }

    fn set_long(&mut self, offset: u64, len: u64) {
        let (mut at, end) = (offset, (offset + len).min(PAGE_SIZE));
        while at < end {
            let part = (8 - (at & 7)).min(end - at);
            self.words[(at >> 3) as usize] |= (((1u16 << part) - 1) << (at & 7)) as u8;
            at += part;
        }
    }

    /// Whether a marked byte lies in `range`, for the mask of the page at `page`.
    pub fn touches(&self, page: GuestAddr, range: GuestRange) -> bool {
        let part = range.intersect(GuestRange::new(page, PAGE_SIZE));
        if part.is_empty() {
            return false;
        }
        let mut wanted = Self::default();
        wanted.set_long(part.start.page_offset(), part.len());
        let (first, last) = (part.start.page_offset() >> 3, (part.end.0 - 1 - page.0) >> 3);
        (first as usize..=last as usize).any(|word| self.words[word] & wanted.words[word] != 0)
    }

    /// A bitmap of touched 64-byte lines; then, for each touched line, a byte with a bit for each touched word and one
    /// with a bit for each whole one; then a byte for each touched word that is not whole.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut lines, mut masks, mut parts) = (0u64, Vec::new(), Vec::new());
        for (number, line) in self.words.chunks_exact(8).enumerate() {
            if line.iter().all(|&word| word == 0) {
                continue;
            }
            lines |= 1 << number;
            let bits = |wanted: fn(u8) -> bool| {
                (0..8).fold(0u8, |bits, word| bits | u8::from(wanted(line[word])) << word)
            };
            masks.extend([bits(|word| word != 0), bits(|word| word == 0xff)]);
            parts.extend(line.iter().filter(|&&word| word != 0 && word != 0xff));
        }
        let mut out = lines.to_le_bytes().to_vec();
        out.append(&mut masks);
        out.append(&mut parts);
        out
    }

    /// What [`PageMask::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let (head, rest) = bytes.split_first_chunk::<8>().ok_or(WireError::Short)?;
        let lines = u64::from_le_bytes(*head);
        let (masks, mut parts) =
            rest.split_at_checked(lines.count_ones() as usize * 2).ok_or(WireError::Short)?;
        let mut masks = masks.chunks_exact(2);
        let mut mask = Self::default();
        for (number, line) in mask.words.chunks_exact_mut(8).enumerate() {
            if lines >> number & 1 == 0 {
                continue;
            }
            let masks = masks.next().ok_or(WireError::Short)?;
            for (bit, word) in line.iter_mut().enumerate() {
                if masks[1] >> bit & 1 != 0 {
                    *word = 0xff;
                } else if masks[0] >> bit & 1 != 0 {
                    let (&part, rest) = parts.split_first().ok_or(WireError::Short)?;
                    *word = part;
                    parts = rest;
                }
            }
        }
        if parts.is_empty() { Ok(mask) } else { Err(WireError::Invalid { what: "page mask" }) }
    }
}

/// Slots in the memo of recent pages.
const MEMO: usize = 1024;

/// No page has this number.
const NONE: (u64, u32) = (u64::MAX, 0);

/// Something for each page a granule touches.
#[derive(Clone, Debug)]
pub(crate) struct ByPage<T> {
    pages: Vec<(u64, T)>,
    known: std::collections::HashMap<u64, u32>,
    memo: Vec<(u64, u32)>,
    /// The page asked for last.
    last: (u64, u32),
}

impl<T> Default for ByPage<T> {
    fn default() -> Self {
        let known = std::collections::HashMap::new();
        Self { pages: Vec::new(), known, memo: vec![NONE; MEMO], last: NONE }
    }
}

impl ByPage<PageMask> {
    /// Adds a write of `len` bytes, at least 1.
    #[inline]
    pub(crate) fn add(&mut self, addr: u64, len: u64) {
        let offset = addr & (PAGE_SIZE - 1);
        if offset + len <= PAGE_SIZE {
            self.of(addr >> 12).set(offset, len);
        } else {
            self.add_long(addr, len);
        }
    }

    #[cold]
    fn add_long(&mut self, mut addr: u64, mut len: u64) {
        while len > 0 {
            let offset = addr & (PAGE_SIZE - 1);
            let part = len.min(PAGE_SIZE - offset);
            self.of(addr >> 12).set(offset, part);
            addr = addr.wrapping_add(part);
            len -= part;
        }
    }
}

impl<T: Clone + Default> ByPage<T> {
    /// What there is for a page.
    #[inline]
    pub(crate) fn of(&mut self, page: u64) -> &mut T {
        if self.last.0 != page {
            self.last = (page, self.index(page));
        }
        &mut self.pages[self.last.1 as usize].1
    }

    fn index(&mut self, page: u64) -> u32 {
        let slot = (page as usize) % MEMO;
        let (known, index) = self.memo[slot];
        if known == page {
            return index;
        }
        let pages = &mut self.pages;
        let index = *self.known.entry(page).or_insert_with(|| {
            pages.push((page, T::default()));
            pages.len() as u32 - 1
        });
        self.memo[slot] = (page, index);
        index
    }

    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.known.clear();
        self.memo.fill(NONE);
        self.last = NONE;
    }

    /// The touched pages by number (address / 4096).
    pub(crate) fn sorted(&self) -> Vec<(u64, T)> {
        let mut pages: Vec<&(u64, T)> = self.pages.iter().collect();
        pages.sort_unstable_by_key(|(page, _)| *page);
        pages.into_iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_know_bytes() {
        let mut summary = ByPage::<PageMask>::default();
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
        assert!(
            check(1, 0x1000, 1)
                && check(1, 0x0fff, 2)
                && check(1, 0x1fff, 1)
                && check(2, 0x2008, 1)
                && check(1, 0x1ff9, 1)
        );
        assert!(!check(1, 0x1001, 8) && !check(1, 0x1ff0, 9) && !check(2, 0x2009, 100));
        assert!(check(6, 0x6ff8, 1) && check(7, 0x7000, 1) && !check(7, 0x7001, 1));
    }
}
