//! Several lazy walks as one, in the order of moments: for conditions that the index can only answer piece by piece. Knows no
//! table.

use std::iter::Peekable;

use guest::{GuestRange, Moment};
use store::{Order, QueryError};

/// Most pieces that are walked side by side.
const MAX_PARTS: usize = 32;

/// Walks over rows of disjoint pieces, merged.
pub(crate) struct Merged<R, I: Iterator<Item = Result<R, QueryError>>> {
    parts: Vec<Peekable<I>>,
    order: Order,
    moment: fn(&R) -> Moment,
}

impl<R, I: Iterator<Item = Result<R, QueryError>>> Merged<R, I> {
    /// One walk for each of `pieces`, opened by `open`; a single one over everything where `pieces` is `None`.
    pub(crate) fn open(
        pieces: Option<Vec<GuestRange>>,
        order: Order,
        moment: fn(&R) -> Moment,
        mut open: impl FnMut(Option<GuestRange>) -> Result<I, QueryError>,
    ) -> Result<Self, QueryError> {
        let pieces: Vec<Option<GuestRange>> = match pieces {
            None => vec![None],
            Some(pieces) if pieces.len() > MAX_PARTS => {
                // One range over all of them: SQLite checks each row again.
                let hull = pieces.first().zip(pieces.last());
                hull.map(|(first, last)| Some(GuestRange { start: first.start, end: last.end }))
                    .into_iter()
                    .collect()
            }
            Some(pieces) => pieces.into_iter().map(Some).collect(),
        };
        let parts: Result<Vec<_>, _> =
            pieces.into_iter().map(|piece| open(piece).map(Iterator::peekable)).collect();
        Ok(Self { parts: parts?, order, moment })
    }
}

impl<R, I: Iterator<Item = Result<R, QueryError>>> Iterator for Merged<R, I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<Self::Item> {
        if let [only] = &mut self.parts[..] {
            return only.next();
        }
        let mut best: Option<(usize, Moment)> = None;
        for (index, part) in self.parts.iter_mut().enumerate() {
            let at = match part.peek() {
                None => continue,
                // An error comes first.
                Some(Err(_)) => return part.next(),
                Some(Ok(row)) => (self.moment)(row),
            };
            let better = best.is_none_or(|(_, best)| match self.order {
                Order::Ascending => at < best,
                Order::Descending => at > best,
            });
            if better {
                best = Some((index, at));
            }
        }
        self.parts[best?.0].next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest::GuestAddr;

    #[test]
    fn walks_are_merged_in_order() {
        let rows = |piece: Option<GuestRange>, order| {
            let mut rows = match piece.map(|piece| piece.start.0) {
                Some(1) => vec![1, 4, 5],
                Some(2) => vec![2, 3, 9],
                _ => vec![7],
            };
            if order == Order::Descending {
                rows.reverse();
            }
            Ok::<_, QueryError>(rows.into_iter().map(Ok::<u64, QueryError>))
        };
        let piece = |start| GuestRange::new(GuestAddr(start), 1);
        for (order, expected) in
            [(Order::Ascending, vec![1, 2, 3, 4, 5, 9]), (Order::Descending, vec![9, 5, 4, 3, 2, 1])]
        {
            let pieces = Some(vec![piece(1), piece(2)]);
            let merged = Merged::open(pieces, order, |row| Moment(*row), |piece| rows(piece, order)).unwrap();
            assert_eq!(merged.map(Result::unwrap).collect::<Vec<_>>(), expected);
        }
        let order = Order::Ascending;
        let all = Merged::open(None, order, |row| Moment(*row), |piece| rows(piece, order)).unwrap();
        assert_eq!(all.count(), 1);
        let none = Merged::open(Some(Vec::new()), order, |row| Moment(*row), |piece| rows(piece, order));
        assert_eq!(none.unwrap().count(), 0);
    }
}
