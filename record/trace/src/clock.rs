//! Clocks that go in steps of some milliseconds. They need no time stamp counter, which the thread that records may not read as
//! fast as others do.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time since the machine was started; zero where the kernel has no such clock.
pub(crate) fn monotonic() -> Duration {
    now(ClockId::CLOCK_MONOTONIC_COARSE)
}

/// The time since 1970.
pub(crate) fn real() -> Duration {
    now(ClockId::CLOCK_REALTIME_COARSE)
}

fn now(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
