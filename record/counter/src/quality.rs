//! Whether a counter can be relied on: measured with a loop of a known number of branches, and judged.

use std::fmt;
use std::num::NonZeroU64;

use guest::GuestAddr;

use crate::child::{self, Child, Loop, Stop};
use crate::counter::Counter;
use crate::error::{MeasureError, Unavailable};
use crate::event::{Event, EventCode};
use crate::machine::code_of_cpu;

/// What a measurement found. Numbers are in branches; each is the worst of several runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quality {
    /// Every run was counted exactly.
    pub exact: bool,
    /// Most that were counted and not executed, as by interrupts.
    pub overcount: u64,
    /// Most that were executed and not counted.
    pub missed: u64,
    /// Executed in the longest run in which so many were found; in the longest of all if every run was exact.
    pub of: u64,
    /// Most that were executed between the one an overflow was asked for at and the stop by its signal.
    pub skid: u64,
    /// Whether `loop` and `jrcxz` and their like are counted, too.
    pub loops: bool,
}

/// Whether to use a counter.
#[derive(Debug)]
pub enum Verdict {
    /// Yes, counting this.
    Use {
        /// For [`Event::RetiredConditionalBranches`].
        code: EventCode,
        /// What to allow for.
        quality: Quality,
    },
    /// No.
    Avoid(Unavailable),
}

/// In one line.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Use { quality, .. } => write!(f, "a hardware counter is used: {quality}"),
            Self::Avoid(why) => write!(f, "no hardware counter is used: {why}"),
        }
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exact, overcount, missed, of, skid, loops } = self;
        if *exact {
            write!(f, "exact")?;
        } else {
            write!(f, "up to {overcount} too many and {missed} too few in {of}")?;
        }
        write!(f, ", signals up to {skid} branches late")?;
        if *loops { Ok(()) } else { write!(f, ", blind to loop and jrcxz") }
    }
}

/// One branch too many in so many is still worth having: a count only says where to look.
const TOLERATED: u64 = 1_000;
/// A signal later than this no longer stops a thread anywhere near where it should. (AMD's Zen is late by thousands at times.)
const LATEST: u64 = 50_000;

impl Quality {
    /// Refuses a counter that is no help.
    fn judge(self) -> Result<Self, Unavailable> {
        if self.missed > 0 {
            return Err(Unavailable::Misses(self));
        }
        if self.overcount.saturating_mul(TOLERATED) > self.of {
            return Err(Unavailable::Overcounts(self));
        }
        if self.skid > LATEST {
            return Err(Unavailable::Skids(self));
        }
        Ok(self)
    }
}

/// Measures this machine's counter of retired conditional branches on one of its processors, and decides. Takes some tenths of a second,
/// less where there is no counter. Makes a child of the calling thread and waits for it.
pub fn probe(cpu: usize) -> Verdict {
    let measured = code_of_cpu(cpu).and_then(|code| {
        let quality = measure(Event::RetiredConditionalBranches(code), cpu)?;
        Ok((code, quality.judge()?))
    });
    match measured {
        Ok((code, quality)) => Verdict::Use { code, quality },
        Err(why) => Verdict::Avoid(why),
    }
}

/// The one branch of the loop that [`measure`] runs, for an [`Event::Breakpoint`].
pub fn probed_branch() -> GuestAddr {
    child::branch()
}

/// Sent at overflows while measuring: nothing else sends it.
const SIGNAL: i32 = libc::SIGSTKFLT;

/// How long the runs are, in branches.
struct Effort {
    /// Counted from end to end.
    runs: &'static [u64],
    /// Stopped by an overflow: the shortest, how much longer each is than the one before, how many, and how long the loop goes on.
    first: u64,
    step: u64,
    overflows: u64,
    grace: u64,
}

/// Some of it takes tens of milliseconds, so that interrupts fall into it.
const HARDWARE: Effort = Effort {
    runs: &[1, 1_000, 100_000, 3_000_000, 3_000_000],
    first: 20_000,
    step: 1_237,
    overflows: 24,
    grace: 200_000,
};
/// Each branch takes microseconds.
const TRAPS: Effort = Effort { runs: &[1, 100, 4_000], first: 200, step: 37, overflows: 8, grace: 1_000 };

