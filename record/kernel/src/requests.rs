//! The tables behind calls whose meaning one argument picks: `ioctl`, `fcntl`, `prctl`, socket options and the like. What is not
//! in its table must be unknown to the kernel, too, or it is refused.
//!
//! - `bpf`, `ioctl`, `sockopt`, `control` (`fcntl`, `prctl`, `arch_prctl`, `seccomp`, `ptrace`), `memory` (`madvise` and System V
//!   control calls, keys, quotas), `futex`

mod bpf;
mod control;
mod futex;
mod ioctl;
mod memory;
mod sockopt;

use crate::errno::Errno;
use crate::inside::{Form, Good, Mark};
use crate::row::{Arg, Class, Effect, Hand, MapCall, Row, Support};

pub(crate) use bpf::BPF;
pub(crate) use control::{ARCH_PRCTL, FCNTL, MODIFY_LDT, PRCTL, PTRACE, SECCOMP};
pub(crate) use futex::FUTEX;
pub(crate) use ioctl::IOCTL;
pub(crate) use memory::{KEYCTL, MADVISE, MSGCTL, QUOTACTL, QUOTACTL_FD, SEMCTL, SHMCTL, SYSLOG};
pub(crate) use sockopt::{GETSOCKOPT, SETSOCKOPT};

/// All tables, in the order of the coverage page.
pub static ALL: [&Requests; 19] = [
    &IOCTL,
    &FCNTL,
    &PRCTL,
    &ARCH_PRCTL,
    &GETSOCKOPT,
    &SETSOCKOPT,
    &FUTEX,
    &MADVISE,
    &PTRACE,
    &SECCOMP,
    &KEYCTL,
    &SEMCTL,
    &SHMCTL,
    &MSGCTL,
    &QUOTACTL,
    &QUOTACTL_FD,
    &SYSLOG,
    &MODIFY_LDT,
    &BPF,
];

/// The name of a `ptrace` request.
pub fn ptrace_request(number: u32) -> Option<&'static str> {
    PTRACE.all().find(|request| request.value == u64::from(number)).map(|request| request.name)
}

/// The requests of one call.
#[derive(Debug)]
pub struct Requests {
    /// The call's name.
    pub call: &'static str,
    /// Where the request is in the arguments.
    pub key: Key,
    /// Position of the first argument that a request's own arguments replace.
    pub rest: usize,
    /// The rows; the first list that has a request decides.
    pub rows: &'static [&'static [Request]],
    /// What a request that no row has must come to.
    pub unknown: UnknownRequest,
}

/// What a request that is not in a table must come to, or else the recording stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnknownRequest {
    /// The table has all that Linux knows: an error.
    Fails,
    /// There are others: one of the errors which say that nothing took the request.
    FailsWith(&'static [Errno]),
}

/// Where in a call's arguments its request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// The low 32 bits of this argument.
    Arg(usize),
    /// These bits of this argument.
    Masked(usize, u64),
    /// This argument, 32 bits wide, shifted right by so much.
    Shifted(usize, u32),
    /// Two arguments, 32 bits each: level and name.
    Pair(usize, usize),
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its number, as [`Key`] makes it.
    pub value: u64,
    /// Its name.
    pub name: &'static str,
    /// The arguments that stand for the call's own from [`Requests::rest`] on.
    pub args: &'static [Arg],
    /// What the recorder does.
    pub class: Class,
    /// How far it is supported.
    pub support: Support,
    /// The memory the kernel writes.
    pub effect: Effect,
    /// The argument that is the descriptor of the file whose contents it changes, by position.
    pub changes_file: Option<u8>,
    /// How it may be made without a stop; `None` where it never is.
    pub inside: Option<Mark>,
}

impl Requests {
    /// The request in a call's arguments, as a number.
    pub const fn key(&self, args: &[u64; 6]) -> u64 {
        const LOW: u64 = 0xffff_ffff;
        match self.key {
            Key::Arg(at) => args[at] & LOW,
            Key::Masked(at, mask) => args[at] & mask,
            Key::Shifted(at, by) => (args[at] & LOW) >> by,
            Key::Pair(level, name) => (args[level] & LOW) << 32 | (args[name] & LOW),
        }
    }

    /// Position of the argument that holds the request.
    pub const fn position(&self) -> usize {
        match self.key {
            Key::Arg(at) | Key::Masked(at, _) | Key::Shifted(at, _) | Key::Pair(_, at) => at,
        }
    }

    /// Puts a request into a call's arguments.
    #[cfg(test)]
    pub(crate) const fn set(&self, args: &mut [u64; 6], value: u64) {
        match self.key {
            Key::Arg(at) | Key::Masked(at, _) => args[at] = value,
            Key::Shifted(at, by) => args[at] = value << by,
            Key::Pair(level, name) => (args[level], args[name]) = (value >> 32, value & 0xffff_ffff),
        }
    }

    /// The row of the request in a call's arguments.
    pub fn find(&self, args: &[u64; 6]) -> Option<&'static Request> {
        let key = self.key(args);
        self.all().find(|request| request.value == key)
    }

    /// The arguments of `row` that its requests leave as they are.
    pub fn own(&self, row: &Row) -> &'static [Arg] {
        &row.args[..self.rest.min(row.args.len())]
    }

    /// All rows in table order.
    pub fn all(&self) -> impl Iterator<Item = &'static Request> {
        self.rows.iter().copied().flatten()
    }
}

const fn request(value: u64, name: &'static str, args: &'static [Arg]) -> Request {
    Request {
        value,
        name,
        args,
        class: Class::Plain,
        support: Support::Full,
        effect: Effect::Args,
        changes_file: None,
        inside: None,
    }
}

impl Request {
    const fn waits(self) -> Self {
        Self { class: Class::MayBlock, ..self }
    }

    const fn map(self, call: MapCall) -> Self {
        Self { class: Class::Map(call), ..self }
    }

    const fn trace(self) -> Self {
        self.class(Class::Trace)
    }

    const fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    const fn hand(self, hand: Hand) -> Self {
        Self { effect: Effect::Hand(hand), ..self }
    }

    const fn changes(self, position: u8) -> Self {
        Self { changes_file: Some(position), ..self }
    }

    /// It may be made without a stop where its descriptor is good for that.
    const fn inside(self, good: Good) -> Self {
        self.inside_as(good, Form::Plain, [None; 2])
    }

    /// The same in another form, and where these arguments are 0.
    const fn inside_as(self, good: Good, form: Form, without: [Option<u8>; 2]) -> Self {
        Self { inside: Some(Mark { good, form, without }), ..self }
    }

    const fn partial(self, missing: &'static str) -> Self {
        Self { support: Support::Partial(missing), ..self }
    }

    const fn refused(self, why: &'static str) -> Self {
        Self { support: Support::Refused(why), ..self }
    }

    const fn emulate(self, errno: Errno, why: &'static str) -> Self {
        Self { class: Class::Emulate(errno), support: Support::Partial(why), ..self }
    }
}
