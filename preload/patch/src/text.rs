//! The code of a mapping, and where its branches with long displacements lead.

use std::ops::Range;

use crate::addr::CodeAddr;

/// The bytes of an executable mapping, or of a part of it, as they were before anything was patched.
///
/// A jump from far away (the cold part of a function, say) is only seen if it is among these bytes, so a whole mapping is
/// better than the surroundings of a site. Nothing in here depends on where the bytes are mapped: one value serves every
/// process that maps the same part of the same file.
#[derive(Clone, Debug)]
pub struct Text {
    bytes: Vec<u8>,
    entered: Bits,
    referred: Bits,
}

impl Text {
    /// Looks through all the bytes, which takes milliseconds for a C library: worth keeping for other processes.
    pub fn new(bytes: Vec<u8>) -> Self {
        let mut text = Self { entered: Bits::new(bytes.len()), referred: Bits::new(bytes.len()), bytes };
        text.look_through();
        text
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Every place that could be a branch with a 32-bit displacement counts, instruction or not: what is data only looks
    /// like one that leads into a given window once in a hundred million times, and no decoding has to be trusted.
    fn look_through(&mut self) {
        let Self { bytes, entered, referred } = self;
        for (at, byte) in bytes.iter().enumerate().take(bytes.len().saturating_sub(4)) {
            let before = match LEADS[usize::from(*byte)] {
                Leads::Nowhere => continue,
                Leads::Always => {
                    entered.set(target(bytes, at, 0));
                    continue;
                }
                Leads::Behind(before) => before,
            };
            let Some(previous) = at.checked_sub(1).map(|at| bytes[at]) else { continue };
            if previous == before {
                entered.set(target(bytes, at, 0));
            } else if is_relative(*byte) {
                for immediate in [0, 1, 2, 4] {
                    referred.set(target(bytes, at, immediate));
                }
            }
        }
    }
}

/// Whether a displacement follows a byte that may lead somewhere.
#[derive(Clone, Copy)]
enum Leads {
    Nowhere,
    Always,
    /// Behind this byte it is a branch, or takes an address, perhaps in order to jump there.
    Behind(u8),
}

/// For each byte. Most lead nowhere, and there are many to look at.
const LEADS: [Leads; 256] = {
    let mut leads = [Leads::Nowhere; 256];
    let mut byte = 0;
    while byte < leads.len() {
        leads[byte] = match byte {
            0xE8 | 0xE9 => Leads::Always,
            0x80..=0x8F => Leads::Behind(0x0F),
            0xF8 => Leads::Behind(0xC7),
            _ if is_relative(byte as u8) => Leads::Behind(0x8D),
            _ => Leads::Nowhere,
        };
        byte += 1;
    }
    leads
};

/// What the displacement after `at` leads to if `immediate` bytes follow it.
fn target(bytes: &[u8], at: usize, immediate: i64) -> i64 {
    let field = bytes[at + 1..at + 5].try_into().expect("four bytes");
    at as i64 + 5 + i64::from(i32::from_le_bytes(field)) + immediate
}

/// Whether a ModRM byte stands for a memory operand relative to rip.
const fn is_relative(modrm: u8) -> bool {
    modrm & 0xC7 == 0x05
}

/// A text at the address where it is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped<'a> {
    text: &'a Text,
    base: u64,
}

impl<'a> Mapped<'a> {
    pub(crate) fn new(text: &'a Text, base: CodeAddr) -> Self {
        Self { text, base: base.0 }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.base..self.base + self.text.bytes.len() as u64
    }

    /// The bytes of a range, if all of it is there.
    pub(crate) fn bytes(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let from = range.start.checked_sub(self.base)?;
        self.text.bytes.get(from as usize..range.end.checked_sub(self.base)? as usize)
    }

    pub(crate) fn byte(&self, at: u64) -> Option<u8> {
        self.bytes(at..at + 1).map(|bytes| bytes[0])
    }

    pub(crate) fn all(&self) -> &'a [u8] {
        &self.text.bytes
    }

    /// Whether a long branch or a `lea` leads there.
    pub(crate) fn is_entered(&self, at: u64) -> bool {
        self.text.entered.get(at.wrapping_sub(self.base))
    }

    /// Whether an operand relative to rip names it.
    pub(crate) fn is_referred(&self, at: u64) -> bool {
        self.text.referred.get(at.wrapping_sub(self.base))
    }
}

/// A set of offsets.
#[derive(Clone, Debug)]
struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len }
    }

    fn set(&mut self, at: i64) {
        if let Ok(at) = usize::try_from(at)
            && at < self.len
        {
            self.words[at / 64] |= 1 << (at % 64);
        }
    }

    fn get(&self, at: u64) -> bool {
        at < self.len as u64 && self.words[at as usize / 64] >> (at % 64) & 1 == 1
    }
}
