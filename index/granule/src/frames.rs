//! Calls and returns, found from the block sequence and the return addresses pushed.

/// What entered a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallKind {
    /// A call instruction.
    Call,
    /// The delivery of a signal to a handler.
    Signal,
}
