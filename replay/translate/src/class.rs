//! The one table of instruction classes: every `iced_x86::Code` is in exactly one.

use iced_x86::Code;

/// What the translator does with an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Copied byte for byte (relocated where a memory operand is relative to rip).
    Copy,
    /// A near branch of any kind: replaced.
    Branch,
    /// A string instruction that may store: copied, logged specially.
    String,
    /// Not run: the block ends before it with an exit that names it, or it is replaced by equivalent code.
    Emulate,
    /// Not supported: refused by name.
    Refuse,
}

/// The class of an instruction.
pub fn classify(_code: Code) -> Class {
    Class::Refuse
}
