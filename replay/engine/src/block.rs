//! A translated block as the engine keeps it.

use translate::{CacheAddr, Mode, Translated};

/// A translated block and where it was put. Immutable: what it is linked to is kept elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// What the translator made of it (its code bytes are taken out).
    pub translated: Translated,
    /// Where its code lies.
    pub hot: CacheAddr,
    /// Length of its code in bytes.
    pub hot_len: u32,
    /// The mode it was translated in.
    pub mode: Mode,
}
