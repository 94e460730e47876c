//! Rows: semaphores, message queues, futexes, keys, asynchronous input and output. Data only.

use super::build::*;
use crate::errno::Errno;
use crate::flags::*;
use crate::requests::{FUTEX, KEYCTL, MSGCTL, SEMCTL};
use crate::row::{Arg, Kind, Row, Size, When};
use crate::structs::*;

const IPC_NOWAIT: u64 = 0o4000;
const NO_AIO: &str = "the kernel would write memory while the program runs";

pub(super) const ROWS: &[Row] = &[
    row(64, "semget", &[hex("key"), int("nsems"), flags("flags", &IPC_GET)]),
    row(65, "semop", &[int("id"), input("sops", Size::Items(2, SEMBUF)), uint("nsops")]).waits(),
    row(66, "semctl", &[int("id"), int("semnum"), request("cmd"), hex("arg")]).requests(&SEMCTL),
    row(68, "msgget", &[hex("key"), flags("flags", &IPC_GET)]),
    row(69, "msgsnd", &[int("id"), hex("msgp"), uint("size"), flags("flags", &IPC_FLAGS)])
        .waits_unless(3, IPC_NOWAIT),
    row(
        70,
        "msgrcv",
        &[
            int("id"),
            Arg { name: "msgp", kind: Kind::Out(Size::ResultAfter(LONG, 2), When::Success) },
            uint("size"),
            long("type"),
            flags("flags", &IPC_FLAGS),
        ],
    )
    .waits_unless(4, IPC_NOWAIT),
    row(71, "msgctl", &[int("id"), request("cmd"), hex("buf")]).requests(&MSGCTL),
    row(
        202,
        "futex",
        &[hex("uaddr"), request("op"), uint("val"), hex("timeout"), hex("uaddr2"), uint("val3")],
    )
    .requests(&FUTEX),
    row(206, "io_setup", &[uint("nr_events"), hex("ctx_idp")]).emulate(Errno::ENOSYS, NO_AIO),
    row(207, "io_destroy", &[hex("ctx_id")]).emulate(Errno::ENOSYS, NO_AIO),
    row(208, "io_getevents", &[hex("ctx_id"), long("min_nr"), long("nr"), hex("events"), hex("timeout")])
        .emulate(Errno::ENOSYS, NO_AIO),
    row(209, "io_submit", &[hex("ctx_id"), long("nr"), hex("iocbpp")]).emulate(Errno::ENOSYS, NO_AIO),
    row(210, "io_cancel", &[hex("ctx_id"), hex("iocb"), hex("result")]).emulate(Errno::ENOSYS, NO_AIO),
    row(
        220,
        "semtimedop",
        &[int("id"), input("sops", Size::Items(2, SEMBUF)), uint("nsops"), read("timeout", TIMESPEC)],
    )
    .waits(),
    row(240, "mq_open", &[path("name"), flags("oflag", &OPEN), mode("mode"), read("attr", MQ_ATTR)]),
    row(241, "mq_unlink", &[path("name")]),
    row(
        242,
        "mq_timedsend",
        &[fd("mqdes"), input("msg", Size::Arg(2)), uint("len"), uint("prio"), read("timeout", TIMESPEC)],
    )
    .waits(),
    row(
        243,
        "mq_timedreceive",
        &[
            fd("mqdes"),
            out("msg", Size::Result(2)),
            uint("len"),
            wrote("prio", UINT),
            read("timeout", TIMESPEC),
        ],
    )
    .waits(),
    row(244, "mq_notify", &[fd("mqdes"), read("sevp", SIGEVENT)]),
    row(245, "mq_getsetattr", &[fd("mqdes"), read("new", MQ_ATTR), wrote("old", MQ_ATTR)]),
    row(
        248,
        "add_key",
        &[text("type"), text("description"), input("payload", Size::Arg(3)), uint("len"), int("keyring")],
    ),
    row(249, "request_key", &[text("type"), text("description"), text("callout_info"), int("keyring")])
        .waits(),
    row(250, "keyctl", &[request("operation"), hex("arg2"), hex("arg3"), hex("arg4"), hex("arg5")])
        .requests(&KEYCTL),
    row(273, "set_robust_list", &[hex("head"), uint("len")]),
    row(274, "get_robust_list", &[int("pid"), wrote("head", POINTER), wrote("len", ULONG)]),
    row(
        333,
        "io_pgetevents",
        &[hex("ctx_id"), long("min_nr"), long("nr"), hex("events"), hex("timeout"), hex("sigmask")],
    )
    .emulate(Errno::ENOSYS, NO_AIO),
    row(425, "io_uring_setup", &[uint("entries"), hex("params")]).emulate(Errno::ENOSYS, NO_AIO),
    row(
        426,
        "io_uring_enter",
        &[fd("fd"), uint("to_submit"), uint("min_complete"), hex("flags"), hex("sig"), uint("sigsz")],
    )
    .emulate(Errno::ENOSYS, NO_AIO),
    row(427, "io_uring_register", &[fd("fd"), uint("opcode"), hex("arg"), uint("nr_args")])
        .emulate(Errno::ENOSYS, NO_AIO),
    row(
        449,
        "futex_waitv",
        &[
            input("waiters", Size::Items(1, FUTEX_WAITV)),
            uint("count"),
            hex("flags"),
            read("timeout", TIMESPEC),
            flags("clockid", &CLOCK),
        ],
    )
    .waits(),
    row(454, "futex_wake", &[hex("uaddr"), hex("mask"), int("count"), hex("flags")]),
    row(
        455,
        "futex_wait",
        &[
            hex("uaddr"),
            hex("val"),
            hex("mask"),
            hex("flags"),
            read("timeout", TIMESPEC),
            flags("clockid", &CLOCK),
        ],
    )
    .waits(),
    row(456, "futex_requeue", &[hex("waiters"), hex("flags"), int("wake"), int("requeue")]),
];
