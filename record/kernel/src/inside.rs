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

/// How a call is kept from waiting that might.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// It does not.
    Plain,
    /// As `preadv2` or `pwritev2`, which take `RWF_NOWAIT`, where its descriptor would have it wait.
    Vector,
    /// By 0 for a timeout, its fourth argument.
    NoTime,
    /// By `MSG_DONTWAIT` among the flags, its fourth argument.
    NoWait,
    /// It opens a file to read, and is made where that is a regular one or a folder.
    Open,
    /// It closes a descriptor of which nobody else needs to know.
    Close,
    /// It sends from the descriptor in its second argument, which must be good for reads, too.
    Send,
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
    /// Arguments that must be 0, as they would point to more.
    pub zero: [Option<u8>; 2],
    /// How it is kept from waiting.
    pub form: Form,
}

/// How much a call writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// So many bytes.
    Fixed(u32),
    /// As many as the result says, at most what the argument at this position says, in units of so many bytes.
    Result(u8, u32),
}

/// How a call is made without a stop, if it may be.
pub fn inside(nr: u32) -> Option<Inside> {
    let row = table::row(nr)?;
    compile(row, row.inside?)
}

/// Whether a call that would wait is tried in a form that does not, where its descriptor is good for that alone.
pub fn tried_inside(nr: u32) -> bool {
    inside(nr).is_some_and(|call| !matches!(call.form, Form::Plain | Form::Open | Form::Close))
}

/// `None` where a row's effect is more than this can say.
fn compile(row: &Row, (good, form): (Good, Form)) -> Option<Inside> {
    let opens = row.opens.is_some() && form != Form::Open;
    if row.effect != Effect::Args || row.requests.is_some() || row.check.is_some() || opens {
        return None;
    }
    let mut inside = Inside { good, args: row.args.len() as u8, out: None, zero: [None; 2], form };
    for (at, arg) in (0..).zip(row.args) {
        let wrote = match arg.kind {
            Kind::Out(Size::Fixed(len), When::Success) => Some(Wrote::Fixed(len)),
            Kind::Out(Size::One(one), When::Success) => Some(Wrote::Fixed(one.size)),
            // Where that fails it is made again, stopped at.
            Kind::InOut(Size::One(one), _) if form == Form::Send => Some(Wrote::Fixed(one.size)),
            Kind::Out(Size::Result(most), When::Success) => Some(Wrote::Result(most, 1)),
            Kind::Out(Size::ResultItems(most, one), When::Success) => Some(Wrote::Result(most, one.size)),
            Kind::Out(..) | Kind::InOut(..) | Kind::OutIov(_) | Kind::OutMsg => None,
            _ => continue,
        };
        match (inside.out, wrote, inside.zero) {
            (None, Some(wrote), _) => inside.out = Some((at, wrote)),
            (Some(_), _, [None, _]) => inside.zero[0] = Some(at),
            (Some(_), _, [_, None]) => inside.zero[1] = Some(at),
            _ => return None,
        }
    }
    Some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Class;
    use crate::table::number;

    const PLAIN: Inside =
        Inside { good: Good::ForAnything, args: 2, out: None, zero: [None; 2], form: Form::Plain };

    #[test]
    fn rows_say_how_calls_are_made() {
        let (good, form) = (Good::ForReads, Form::Vector);
        let read = Inside { good, args: 3, out: Some((1, Wrote::Result(2, 1))), form, ..PLAIN };
        assert_eq!(inside(number("read")), Some(read));
        let stat = Inside { out: Some((1, Wrote::Fixed(144))), ..PLAIN };
        assert_eq!(inside(number("stat")), Some(stat));
        let time = Inside { out: Some((0, Wrote::Fixed(16))), zero: [Some(1), None], ..PLAIN };
        assert_eq!(inside(number("gettimeofday")), Some(time));
        let zero = [Some(4), Some(5)];
        assert_eq!(inside(number("recvfrom")), Some(Inside { args: 6, zero, form: Form::NoWait, ..read }));
        let events = Some((1, Wrote::Result(2, 12)));
        let (good, form) = (Good::ForQuestions, Form::NoTime);
        assert_eq!(inside(number("epoll_wait")), Some(Inside { good, args: 4, out: events, form, ..PLAIN }));
        assert_eq!(inside(number("close")), Some(Inside { args: 1, form: Form::Close, ..PLAIN }));
        assert_eq!(inside(number("openat")), Some(Inside { args: 4, form: Form::Open, ..PLAIN }));
        let (good, form) = (Good::ForWrites, Form::Send);
        let out = Some((2, Wrote::Fixed(8)));
        assert_eq!(inside(number("sendfile")), Some(Inside { good, args: 4, out, form, ..PLAIN }));
        assert_eq!(inside(number("open")), None);
        assert_eq!(inside(999), None);
    }

    #[test]
    fn every_marked_row_can_be_compiled() {
        let marked: Vec<&Row> = table::all().filter(|row| row.inside.is_some()).collect();
        assert!(marked.len() > 30, "{}", marked.len());
        for row in marked {
            let inside =
                inside(row.nr).unwrap_or_else(|| panic!("{} says more than can be compiled", row.name));
            // What may wait does so on a descriptor.
            let asks_first = inside.form == Form::Open;
            assert!(
                row.class == Class::Plain || inside.good != Good::ForAnything || asks_first,
                "{}",
                row.name
            );
            assert_eq!(
                row.changes_file.is_some() || row.sends,
                inside.good == Good::ForWrites,
                "{}",
                row.name
            );
            let has_fd = matches!(row.args.first().map(|arg| arg.kind), Some(Kind::Fd));
            assert_eq!(
                has_fd,
                inside.good != Good::ForAnything || inside.form == Form::Close,
                "{}",
                row.name
            );
            let vector = matches!(row.name, "read" | "write");
            assert_eq!(vector, inside.form == Form::Vector, "{}", row.name);
            match inside.out {
                Some((at, Wrote::Fixed(len))) => {
                    assert!(len <= 512 && usize::from(at) < row.args.len() && inside.zero[1].is_none());
                }
                Some((_, Wrote::Result(_, unit))) => assert!(unit < 1 << 16),
                None => {}
            }
        }
    }
}
