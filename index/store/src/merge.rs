//! Rows of many granules in one order of moments. A granule is opened only when its turn comes.

use std::collections::VecDeque;

use guest::Moment;

use crate::lookup::Listed;
use crate::{Order, QueryError};

/// Rows of one granule, in the order asked for.
pub(crate) type Rows<R> = Box<dyn Iterator<Item = Result<R, QueryError>>>;

/// Opens the rows of a granule.
type Opener<R> = Box<dyn Fn(&Listed) -> Result<Rows<R>, QueryError>>;

/// A lazy merge.
pub(crate) struct Merge<R> {
    waiting: VecDeque<Listed>,
    opened: Vec<Opened<R>>,
    order: Order,
    key: Key<R>,
    open: Opener<R>,
}

/// When a row happened, and what orders rows of the same moment across granules.
type Key<R> = fn(&R) -> (Moment, u64);

struct Opened<R> {
    granule: u64,
    next: R,
    rest: Rows<R>,
}

impl<R> Merge<R> {
    pub(crate) fn new(
        mut granules: Vec<Listed>,
        order: Order,
        key: Key<R>,
        open: impl Fn(&Listed) -> Result<Rows<R>, QueryError> + 'static,
    ) -> Self {
        match order {
            Order::Ascending => granules.sort_by_key(|granule| (granule.first, granule.granule)),
            Order::Descending => {
                granules.sort_by_key(|granule| std::cmp::Reverse((granule.last, granule.granule)));
            }
        }
        Self { waiting: granules.into(), opened: Vec::new(), order, key, open: Box::new(open) }
    }

    /// The position in `opened` of the row that comes next.
    fn best(&self) -> Option<usize> {
        let key = |at: &usize| ((self.key)(&self.opened[*at].next), self.opened[*at].granule);
        match self.order {
            Order::Ascending => (0..self.opened.len()).min_by_key(key),
            Order::Descending => (0..self.opened.len()).max_by_key(key),
        }
    }

    /// Whether a granule that is not open yet may have a row before `moment` (after it, descending).
    fn must_open(&self, moment: Option<Moment>) -> bool {
        self.waiting.front().is_some_and(|granule| match (moment, self.order) {
            (None, _) => true,
            (Some(moment), Order::Ascending) => granule.first <= moment,
            (Some(moment), Order::Descending) => granule.last >= moment,
        })
    }

    fn advance(&mut self) -> Result<Option<R>, QueryError> {
        loop {
            let best = self.best();
            let moment = best.map(|at| (self.key)(&self.opened[at].next).0);
            if self.must_open(moment) {
                let Some(granule) = self.waiting.pop_front() else { return Ok(None) };
                let mut rest = (self.open)(&granule)?;
                if let Some(next) = rest.next().transpose()? {
                    self.opened.push(Opened { granule: granule.granule, next, rest });
                }
                continue;
            }
            let Some(best) = best else { return Ok(None) };
            let next = self.opened[best].rest.next().transpose()?;
            return Ok(Some(match next {
                Some(next) => std::mem::replace(&mut self.opened[best].next, next),
                None => self.opened.swap_remove(best).next,
            }));
        }
    }
}

impl<R> Iterator for Merge<R> {
    type Item = Result<R, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.advance().transpose();
        if matches!(row, Some(Err(_))) {
            self.waiting.clear();
            self.opened.clear();
        }
        row
    }
}
