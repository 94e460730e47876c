//! When each process of a recording lives and runs in an address space, and which program is in it. Read once from the events.

use std::collections::BTreeMap;
use std::rc::Rc;

use guest::{EventId, Moment, SpaceId, TaskId, Tid};
use timeline::Position;
use trace::{Event, ExecInfo, Fact, Moments, ReadError, SignalAction, Status, Trace};

/// `linux/sched.h`: the new task is a thread of its maker's process.
const CLONE_THREAD: u64 = 0x1_0000;

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

/// A process in an address space. Two are in one while a child of vfork borrows its parent's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Process {
    /// The space.
    pub(crate) space: SpaceId,
    /// The task that brought the process into it.
    pub(crate) leader: TaskId,
}

/// How a process leaves its address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It is still there when the recording ends.
    Recording,
    /// It exits or is killed.
    Exit(Status),
    /// It executes this program, and is this process from then on.
    Exec(String, Process),
}

/// One process in one address space over time.
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
    /// Its process id.
    pub(crate) pid: Tid,
    /// What it was before it executed the program, and the exec.
    pub(crate) before: Option<(Process, Position)>,
    /// Where signals struck its tasks (those that ran a handler or killed), and which.
    signals: Vec<(Position, i32)>,
}

/// All processes, and the places that have names.
#[derive(Debug)]
pub(crate) struct Lives {
    all: BTreeMap<Process, Life>,
    /// The processes of the tasks, by the spaces they were in.
    members: BTreeMap<(TaskId, SpaceId), Process>,
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
        let (all, members) = (BTreeMap::new(), BTreeMap::new());
        let mut lives = Self { all, members, exit: None, signal: None, end };
        let mut population = Population::default();
        for item in trace.events() {
            let (id, event) = item?;
            let at = Position { moment: moments.end(id), event: id };
            if let Some(life) = population.of(event.task).and_then(|process| lives.all.get_mut(&process)) {
                life.ran.add(moments.start(id), moments.end(id));
                life.tasks.entry(event.task).or_default().add(moments.start(id), moments.end(id));
            }
            lives.follow(&mut population, &event, at);
        }
        Ok(lives)
    }

    /// The life of a process.
    pub(crate) fn get(&self, process: Process) -> Option<&Life> {
        self.all.get(&process)
    }

    /// The process of a task, while it is in a space.
    pub(crate) fn process(&self, task: TaskId, space: SpaceId) -> Option<Process> {
        self.members.get(&(task, space)).copied()
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Process, &Life)> {
        self.all.iter().map(|(&process, life)| (process, life))
    }

    fn follow(&mut self, population: &mut Population, event: &Event, at: Position) {
        match &event.fact {
            Fact::Exec(info) => {
                let process = Process { space: event.space, leader: event.task };
                let before = population.of(event.task).map(|before| (before, at));
                self.leave(population, event.task, at, Ending::Exec(info.exe.clone(), process));
                self.enter(population, event.task, process);
                self.begin(process, Rc::new((**info).clone()), Tid(info.tid), before);
            }
            Fact::Spawn(info) => {
                let maker = population.of(event.task);
                if let Some(process) = maker.filter(|_| info.flags & CLONE_THREAD != 0) {
                    return self.enter(population, info.child, process);
                }
                let process = Process { space: info.space, leader: info.child };
                self.enter(population, info.child, process);
                let maker = maker.and_then(|process| self.all.get(&process));
                if let Some(program) = maker.map(|life| life.program.clone()) {
                    self.begin(process, program, info.pid, None);
                }
            }
            Fact::Signal(info)
                if matches!(info.action, SignalAction::Fatal | SignalAction::Handler { .. }) =>
            {
                if info.action == SignalAction::Fatal {
                    self.signal.get_or_insert(at);
                }
                let process = population.of(event.task);
                if let Some(life) = process.and_then(|process| self.all.get_mut(&process)) {
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

    fn enter(&mut self, population: &mut Population, task: TaskId, process: Process) {
        population.of_task.insert(task, process);
        self.members.insert((task, process.space), process);
    }

    fn begin(
        &mut self,
        process: Process,
        program: Rc<ExecInfo>,
        pid: Tid,
        before: Option<(Process, Position)>,
    ) {
        let end = Position { moment: Moment(u64::MAX), event: EventId(u64::MAX) };
        let (ran, tasks) = (Stretches::default(), BTreeMap::new());
        let ending = Ending::Recording;
        let life = Life { ran, tasks, end, ending, program, pid, before, signals: Vec::new() };
        self.all.insert(process, life);
    }

    fn leave(&mut self, population: &mut Population, task: TaskId, at: Position, ending: Ending) {
        if let Some(process) = population.leave(task)
            && let Some(life) = self.all.get_mut(&process)
        {
            life.end = at;
            life.ending = ending;
        }
    }
}

/// Which task is of which process.
#[derive(Debug, Default)]
struct Population {
    of_task: BTreeMap<TaskId, Process>,
}

impl Population {
    fn of(&self, task: TaskId) -> Option<Process> {
        self.of_task.get(&task).copied()
    }

    /// Takes a task out of its process, which is returned if that was its last task.
    fn leave(&mut self, task: TaskId) -> Option<Process> {
        let process = self.of_task.remove(&task)?;
        (!self.of_task.values().any(|&other| other == process)).then_some(process)
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
