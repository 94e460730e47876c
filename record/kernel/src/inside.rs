//! Calls that a recorded program may make without a stop: their rows, as far as what they write can be told without a table.

use crate::requests::{Key, Request, Requests};
use crate::row::{Arg, Class, Effect, Hand, Kind, MapCall, Row, Size, When};
use crate::table;

/// How a row says that its call may be made without a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// What its descriptor must be good for.
    pub good: Good,
    /// How it is kept from waiting.
    pub form: Form,
    /// Arguments that must be 0: what they may point to makes it another call.
    pub without: [Option<u8>; 2],
}

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
    /// By no time for a timeout, its third argument: a number in `poll`, a pointer in `ppoll`.
    Poll,
    /// By no time behind its fourth argument, where it may wait for ever.
    NoTimeAt,
    /// As [`Form::Vector`], from or into several places.
    Vectors,
    /// By `MSG_DONTWAIT`, where the message has neither an address nor control data.
    Message,
    /// As [`Form::Open`], the path its first argument.
    OpenAs,
    /// It waits for ever, and is made where the word is not as expected.
    Compare,
    /// It gives way, and is made where there is nobody to give way to.
    Alone,
    /// It changes mappings, and is made where these are nothing but memory of the program's own.
    Range,
    /// It makes such a mapping.
    Fresh,
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
    /// In several places, as its form knows.
    Several,
}

/// How calls of one number are made without a stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Numbered {
    /// All in one way.
    Call(Inside),
    /// As a request says: the bits of the low half of the argument at this position, second or third, that this mask has.
    Requests(usize, u32, Vec<(u32, Inside)>),
}

/// How a call is made without a stop, if it may be.
pub fn inside(nr: u32, args: &[u64; 6]) -> Option<Inside> {
    let row = table::row(nr)?;
    match row.requests {
        None => compile(row.args, row.effect, row.inside?),
        Some(requests) => of_request(row, requests, requests.find(args)?),
    }
}

/// How a call changes mappings that is made without a stop; `None` where it does not.
pub fn changes_mappings(nr: u32, args: &[u64; 6]) -> Option<MapCall> {
    let row = table::row(nr)?;
    let class = match row.requests {
        None => row.class,
        Some(requests) => requests.find(args)?.class,
    };
    match class {
        Class::Map(kind) => Some(kind),
        _ => None,
    }
}

/// How the calls of a number are made without a stop, if any are.
pub fn numbered(nr: u32) -> Option<Numbered> {
    let row = table::row(nr)?;
    let Some(requests) = row.requests else { return inside(nr, &[0; 6]).map(Numbered::Call) };
    let (at, mask) = match requests.key {
        Key::Arg(at) => (at, u32::MAX),
        Key::Masked(at, mask) => (at, mask as u32),
        Key::Shifted(..) | Key::Pair(..) => return None,
    };
    let all: Vec<(u32, Inside)> = requests
        .all()
        .filter_map(|request| Some((request.value as u32, of_request(row, requests, request)?)))
        .collect();
    (!all.is_empty()).then_some(Numbered::Requests(at, mask, all))
}

fn of_request(row: &Row, requests: &Requests, request: &Request) -> Option<Inside> {
    let args: Vec<Arg> = requests.own(row).iter().chain(request.args).copied().collect();
    compile(&args, request.effect, request.inside?)
}

