//! Who stopped running, who went on, and why, from the event stream.

use guest::{EventId, GuestAddr, Moment, TaskId};
use store::SwitchRow;
use trace::{Event, Fact};

/// Follows who runs.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    running: Option<Running>,
    pub(crate) rows: Vec<SwitchRow>,
}

/// The task that ran last, and its last event.
#[derive(Debug)]
struct Running {
    task: TaskId,
    event: EventId,
    reason: &'static str,
    pc: GuestAddr,
}

impl Switches {
    /// Takes in the next event. `ran` are the moments from the task's previous event to the end of this one.
    pub(crate) fn event(&mut self, id: EventId, event: &Event, ran: std::ops::Range<Moment>) {
        let same = self.running.as_ref().is_none_or(|running| running.task == event.task);
        if !same && ran.is_empty() {
            // It came to an end or began a call where it stood: it did not run.
            return;
        }
        let now = Running { task: event.task, event: id, reason: reason(&event.fact), pc: event.after.pc() };
        if let Some(before) = self.running.replace(now).filter(|_| !same) {
            self.rows.push(SwitchRow {
                moment: ran.start,
                task: before.task,
                next: event.task,
                reason: before.reason.into(),
                pc: before.pc,
                event: before.event,
            });
        }
    }
}

/// Why a task stops running if this is its last event.
const fn reason(fact: &Fact) -> &'static str {
    match fact {
        Fact::Exec(_) | Fact::Syscall(_) | Fact::SyscallEnter(_) | Fact::SyscallLeave(_) | Fact::Spawn(_) => {
            "syscall"
        }
        Fact::Instruction | Fact::Point(_) => "preempted",
        Fact::Signal(_) => "signal",
        Fact::Traced(_) => "traced",
        Fact::Exit(_) => "exit",
    }
}
