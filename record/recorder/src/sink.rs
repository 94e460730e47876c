//! Events on their way to the trace. Decides between one event for a whole system call and two; knows nothing of processes.

use std::rc::Rc;

use guest::{EventId, GuestAddr, GuestMemory, Registers, SpaceId, TaskId, XState};
use trace::{Data, Event, Fact, MapOp, MemWrite, Stop, SyscallInfo, TraceWriter, WriteError};

use crate::task::Space;

/// A system call that began and is not in the trace yet.
#[derive(Debug)]
struct Begun {
    task: TaskId,
    space: SpaceId,
    stop: Stop,
    before: Registers,
    info: SyscallInfo,
    /// What changes when the call begins to wait.
    word: Option<Word>,
}

/// A word that a call changes when it begins to wait.
#[derive(Debug)]
struct Word {
    space: Rc<Space>,
    addr: GuestAddr,
    /// What it was when the call began.
    then: u32,
    /// What it was changed to.
    changed: Option<u32>,
    /// The call waits: from now on others change it.
    waits: bool,
}

/// What a system call did.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) info: SyscallInfo,
    pub(crate) after: Registers,
    pub(crate) xstate: Option<XState>,
    pub(crate) maps: Vec<MapOp>,
    pub(crate) writes: Vec<MemWrite>,
}

/// Where events go.
pub(crate) struct Sink {
    pub(crate) writer: TraceWriter,
    begun: Vec<Begun>,
}

impl Sink {
    pub(crate) fn new(writer: TraceWriter) -> Self {
        Self { writer, begun: Vec::new() }
    }

    /// A task entered a system call. Nothing is written until it returns, or something else happens first.
    pub(crate) fn begin(&mut self, task: TaskId, space: SpaceId, before: Registers, info: SyscallInfo) {
        self.begun.push(Begun { task, space, stop: Stop::Syscall, before, info, word: None });
    }

    /// The same by `int 0x80`.
    pub(crate) fn begin_narrow(
        &mut self,
        task: TaskId,
        space: SpaceId,
        before: Registers,
        info: SyscallInfo,
    ) {
        let word = None;
        self.begun.push(Begun { task, space, stop: Stop::Narrow, before, info, word });
    }

    /// Whether the task has entered a system call of which nothing is written yet.
    pub(crate) fn has_begun(&self, task: TaskId) -> bool {
        self.begun.iter().any(|begun| begun.task == task)
    }

    /// The call that began last changes a word when it begins to wait.
    pub(crate) fn watch_word(&mut self, space: &Rc<Space>, at: GuestAddr) {
        if let (Some(begun), Ok(now)) = (self.begun.last_mut(), space.memory.read_u32(at)) {
            let space = Rc::clone(space);
            begun.word = Some(Word { space, addr: at, then: now, changed: None, waits: false });
        }
    }

    /// Whether the task's call changes a word when it begins to wait, and has not begun to as far as is known.
    pub(crate) fn is_about_to_wait(&self, task: TaskId) -> bool {
        self.begun.iter().any(|begun| begun.task == task && begun.word.as_ref().is_some_and(|it| !it.waits))
    }

    /// The tasks but this one whose calls change a word when they begin to wait, as far as that is not known to have happened.
    pub(crate) fn about_to_wait(&self, but: Option<TaskId>) -> Vec<TaskId> {
        let unsettled = |begun: &&Begun| begun.word.as_ref().is_some_and(|word| !word.waits);
        let tasks = self.begun.iter().filter(unsettled).map(|begun| begun.task);
        tasks.filter(|task| but != Some(*task)).collect()
    }

    /// The task's call waits by now: what it changed for that. From here on others change it.
    pub(crate) fn waits(&mut self, task: TaskId) {
        for word in self.begun.iter_mut().filter(|begun| begun.task == task).filter_map(|it| it.word.as_mut())
        {
            word.changed = word.space.memory.read_u32(word.addr).ok().filter(|now| *now != word.then);
            word.waits = true;
        }
    }

    /// Writes the entry of the task's system call if that is not in the trace yet, after those that began before it: what
    /// their tasks ran until then may have been seen by this one.
    pub(crate) fn announce(&mut self, task: TaskId) -> Result<(), WriteError> {
        match self.begun.iter().position(|begun| begun.task == task) {
            Some(at) => (0..=at).try_for_each(|_| self.announce_at(0)),
            None => Ok(()),
        }
    }

    fn announce_at(&mut self, at: usize) -> Result<(), WriteError> {
        let Begun { task, space, stop, before, info, word } = self.begun.remove(at);
        let entered = Event::in_place(task, space, before, Fact::SyscallEnter(info));
        let changed = word.and_then(|Word { addr, changed, .. }| {
            Some(MemWrite { addr, data: Data::Inline(changed?.to_le_bytes().to_vec()) })
        });
        let writes = changed.into_iter().collect();
        self.writer.event(&Event { stop, writes, ..entered }).map(drop)
    }

    /// The task's system call returned. `entered` are its registers when it was announced, used if it was.
    pub(crate) fn end(
        &mut self,
        task: TaskId,
        space: SpaceId,
        entered: Registers,
        ended: Ended,
    ) -> Result<EventId, WriteError> {
        let Ended { info, after, xstate, maps, writes } = ended;
        // One event for the whole call, if no other began since: that one's task may have seen what led to this call.
        let whole = self.begun.pop_if(|begun| begun.task == task);
        self.announce_all()?;
        let (stop, fact) = match whole {
            Some(begun) => (begun.stop, Fact::Syscall(info)),
            None => (Stop::None, Fact::SyscallLeave(info)),
        };
        self.writer.event(&Event { task, space, stop, before: entered, after, xstate, maps, writes, fact })
    }

    /// Writes an event that is no system call. The task's own, if it is inside one, must be announced first.
    pub(crate) fn event(&mut self, event: &Event) -> Result<EventId, WriteError> {
        self.announce_all()?;
        self.writer.event(event)
    }

    /// Writes calls that a task made without a stop; the last of them.
    pub(crate) fn calls(
        &mut self,
        task: TaskId,
        space: SpaceId,
        bytes: &[u8],
    ) -> Result<Option<Event>, WriteError> {
        self.announce_all()?;
        self.writer.batch(task, space, bytes)
    }

    /// Writes one such call, with what it changed about mappings; its event.
    pub(crate) fn mapping_call(
        &mut self,
        task: TaskId,
        space: SpaceId,
        bytes: &[u8],
        maps: Vec<MapOp>,
    ) -> Result<Option<Event>, WriteError> {
        self.announce_all()?;
        self.writer.mapping_call(task, space, bytes, maps)
    }

    fn announce_all(&mut self) -> Result<(), WriteError> {
        while !self.begun.is_empty() {
            self.announce_at(0)?;
        }
        Ok(())
    }
}