/// `None` where an effect is more than this can say.
fn compile(args: &[Arg], effect: Effect, Mark { good, form, without }: Mark) -> Option<Inside> {
    let by_form = match (effect, form) {
        (Effect::Args, _) => false,
        (Effect::Hand(Hand::Poll), Form::Poll) | (Effect::Hand(Hand::Recvmsg), Form::Message) => true,
        (Effect::Hand(_), _) => return None,
    };
    let mut inside = Inside { good, args: args.len() as u8, out: None, zero: without, form };
    for (at, arg) in (0..).zip(args) {
        let wrote = match arg.kind {
            Kind::In(Size::Items(..)) if by_form => Some(Wrote::Several),
            Kind::OutMsg if form == Form::Message => Some(Wrote::Several),
            Kind::OutIov(_) if form == Form::Vectors => Some(Wrote::Several),
            Kind::Out(Size::Fixed(len), When::Success) => Some(Wrote::Fixed(len)),
            Kind::Out(Size::One(one), When::Success) => Some(Wrote::Fixed(one.size)),
            // All of it is read, and written with what is new.
            Kind::InOut(Size::One(one), When::Success) => Some(Wrote::Fixed(one.size)),
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
    use crate::errno::Errno;
    use crate::table::number;

    fn plain(name: &str) -> Option<Inside> {
        super::inside(number(name), &[0; 6])
    }

    const PLAIN: Inside =
        Inside { good: Good::ForAnything, args: 2, out: None, zero: [None; 2], form: Form::Plain };

    #[test]
    fn rows_say_how_calls_are_made() {
        let (good, form) = (Good::ForReads, Form::Vector);
        let read = Inside { good, args: 3, out: Some((1, Wrote::Result(2, 1))), form, ..PLAIN };
        assert_eq!(plain("read"), Some(read));
        let stat = Inside { out: Some((1, Wrote::Fixed(144))), ..PLAIN };
        assert_eq!(plain("stat"), Some(stat));
        let time = Inside { out: Some((0, Wrote::Fixed(16))), zero: [Some(1), None], ..PLAIN };
        assert_eq!(plain("gettimeofday"), Some(time));
        let zero = [Some(4), Some(5)];
        assert_eq!(plain("recvfrom"), Some(Inside { args: 6, zero, form: Form::NoWait, ..read }));
        let events = Some((1, Wrote::Result(2, 12)));
        let (good, form) = (Good::ForQuestions, Form::NoTime);
        assert_eq!(plain("epoll_wait"), Some(Inside { good, args: 4, out: events, form, ..PLAIN }));
        assert_eq!(plain("close"), Some(Inside { args: 1, form: Form::Close, ..PLAIN }));
        assert_eq!(plain("openat"), Some(Inside { args: 4, form: Form::Open, ..PLAIN }));
        let (good, form) = (Good::ForWrites, Form::Send);
        let out = Some((2, Wrote::Fixed(8)));
        assert_eq!(plain("sendfile"), Some(Inside { good, args: 4, out, form, ..PLAIN }));
        assert_eq!(plain("open"), Some(Inside { args: 3, form: Form::OpenAs, ..PLAIN }));
        let several = |at| Some((at, Wrote::Several));
        let zero = [Some(2), Some(3)];
        assert_eq!(
            plain("ppoll"),
            Some(Inside { args: 5, out: several(0), zero, form: Form::Poll, ..PLAIN })
        );
        let (good, form) = (Good::ForReads, Form::Vectors);
        assert_eq!(plain("readv"), Some(Inside { good, args: 3, out: several(1), form, ..PLAIN }));
        let form = Form::Message;
        assert_eq!(plain("recvmsg"), Some(Inside { good, args: 3, out: several(1), form, ..PLAIN }));
        assert_eq!(plain("brk"), Some(Inside { args: 1, ..PLAIN }));
        assert_eq!(plain("mmap"), Some(Inside { args: 6, form: Form::Fresh, ..PLAIN }));
        assert_eq!(plain("mprotect"), Some(Inside { args: 3, form: Form::Range, ..PLAIN }));
        assert_eq!(plain("mremap"), None);
        assert_eq!(plain("creat"), None);
        assert_eq!(super::inside(999, &[0; 6]), None);
    }

    #[test]
    fn requests_say_how_calls_are_made() {
        let of =
            |name: &str, args: [u64; 3]| super::inside(number(name), &[args[0], args[1], args[2], 0, 0, 0]);
        let asks = Inside { good: Good::ForQuestions, args: 3, ..PLAIN };
        let termios = Some((2, Wrote::Fixed(36)));
        assert_eq!(of("ioctl", [1, 7 << 32 | 0x5401, 0]), Some(Inside { out: termios, ..asks }));
        assert_eq!(of("fcntl", [1, 3, 0]), Some(Inside { args: 2, ..asks }));
        assert_eq!(
            of("fcntl", [1, 5, 0]),
            Some(Inside { good: Good::ForReads, out: Some((2, Wrote::Fixed(32))), ..asks })
        );
        assert_eq!(of("fcntl", [1, 4, 0]), None);
        assert_eq!(of("madvise", [1, 4, 3]), Some(Inside { args: 3, ..PLAIN }));
        assert_eq!(of("madvise", [1, 4, 4]), Some(Inside { args: 3, form: Form::Range, ..PLAIN }));
        assert_eq!(of("madvise", [1, 4, 9]), None);
        let (zero, form) = ([Some(3), None], Form::Compare);
        assert_eq!(of("futex", [1, 0x80, 1]), Some(Inside { args: 4, zero, form, ..PLAIN }));
        assert_eq!(of("futex", [1, 0x81, 1]), Some(Inside { args: 3, ..PLAIN }));
        assert_eq!(of("futex", [1, 0x86, 1]), None);
        let Some(Numbered::Requests(1, 0x7f, all)) = numbered(number("futex")) else { panic!() };
        assert_eq!(all.iter().map(|(request, _)| *request).collect::<Vec<_>>(), [0, 1, 3, 4, 9, 10]);
        assert_eq!(numbered(number("getpid")), Some(Numbered::Call(Inside { args: 0, ..PLAIN })));
        assert_eq!(numbered(number("prctl")), None);
    }

    #[track_caller]
    fn check(name: &str, inside: Option<Inside>, args: &[Arg], class: Class, changes: bool) {
        let inside = inside.unwrap_or_else(|| panic!("{name} says more than can be compiled"));
        // What may wait does so on a descriptor, or has a form of its own.
        let form = inside.form;
        let asks_first = matches!(form, Form::Open | Form::OpenAs | Form::Poll | Form::Compare | Form::Alone);
        let maps = matches!(form, Form::Range | Form::Fresh) || name == "brk";
        // The code refuses that advice by itself.
        let refused = name == "MADV_DONTFORK" && class == Class::Emulate(Errno::EINVAL);
        assert_eq!(maps, matches!(class, Class::Map(_)) || refused, "{name}");
        assert!(maps || class == Class::Plain || inside.good != Good::ForAnything || asks_first, "{name}");
        assert_eq!(changes, inside.good == Good::ForWrites, "{name}");
        let has_fd = matches!(args.first().map(|arg| arg.kind), Some(Kind::Fd));
        assert_eq!(has_fd, inside.good != Good::ForAnything || form == Form::Close, "{name}");
        assert_eq!(matches!(name, "read" | "write"), form == Form::Vector, "{name}");
        assert_eq!(matches!(name, "readv" | "writev"), form == Form::Vectors, "{name}");
        match inside.out {
            Some((at, Wrote::Fixed(len))) => assert!(len <= 512 && usize::from(at) < args.len()),
            Some((_, Wrote::Result(_, unit))) => assert!(unit < 1 << 16),
            Some((_, Wrote::Several)) | None => {}
        }
    }

    #[test]
    fn every_marked_row_can_be_compiled() {
        let marked: Vec<&Row> = table::all().filter(|row| row.inside.is_some()).collect();
        assert!(marked.len() > 30, "{}", marked.len());
        for row in marked {
            assert!(row.requests.is_none() && row.check.is_none(), "{}", row.name);
            let opens = matches!(row.inside, Some(Mark { form: Form::Open | Form::OpenAs, .. }));
            assert_eq!(row.opens.is_some(), opens, "{}", row.name);
            let changes = row.changes_file.is_some() || row.sends;
            check(row.name, inside(row.nr, &[0; 6]), row.args, row.class, changes);
        }
        let mut requests = 0;
        for row in table::all() {
            for request in row.requests.iter().flat_map(|requests| requests.all()) {
                if request.inside.is_some() {
                    let inside = of_request(row, row.requests.unwrap(), request);
                    check(request.name, inside, row.args, request.class, request.changes_file.is_some());
                    assert!(matches!(numbered(row.nr), Some(Numbered::Requests(1..=2, ..))), "{}", row.name);
                    requests += 1;
                }
            }
        }
        assert!(requests > 20, "{requests}");
    }
}
