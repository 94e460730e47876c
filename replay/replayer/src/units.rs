//! Replay units: an exec'ed image and everything up to the next exec of its tasks. A forked child belongs to its parent's
//! unit. Units replay independently of each other.

use std::collections::HashMap;

use guest::{EventId, SpaceId, TaskId};
use trace::{Event, Fact, ReadError, Trace};

/// A replay unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The exec event it begins with.
    pub first: EventId,
    /// The task that executed it.
    pub task: TaskId,
    /// The space it made.
    pub space: SpaceId,
    /// The executable's path.
    pub exe: String,
    /// Number of its events.
    pub events: u64,
}

/// The units of a recording, in order of their first events.
pub fn units(trace: &Trace) -> Result<Vec<Unit>, ReadError> {
    let mut units: Vec<Unit> = Vec::new();
    let mut of_task: HashMap<TaskId, usize> = HashMap::new();
    for item in trace.events() {
        let (id, event) = item?;
        if let Fact::Exec(info) = &event.fact {
            of_task.insert(event.task, units.len());
            units.push(Unit {
                first: id,
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
    }
    Ok(units)
}

/// Follows which tasks are in one unit.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    first: EventId,
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
        Self { first: unit.first, tasks: Vec::new() }
    }

    /// Whether no task is left, so that no event can be the unit's any more.
    pub(crate) fn is_over(&self, next: EventId) -> bool {
        next > self.first && self.tasks.is_empty()
    }

    /// What the event is, and takes it in. Events come in order, beginning with the unit's first.
    pub(crate) fn follow(&mut self, id: EventId, event: &Event) -> Belongs {
        let member = self.tasks.contains(&event.task);
        match &event.fact {
            Fact::Exec(_) if id == self.first => self.tasks.push(event.task),
            Fact::Exec(_) if member => {
                self.tasks.retain(|&task| task != event.task);
                return Belongs::Leaves;
            }
            Fact::Spawn(info) if member => self.tasks.push(info.child),
            Fact::Exit(_) => self.tasks.retain(|&task| task != event.task),
            _ => {}
        }
        if member || id == self.first { Belongs::Yes } else { Belongs::No }
    }
}
