//! The words in which tables are written. Holds no rows.

use crate::errno::Errno;
use crate::flags::FlagSet;
use crate::inside::{Form, Good, Mark};
use crate::requests::Requests;
use crate::row::{
    Arg, Check, Class, Effect, Hand, Kind, MapCall, NoWait, Opens, Reads, Row, Size, Struct, Support, When,
};

pub(crate) const fn row(nr: u32, name: &'static str, args: &'static [Arg]) -> Row {
    Row {
        nr,
        name,
        args,
        class: Class::Plain,
        support: Support::Full,
        effect: Effect::Args,
        requests: None,
        check: None,
        no_wait: None,
        changes_file: None,
        opens: None,
        sends: false,
        reads: None,
        inside: None,
    }
}

impl Row {
    /// It may wait.
    pub(crate) const fn waits(self) -> Self {
        Self { class: Class::MayBlock, ..self }
    }

    /// It may wait, but not with these bits in that argument.
    pub(crate) const fn waits_unless(self, position: u8, bits: u64) -> Self {
        Self { class: Class::MayBlock, no_wait: Some(NoWait::Bits(position, bits)), ..self }
    }

    /// It may wait, but not when that argument is 0.
    pub(crate) const fn waits_unless_zero(self, position: u8) -> Self {
        Self { class: Class::MayBlock, no_wait: Some(NoWait::Zero(position)), ..self }
    }

    pub(crate) const fn map(self, call: MapCall) -> Self {
        Self { class: Class::Map(call), ..self }
    }

    pub(crate) const fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    pub(crate) const fn hand(self, hand: Hand) -> Self {
        Self { effect: Effect::Hand(hand), ..self }
    }

    pub(crate) const fn requests(self, requests: &'static Requests) -> Self {
        Self { requests: Some(requests), ..self }
    }

    pub(crate) const fn check(self, check: Check) -> Self {
        Self { check: Some(check), ..self }
    }

    pub(crate) const fn changes(self, position: u8) -> Self {
        Self { changes_file: Some(position), ..self }
    }

    pub(crate) const fn opens(self, opens: Opens) -> Self {
        Self { opens: Some(opens), ..self }
    }

    pub(crate) const fn sends(self) -> Self {
        Self { sends: true, ..self }
    }

    pub(crate) const fn reads(self, reads: Reads) -> Self {
        Self { reads: Some(reads), ..self }
    }

    /// It may be made without a stop where its descriptor is good for that.
    pub(crate) const fn inside(self, good: Good) -> Self {
        self.inside_as(good, Form::Plain)
    }

    /// The same in another form.
    pub(crate) const fn inside_as(self, good: Good, form: Form) -> Self {
        self.inside_without(good, form, [None; 2])
    }

    /// The same where these arguments are 0.
    pub(crate) const fn inside_without(self, good: Good, form: Form, without: [Option<u8>; 2]) -> Self {
        Self { inside: Some(Mark { good, form, without }), ..self }
    }

    pub(crate) const fn partial(self, missing: &'static str) -> Self {
        Self { support: Support::Partial(missing), ..self }
    }

    pub(crate) const fn refused(self, why: &'static str) -> Self {
        Self { support: Support::Refused(why), ..self }
    }

    /// It never runs; the guest gets `errno`, and `why` says what that hides.
    pub(crate) const fn emulate(self, errno: Errno, why: &'static str) -> Self {
        Self { class: Class::Emulate(errno), support: Support::Partial(why), ..self }
    }

    /// Linux has the number and no call behind it.
    pub(crate) const fn absent(self) -> Self {
        Self { class: Class::Emulate(Errno::ENOSYS), ..self }
    }
}

macro_rules! plain_arguments {
    ($($function:ident $kind:ident),* $(,)?) => {
        $(pub(crate) const fn $function(name: &'static str) -> Arg {
            Arg { name, kind: Kind::$kind }
        })*
    };
}

plain_arguments! {
    int Int, long Long, uint Uint, hex Hex, mode Mode, fd Fd, dirfd DirFd, sig Signal, path Path, text Str, texts StrVec,
    request Request, msg_in InMsg, msg_out OutMsg,
}

pub(crate) const fn flags(name: &'static str, set: &'static FlagSet) -> Arg {
    Arg { name, kind: Kind::Flags(set) }
}

/// Memory that is read.
pub(crate) const fn input(name: &'static str, size: Size) -> Arg {
    Arg { name, kind: Kind::In(size) }
}

/// A structure that is read.
pub(crate) const fn read(name: &'static str, one: Struct) -> Arg {
    input(name, Size::One(one))
}

/// Memory that is written on success.
pub(crate) const fn out(name: &'static str, size: Size) -> Arg {
    Arg { name, kind: Kind::Out(size, When::Success) }
}

/// A structure that is written on success.
pub(crate) const fn wrote(name: &'static str, one: Struct) -> Arg {
    out(name, Size::One(one))
}

/// A structure that is written on other results.
pub(crate) const fn wrote_when(name: &'static str, one: Struct, when: When) -> Arg {
    Arg { name, kind: Kind::Out(Size::One(one), when) }
}

/// A structure that is read, and written on success.
pub(crate) const fn both(name: &'static str, one: Struct) -> Arg {
    Arg { name, kind: Kind::InOut(Size::One(one), When::Success) }
}

/// A structure that is read, and written on other results.
pub(crate) const fn both_when(name: &'static str, one: Struct, when: When) -> Arg {
    Arg { name, kind: Kind::InOut(Size::One(one), when) }
}

pub(crate) const fn iov_in(name: &'static str, count: u8) -> Arg {
    Arg { name, kind: Kind::InIov(count) }
}

pub(crate) const fn iov_out(name: &'static str, count: u8) -> Arg {
    Arg { name, kind: Kind::OutIov(count) }
}
