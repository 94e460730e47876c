//! Who comes next where turns are given fairly. Knows nothing of what the tasks do.
//!
//! Those of the highest priority take turns in a circle. Who has just woken up comes first every other time, as it mostly has little to do and
//! others wait for it; and one turn in so many goes to a task of lower priority, so that what it holds up comes about.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use ptrace::HostTid;

/// One in so many turns goes to a task of lower priority.
const LOWER: u32 = 8;

/// Who had which turns.
#[derive(Debug)]
pub(crate) struct Order {
    /// How many there were.
    turns: u32,
    /// Who had the last one that the circle gave.
    round: HostTid,
    /// Who had the last one that was given to a task of lower priority. They have a circle of their own: counted from who had the last turn
    /// of all, it could be the same one each time.
    lower: HostTid,
    /// Who had the last one of all.
    last: HostTid,
    /// Who has woken up and had none since.
    woken: VecDeque<HostTid>,
    /// Whether one of those had the last one.
    woken_had_it: bool,
}

impl Order {
    pub(crate) fn new(first: HostTid) -> Self {
        Self {
            turns: 0,
            round: first,
            lower: first,
            last: first,
            woken: VecDeque::new(),
            woken_had_it: false,
        }
    }

    /// A task has woken up that somebody else's turn kept from going on.
    pub(crate) fn woke(&mut self, tid: HostTid) {
        if !self.woken.contains(&tid) {
            self.woken.push_back(tid);
        }
    }

    /// Gives the turn to one of those that could go on, by their ranks, the lowest first.
    pub(crate) fn next(
        &mut self,
        able: &BTreeSet<HostTid>,
        rank: impl Fn(HostTid) -> Option<i32>,
    ) -> Option<HostTid> {
        self.turns = self.turns.wrapping_add(1);
        // The first of equals; not who has just had a turn out of turn, which may wait for what the others do.
        let first = circle(able, self.round).min_by_key(|tid| (rank(*tid), *tid == self.last))?;
        let above = rank(first);
        let below = || circle(able, self.lower).find(|tid| rank(*tid) > above);
        let woken = || self.woken.iter().copied().find(|tid| able.contains(tid) && rank(*tid) == above);
        let below = self.turns.is_multiple_of(LOWER).then(below).flatten();
        let woken = (below.is_none() && !self.woken_had_it).then(woken).flatten();
        self.woken_had_it = woken.is_some();
        let next = match (below, woken) {
            (Some(below), _) => {
                self.lower = below;
                below
            }
            (None, Some(woken)) => woken,
            (None, None) => {
                self.round = first;
                first
            }
        };
        self.last = next;
        self.woken.retain(|tid| *tid != next);
        Some(next)
    }

    /// A task is gone.
    pub(crate) fn forget(&mut self, tid: HostTid) {
        self.woken.retain(|woken| *woken != tid);
    }
}

/// Them all, in a circle that begins after this one.
fn circle(able: &BTreeSet<HostTid>, last: HostTid) -> impl Iterator<Item = HostTid> {
    able.range((Excluded(last), Unbounded)).chain(able).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tids(numbers: &[i32]) -> BTreeSet<HostTid> {
        numbers.iter().copied().map(HostTid).collect()
    }

    /// Who gets so many turns among 1 to 5, of which 5 has the lower priority. Each time, those in `wakes` have woken up.
    fn turns(count: usize, wakes: &[i32]) -> Vec<i32> {
        let mut order = Order::new(HostTid(1));
        let mut next = || {
            wakes.iter().for_each(|tid| order.woke(HostTid(*tid)));
            order.next(&tids(&[1, 2, 3, 4, 5]), |tid| Some(i32::from(tid.0 == 5))).unwrap().0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn equals_take_turns_and_lower_ones_get_some() {
        assert_eq!(turns(10, &[]), [2, 3, 4, 1, 2, 3, 4, 5, 1, 2]);
    }

    #[test]
    fn who_wakes_up_comes_first_and_nobody_starves() {
        assert_eq!(turns(12, &[3]), [3, 2, 3, 4, 3, 1, 3, 5, 3, 2, 3, 4]);
        assert_eq!(turns(9, &[3, 4]), [3, 2, 4, 3, 4, 1, 3, 5, 4]);
    }

    #[test]
    fn who_is_gone_gets_none() {
        let mut order = Order::new(HostTid(1));
        order.woke(HostTid(3));
        order.forget(HostTid(3));
        assert_eq!(order.next(&tids(&[1, 2]), |_| Some(0)), Some(HostTid(2)));
        assert_eq!(order.next(&tids(&[]), |_| Some(0)), None);
    }
}
