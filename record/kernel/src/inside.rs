//! Calls that a recorded program may make without a stop: their rows, as far as what they write can be told without a table.

use crate::row::{Effect, Kind, Row, Size, When};
use crate::table;

/// What the descriptor in the first argument of a call that is made without a stop must be good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Good {
    /// It has none there.
    ForAnything,
    /// For being read without waiting.
    ForReads,
    /// For being written without waiting, where nobody needs to know.
    ForWrites,
    /// For questions that it answers at once.
    ForQuestions,
}

/// A call that may be made without a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inside {
    /// What its descriptor must be good for.
    pub good: Good,
    /// How many arguments it has.
    pub args: u8,
    /// The argument that points to what it writes when it succeeds, and how much that is.
    pub out: Option<(u8, Wrote)>,
    /// An argument that must be 0, as it would point to more.
    pub zero: Option<u8>,
}

/// How much a call writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// So many bytes.
    Fixed(u32),
    /// As many as the result says, at most what the argument at this position says.
    Result(u8),
}

/// How a call is made without a stop, if it may be.
pub fn inside(nr: u32) -> Option<Inside> {
    let row = table::row(nr)?;
    compile(row, row.inside?)
}

/// `None` where a row's effect is more than this can say.
fn compile(row: &Row, good: Good) -> Option<Inside> {
    if row.effect != Effect::Args || row.requests.is_some() || row.check.is_some() || row.opens.is_some() {
        return None;
    }
    let mut inside = Inside { good, args: row.args.len() as u8, out: None, zero: None };
    for (at, arg) in (0..).zip(row.args) {
        let wrote = match arg.kind {
            Kind::Out(Size::Fixed(len), When::Success) => Wrote::Fixed(len),
            Kind::Out(Size::One(one), When::Success) => Wrote::Fixed(one.size),
            Kind::Out(Size::Result(most), When::Success) => Wrote::Result(most),
            Kind::Out(..)
            | Kind::InOut(..)
            | Kind::InIov(_)
            | Kind::OutIov(_)
            | Kind::InMsg
            | Kind::OutMsg => {
                return None;
            }
            _ => continue,
        };
        match inside.out {
            None => inside.out = Some((at, wrote)),
            Some(_) if inside.zero.is_none() => inside.zero = Some(at),
            Some(_) => return None,
        }
    }
    Some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Class;
    use crate::table::number;

    #[test]
    fn rows_say_how_calls_are_made() {
        let read = Inside { good: Good::ForReads, args: 3, out: Some((1, Wrote::Result(2))), zero: None };
        assert_eq!(inside(number("read")), Some(read));
        let stat = Inside { good: Good::ForAnything, args: 2, out: Some((1, Wrote::Fixed(144))), zero: None };
        assert_eq!(inside(number("stat")), Some(stat));
        let time =
            Inside { good: Good::ForAnything, args: 2, out: Some((0, Wrote::Fixed(16))), zero: Some(1) };
        assert_eq!(inside(number("gettimeofday")), Some(time));
        assert_eq!(inside(number("close")), None);
        assert_eq!(inside(999), None);
    }

    #[test]
    fn every_marked_row_can_be_compiled() {
        let marked: Vec<&Row> = table::all().filter(|row| row.inside.is_some()).collect();
        assert!(marked.len() > 25, "{}", marked.len());
        for row in marked {
            let inside =
                inside(row.nr).unwrap_or_else(|| panic!("{} says more than can be compiled", row.name));
            // What may wait does so on a descriptor.
            assert!(row.class == Class::Plain || inside.good != Good::ForAnything, "{}", row.name);
            assert_eq!(row.changes_file.is_some(), inside.good == Good::ForWrites, "{}", row.name);
            let first = row.args.first().map(|arg| arg.kind);
            let has_fd = matches!(first, Some(Kind::Fd));
            assert_eq!(has_fd, inside.good != Good::ForAnything, "{}", row.name);
            if let Some((at, Wrote::Fixed(len))) = inside.out {
                assert!(len <= 512 && usize::from(at) < row.args.len(), "{}", row.name);
            }
        }
    }
}
