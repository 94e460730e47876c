//! Threads that wake others. One that has the turn and goes on computing has to be stopped at an arbitrary instruction for them, where all
//! that was written must be looked at. Where it woke them, at the end of its call, it can give way for next to nothing. But who wakes
//! others often does so for a bit of work each, and holds what they need next: to give way each time would cost more. So a space is allowed
//! to do so now and then, and more often after an execution point, for which it would have been worth it.

use std::time::Duration;

use ptrace::HostTid;

use crate::api::RecordError;
use crate::session::Session;
use crate::task::{Space, Task};
use crate::tsc;
use crate::turn::cannot_wait;

/// Once in so much time threads of a space may give way.
const EACH: Duration = Duration::from_millis(2);
/// How often they may at once.
const AT_ONCE: u32 = 32;
/// How often they may at once after execution points.
const AFTER_POINTS: u32 = 256;
/// Looking at so many pages costs about as much as giving way.
const PAGES: u32 = 16;
/// How often those that were woken are waited for. All run on one processor, and whoever woke them stands still.
const PATIENCE: u32 = 3;

const FUTEX: u32 = kernel::number("futex");

/// How often threads of a space may give way to those that they wake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    left: u32,
    /// Since when there is no more for the time that passes.
    since: Duration,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left: AT_ONCE, since: Duration::ZERO }
    }
}

impl Allowance {
    /// With what there is for the time until now.
    fn at(self, now: Duration) -> Self {
        let passed = now.saturating_sub(self.since).as_nanos() / EACH.as_nanos();
        match u32::try_from(passed) {
            Ok(more) if self.left.max(more) < AT_ONCE => {
                Self { left: (self.left + more).min(AT_ONCE), since: self.since + EACH * more }
            }
            _ => Self { left: self.left.max(AT_ONCE), since: now },
        }
    }

    /// After an execution point for which so many pages were looked at.
    fn after_point(self, pages: usize) -> Self {
        let more = u32::try_from(pages).unwrap_or(u32::MAX) / PAGES;
        Self { left: self.left.saturating_add(more).min(AFTER_POINTS), ..self }
    }

    /// With one less; whether there was any.
    fn less_one(self) -> (Self, bool) {
        let left = self.left.checked_sub(1);
        (Self { left: left.unwrap_or(0), ..self }, left.is_some())
    }
}

/// Whether the last call of a task woke others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Woke {
    #[default]
    Nobody,
    /// It did, and stands there still.
    Now,
    /// It did, and gave way: what they wait for may come of its next call, which is stopped at.
    GaveWay,
}

/// A call returned.
pub(crate) fn after_call(task: &mut Task, (nr, args): (u32, [u64; 6]), result: i64) {
    let woke = nr == FUTEX && result > 0 && !kernel::may_block(nr, &args) && task.space.has_threads();
    task.woke = if woke { Woke::Now } else { Woke::Nobody };
}

/// An execution point was taken for which so many pages were looked at.
pub(crate) fn after_point(task: &Task, pages: usize) {
    let allowed = &task.space.gives_way;
    allowed.set(allowed.get().after_point(pages));
}

/// Takes one from what a space is allowed, if there is any.
fn may_give_way(space: &Space) -> bool {
    let (allowed, is_one) = space.gives_way.get().at(tsc::clock()).less_one();
    space.gives_way.set(allowed);
    is_one
}

impl Session {
    /// Who has the turn may have woken others just now: it gives way to them.
    pub(crate) fn give_way(&mut self) -> Result<(), RecordError> {
        let Some((tid, _)) = self.turn.filter(|(tid, _)| self.ready.contains(tid)) else { return Ok(()) };
        let Some(task) = self.tasks.get_mut(&tid).filter(|task| task.woke == Woke::Now) else {
            return Ok(());
        };
        if self.chaos.is_some() || !may_give_way(&task.space) {
            task.woke = Woke::Nobody;
            return Ok(());
        }
        task.woke = Woke::GaveWay;
        self.let_those_woken_stop(tid)?;
        if self.others_ready(tid)
            && let Some(task) = self.tasks.get_mut(&tid)
        {
            task.yields = true;
        }
        Ok(())
    }

    fn let_those_woken_stop(&mut self, tid: HostTid) -> Result<(), RecordError> {
        for _ in 0..PATIENCE {
            if self.others_ready(tid) {
                break;
            }
            std::thread::yield_now();
            if let Some(waited) = ptrace::wait_any(libc::WNOHANG).map_err(cannot_wait)? {
                self.report(waited)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_points_allow_it() {
        let at = |millis: u64| Duration::from_millis(1000 + millis);
        let mut allowed = Allowance::default();
        let mut how_often = |now, most| {
            let mut taken = 0;
            while taken < most {
                let (left, is_one) = allowed.at(now).less_one();
                allowed = left;
                if !is_one {
                    break;
                }
                taken += 1;
            }
            taken
        };
        assert_eq!(how_often(at(0), 100), AT_ONCE);
        assert_eq!(how_often(at(1), 100), 0);
        assert_eq!(how_often(at(9), 100), 4);
        assert_eq!(how_often(at(10), 100), 1, "what had passed was kept");
        assert_eq!(how_often(at(5000), 10), 10);
        assert_eq!(how_often(at(5000), 100), AT_ONCE - 10);
        let after = Allowance::default().after_point(1600);
        assert_eq!(after.left, AT_ONCE + 100);
        assert_eq!(after.at(at(9000)).left, AT_ONCE + 100, "time takes nothing away");
        assert_eq!(after.after_point(1 << 20).left, AFTER_POINTS);
    }
}
