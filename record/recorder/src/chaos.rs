//! Chaos: who runs next, for how long, and who must wait although nobody else could run, all drawn from one seed. Decides; knows
//! nothing of tracees but their ids.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ptrace::HostTid;

/// A slice lasts between these, in nanoseconds; short ones are as likely as long ones on a logarithmic scale.
const SLICES: (u64, u64) = (5_000, 20_000_000);
/// A turn that is counted in instructions has between so many.
const STEPS: (u64, u64) = (4, 1_000);
/// One in so many turns, and returns from calls, is.
const STEPPED: u64 = 3;
/// A task starves between these, in nanoseconds.
const STARVATIONS: (u64, u64) = (10_000_000, 2_500_000_000);
/// One in so many new tasks starves at once.
const STARVED_AT_BIRTH: u64 = 3;
/// One in so many turns begins a starvation.
const STARVED_LATER: u64 = 100;
/// One in so many turns draws all priorities anew.
const REDRAWN: u64 = 8;
/// One in so many returns from a system call ends the turn.
const ENDED_BY_CALL: u64 = 3;
/// All starvation of a recording together, in nanoseconds: a recording may not take forever.
const MOST_STARVATION: u64 = 6_000_000_000;

/// The state of a recording's random choices.
#[derive(Debug)]
pub(crate) struct Chaos {
    state: u64,
    /// Whether this recording starves tasks at all.
    starves: bool,
    priorities: BTreeMap<HostTid, u64>,
    starving: BTreeMap<HostTid, Instant>,
    starved: u64,
}

impl Chaos {
    /// Every choice follows from `seed` (and from what the program does).
    pub(crate) fn new(seed: u64) -> Self {
        let mut chaos = Self {
            state: seed,
            starves: false,
            priorities: BTreeMap::new(),
            starving: BTreeMap::new(),
            starved: 0,
        };
        chaos.starves = !chaos.one_in(3);
        chaos
    }

    /// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    /// A number between two others, each order of magnitude as likely.
    fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let span = (high as f64 / low as f64).ln();
        (low as f64 * (unit * span).exp()) as u64
    }

    /// A new task appeared.
    pub(crate) fn born(&mut self, tid: HostTid) {
        let priority = self.next();
        self.priorities.insert(tid, priority);
        if self.one_in(STARVED_AT_BIRTH) {
            self.starve(tid);
        }
    }

    /// A task is gone.
    pub(crate) fn gone(&mut self, tid: HostTid) {
        self.priorities.remove(&tid);
        self.starving.remove(&tid);
    }

    fn starve(&mut self, tid: HostTid) {
        let nanos = self.between(STARVATIONS);
        if self.starves && self.starved + nanos <= MOST_STARVATION {
            self.starved += nanos;
            self.starving.insert(tid, Instant::now() + Duration::from_nanos(nanos));
        }
    }

    /// Whether a task must wait although it could run.
    pub(crate) fn is_starving(&self, tid: HostTid) -> bool {
        self.starving.get(&tid).is_some_and(|until| Instant::now() < *until)
    }

    /// Who of those that could run gets the turn.
    pub(crate) fn choose(&mut self, ready: &BTreeSet<HostTid>) -> Option<HostTid> {
        if self.one_in(REDRAWN) {
            let tids: Vec<HostTid> = self.priorities.keys().copied().collect();
            for tid in tids {
                let priority = self.next();
                self.priorities.insert(tid, priority);
            }
        }
        let chosen = ready.iter().copied().max_by_key(|tid| self.priorities.get(tid))?;
        if self.one_in(STARVED_LATER) {
            self.starve(chosen);
        }
        Some(chosen)
    }

    /// How long the turn lasts, in nanoseconds.
    pub(crate) fn slice(&mut self) -> u64 {
        self.between(SLICES)
    }

    /// How many instructions the turn lasts, if it is counted so: races are narrow where threads begin and calls return.
    pub(crate) fn steps(&mut self) -> Option<u64> {
        self.one_in(STEPPED).then(|| self.between(STEPS))
    }

    /// A task used up its turn: most often the others go first, and long.
    pub(crate) fn used_up(&mut self, tid: HostTid) {
        const LOW: u32 = 16;
        let back = !self.one_in(4);
        let priority = if back { self.next() >> LOW } else { self.next() };
        self.priorities.insert(tid, priority);
    }

    /// Whether a turn ends at the return from a system call.
    pub(crate) fn ends_at_call(&mut self) -> bool {
        self.one_in(ENDED_BY_CALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_from_the_seed() {
        let draw = |seed| {
            let mut chaos = Chaos::new(seed);
            let tids: BTreeSet<HostTid> = (1..=5).map(HostTid).collect();
            tids.iter().for_each(|tid| chaos.born(*tid));
            let turns: Vec<_> = (0..50).map(|_| (chaos.choose(&tids), chaos.slice())).collect();
            (turns, chaos.starving.keys().copied().collect::<Vec<_>>())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn draws_stay_in_their_ranges_and_reach_both_ends() {
        let mut chaos = Chaos::new(1);
        let slices: Vec<u64> = (0..2000).map(|_| chaos.slice()).collect();
        assert!(slices.iter().all(|slice| (SLICES.0..=SLICES.1).contains(slice)));
        assert!(slices.iter().any(|slice| *slice < 2 * SLICES.0));
        assert!(slices.iter().any(|slice| *slice > SLICES.1 / 2));
    }

    #[test]
    fn starvation_ends_and_is_bounded() {
        let mut chaos = Chaos { starves: true, ..Chaos::new(3) };
        (1..1000).for_each(|tid| chaos.starve(HostTid(tid)));
        assert!(chaos.starved <= MOST_STARVATION);
        assert!(chaos.starving.len() > 1);
        assert!(chaos.is_starving(*chaos.starving.keys().next().unwrap()));
        chaos.starving.insert(HostTid(5), Instant::now());
        assert!(!chaos.is_starving(HostTid(5)));
    }
}
