//! `catch syscall`: where the calls begin and return of which gdb wants to hear. Knows no movement.

use std::collections::BTreeMap;

use gdbstub::target::ext::catch_syscalls::{CatchSyscallPosition, CatchSyscalls, SyscallNumbers};
use gdbstub::target::{TargetError, TargetResult};
use guest::{EventId, Moment, TaskId};
use timeline::Position;
use trace::{Event, Fact, Moments, ReadError, SyscallInfo, Trace};

use crate::lives::{Lives, Process};
use crate::session::Session;

const EIO: u8 = 5;

/// A call that begins or returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passage {
    /// Before its instruction, or after it.
    pub(crate) at: Position,
    /// Whose it is.
    pub(crate) task: TaskId,
    /// Its number.
    pub(crate) number: u32,
    /// Which of the two.
    pub(crate) position: CatchSyscallPosition,
}

/// Those that gdb wants to hear of, of each process, in order.
#[derive(Debug, Default)]
pub(crate) struct Caught(BTreeMap<Process, Vec<Passage>>);

impl Caught {
    /// Reads the whole recording.
    fn read(
        trace: &Trace,
        moments: &Moments,
        lives: &Lives,
        wanted: &dyn Fn(u32) -> bool,
    ) -> Result<Self, ReadError> {
        let mut all = Self::default();
        for item in trace.events() {
            let (id, event) = item?;
            let info = call(&event).filter(|info| wanted(info.nr));
            let Some((info, process)) = info.zip(lives.process(event.task, event.space)) else { continue };
            all.0.entry(process).or_default().extend(passages(id, &event, info, moments));
        }
        for passages in all.0.values_mut() {
            passages.sort_by_key(|passage| passage.at);
        }
        Ok(all)
    }

    fn of(&self, process: Process) -> &[Passage] {
        self.0.get(&process).map_or(&[], Vec::as_slice)
    }

    /// The first of a process at `from` or after it, but not at `told`.
    pub(crate) fn next(&self, process: Process, from: Position, told: Option<Position>) -> Option<Passage> {
        let all = self.of(process);
        let first = all.partition_point(|passage| passage.at < from);
        all[first..].iter().find(|passage| told != Some(passage.at)).copied()
    }

    /// The last of a process before `before`.
    pub(crate) fn previous(&self, process: Process, before: Position) -> Option<Passage> {
        let all = self.of(process);
        let after = all.partition_point(|passage| passage.at < before);
        after.checked_sub(1).map(|last| all[last])
    }
}

const fn call(event: &Event) -> Option<&SyscallInfo> {
    match &event.fact {
        Fact::Syscall(info) | Fact::SyscallEnter(info) | Fact::SyscallLeave(info) => Some(info),
        _ => None,
    }
}

fn passages(
    id: EventId,
    event: &Event,
    info: &SyscallInfo,
    moments: &Moments,
) -> impl Iterator<Item = Passage> {
    use CatchSyscallPosition::{Entry, Return};
    let end = moments.end(id);
    let passage = |at, position| Passage { at, task: event.task, number: info.nr, position };
    // One that is over has retired.
    let retired = u64::from(matches!(event.fact, Fact::Syscall(_)) && info.result.is_some());
    let begins = Position { moment: Moment(end.0 - retired.min(end.0)), event: id };
    let returns = Position { moment: end, event: EventId(id.0 + 1) };
    let is_left = matches!(event.fact, Fact::SyscallLeave(_));
    let is_entered = matches!(event.fact, Fact::SyscallEnter(_));
    let entry = (!is_left).then(|| passage(begins, Entry));
    let left = (!is_entered && info.result.is_some()).then(|| passage(returns, Return));
    entry.into_iter().chain(left)
}

impl CatchSyscalls for Session {
    fn enable_catch_syscalls(&mut self, filter: Option<SyscallNumbers<'_, u64>>) -> TargetResult<(), Self> {
        let numbers: Option<Vec<u64>> = filter.map(Iterator::collect);
        let wanted =
            |number: u32| numbers.as_ref().is_none_or(|numbers| numbers.contains(&u64::from(number)));
        let (timeline, lives) = (&self.timeline, &self.lives);
        let read = Caught::read(timeline.trace(), timeline.moments(), lives, &wanted);
        self.caught = read.map_err(|error| {
            tracing::error!(%error, "cannot look for system calls");
            TargetError::Errno(EIO)
        })?;
        Ok(())
    }

    fn disable_catch_syscalls(&mut self) -> TargetResult<(), Self> {
        self.caught = Caught::default();
        Ok(())
    }
}
