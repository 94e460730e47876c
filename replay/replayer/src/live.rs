//! What is alive at a moment: one engine space per recorded space, and the tasks as register files that take turns
//! in them. Knows no events.

use std::collections::BTreeMap;

use engine::{Group, Space};
use guest::{Registers, SpaceId, TaskId, Tid, XState};

use crate::error::ReplayError;
use crate::options::Stops;

/// A task as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskView {
    /// The task.
    pub task: TaskId,
    /// Its thread id in the recording.
    pub tid: Tid,
    /// Its process id in the recording.
    pub pid: Tid,
    /// The space it is in.
    pub space: SpaceId,
}

/// A task: its register file while another one runs in its space.
#[derive(Clone, Debug)]
pub(crate) struct LiveTask {
    pub(crate) tid: Tid,
    pub(crate) pid: Tid,
    pub(crate) space: SpaceId,
    /// Valid while the task is not its space's current one.
    regs: Registers,
    xstate: XState,
    /// Its pc was put there by an event, so a breakpoint there was not met by running.
    pub(crate) arrived: bool,
}

/// A space and the task whose registers are in it.
#[derive(Debug)]
struct LiveSpace {
    space: Space,
    current: Option<TaskId>,
    tasks: u32,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Live {
    tasks: BTreeMap<TaskId, LiveTask>,
    spaces: BTreeMap<SpaceId, LiveSpace>,
}

impl Live {
    /// The tasks in order.
    pub(crate) fn tasks(&self) -> Vec<TaskView> {
        let view = |(&task, live): (&TaskId, &LiveTask)| TaskView {
            task,
            tid: live.tid,
            pid: live.pid,
            space: live.space,
        };
        self.tasks.iter().map(view).collect()
    }

    pub(crate) fn task_mut(&mut self, task: TaskId) -> Option<&mut LiveTask> {
        self.tasks.get_mut(&task)
    }

    /// The spaces in order.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = (SpaceId, &Space)> {
        self.spaces.iter().map(|(&id, live)| (id, &live.space))
    }

    pub(crate) fn space(&self, id: SpaceId) -> Option<&Space> {
        self.spaces.get(&id).map(|live| &live.space)
    }

    pub(crate) fn space_mut(&mut self, id: SpaceId) -> Option<&mut Space> {
        self.spaces.get_mut(&id).map(|live| &mut live.space)
    }

    /// A task's registers now.
    pub(crate) fn registers(&self, task: TaskId) -> Option<Registers> {
        let live = self.tasks.get(&task)?;
        let space = self.spaces.get(&live.space)?;
        Some(if space.current == Some(task) { space.space.registers() } else { live.regs })
    }

    /// A task's extended state now.
    pub(crate) fn xstate(&self, task: TaskId) -> Option<Result<XState, ReplayError>> {
        let live = self.tasks.get(&task)?;
        let space = self.spaces.get(&live.space)?;
        if space.current != Some(task) {
            return Some(Ok(live.xstate.clone()));
        }
        Some(space.space.xstate().map_err(|source| ReplayError::Host { space: live.space, source }))
    }

    /// Puts a task's registers into its space, so that it runs there. `None` when it is not alive.
    pub(crate) fn enter(&mut self, task: TaskId) -> Option<Result<(SpaceId, &mut Space), ReplayError>> {
        let id = self.tasks.get(&task)?.space;
        let live = self.spaces.get_mut(&id)?;
        if live.current != Some(task)
            && let Err(source) = switch(&mut self.tasks, live, task)
        {
            return Some(Err(ReplayError::Host { space: id, source }));
        }
        Some(Ok((id, &mut live.space)))
    }

    /// A task appears in a space that is there.
    pub(crate) fn add_task(
        &mut self,
        task: TaskId,
        ids: (Tid, Tid),
        space: SpaceId,
        regs: Registers,
        xstate: XState,
    ) {
        let Some(live) = self.spaces.get_mut(&space) else { return };
        live.tasks += 1;
        let (tid, pid) = ids;
        self.tasks.insert(task, LiveTask { tid, pid, space, regs, xstate, arrived: true });
    }

    /// A space appears.
    pub(crate) fn add_space(&mut self, id: SpaceId, space: Space) {
        self.spaces.insert(id, LiveSpace { space, current: None, tasks: 0 });
    }

    /// A task goes. The space it leaves is handed over when it was the last one there.
    pub(crate) fn remove_task(&mut self, task: TaskId) -> Option<(SpaceId, Space)> {
        let id = self.tasks.remove(&task)?.space;
        let live = self.spaces.get_mut(&id)?;
        live.tasks -= 1;
        if live.current == Some(task) {
            live.current = None;
        }
        if live.tasks > 0 {
            return None;
        }
        self.spaces.remove(&id).map(|live| (id, live.space))
    }

    /// A copy of everything, in which nothing is shared with this one.
    pub(crate) fn fork(&mut self) -> Result<Self, ReplayError> {
        let mut spaces = BTreeMap::new();
        let mut group = Group::default();
        for (&id, live) in &mut self.spaces {
            let space =
                live.space.fork_with(&mut group).map_err(|source| ReplayError::Fork { space: id, source })?;
            spaces.insert(id, LiveSpace { space, current: live.current, tasks: live.tasks });
        }
        Ok(Self { tasks: self.tasks.clone(), spaces })
    }

    /// Sets or clears the stops of every space.
    pub(crate) fn set_stops(&mut self, stops: &Stops) -> Result<(), engine::RunError> {
        self.spaces.iter_mut().try_for_each(|(&id, live)| stop_at(&mut live.space, id, stops))
    }
}

/// Sets or clears the stops of one space.
pub(crate) fn stop_at(space: &mut Space, id: SpaceId, stops: &Stops) -> Result<(), engine::RunError> {
    let here = stops.apply_to(id);
    space.set_breakpoints(if here { &stops.breakpoints } else { &[] });
    space.set_watchpoints(if here { &stops.watchpoints } else { &[] })
}

fn switch(
    tasks: &mut BTreeMap<TaskId, LiveTask>,
    live: &mut LiveSpace,
    task: TaskId,
) -> Result<(), engine::HostError> {
    if let Some(old) = live.current.and_then(|old| tasks.get_mut(&old)) {
        old.regs = live.space.registers();
        old.xstate = live.space.xstate()?;
    }
    if let Some(new) = tasks.get(&task) {
        live.space.set_registers(&new.regs);
        if !new.xstate.0.is_empty() {
            live.space.set_xstate(&new.xstate)?;
        }
    }
    live.current = Some(task);
    Ok(())
}
