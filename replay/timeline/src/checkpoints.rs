//! Which live checkpoints to keep: a bounded number, dense near where the work is and sparse far from it.

use guest::Moment;
use replayer::{Position, Snapshot};

/// Most checkpoints kept at a time (each is one process per space).
const MOST: usize = 28;

/// Checkpoints in order of position.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    kept: Vec<Snapshot>,
}

impl Checkpoints {
    /// The last one at or before a position.
    pub(crate) fn before(&mut self, position: Position) -> Option<&mut Snapshot> {
        let index = self.kept.partition_point(|kept| kept.position() <= position);
        self.kept[..index].last_mut()
    }

    /// The last one whose moment is less than `moment`.
    pub(crate) fn earlier(&mut self, moment: Moment) -> Option<&mut Snapshot> {
        let index = self.kept.partition_point(|kept| kept.position().moment < moment);
        self.kept[..index].last_mut()
    }

    /// Whether one is kept at exactly this position.
    pub(crate) fn has(&self, position: Position) -> bool {
        self.kept.binary_search_by_key(&position, Snapshot::position).is_ok()
    }

    /// Keeps one more, of at most `affordable`. Where there are too many, the one goes that is missed least: the gap it leaves is smallest against its
    /// distance from `here`. The first is never dropped.
    pub(crate) fn keep(&mut self, snapshot: Snapshot, here: Moment, affordable: usize) {
        let index = self.kept.partition_point(|kept| kept.position() < snapshot.position());
        self.kept.insert(index, snapshot);
        while self.kept.len() > MOST.min(affordable)
            && let Some(victim) = victim(&self.positions(), here)
        {
            self.kept.remove(victim);
        }
    }

    fn positions(&self) -> Vec<u64> {
        self.kept.iter().map(|kept| kept.position().moment.0).collect()
    }
}

/// Which of these moments is missed least from `here`.
fn victim(moments: &[u64], here: Moment) -> Option<usize> {
    let cost = |&i: &usize| {
        let gap = moments.get(i + 1).copied().unwrap_or(here.0.max(moments[i])) - moments[i - 1];
        let distance = here.0.abs_diff(moments[i]) + 1;
        // Ratio in thousandths, without floats.
        u128::from(gap) * 1000 / u128::from(distance)
    };
    (1..moments.len()).min_by_key(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_and_crowded_checkpoints_go_first() {
        assert_eq!(victim(&[0], Moment(5)), None);
        assert_eq!(victim(&[0, 10, 20, 900, 950, 975], Moment(1000)), Some(1));
        let spread: Vec<u64> = vec![0, 500, 750, 875, 937, 968];
        assert_ne!(victim(&spread, Moment(1000)), Some(0));
    }
}
