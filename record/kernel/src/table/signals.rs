//! Rows: signals. Data only.

use super::build::*;
use crate::flags::*;
use crate::row::{Class, Hand, Row, Size, When};
use crate::structs::*;

pub(super) const ROWS: &[Row] = &[
    row(
        13,
        "rt_sigaction",
        &[sig("sig"), read("act", SIGACTION), wrote("oldact", SIGACTION), uint("sigsetsize")],
    ),
    row(
        14,
        "rt_sigprocmask",
        &[flags("how", &SIG_HOW), read("set", SIGSET), wrote("oldset", SIGSET), uint("sigsetsize")],
    ),
    row(15, "rt_sigreturn", &[]).class(Class::SignalReturn),
    row(34, "pause", &[]).waits(),
    row(62, "kill", &[int("pid"), sig("sig")]),
    row(127, "rt_sigpending", &[out("set", Size::Arg(1)), uint("sigsetsize")]),
    row(
        128,
        "rt_sigtimedwait",
        &[
            read("set", SIGSET),
            wrote_when("info", SIGINFO, When::Positive),
            read("timeout", TIMESPEC),
            uint("sigsetsize"),
        ],
    )
    .waits(),
    row(129, "rt_sigqueueinfo", &[int("pid"), sig("sig"), read("info", SIGINFO)]),
    row(130, "rt_sigsuspend", &[read("mask", SIGSET), uint("sigsetsize")]).waits(),
    row(131, "sigaltstack", &[read("ss", STACK), wrote("old_ss", STACK)]),
    row(200, "tkill", &[int("tid"), sig("sig")]),
    row(219, "restart_syscall", &[])
        .waits()
        .hand(Hand::Restart)
        .partial("its effects are those of the call it resumes, which the recorder must remember"),
    row(234, "tgkill", &[int("tgid"), int("tid"), sig("sig")]),
    row(282, "signalfd", &[fd("fd"), read("mask", SIGSET), uint("sizemask")]),
    row(289, "signalfd4", &[fd("fd"), read("mask", SIGSET), uint("sizemask"), flags("flags", &OPEN_BITS)]),
    row(297, "rt_tgsigqueueinfo", &[int("tgid"), int("tid"), sig("sig"), read("info", SIGINFO)]),
];
