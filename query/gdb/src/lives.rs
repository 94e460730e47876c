//! When each address space of a recording lives and runs, and which program is in it. Read once from the events.

use std::collections::BTreeMap;
use std::rc::Rc;

use guest::{EventId, Moment, SpaceId, TaskId, Tid};
use timeline::Position;
use trace::{Event, ExecInfo, Fact, Moments, ReadError, SignalAction, Status, Trace};

/// Stretches of moments in which something ran, in order, not touching each other.
#[derive(Debug, Default)]
pub(crate) struct Stretches(Vec<(Moment, Moment)>);

impl Stretches {
    /// The first moment from `from` on at which it runs.
    pub(crate) fn next(&self, from: Moment) -> Option<Moment> {
        let (start, _) = self.0.get(self.0.partition_point(|(_, end)| *end <= from))?;
        Some(from.max(*start))
    }

    /// The last moment before `before` at which it ran.
    pub(crate) fn previous(&self, before: Moment) -> Option<Moment> {
        let index = self.0.partition_point(|(start, _)| *start < before).checked_sub(1)?;
        Some(Moment(self.0[index].1.0.min(before.0) - 1))
    }

    fn add(&mut self, start: Moment, end: Moment) {
        match self.0.last_mut() {
            _ if start == end => {}
            Some(last) if last.1 == start => last.1 = end,
            _ => self.0.push((start, end)),
        }
    }
}

/// How a process leaves its address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It is still there when the recording ends.
    Recording,
    /// It exits or is killed.
    Exit(Status),
    /// It executes this program.
    Exec(String),
}

/// One address space over time.
#[derive(Debug)]
pub(crate) struct Life {
    /// When any of its tasks ran.
    pub(crate) ran: Stretches,
    /// When each of its tasks ran in it.
    tasks: BTreeMap<TaskId, Stretches>,
    /// Where its last task is about to leave it; the end of the recording if that is not in it.
    pub(crate) end: Position,
    /// How it does.
    pub(crate) ending: Ending,
    /// The program in it.
    pub(crate) program: Rc<ExecInfo>,
    /// The process that first lived in it.
    pub(crate) pid: Tid,
    /// Where signals struck its tasks (those that ran a handler or killed), and which.
    signals: Vec<(Position, i32)>,
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
    /// When a task ran in it.
    pub(crate) fn task(&self, task: TaskId) -> &Stretches {
        static NEVER: Stretches = Stretches(Vec::new());
        self.tasks.get(&task).unwrap_or(&NEVER)
    }

    /// The first signal at `from` or after it.
    pub(crate) fn signal(&self, from: Position) -> Option<(Position, i32)> {
        self.signals.get(self.signals.partition_point(|(at, _)| *at < from)).copied()
    }

    /// The last signal before `before`.
    pub(crate) fn signal_before(&self, before: Position) -> Option<(Position, i32)> {
        let after = self.signals.partition_point(|(at, _)| *at < before);
        after.checked_sub(1).map(|last| self.signals[last])
    }

    /// From which moment to which its tasks ran; `None` when they did not.
    pub(crate) fn span(&self) -> Option<(Moment, Moment)> {
        Some((self.ran.0.first()?.0, self.ran.0.last()?.1))
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
                life.ran.add(moments.start(id), moments.end(id));
                life.tasks.entry(event.task).or_default().add(moments.start(id), moments.end(id));
            }
            lives.follow(&mut population, &event, at);
        }
        Ok(lives)
    }

    /// The life of a space.
    pub(crate) fn get(&self, space: SpaceId) -> Option<&Life> {
        self.spaces.get(&space)
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SpaceId, &Life)> {
        self.spaces.iter().map(|(&space, life)| (space, life))
    }

    fn follow(&mut self, population: &mut Population, event: &Event, at: Position) {
        match &event.fact {
            Fact::Exec(info) => {
                self.leave(population, event.task, at, Ending::Exec(info.exe.clone()));
                population.enter(event.task, event.space);
                self.begin(event.space, Rc::new((**info).clone()), Tid(info.tid));
            }
            Fact::Spawn(info) => {
                population.enter(info.child, info.space);
                let parent = population.space_of(event.task).and_then(|space| self.spaces.get(&space));
                if let Some(program) = parent.map(|life| life.program.clone())
                    && !info.shares
                {
                    self.begin(info.space, program, info.pid);
                }
            }
            Fact::Signal(info)
                if matches!(info.action, SignalAction::Fatal | SignalAction::Handler { .. }) =>
            {
                if info.action == SignalAction::Fatal {
                    self.signal.get_or_insert(at);
                }
                let space = population.space_of(event.task);
                if let Some(life) = space.and_then(|space| self.spaces.get_mut(&space)) {
                    life.signals.push((at, info.signo));
                }
            }
            Fact::Exit(status) => {
                if event.task == TaskId(0) {
                    self.exit = Some(at);
                }
                if matches!(status, Status::Killed(_)) {
                    self.signal.get_or_insert(at);
                }
                self.end = at;
                self.leave(population, event.task, at, Ending::Exit(*status));
            }
            _ => {}
        }
    }

    fn begin(&mut self, space: SpaceId, program: Rc<ExecInfo>, pid: Tid) {
        let end = Position { moment: Moment(u64::MAX), event: EventId(u64::MAX) };
        let (ran, tasks) = (Stretches::default(), BTreeMap::new());
        let ending = Ending::Recording;
        let life = Life { ran, tasks, end, ending, program, pid, signals: Vec::new() };
        self.spaces.insert(space, life);
    }

    fn leave(&mut self, population: &mut Population, task: TaskId, at: Position, ending: Ending) {
        if let Some(space) = population.leave(task)
            && let Some(life) = self.spaces.get_mut(&space)
        {
            life.end = at;
            life.ending = ending;
        }
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
    fn moments_are_found_both_ways() {
        let mut ran = Stretches::default();
        for (start, stop) in [(0, 10), (10, 20), (20, 20), (30, 40)] {
            ran.add(Moment(start), Moment(stop));
        }
        assert_eq!(ran.0, [(Moment(0), Moment(20)), (Moment(30), Moment(40))]);
        let next = [0, 19, 20, 35, 40].map(|n| ran.next(Moment(n)).map(|m| m.0));
        assert_eq!(next, [Some(0), Some(19), Some(30), Some(35), None]);
        let previous = [0, 1, 20, 30, 31, 50].map(|n| ran.previous(Moment(n)).map(|m| m.0));
        assert_eq!(previous, [None, Some(0), Some(19), Some(19), Some(30), Some(39)]);
    }
}
