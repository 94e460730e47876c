//! Rows: clocks, timers, sleeping. Data only.

use super::build::*;
use crate::flags::*;
use crate::inside::Good;
use crate::row::{Row, When};
use crate::structs::*;

pub(super) const ROWS: &[Row] = &[
    row(35, "nanosleep", &[read("req", TIMESPEC), wrote_when("rem", TIMESPEC, When::Interrupted)]).waits(),
    row(36, "getitimer", &[flags("which", &ITIMER), wrote("curr", ITIMERVAL)]),
    row(37, "alarm", &[uint("seconds")]),
    row(38, "setitimer", &[flags("which", &ITIMER), read("new", ITIMERVAL), wrote("old", ITIMERVAL)]),
    row(96, "gettimeofday", &[wrote("tv", TIMEVAL), wrote("tz", TIMEZONE)]).inside(Good::ForAnything),
    row(100, "times", &[wrote("buf", TMS)]).inside(Good::ForAnything),
    row(159, "adjtimex", &[both_when("buf", TIMEX, When::Always)]),
    row(164, "settimeofday", &[read("tv", TIMEVAL), read("tz", TIMEZONE)]),
    row(201, "time", &[wrote("tloc", TIME)]).inside(Good::ForAnything),
    row(
        222,
        "timer_create",
        &[flags("clockid", &CLOCK), read("sevp", SIGEVENT), wrote_when("timerid", TIMER_ID, When::Always)],
    ),
    row(
        223,
        "timer_settime",
        &[int("timerid"), flags("flags", &TIMER), read("new", ITIMERSPEC), wrote("old", ITIMERSPEC)],
    ),
    row(224, "timer_gettime", &[int("timerid"), wrote("curr", ITIMERSPEC)]),
    row(225, "timer_getoverrun", &[int("timerid")]),
    row(226, "timer_delete", &[int("timerid")]),
    row(227, "clock_settime", &[flags("clockid", &CLOCK), read("tp", TIMESPEC)]),
    row(228, "clock_gettime", &[flags("clockid", &CLOCK), wrote("tp", TIMESPEC)]).inside(Good::ForAnything),
    row(229, "clock_getres", &[flags("clockid", &CLOCK), wrote("res", TIMESPEC)]).inside(Good::ForAnything),
    row(
        230,
        "clock_nanosleep",
        &[
            flags("clockid", &CLOCK),
            flags("flags", &TIMER),
            read("req", TIMESPEC),
            wrote_when("rem", TIMESPEC, When::InterruptedUnless(1, 1)),
        ],
    )
    .waits(),
    row(283, "timerfd_create", &[flags("clockid", &CLOCK), flags("flags", &OPEN_BITS)]),
    row(
        286,
        "timerfd_settime",
        &[fd("fd"), flags("flags", &TIMERFD), read("new", ITIMERSPEC), wrote("old", ITIMERSPEC)],
    ),
    row(287, "timerfd_gettime", &[fd("fd"), wrote("curr", ITIMERSPEC)]),
    row(305, "clock_adjtime", &[flags("clockid", &CLOCK), both("buf", TIMEX)]),
];
