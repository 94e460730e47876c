//! When each address space of a recording lives and runs, and which program is in it. Read once from the events.

use std::collections::BTreeMap;
use std::rc::Rc;

use guest::{EventId, Moment, SpaceId, TaskId};
use timeline::Position;
use trace::{Event, ExecInfo, Fact, Moments, ReadError, Status, Trace};

/// One address space over time.
#[derive(Debug)]
pub(crate) struct Life {
    /// The stretches of moments in which its tasks ran, in order, not touching each other.
    ran: Vec<(Moment, Moment)>,
    /// Where its last task is about to leave it; the end of the recording if that is not in it.
    pub(crate) end: Position,
    /// The program in it.
    pub(crate) program: Rc<ExecInfo>,
}

/// All address spaces, and the places that have names.
#[derive(Debug)]
pub(crate) struct Lives {
    spaces: BTreeMap<SpaceId, Life>,
    /// Before the exit of the command itself.
    pub(crate) exit: Option<Position>,
    /// Before the first fatal signal takes effect.
    pub(crate) signal: Option<Position>,
    /// Before the last exit of all.
    pub(crate) end: Position,
}

impl Life {
    /// The first moment from `from` on at which one of its tasks runs.
    pub(crate) fn next(&self, from: Moment) -> Option<Moment> {
        let (start, _) = self.ran.iter().find(|(_, end)| *end > from)?;
        Some(from.max(*start))
    }

    /// The last moment before `before` at which one of its tasks ran.
    pub(crate) fn previous(&self, before: Moment) -> Option<Moment> {
        let (_, end) = self.ran.iter().rfind(|(start, _)| *start < before)?;
        Some(Moment(end.0.min(before.0) - 1))
    }

    fn add(&mut self, start: Moment, end: Moment) {
        match self.ran.last_mut() {
            _ if start == end => {}
            Some(last) if last.1 == start => last.1 = end,
            _ => self.ran.push((start, end)),
        }
    }
}

impl Lives {
    /// Reads the whole recording.
    pub(crate) fn read(trace: &Trace, moments: &Moments) -> Result<Self, ReadError> {
        let end = Position { moment: moments.total(), event: EventId(trace.len()) };
        let mut lives = Self { spaces: BTreeMap::new(), exit: None, signal: None, end };
        let mut population = Population::default();
        for item in trace.events() {
            let (id, event) = item?;
            let at = Position { moment: moments.end(id), event: id };
            if let Some(life) = population.space_of(event.task).and_then(|space| lives.spaces.get_mut(&space))
            {
                life.add(moments.start(id), moments.end(id));
            }
            lives.follow(&mut population, &event, at);
        }
        Ok(lives)
    }

    /// The life of a space.
    pub(crate) fn get(&self, space: SpaceId) -> Option<&Life> {
        self.spaces.get(&space)
    }

    fn follow(&mut self, population: &mut Population, event: &Event, at: Position) {
        match &event.fact {
            Fact::Exec(info) => {
                self.leave(population, event.task, at);
                population.enter(event.task, event.space);
                self.begin(event.space, Rc::new((**info).clone()));
            }
            Fact::Spawn(info) => {
                population.enter(info.child, info.space);
                let parent = population.space_of(event.task).and_then(|space| self.spaces.get(&space));
                if let Some(program) = parent.map(|life| life.program.clone())
                    && !info.shares
                {
                    self.begin(info.space, program);
                }
            }
            Fact::Signal(info) if info.action == trace::SignalAction::Fatal => {
                self.signal.get_or_insert(at);
            }
            Fact::Exit(status) => {
                if event.task == TaskId(0) {
                    self.exit = Some(at);
                }
                if matches!(status, Status::Killed(_)) {
                    self.signal.get_or_insert(at);
                }
                self.end = at;
                self.leave(population, event.task, at);
            }
            _ => {}
        }
    }

    fn begin(&mut self, space: SpaceId, program: Rc<ExecInfo>) {
        let life = Life { ran: Vec::new(), end: self.recording_end(), program };
        self.spaces.insert(space, life);
    }

    fn leave(&mut self, population: &mut Population, task: TaskId, at: Position) {
        if let Some(space) = population.leave(task)
            && let Some(life) = self.spaces.get_mut(&space)
        {
            life.end = at;
        }
    }

    /// Past everything: what a life ends at until its end is met.
    fn recording_end(&self) -> Position {
        Position { moment: Moment(u64::MAX), event: EventId(u64::MAX) }
    }
}

/// Which task is in which space.
#[derive(Debug, Default)]
struct Population {
    of_task: BTreeMap<TaskId, SpaceId>,
}

impl Population {
    fn space_of(&self, task: TaskId) -> Option<SpaceId> {
        self.of_task.get(&task).copied()
    }

    fn enter(&mut self, task: TaskId, space: SpaceId) {
        self.of_task.insert(task, space);
    }

    /// Takes a task out of its space, which is returned if that was its last task.
    fn leave(&mut self, task: TaskId) -> Option<SpaceId> {
        let space = self.of_task.remove(&task)?;
        (!self.of_task.values().any(|&other| other == space)).then_some(space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_a_life_are_found_both_ways() {
        let end = Position { moment: Moment(99), event: EventId(9) };
        let mut life = Life { ran: Vec::new(), end, program: Rc::default() };
        for (start, stop) in [(0, 10), (10, 20), (20, 20), (30, 40)] {
            life.add(Moment(start), Moment(stop));
        }
        assert_eq!(life.ran, [(Moment(0), Moment(20)), (Moment(30), Moment(40))]);
        let next = [0, 19, 20, 35, 40].map(|n| life.next(Moment(n)).map(|m| m.0));
        assert_eq!(next, [Some(0), Some(19), Some(30), Some(35), None]);
        let previous = [0, 1, 20, 30, 31, 50].map(|n| life.previous(Moment(n)).map(|m| m.0));
        assert_eq!(previous, [None, Some(0), Some(19), Some(19), Some(30), Some(39)]);
    }
}
