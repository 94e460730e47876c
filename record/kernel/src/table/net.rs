//! Rows: sockets. Data only.

use super::build::*;
use crate::errno::Errno;
use crate::flags::*;
use crate::inside::{Form, Good};
use crate::requests::{GETSOCKOPT, SETSOCKOPT};
use crate::row::{Arg, Hand, Kind, Row, Size, When};
use crate::structs::*;

const MSG_DONTWAIT: u64 = 0x40;

/// A socket address that the kernel fills, whose length stands behind the argument at `length`.
const fn address(name: &'static str, length: u8) -> Arg {
    out(name, Size::Length(length))
}

/// The length behind such an address.
const fn length(name: &'static str) -> Arg {
    Arg { name, kind: Kind::InOut(Size::One(UINT), When::Success) }
}

pub(super) const ROWS: &[Row] = &[
    row(41, "socket", &[flags("domain", &SOCK_DOMAIN), flags("type", &SOCK_TYPE), int("protocol")]),
    row(42, "connect", &[fd("fd"), input("addr", Size::Arg(2)), uint("addrlen")]).waits(),
    row(43, "accept", &[fd("fd"), address("addr", 2), length_when_address("addrlen", 1)]).waits(),
    row(
        44,
        "sendto",
        &[
            fd("fd"),
            input("buf", Size::Arg(2)),
            uint("len"),
            flags("flags", &MSG),
            input("addr", Size::Arg(5)),
            uint("addrlen"),
        ],
    )
    .waits_unless(3, MSG_DONTWAIT)
    .sends()
    .inside_as(Good::ForWrites, Form::NoWait),
    row(
        45,
        "recvfrom",
        &[
            fd("fd"),
            out("buf", Size::Result(2)),
            uint("len"),
            flags("flags", &MSG),
            address("addr", 5),
            length_when_address("addrlen", 4),
        ],
    )
    .waits_unless(3, MSG_DONTWAIT)
    .inside_as(Good::ForReads, Form::NoWait),
    row(46, "sendmsg", &[fd("fd"), msg_in("msg"), flags("flags", &MSG)])
        .waits_unless(2, MSG_DONTWAIT)
        .sends()
        .inside_as(Good::ForWrites, Form::Message),
    row(47, "recvmsg", &[fd("fd"), msg_out("msg"), flags("flags", &MSG)])
        .waits_unless(2, MSG_DONTWAIT)
        .hand(Hand::Recvmsg)
        .inside_as(Good::ForReads, Form::Message),
    row(48, "shutdown", &[fd("fd"), flags("how", &SHUT)]),
    row(49, "bind", &[fd("fd"), input("addr", Size::Arg(2)), uint("addrlen")]),
    row(50, "listen", &[fd("fd"), int("backlog")]),
    row(51, "getsockname", &[fd("fd"), address("addr", 2), length("addrlen")]),
    row(52, "getpeername", &[fd("fd"), address("addr", 2), length("addrlen")]),
    row(
        53,
        "socketpair",
        &[flags("domain", &SOCK_DOMAIN), flags("type", &SOCK_TYPE), int("protocol"), wrote("fds", INT_PAIR)],
    ),
    row(
        54,
        "setsockopt",
        &[fd("fd"), flags("level", &SOCK_LEVEL), request("name"), input("value", Size::Arg(4)), uint("len")],
    )
    .requests(&SETSOCKOPT),
    row(
        55,
        "getsockopt",
        &[
            fd("fd"),
            flags("level", &SOCK_LEVEL),
            request("name"),
            out("value", Size::Length(4)),
            both_when("len", UINT, When::SuccessOr(Errno::ERANGE)),
        ],
    )
    .requests(&GETSOCKOPT),
    row(
        288,
        "accept4",
        &[fd("fd"), address("addr", 2), length_when_address("addrlen", 1), flags("flags", &SOCK_FLAGS)],
    )
    .waits(),
    row(299, "recvmmsg", &[fd("fd"), hex("msgvec"), uint("vlen"), flags("flags", &MSG), hex("timeout")])
        .waits_unless(3, MSG_DONTWAIT)
        .hand(Hand::Recvmmsg),
    row(307, "sendmmsg", &[fd("fd"), hex("msgvec"), uint("vlen"), flags("flags", &MSG)])
        .waits_unless(3, MSG_DONTWAIT)
        .hand(Hand::Sendmmsg)
        .sends(),
];

/// The length behind an address that may be NULL, in which case the kernel leaves the length alone.
const fn length_when_address(name: &'static str, address: u8) -> Arg {
    Arg { name, kind: Kind::InOut(Size::One(UINT), When::SuccessWith(address)) }
}
