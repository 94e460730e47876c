//! A translated block as the engine keeps it.

use translate::{CacheAddr, Mark, Mode, Translated};

/// A translated block and where it was put. Immutable: what it is linked to is kept elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// What the translator made of it (its code bytes are taken out).
    pub translated: Translated,
    /// Where its code lies.
    pub hot: CacheAddr,
    /// Where its rarely run code lies.
    pub cold: CacheAddr,
    /// Length of its code in bytes.
    pub hot_len: u32,
    /// The mode it was translated in.
    pub mode: Mode,
}

impl Block {
    /// What holds at cache address `at`; `None` outside the block's guest instructions.
    pub fn mark_at(&self, at: CacheAddr) -> Option<&Mark> {
        let offset = at.0.checked_sub(self.hot.0).and_then(|offset| u32::try_from(offset).ok());
        let offset = offset.filter(|&offset| offset < self.hot_len)?;
        let marks = &self.translated.marks;
        marks.get(marks.partition_point(|mark| mark.offset <= offset).checked_sub(1)?)
    }

    /// Without the code bytes, which are in the process now.
    pub(crate) fn stripped(mut self) -> Self {
        self.translated.code = Vec::new();
        self.translated.cold = Vec::new();
        self
    }
}
