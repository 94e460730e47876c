//! How far a task has come since its last event, by a counter, where there is one to trust; and slices that end when it has come far
//! enough. Knows what a count is worth, not what it is used for.

use std::num::NonZeroU64;

use counter::{Counter, Event, Verdict};
use ptrace::{HostTid, Stopped};
use trace::Located;

use crate::api::{CounterChoice, RecordError};

/// Sent to a task whose slice is over: hardly anything else sends it.
const SIGNAL: i32 = libc::SIGSTKFLT;
/// Branches in a slice: somewhat more than fit into the ticks that end it otherwise, where a branch costs a nanosecond.
const SLICE: NonZeroU64 = NonZeroU64::new(20_000_000).expect("not 0");
/// The same where each costs a trap.
const TRAPS: NonZeroU64 = NonZeroU64::new(500).expect("not 0");

/// What is counted in every task, and how long slices are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counting {
    event: Event,
    slice: NonZeroU64,
    pub(crate) located: Located,
}

impl Counting {
    /// Decides what to count, measuring the counter of the processor that everything will run on. Nothing may have been forked yet.
    pub(crate) fn choose(choice: CounterChoice) -> Result<Option<Self>, RecordError> {
        match choice {
            CounterChoice::State => return Ok(None),
            CounterChoice::Executions(addr) => {
                let event = Event::Breakpoint(addr);
                return Ok(Some(Self { event, slice: TRAPS, located: Located::Branches }));
            }
            CounterChoice::Auto | CounterChoice::Pmu => {}
        }
        let verdict = counter::probe(ptrace::current_cpu());
        tracing::debug!(%verdict, "measured");
        match verdict {
            Verdict::Use { code, quality } => {
                let located = if quality.loops { Located::Branches } else { Located::Jcc };
                Ok(Some(Self { event: Event::RetiredConditionalBranches(code), slice: SLICE, located }))
            }
            Verdict::Avoid(_) if choice == CounterChoice::Auto => Ok(None),
            Verdict::Avoid(why) => Err(RecordError::NoCounter(why)),
        }
    }
}

/// What counts in one task.
#[derive(Debug, Default)]
pub(crate) struct Count {
    counter: Option<Counter>,
    /// It could not be had.
    failed: bool,
    /// It still counts from an event before the last one.
    behind: bool,
    /// The turn, by the tick it began at, whose end it tells of.
    armed: Option<u32>,
}

impl Count {
    /// The task's last event is now this one.
    pub(crate) fn begin_anew(&mut self) {
        self.behind = true;
    }

    /// Branches since the task's last event, if that is known.
    pub(crate) fn branches(&self) -> Option<u64> {
        let counter = self.counter.as_ref().filter(|_| !self.behind)?;
        counter.read().map_err(|error| tracing::debug!(%error, "a count is lost")).ok()
    }

    /// A task is about to go on. `turn`: a slice that began at this tick is to end, as others wait.
    pub(crate) fn go_on(&mut self, counting: &Counting, tid: HostTid, stopped: &Stopped, turn: Option<u32>) {
        if let Err(error) = self.try_go_on(counting, tid, stopped, turn) {
            tracing::debug!(%tid, %error, "points of this task have no count");
            (self.counter, self.failed) = (None, true);
        }
    }

    fn try_go_on(
        &mut self,
        counting: &Counting,
        tid: HostTid,
        stopped: &Stopped,
        turn: Option<u32>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        // An exec by another thread than the first changes its id.
        self.counter.take_if(|counter| counter.tid() != tid);
        let counter = match &self.counter {
            Some(counter) => counter,
            None if self.failed || !self.behind => return Ok(()),
            None => {
                self.armed = None;
                let counter = Counter::open(counting.event, tid, SIGNAL)?;
                counter.start()?;
                self.counter.insert(counter)
            }
        };
        if std::mem::take(&mut self.behind) {
            counter.reset()?;
        }
        // Pending, it would be there for the task to see.
        let blocked = |mask: u64| mask >> (SIGNAL - 1) & 1 != 0;
        let turn = match turn {
            Some(turn) if !blocked(stopped.signal_mask()?) => Some(turn),
            _ => None,
        };
        if turn != self.armed {
            match turn {
                Some(_) => counter.arm(counting.slice)?,
                None => counter.disarm()?,
            }
            self.armed = turn;
        }
        Ok(())
    }

    /// Whether a signal that a task is stopped for is the end of its slice.
    pub(crate) fn is_over(&mut self, signal: i32, stopped: &Stopped) -> bool {
        let Some(counter) = self.counter.as_ref().filter(|_| signal == SIGNAL) else { return false };
        let over = stopped.siginfo().is_ok_and(|info| counter.sent(&info));
        if over {
            self.armed = None;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use guest::GuestAddr;

    use super::*;

    #[test]
    fn what_is_counted_follows_from_the_choice() {
        assert!(Counting::choose(CounterChoice::State).unwrap().is_none());
        let counting = Counting::choose(CounterChoice::Executions(GuestAddr(0x1000))).unwrap().unwrap();
        assert_eq!(
            (counting.event, counting.located),
            (Event::Breakpoint(GuestAddr(0x1000)), Located::Branches)
        );
        match (Counting::choose(CounterChoice::Auto).unwrap(), Counting::choose(CounterChoice::Pmu)) {
            (None, Err(RecordError::NoCounter(why))) => assert!(!why.to_string().contains('\n'), "{why}"),
            (Some(one), Ok(Some(other))) => assert_eq!(one.located, other.located),
            other => panic!("{other:?}"),
        }
    }
}
