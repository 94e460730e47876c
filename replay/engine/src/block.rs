//! A translated block as the engine keeps it.

use guest::GuestAddr;
use translate::{BlockId, CacheAddr, Mark, Mode, Spilled, Translated};

/// A translated block and where it was put. Immutable: what it is linked to is kept elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// What the translator made of it, without its code bytes and marks; in modes that do not log, without its paths, return sites and
    /// (in plain mode) instructions, too.
    pub translated: Translated,
    /// Where its code lies.
    pub hot: CacheAddr,
    /// Where its rarely run code lies.
    pub cold: CacheAddr,
    /// Length of its code in bytes.
    pub hot_len: u32,
    /// The mode it was translated in.
    pub mode: Mode,
    marks: Marks,
}

/// Marks take up most of a block; nearly all of them fit into few bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Marks {
    Small(Box<[Small]>),
    Large(Box<[Mark]>),
}

/// A mark whose numbers are small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Small {
    /// From the block's pc.
    pc: i32,
    offset: u16,
    spilled: u16,
    retired: u8,
    unretired: i8,
    flags_exact: bool,
    logging: bool,
}

impl Small {
    fn new(mark: &Mark, start: GuestAddr) -> Option<Self> {
        Some(Self {
            pc: i32::try_from(mark.pc.0.wrapping_sub(start.0) as i64).ok()?,
            offset: u16::try_from(mark.offset).ok()?,
            spilled: mark.spilled.0,
            retired: u8::try_from(mark.retired).ok()?,
            unretired: i8::try_from(mark.unretired).ok()?,
            flags_exact: mark.flags_exact,
            logging: mark.logging,
        })
    }

    fn mark(self, start: GuestAddr) -> Mark {
        Mark {
            offset: u32::from(self.offset),
            pc: GuestAddr(start.0.wrapping_add_signed(i64::from(self.pc))),
            retired: u32::from(self.retired),
            unretired: i32::from(self.unretired),
            spilled: Spilled(self.spilled),
            flags_exact: self.flags_exact,
            logging: self.logging,
        }
    }
}

impl Block {
    /// Takes what the translator made of a block; its code bytes must have been put in place.
    pub(crate) fn new(mut translated: Translated, hot: CacheAddr, cold: CacheAddr, mode: Mode) -> Self {
        let hot_len = translated.code.len() as u32;
        let marks = std::mem::take(&mut translated.marks);
        let small: Option<Box<[Small]>> = marks.iter().map(|mark| Small::new(mark, translated.pc)).collect();
        let marks = small.map_or_else(|| Marks::Large(marks.into_boxed_slice()), Marks::Small);
        translated.code = Vec::new();
        translated.cold = Vec::new();
        if !mode.logs() {
            translated.paths = Vec::new();
            translated.return_sites = Vec::new();
        }
        if mode == Mode::Plain {
            translated.pcs = Vec::new();
        }
        translated.exits.shrink_to_fit();
        translated.links.shrink_to_fit();
        Self { translated, hot, cold, hot_len, mode, marks }
    }

    /// A block with nothing in it, to stand for those that are gone.
    pub(crate) fn hollow(&self) -> Self {
        let translated = Translated {
            id: BlockId(u32::MAX),
            pc: self.translated.pc,
            code: Vec::new(),
            cold: Vec::new(),
            entry: self.hot,
            lookup: self.hot,
            chain: self.translated.chain,
            sources: Vec::new(),
            pcs: Vec::new(),
            exits: Vec::new(),
            links: Vec::new(),
            return_sites: Vec::new(),
            indirect: None,
            marks: Vec::new(),
            slots: Vec::new(),
            paths: Vec::new(),
        };
        Self { translated, hot_len: 0, marks: Marks::Small(Box::default()), ..*self }
    }

    /// What holds at cache address `at`; `None` outside the block's guest instructions.
    pub fn mark_at(&self, at: CacheAddr) -> Option<Mark> {
        let offset = at.0.checked_sub(self.hot.0).and_then(|offset| u32::try_from(offset).ok());
        let offset = offset.filter(|&offset| offset < self.hot_len)?;
        match &self.marks {
            Marks::Small(marks) => {
                let next = marks.partition_point(|mark| u32::from(mark.offset) <= offset);
                marks.get(next.checked_sub(1)?).map(|mark| mark.mark(self.translated.pc))
            }
            Marks::Large(marks) => {
                let next = marks.partition_point(|mark| mark.offset <= offset);
                marks.get(next.checked_sub(1)?).copied()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_marks_are_the_marks() {
        let mark = Mark {
            offset: 65_535,
            pc: GuestAddr(0x1000),
            retired: 64,
            unretired: -24,
            spilled: Spilled(0x8005),
            flags_exact: true,
            logging: true,
        };
        let small = Small::new(&mark, GuestAddr(0x40_0000)).unwrap();
        assert_eq!(small.mark(GuestAddr(0x40_0000)), mark);
        assert_eq!(Small::new(&Mark { offset: 65_536, ..mark }, GuestAddr(0)), None);
        assert_eq!(Small::new(&mark, GuestAddr(1 << 40)), None);
        assert!(size_of::<Small>() <= 12);
    }
}
