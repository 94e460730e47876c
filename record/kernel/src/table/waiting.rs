//! Rows: readiness and notification. Data only.

use super::build::*;
use crate::errno::Errno;
use crate::flags::*;
use crate::inside::{Form, Good};
use crate::row::{Hand, Row, Size};
use crate::structs::*;

pub(super) const ROWS: &[Row] = &[
    row(7, "poll", &[input("fds", Size::Items(1, POLLFD)), uint("nfds"), int("timeout")])
        .waits_unless_zero(2)
        .hand(Hand::Poll)
        .inside_as(Good::ForAnything, Form::Poll),
    row(
        23,
        "select",
        &[int("nfds"), hex("readfds"), hex("writefds"), hex("exceptfds"), read("timeout", TIMEVAL)],
    )
    .waits()
    .hand(Hand::Select),
    row(213, "epoll_create", &[int("size")]),
    row(214, "epoll_ctl_old", &[]).absent(),
    row(215, "epoll_wait_old", &[]).absent(),
    row(
        232,
        "epoll_wait",
        &[fd("epfd"), out("events", Size::ResultItems(2, EPOLL_EVENT)), int("maxevents"), int("timeout")],
    )
    .waits_unless_zero(3)
    .inside_as(Good::ForQuestions, Form::NoTime),
    row(233, "epoll_ctl", &[fd("epfd"), flags("op", &EPOLL_OP), fd("fd"), read("event", EPOLL_EVENT)])
        .inside(Good::ForQuestions),
    row(253, "inotify_init", &[]),
    row(254, "inotify_add_watch", &[fd("fd"), path("path"), hex("mask")]),
    row(255, "inotify_rm_watch", &[fd("fd"), int("wd")]),
    row(
        270,
        "pselect6",
        &[
            int("nfds"),
            hex("readfds"),
            hex("writefds"),
            hex("exceptfds"),
            read("timeout", TIMESPEC),
            read("sigmask", SIGMASK_ARG),
        ],
    )
    .waits()
    .hand(Hand::Select),
    row(
        271,
        "ppoll",
        &[
            input("fds", Size::Items(1, POLLFD)),
            uint("nfds"),
            read("timeout", TIMESPEC),
            read("sigmask", SIGSET),
            uint("sigsetsize"),
        ],
    )
    .waits()
    .hand(Hand::Poll)
    .inside_without(Good::ForAnything, Form::Poll, [Some(2), Some(3)]),
    row(
        281,
        "epoll_pwait",
        &[
            fd("epfd"),
            out("events", Size::ResultItems(2, EPOLL_EVENT)),
            int("maxevents"),
            int("timeout"),
            read("sigmask", SIGSET),
            uint("sigsetsize"),
        ],
    )
    .waits_unless_zero(3)
    .inside_without(Good::ForQuestions, Form::NoTime, [Some(4), None]),
    row(284, "eventfd", &[uint("initval")]),
    row(290, "eventfd2", &[uint("initval"), flags("flags", &EVENTFD)]),
    row(291, "epoll_create1", &[flags("flags", &OPEN_BITS)]),
    row(294, "inotify_init1", &[flags("flags", &OPEN_BITS)]),
    row(300, "fanotify_init", &[hex("flags"), hex("event_f_flags")]),
    row(301, "fanotify_mark", &[fd("fd"), hex("flags"), hex("mask"), dirfd("dirfd"), path("path")]),
    row(323, "userfaultfd", &[hex("flags")])
        .emulate(Errno::ENOSYS, "memory would be filled by another task with no store of this one"),
    row(
        441,
        "epoll_pwait2",
        &[
            fd("epfd"),
            out("events", Size::ResultItems(2, EPOLL_EVENT)),
            int("maxevents"),
            read("timeout", TIMESPEC),
            read("sigmask", SIGSET),
            uint("sigsetsize"),
        ],
    )
    .waits()
    .inside_without(Good::ForQuestions, Form::NoTimeAt, [Some(3), Some(4)]),
];
