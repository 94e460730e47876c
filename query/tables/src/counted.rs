//! Rows that a statement only counts: as many as there are, of each kind, but not made one by one. Knows no table.

use guest::{GuestAddr, SpaceId};
use store::{Order, QueryError};

use crate::plan::Count;

/// What a table's walk gives.
pub(crate) enum Row<R> {
    /// A row as it is.
    Made(R),
    /// One of a kind.
    Counted(Kind),
}

/// What is known of a row that is only counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    /// In which space.
    pub(crate) space: SpaceId,
    /// The instruction's address, where the table counts by it.
    pub(crate) pc: GuestAddr,
    /// Which one it is of those that have these.
    pub(crate) number: u64,
}

impl Kind {
    /// A number that no other counted row has.
    pub(crate) fn rowid(self) -> i64 {
        mix(&[u64::from(self.space.0), self.pc.0, self.number])
    }
}

/// A walk over rows: made, or counted.
pub(crate) enum Rows<M> {
    /// As they are.
    Made(M),
    /// As many as there are.
    Counted(Counted),
}

impl<M> Rows<M> {
    /// As many rows of each kind as `counts` says. They are ordered by the space where `count` says so, else by the address.
    pub(crate) fn counted(
        mut counts: Vec<(SpaceId, GuestAddr, u64)>,
        count: Count,
        order: Order,
        space: usize,
    ) -> Self {
        match count.by == Some(space) {
            true => counts.sort_unstable(),
            false => counts.sort_unstable_by_key(|&(space, pc, _)| (pc, space)),
        }
        if order == Order::Descending {
            counts.reverse();
        }
        if count.once {
            counts.iter_mut().for_each(|(_, _, count)| *count = (*count).min(1));
        }
        let kind = Kind { space: SpaceId(0), pc: GuestAddr(0), number: 0 };
        Self::Counted(Counted { rest: counts.into_iter(), kind, left: 0 })
    }
}

impl<R, M: Iterator<Item = Result<R, QueryError>>> Iterator for Rows<M> {
    type Item = Result<Row<R>, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Made(rows) => rows.next().map(|row| row.map(Row::Made)),
            Self::Counted(rows) => rows.next().map(|kind| Ok(Row::Counted(kind))),
        }
    }
}

/// A walk over rows that are only counted.
pub(crate) struct Counted {
    rest: std::vec::IntoIter<(SpaceId, GuestAddr, u64)>,
    kind: Kind,
    left: u64,
}

impl Iterator for Counted {
    type Item = Kind;

    fn next(&mut self) -> Option<Kind> {
        while self.left == 0 {
            let (space, pc, count) = self.rest.next()?;
            (self.kind, self.left) = (Kind { space, pc, number: 0 }, count);
        }
        self.left -= 1;
        self.kind.number += 1;
        Some(self.kind)
    }
}

/// Spreads several numbers over 63 bits (splitmix64 over each).
pub(crate) fn mix(numbers: &[u64]) -> i64 {
    let mut state = 0u64;
    for number in numbers {
        state = state.wrapping_add(*number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    (state >> 1) as i64
}
