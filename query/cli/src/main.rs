//! The `backstory` binary.
fn main() {}
