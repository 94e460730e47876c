//! Processes that stand still while another one's call changes their memory.
//!
//! Such a call waits until all of their tasks are in calls of their own. Where one makes none for a while, it is stopped at an execution
//! point. Until the other's call is over, none of them goes on.

use std::rc::{Rc, Weak};

use crate::session::Session;
use crate::stop::StopError;
use crate::task::{Resume, Run, Space, Task};
use crate::{buffer, point};
use ptrace::HostTid;

/// Ticks that a task waits for others to come into system calls, before its own fails the recording.
const PATIENCE: u32 = 500;
/// Ticks after which they are stopped.
const UNASKED: u32 = 2;

/// The processes that a call waits for.
#[derive(Debug)]
pub(crate) struct Awaited {
    spaces: Vec<Weak<Space>>,
    since: u32,
}

impl Awaited {
    /// From a tick on; `None` where there are none.
    pub(crate) fn new(spaces: &[Rc<Space>], since: u32) -> Option<Self> {
        (!spaces.is_empty()).then(|| Self { spaces: spaces.iter().map(Rc::downgrade).collect(), since })
    }

    fn spaces(&self) -> impl Iterator<Item = Rc<Space>> {
        self.spaces.iter().filter_map(Weak::upgrade)
    }
}

impl Session {
    /// Whether a task waits for others to stand still.
    pub(crate) fn waits_for_others(&self, task: &Task) -> bool {
        let now = self.core.timer.now();
        let waits = |awaited: &Awaited| {
            now.wrapping_sub(awaited.since) < PATIENCE && awaited.spaces().any(|space| !self.is_still(&space))
        };
        task.awaits.as_ref().is_some_and(waits)
    }

    /// Whether all tasks of a space are in calls, held, or stand where an event tells.
    fn is_still(&self, space: &Rc<Space>) -> bool {
        let moves = |task: &Task| task.pending.is_none() && !is_held(task) && !is_at_event(task);
        !self.tasks.values().any(|task| Rc::ptr_eq(&task.space, space) && moves(task))
    }

    /// Stops those that calls have been waiting for in vain.
    pub(crate) fn stop_awaited(&mut self, now: u32) {
        let impatient = |task: &&Task| {
            let waited = |awaited: &Awaited| now.wrapping_sub(awaited.since) >= UNASKED;
            task.pending.is_some() && task.awaits.as_ref().is_some_and(waited) && self.waits_for_others(task)
        };
        let asking: Vec<HostTid> = self.tasks.values().filter(impatient).map(|task| task.host).collect();
        for tid in asking {
            self.keep_awaited(tid);
            let standing = &self.standing;
            let stands = |space: &Rc<Space>| {
                standing.iter().any(|(other, kept)| *other == tid && Rc::ptr_eq(kept, space))
            };
            for task in self.tasks.values_mut().filter(|task| stands(&task.space)) {
                if task.runs_own_code() && task.runs_to.is_none() && task.exiting.is_none() {
                    point::interrupt(task);
                }
            }
        }
    }

    /// From now on, those that a task's call waits for do not go on from where they stand.
    fn keep_awaited(&mut self, tid: HostTid) {
        let Some(awaited) = self.tasks.get(&tid).and_then(|task| task.awaits.as_ref()) else { return };
        for space in awaited.spaces() {
            if !space.stands.replace(true) {
                self.standing.push((tid, space));
            }
        }
    }

    /// A task is about to make a call: those that it waited for stay where they are meanwhile, and memory is as they left it.
    pub(crate) fn before_change(&mut self, tid: HostTid) -> Result<(), StopError> {
        let Some(id) = self.tasks.get(&tid).filter(|task| task.awaits.is_some()).map(|task| task.id) else {
            return Ok(());
        };
        self.keep_awaited(tid);
        for (_, space) in self.standing.iter().filter(|(other, space)| *other == tid && !space.in_call()) {
            let held = |task: &&Task| Rc::ptr_eq(&task.space, space) && (is_held(task) || stands(task));
            if let Some(task) = self.tasks.values().find(held) {
                buffer::before_request(&mut self.core, id, task)?;
            }
        }
        Ok(())
    }

    /// A task's call is over, or the task is gone: those that it kept go on.
    pub(crate) fn after_change(&mut self, tid: HostTid) {
        for (_, space) in self.standing.extract_if(.., |(other, _)| *other == tid) {
            space.stands.set(false);
        }
    }

    /// Counts anew how many tasks of each space are held.
    pub(crate) fn count_held(&self) {
        self.tasks.values().for_each(|task| task.space.held.set(0));
        for task in self.tasks.values().filter(|task| task.pending.is_none()) {
            if is_held(task) || stands(task) {
                task.space.held.set(task.space.held.get() + 1);
            }
        }
    }
}

fn is_held(task: &Task) -> bool {
    matches!(task.run, Run::Traced(_))
}

/// Whether a task is kept from going on while another's call changes its memory.
pub(crate) fn stands(task: &Task) -> bool {
    task.space.stands.get() && task.pending.is_none() && is_at_event(task)
}

/// Whether a task in no call is stopped where an event tells.
fn is_at_event(task: &Task) -> bool {
    let stopped = matches!(task.run, Run::Ready(_, Resume::Cont(_) | Resume::Inject(_)) | Run::Halted);
    stopped && !task.adrift && !task.put_off && task.exiting.is_none()
}