/// Measures a counter of `event` on a processor. Makes a child of the calling thread and waits for it.
///
/// # Errors
///
/// See [`MeasureError`].
pub fn measure(event: Event, cpu: usize) -> Result<Quality, MeasureError> {
    let mut child = Child::start(cpu)?;
    let counter = Counter::open(event, child.tid(), SIGNAL)?;
    let effort = match event {
        Event::RetiredConditionalBranches(_) => &HARDWARE,
        Event::Breakpoint(_) => &TRAPS,
    };
    let mut found = Quality { exact: true, overcount: 0, missed: 0, of: 0, skid: 0, loops: false };
    for &rounds in effort.runs {
        let count = count(&mut child, &counter, Loop::Plain, rounds)?;
        found.compare(count, rounds);
    }
    for index in 0..effort.overflows {
        let due = effort.first + effort.step * index;
        let skid = overflow(&mut child, &counter, event, due, due + effort.grace, &mut found)?;
        found.skid = found.skid.max(skid);
    }
    counter.disarm()?;
    let rounds = effort.runs.last().copied().unwrap_or(1);
    found.loops = count(&mut child, &counter, Loop::Old, rounds)? >= 2 * rounds;
    Ok(found)
}

impl Quality {
    /// A run of `executed` branches was counted as `count`.
    fn compare(&mut self, count: u64, executed: u64) {
        let (over, under) = (count.saturating_sub(executed), executed.saturating_sub(count));
        self.exact &= count == executed;
        // What is counted too much in every run, however short, matters least: the longest run has it.
        let worst = (over, under) > (self.overcount, self.missed)
            || (!self.exact && (over, under) == (self.overcount, self.missed) && executed > self.of);
        if worst || (self.exact && executed > self.of) {
            self.of = executed;
        }
        self.overcount = self.overcount.max(over);
        self.missed = self.missed.max(under);
    }
}

/// Counts a loop from end to end.
fn count(child: &mut Child, counter: &Counter, which: Loop, rounds: u64) -> Result<u64, MeasureError> {
    child.prepare(which, rounds)?;
    counter.reset()?;
    counter.start()?;
    let stop = child.go_on()?;
    counter.stop()?;
    match stop {
        Stop::End => Ok(counter.read()?),
        other => Err(MeasureError::Astray { report: format!("{other:?}") }),
    }
}

/// Lets a loop of `rounds` be stopped by an overflow that is due after `due`: how late it was.
fn overflow(
    child: &mut Child,
    counter: &Counter,
    event: Event,
    due: u64,
    rounds: u64,
    found: &mut Quality,
) -> Result<u64, MeasureError> {
    child.prepare(Loop::Plain, rounds)?;
    counter.reset()?;
    counter.arm(NonZeroU64::new(due).unwrap_or(NonZeroU64::MIN))?;
    counter.start()?;
    let stop = child.go_on()?;
    counter.stop()?;
    match stop {
        Stop::Signal(_, info) if counter.sent(&info) => {}
        Stop::End => return Err(MeasureError::NoSignal { due, within: rounds }),
        other => return Err(MeasureError::Astray { report: format!("{other:?}") }),
    }
    let count = counter.read()?;
    let (executed, is_at_branch) = child.branches(rounds)?;
    // A breakpoint counts before its instruction.
    let traps = matches!(event, Event::Breakpoint(_));
    let executed = executed + u64::from(traps && is_at_branch && count > executed);
    found.compare(count, executed);
    Ok(executed.saturating_sub(due))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_help_is_refused() {
        let good = Quality { exact: true, overcount: 0, missed: 0, of: 1_000_000, skid: 40, loops: true };
        let verdict = |quality: Quality| {
            quality.judge().map_or_else(|why| why.to_string(), |quality| quality.to_string())
        };
        for (quality, expected) in [
            (good, "exact, signals up to 40 branches late"),
            (
                Quality { loops: false, ..good },
                "exact, signals up to 40 branches late, blind to loop and jrcxz",
            ),
            (
                Quality { exact: false, overcount: 1_000, ..good },
                "up to 1000 too many and 0 too few in 1000000, signals up to 40 branches late",
            ),
            (
                Quality { exact: false, overcount: 1_001, ..good },
                "the counter counts too much (1001 in 1000000)",
            ),
            (Quality { exact: false, missed: 1, ..good }, "the counter misses branches (1 in 1000000)"),
            (Quality { skid: 50_001, ..good }, "the counter's signals come up to 50001 branches late"),
        ] {
            assert_eq!(verdict(quality), expected);
        }
    }

    #[test]
    fn runs_are_compared() {
        let mut found = Quality { exact: true, overcount: 0, missed: 0, of: 0, skid: 0, loops: false };
        found.compare(10, 10);
        assert_eq!((found.exact, found.of), (true, 10));
        found.compare(102, 100);
        found.compare(1_001, 1_000);
        found.compare(50, 50);
        assert_eq!((found.exact, found.overcount, found.missed, found.of), (false, 2, 0, 100));
        found.compare(2_002, 2_000);
        found.compare(12, 10);
        assert_eq!((found.overcount, found.missed, found.of), (2, 0, 2_000));
        found.compare(4, 5);
        assert_eq!((found.overcount, found.missed, found.of), (2, 1, 2_000));
    }
}
