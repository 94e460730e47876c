//! The one table of system calls. Knows no process.

use crate::row::{Arg, Class, Effect, Kind, Row, Size, Support, When};

/// The newest number of the table (Linux 6.18).
pub const MAX_NUMBER: u32 = 469;

const fn arg(name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind }
}

const ROWS: &[Row] = &[
    Row {
        nr: 0,
        name: "read",
        args: &[
            arg("fd", Kind::Fd),
            arg("buf", Kind::Out(Size::Result(2), When::Success)),
            arg("count", Kind::Uint),
        ],
        class: Class::MayBlock,
        support: Support::Full,
        effect: Effect::Args,
    },
    Row {
        nr: 1,
        name: "write",
        args: &[arg("fd", Kind::Fd), arg("buf", Kind::In(Size::Arg(2))), arg("count", Kind::Uint)],
        class: Class::MayBlock,
        support: Support::Full,
        effect: Effect::Args,
    },
];

/// The row of a number, or `None` where Linux has no such call.
pub fn row(nr: u32) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.nr == nr)
}

/// All rows, by number.
pub fn all() -> impl Iterator<Item = &'static Row> {
    ROWS.iter()
}

/// The name of a number, if Linux has such a call.
pub fn name(nr: u32) -> Option<&'static str> {
    row(nr).map(|row| row.name)
}

/// The number of a call by its name, for constants: `const MMAP: u32 = number("mmap");`.
///
/// # Panics
///
/// When there is no such call, which in a constant is a compile error.
pub const fn number(name: &str) -> u32 {
    let mut at = 0;
    while at < ROWS.len() {
        if same(ROWS[at].name.as_bytes(), name.as_bytes()) {
            return ROWS[at].nr;
        }
        at += 1;
    }
    panic!("no such system call")
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
