//! Ticks to moments and tasks. Between two marks a space's ticks and the run's moments advance together.

use guest::{Moment, TaskId};

use crate::wire::{Reader, WireError, put_signed, put_varint};

/// From `tick` on, `task` runs, and tick and moment advance together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The space's tick.
    pub tick: u64,
    /// The moment of that tick.
    pub moment: Moment,
    /// Who runs.
    pub task: TaskId,
}

/// The marks of one granule, by tick. The first is at the granule's first tick.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    marks: Vec<Mark>,
}

impl Marks {
    /// Adds a mark at or after the last; says nothing new, it is dropped.
    pub(crate) fn push(&mut self, mark: Mark) {
        if let Some(&last) = self.marks.last() {
            if last.tick == mark.tick {
                self.marks.pop();
                return self.push(mark);
            }
            if last.task == mark.task && moment_from(last, mark.tick) == mark.moment {
                return;
            }
        }
        self.marks.push(mark);
    }

    /// The marks by tick.
    pub const fn all(&self) -> &[Mark] {
        self.marks.as_slice()
    }

    /// The mark in force at `tick`.
    pub fn at(&self, tick: u64) -> Mark {
        let after = self.marks.partition_point(|mark| mark.tick <= tick);
        self.marks.get(after.saturating_sub(1)).copied().unwrap_or(Mark {
            tick: 0,
            moment: Moment(0),
            task: TaskId(0),
        })
    }

    /// The moment of a tick.
    pub fn moment(&self, tick: u64) -> Moment {
        moment_from(self.at(tick), tick)
    }

    /// The first tick whose moment is at or after `moment`, at most `end`.
    pub fn tick_at(&self, moment: Moment, end: u64) -> u64 {
        let after = self.marks.partition_point(|mark| mark.moment <= moment);
        let Some(mark) = after.checked_sub(1).and_then(|at| self.marks.get(at)) else {
            return self.marks.first().map_or(end, |mark| mark.tick).min(end);
        };
        let tick = mark.tick.saturating_add(moment.0 - mark.moment.0);
        let next = self.marks.get(after).map_or(end, |next| next.tick);
        tick.min(next).min(end)
    }

    pub(crate) fn clear(&mut self) {
        self.marks.clear();
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.marks.len() as u64);
        let mut last = Mark { tick: 0, moment: Moment(0), task: TaskId(0) };
        for mark in &self.marks {
            let ticks = mark.tick.wrapping_sub(last.tick);
            put_varint(out, ticks);
            put_signed(out, mark.moment.0.wrapping_sub(last.moment.0).wrapping_sub(ticks) as i64);
            put_signed(out, i64::from(mark.task.0) - i64::from(last.task.0));
            last = *mark;
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut marks = Vec::new();
        let mut last = Mark { tick: 0, moment: Moment(0), task: TaskId(0) };
        for _ in 0..reader.count(3)? {
            let ticks = reader.varint()?;
            let tick = last.tick.checked_add(ticks).ok_or(WireError::Invalid { what: "mark" })?;
            let moment = last.moment.0.wrapping_add(ticks).wrapping_add(reader.signed()? as u64);
            let task = i64::from(last.task.0).wrapping_add(reader.signed()?);
            let task = u32::try_from(task).map_err(|_| WireError::Invalid { what: "task of a mark" })?;
            if moment < last.moment.0 {
                return Err(WireError::Invalid { what: "moment of a mark" });
            }
            last = Mark { tick, moment: Moment(moment), task: TaskId(task) };
            marks.push(last);
        }
        Ok(Self { marks })
    }
}

const fn moment_from(mark: Mark, tick: u64) -> Moment {
    Moment(mark.moment.0.wrapping_add(tick.wrapping_sub(mark.tick)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_moments_map_both_ways() {
        let mut marks = Marks::default();
        for (tick, moment, task) in [(10, 100, 0), (15, 105, 0), (20, 200, 1), (20, 210, 2), (30, 220, 2)] {
            marks.push(Mark { tick, moment: Moment(moment), task: TaskId(task) });
        }
        assert_eq!(marks.all().len(), 2, "marks that say nothing new are dropped");
        let mut bytes = Vec::new();
        marks.write(&mut bytes);
        assert_eq!(Marks::read(&mut Reader::new(&bytes)).unwrap(), marks);
        for (tick, moment, task) in [(10, 100, 0), (19, 109, 0), (20, 210, 2), (31, 221, 2)] {
            assert_eq!(marks.moment(tick), Moment(moment));
            assert_eq!(marks.at(tick).task, TaskId(task));
            assert_eq!(marks.tick_at(Moment(moment), 40), tick);
        }
        assert_eq!(marks.tick_at(Moment(0), 40), 10);
        assert_eq!(marks.tick_at(Moment(150), 40), 20, "a moment of other spaces is the next tick");
        assert_eq!(marks.tick_at(Moment(1000), 40), 40);
    }
}
