//! Replay units: an exec'ed image and everything up to the next exec of its tasks. A forked child belongs to its parent's
//! unit, and images that map the same memory shared are one unit. Units replay independently of each other.

use std::collections::HashMap;

use guest::{EventId, FileId, SpaceId, TaskId};
use trace::{Backing, Event, Fact, MapOp, ReadError, Trace};

/// A replay unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The exec event it begins with.
    pub first: EventId,
    /// Other exec events whose images are in it, in order.
    pub others: Vec<EventId>,
    /// The task that executed the first.
    pub task: TaskId,
    /// The space that made.
    pub space: SpaceId,
    /// The first executable's path.
    pub exe: String,
    /// Number of its events.
    pub events: u64,
}

/// The units of a recording, in order of their first events.
pub fn units(trace: &Trace) -> Result<Vec<Unit>, ReadError> {
    let mut units: Vec<Unit> = Vec::new();
    let mut joined = Joined::default();
    let mut of_task: HashMap<TaskId, usize> = HashMap::new();
    let mut shown: HashMap<FileId, usize> = HashMap::new();
    for item in trace.events() {
        let (id, event) = item?;
        if let Fact::Exec(info) = &event.fact {
            of_task.insert(event.task, units.len());
            joined.add();
            units.push(Unit {
                first: id,
                others: Vec::new(),
                task: event.task,
                space: event.space,
                exe: info.exe.clone(),
                events: 0,
            });
        }
        let Some(&unit) = of_task.get(&event.task) else { continue };
        units[unit].events += 1;
        if let Fact::Spawn(info) = &event.fact {
            of_task.insert(info.child, unit);
        }
        for file in event.maps.iter().filter_map(shared_file) {
            joined.join(unit, *shown.entry(file).or_insert(unit));
        }
    }
    let mut whole: Vec<Unit> = Vec::new();
    let mut place: HashMap<usize, usize> = HashMap::new();
    for (at, unit) in units.into_iter().enumerate() {
        let root = joined.root(at);
        match place.get(&root) {
            Some(&known) => {
                whole[known].others.push(unit.first);
                whole[known].events += unit.events;
            }
            None => {
                place.insert(root, whole.len());
                whole.push(unit);
            }
        }
    }
    Ok(whole)
}

/// The kept file that stands for memory which others may show, too.
fn shared_file(op: &MapOp) -> Option<FileId> {
    match *op {
        MapOp::Map { shared: true, backing: Backing::File { file, .. }, .. } => Some(file),
        _ => None,
    }
}

/// Which images are in one unit: each points to another of its unit, or to itself.
#[derive(Default)]
struct Joined {
    to: Vec<usize>,
}

impl Joined {
    fn add(&mut self) {
        self.to.push(self.to.len());
    }

    fn root(&self, mut at: usize) -> usize {
        while self.to[at] != at {
            at = self.to[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.to[a.max(b)] = a.min(b);
    }
}

/// Follows which tasks are in one unit.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    execs: Vec<EventId>,
    tasks: Vec<TaskId>,
}

/// What an event is to a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Belongs {
    /// Not the unit's.
    No,
    /// The unit's.
    Yes,
    /// A task of the unit leaves it by this exec.
    Leaves,
}

impl Members {
    pub(crate) fn new(unit: &Unit) -> Self {
        let execs = std::iter::once(unit.first).chain(unit.others.iter().copied()).collect();
        Self { execs, tasks: Vec::new() }
    }

    /// Whether no task is left or to come, so that no event can be the unit's any more.
    pub(crate) fn is_over(&self, next: EventId) -> bool {
        self.execs.last().is_none_or(|&last| next > last) && self.tasks.is_empty()
    }

    /// What the event is, and takes it in. Events come in order, beginning with the unit's first.
    pub(crate) fn follow(&mut self, id: EventId, event: &Event) -> Belongs {
        let member = self.tasks.contains(&event.task);
        match &event.fact {
            Fact::Exec(_) if self.execs.contains(&id) => {
                if !member {
                    self.tasks.push(event.task);
                }
                return Belongs::Yes;
            }
            Fact::Exec(_) if member => {
                self.tasks.retain(|&task| task != event.task);
                return Belongs::Leaves;
            }
            Fact::Spawn(info) if member => self.tasks.push(info.child),
            Fact::Exit(_) => self.tasks.retain(|&task| task != event.task),
            _ => {}
        }
        if member { Belongs::Yes } else { Belongs::No }
    }
}
