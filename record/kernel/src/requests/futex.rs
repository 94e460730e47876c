//! `futex` by operation (futex(2), linux/futex.h). Data only.

use super::{Key, Request, Requests, UnknownRequest, request as req};
use crate::inside::{Form, Good};
use crate::row::When;
use crate::structs::*;
use crate::table::build::*;

/// `futex(uaddr, op, val, timeout, uaddr2, val3)`, `FUTEX_PRIVATE_FLAG` and `FUTEX_CLOCK_REALTIME` aside.
pub(crate) static FUTEX: Requests = Requests {
    call: "futex",
    key: Key::Masked(1, 0x7f),
    rest: 2,
    rows: &[ROWS],
    unknown: UnknownRequest::Fails,
};

/// It may wait for ever: without a stop it is made where it need not.
const fn tried(request: Request) -> Request {
    request.inside_as(Good::ForAnything, Form::Compare, [Some(3), None])
}

/// A lock word that the kernel changes, even where the call fails.
const ROWS: &[Request] = &[
    tried(req(0, "FUTEX_WAIT", &[uint("val"), read("timeout", TIMESPEC)]).waits()),
    req(1, "FUTEX_WAKE", &[int("val")]).inside(Good::ForAnything),
    req(3, "FUTEX_REQUEUE", &[int("val"), int("val2"), hex("uaddr2")]).inside(Good::ForAnything),
    req(4, "FUTEX_CMP_REQUEUE", &[int("val"), int("val2"), hex("uaddr2"), uint("val3")])
        .inside(Good::ForAnything),
    req(5, "FUTEX_WAKE_OP", &[int("val"), int("val2"), both_when("uaddr2", INT, When::Always), hex("val3")]),
    req(6, "FUTEX_LOCK_PI", &[int("val"), read("timeout", TIMESPEC)]).waits().hand(LOCK_WORD),
    req(7, "FUTEX_UNLOCK_PI", &[]).hand(LOCK_WORD),
    req(8, "FUTEX_TRYLOCK_PI", &[]).hand(LOCK_WORD),
    tried(
        req(9, "FUTEX_WAIT_BITSET", &[uint("val"), read("timeout", TIMESPEC), hex("uaddr2"), hex("mask")])
            .waits(),
    ),
    req(10, "FUTEX_WAKE_BITSET", &[int("val"), hex("timeout"), hex("uaddr2"), hex("mask")])
        .inside(Good::ForAnything),
    req(
        11,
        "FUTEX_WAIT_REQUEUE_PI",
        &[uint("val"), read("timeout", TIMESPEC), both_when("uaddr2", INT, When::Always)],
    )
    .waits(),
    req(
        12,
        "FUTEX_CMP_REQUEUE_PI",
        &[int("val"), int("val2"), both_when("uaddr2", INT, When::Always), uint("val3")],
    ),
    req(13, "FUTEX_LOCK_PI2", &[int("val"), read("timeout", TIMESPEC)]).waits().hand(LOCK_WORD),
];

const LOCK_WORD: crate::row::Hand = crate::row::Hand::LockWord;
