//! The run through the events: run a task to its stop, compare, put the event's effects, go on.

use engine::{Config, Exit, Sharing, Space};
use guest::{EventId, GuestAddr, GuestRange, Moment, Registers, SpaceId, TaskId, Tid, XState};
use trace::{Event, Events, Fact, Moments, SpawnInfo, Stop, SyscallInfo, Trace, Trapped};

use crate::compare::differences;
use crate::effects::{apply_maps, apply_writes};
use crate::error::{Difference, Divergence, ReplayError};
use crate::guard;
use crate::live::{Live, TaskView, stop_at};
use crate::observer::{Observer, Watched};
use crate::options::{Bias, Options, Position, Stopped, Stops, Until};
use crate::output;
use crate::units::{Belongs, Members, Unit};

/// Length of the `cpuid` instruction.
const CPUID_LEN: u64 = 2;

/// A replay that stands somewhere in a recording (or one unit of it).
///
/// Must be used on the thread that made it.
#[derive(Debug)]
pub struct Replay {
    pub(crate) trace: Trace,
    pub(crate) config: Config,
    pub(crate) moments: Option<Moments>,
    pub(crate) stops: Stops,
    pub(crate) live: Live,
    pub(crate) cursor: Cursor,
}

/// The place in the event stream.
#[derive(Clone)]
pub(crate) struct Cursor {
    events: Events,
    members: Option<Members>,
    next: Option<(EventId, Event)>,
    /// Number of events read, or where they end.
    end: EventId,
    /// Instructions retired so far, over all tasks.
    moment: Moment,
    /// Of these, since the last event, towards the next one.
    ran: u64,
    last_good: Option<EventId>,
    /// Set when the task that runs next was just stopped at its pc, so that it goes on from there.
    resume: bool,
    /// Whether the arithmetic flags at the stop just reached are the guest's.
    flags_exact: bool,
    /// The inaccessible page that stands for the end of a stack until the next event.
    guard: Option<GuestRange>,
    /// Each event's count.
    pub(crate) counts: Vec<u64>,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("moment", &self.moment).field("end", &self.end).finish_non_exhaustive()
    }
}

/// What running towards an event's stop led to.
enum Reach {
    Stop,
    Budget,
    Stopped(Stopped),
}

impl Replay {
    /// Opens a whole recording; stands at its start, before the first event. Learned counts are used (and held against
    /// what is counted) where there are any.
    pub fn open(trace: &Trace, options: &Options) -> Result<Self, ReplayError> {
        Self::start(trace, options, trace.events(), None, crate::learn::known(trace))
    }

    /// As [`Replay::open`], with counts that are known already.
    pub fn open_known(trace: &Trace, moments: &Moments, options: &Options) -> Result<Self, ReplayError> {
        Self::start(trace, options, trace.events(), None, Some(moments.clone()))
    }

    /// Opens one unit. `moments` are those of the whole recording.
    pub fn open_unit(
        trace: &Trace,
        unit: &Unit,
        moments: &Moments,
        options: &Options,
    ) -> Result<Self, ReplayError> {
        let events = trace.events_from(unit.first);
        Self::start(trace, options, events, Some(Members::new(unit)), Some(moments.clone()))
    }

    fn start(
        trace: &Trace,
        options: &Options,
        events: Events,
        members: Option<Members>,
        moments: Option<Moments>,
    ) -> Result<Self, ReplayError> {
        let config = Config {
            footprint: trace.footprint()?,
            mode: options.mode,
            log_bytes: options.log_bytes,
            cpu: options.cpu,
        };
        let cursor = Cursor {
            events,
            members,
            next: None,
            end: EventId(trace.len()),
            moment: Moment(0),
            ran: 0,
            last_good: None,
            resume: false,
            flags_exact: true,
            guard: None,
            counts: Vec::new(),
        };
        let mut replay = Self {
            trace: trace.clone(),
            config,
            moments,
            stops: Stops::default(),
            live: Live::default(),
            cursor,
        };
        replay.advance()?;
        Ok(replay)
    }

    /// The recording.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Where it stands.
    pub fn position(&self) -> Position {
        Position { moment: self.cursor.moment, event: self.next_id() }
    }

    /// The event that happens next; `None` at the end.
    pub fn next_event(&self) -> Option<(EventId, &Event)> {
        self.cursor.next.as_ref().map(|(id, event)| (*id, event))
    }

    /// The task that runs next.
    pub fn task(&self) -> Option<TaskId> {
        self.cursor.next.as_ref().map(|(_, event)| event.task)
    }

    /// The tasks alive, in order.
    pub fn tasks(&self) -> Vec<TaskView> {
        self.live.tasks()
    }

    /// A task's registers; `None` when it is not alive.
    pub fn registers(&self, task: TaskId) -> Option<Registers> {
        self.live.registers(task)
    }

    /// A task's extended state; `None` when it is not alive.
    pub fn xstate(&self, task: TaskId) -> Result<Option<XState>, ReplayError> {
        self.live.xstate(task).transpose()
    }

    /// The spaces alive, in order.
    pub fn spaces(&self) -> impl Iterator<Item = (SpaceId, &Space)> {
        self.live.spaces()
    }

    /// A space, for reading its memory and mappings; `None` when it is not alive.
    pub fn space(&self, id: SpaceId) -> Option<&Space> {
        self.live.space(id)
    }

    /// The learned counts in use.
    pub fn moments(&self) -> Option<&Moments> {
        self.moments.as_ref()
    }

    /// The count of each event so far, while they are being learned (by a whole replay, from its start).
    pub fn counts(&self) -> &[u64] {
        &self.cursor.counts
    }

    /// Replaces where to stop. Takes effect in spaces alive and to come.
    pub fn set_stops(&mut self, stops: &Stops) -> Result<(), ReplayError> {
        let at = self.position();
        let task = self.task().unwrap_or(TaskId(0));
        self.live.set_stops(stops).map_err(|source| ReplayError::Run {
            task,
            moment: at.moment,
            event: at.event,
            source,
        })?;
        self.stops = stops.clone();
        Ok(())
    }

    /// Runs on until told, or a stop, or the end. A breakpoint where the run begins is not met.
    pub fn run(&mut self, until: Until, observer: &mut dyn Observer) -> Result<Stopped, ReplayError> {
        self.cursor.resume = true;
        loop {
            if self.cursor.next.is_none() {
                return Ok(Stopped::End);
            }
            if self.is_reached(until) {
                return Ok(Stopped::Reached);
            }
            match self.reach(self.budget(until), observer)? {
                // Where the stop's own instruction is the one asked for, it does not happen yet.
                Reach::Stop if self.is_reached(until) => return Ok(Stopped::Reached),
                Reach::Stop => {
                    if let Some(stopped) = self.perform(observer)? {
                        return Ok(stopped);
                    }
                }
                Reach::Budget => {}
                Reach::Stopped(stopped) => return Ok(stopped),
            }
            self.cursor.resume = false;
        }
    }

    fn next_id(&self) -> EventId {
        self.cursor.next.as_ref().map_or(self.cursor.end, |(id, _)| *id)
    }

    /// Instructions that the next event still takes, where that is known.
    fn remaining(&self) -> Option<u64> {
        let (id, event) = self.cursor.next.as_ref()?;
        match &self.moments {
            Some(moments) => Some(moments.count(*id).0.saturating_sub(self.cursor.ran)),
            None if event.stop == Stop::None => Some(own(event)),
            None => None,
        }
    }

    fn is_reached(&self, until: Until) -> bool {
        match until {
            Until::End => false,
            Until::Moment(moment, Bias::Earliest) => self.cursor.moment >= moment,
            Until::Moment(moment, Bias::NextInstruction) => {
                self.cursor.moment > moment || self.cursor.moment == moment && self.remaining() != Some(0)
            }
            Until::Position(position) => self.position() >= position,
        }
    }

    /// How many instructions may run before the place asked for; `None` when the next event comes first.
    fn budget(&self, until: Until) -> Option<u64> {
        let goal = match until {
            Until::End => return None,
            Until::Moment(moment, _) => moment,
            Until::Position(position) if position.event > self.next_id() => return None,
            Until::Position(position) => position.moment,
        };
        let left = goal.0.saturating_sub(self.cursor.moment.0);
        let event = self.cursor.next.as_ref().map(|(_, event)| event)?;
        let to_stop = self.remaining().map(|remaining| remaining.saturating_sub(own(event)));
        // An event at the very place asked for happens only if it retires nothing and an instruction is asked for.
        let passes = own(event) == 0 && matches!(until, Until::Moment(_, Bias::NextInstruction));
        let first = to_stop.is_some_and(|to_stop| to_stop < left || to_stop == left && passes);
        if first { None } else { Some(left) }
    }

    /// Runs the next event's task towards its stop.
    fn reach(&mut self, budget: Option<u64>, observer: &mut dyn Observer) -> Result<Reach, ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(Reach::Stop) };
        let (id, task, stop) = (*id, event.task, event.stop);
        match stop {
            Stop::None => return Ok(Reach::Stop),
            Stop::Point => return Err(ReplayError::Point { event: id }),
            Stop::Syscall | Stop::Instruction(_) | Stop::Fault => {}
        }
        if stop == Stop::Fault && self.cursor.ran == 0 && self.cursor.guard.is_none() {
            self.put_guard()?;
        }
        if let Some(pc) = self.arrived_at_breakpoint(task) {
            return Ok(Reach::Stopped(Stopped::Breakpoint { task, pc }));
        }
        let mut left = budget;
        loop {
            let (space_id, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event: id })??;
            let before = space.retired();
            let moment = self.cursor.moment;
            let exit =
                space.run(left).map_err(|source| ReplayError::Run { task, moment, event: id, source })?;
            let ran = space.retired() - before;
            self.cursor.moment.0 += ran;
            self.cursor.ran += ran;
            left = left.map(|left| left.saturating_sub(ran));
            match exit {
                Exit::Budget => return Ok(Reach::Budget),
                Exit::Breakpoint => {
                    let pc = space.registers().pc();
                    return Ok(Reach::Stopped(Stopped::Breakpoint { task, pc }));
                }
                Exit::Watchpoint { addr, pc } => {
                    let moment = Moment(self.cursor.moment.0.saturating_sub(1));
                    return Ok(Reach::Stopped(Stopped::Watchpoint { task, addr, pc, moment }));
                }
                Exit::LogFull => {
                    let at = Position { moment: self.cursor.moment, event: id };
                    watched(observer.log_full(space_id, space, task, at))?;
                }
                Exit::Instruction(engine::Trapped::Cpuid) if !self.trace.header().machine.cpuid_trapped => {
                    self.answer_cpuid(task)?;
                    left = left.map(|left| left.saturating_sub(1));
                    if left == Some(0) {
                        return Ok(Reach::Budget);
                    }
                }
                _ => {
                    self.cursor.flags_exact = !matches!(&exit, Exit::Fault(fault) if !fault.flags_exact);
                    self.judge(task, stop, exit)?;
                    return Ok(Reach::Stop);
                }
            }
        }
    }

    /// The pc of a task that an event put onto a breakpoint, unless the run began there.
    fn arrived_at_breakpoint(&mut self, task: TaskId) -> Option<GuestAddr> {
        let pc = self.live.registers(task)?.pc();
        let live = self.live.task_mut(task)?;
        let arrived = std::mem::take(&mut live.arrived);
        let met = arrived && !self.cursor.resume && self.stops.apply_to(live.space);
        (met && self.stops.breakpoints.contains(&pc)).then_some(pc)
    }

    /// Whether an exit is the stop that the recording has.
    fn judge(&self, task: TaskId, stop: Stop, exit: Exit) -> Result<(), ReplayError> {
        let actual_pc = self.live.registers(task).map_or(GuestAddr(0), |regs| regs.pc());
        let what = match (stop, exit) {
            (Stop::Syscall, Exit::Syscall) | (Stop::Fault, Exit::Fault(_)) => return Ok(()),
            (Stop::Instruction(want), Exit::Instruction(kind)) if trapped(kind) == want => return Ok(()),
            (_, Exit::Unsupported { pc, name }) => {
                return Err(ReplayError::Unsupported { task, moment: self.cursor.moment, pc, name });
            }
            (_, Exit::Instruction(kind)) => Difference::NotRecorded { name: name(kind), pc: actual_pc },
            (expected, actual) => {
                let expected_pc =
                    self.cursor.next.as_ref().map_or(GuestAddr(0), |(_, event)| event.before.pc());
                Difference::Stop { expected, expected_pc, actual, actual_pc }
            }
        };
        Err(self.diverged(what))
    }

    fn diverged(&self, what: Difference) -> ReplayError {
        let (fact, task) = self
            .cursor
            .next
            .as_ref()
            .map_or(("end", TaskId(0)), |(_, event)| (event.fact.name(), event.task));
        ReplayError::Divergence(Box::new(Divergence {
            event: self.next_id(),
            fact,
            task,
            moment: self.cursor.moment,
            last_good: self.cursor.last_good,
            what,
        }))
    }

    /// Answers a `cpuid` that was not trapped while recording from the recorded table.
    fn answer_cpuid(&mut self, task: TaskId) -> Result<(), ReplayError> {
        let event = self.next_id();
        let (_, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event })??;
        let mut regs = space.registers();
        let (leaf, subleaf) = (regs.rax as u32, regs.rcx as u32);
        let table = &self.trace.header().machine.cpuid;
        let row = table.iter().find(|row| row.leaf == leaf && row.subleaf.is_none_or(|s| s == subleaf));
        let Some(row) = row else {
            let pc = regs.pc();
            return Err(self.diverged(Difference::NotRecorded { name: "cpuid", pc }));
        };
        [regs.rax, regs.rbx, regs.rcx, regs.rdx] = row.result.map(u64::from);
        regs.rip = regs.rip.wrapping_add(CPUID_LEN);
        space.set_registers(&regs);
        self.cursor.moment.0 += 1;
        self.cursor.ran += 1;
        Ok(())
    }

    /// Puts an inaccessible page where the fault to come shows that a stack ended.
    fn put_guard(&mut self) -> Result<(), ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(()) };
        let space = self.live.space_mut(event.space).ok_or(ReplayError::NotAlive { event: *id })?;
        if let Some(range) = guard::needed(space, event) {
            let failed = |source| ReplayError::Map { space: event.space, event: *id, source };
            guard::put(space, range).map_err(failed)?;
            self.cursor.guard = Some(range);
        }
        Ok(())
    }

    /// Lets the next event, whose stop is reached, happen.
    fn perform(&mut self, observer: &mut dyn Observer) -> Result<Option<Stopped>, ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(None) };
        let (id, task) = (*id, event.task);
        if event.stop != Stop::None {
            self.compare(event)?;
        }
        let at = self.position();
        let Some((_, event)) = self.cursor.next.take() else { return Ok(None) };
        // Until the event has happened it is still the next one, for whatever goes wrong.
        let done = self.happen(id, &event, at, observer);
        self.cursor.next = Some((id, event));
        let watch = done?;
        self.cursor.last_good = Some(id);
        self.advance()?;
        Ok(watch.map(|(addr, pc)| Stopped::Watchpoint { task, addr, pc, moment: at.moment }))
    }

    fn compare(&self, event: &Event) -> Result<(), ReplayError> {
        let actual =
            self.live.registers(event.task).ok_or(ReplayError::NotAlive { event: self.next_id() })?;
        let found = differences(&event.before, &actual, event.stop, self.cursor.flags_exact);
        if found.is_empty() { Ok(()) } else { Err(self.diverged(Difference::Registers(found))) }
    }

    /// The event's effects. Returns the watched bytes that it wrote, with the pc.
    fn happen(
        &mut self,
        id: EventId,
        event: &Event,
        at: Position,
        observer: &mut dyn Observer,
    ) -> Result<Option<(GuestAddr, GuestAddr)>, ReplayError> {
        let not_alive = || ReplayError::NotAlive { event: id };
        if let Some(entered) = self.live.enter(event.task) {
            let (space_id, space) = entered?;
            watched(observer.before_event(space_id, space, event, at))?;
        }
        match &event.fact {
            Fact::Exec(info) => {
                self.leave(event.task, at, observer)?;
                self.new_space(event.space)?;
                // The task that executes a program is, or becomes, its process's leader.
                let ids = (Tid(info.tid), Tid(info.tid));
                self.live.add_task(event.task, ids, event.space, event.before, XState::default());
            }
            Fact::Spawn(info) => self.spawn(id, event, info)?,
            _ => {}
        }
        let (space_id, space) = self.live.enter(event.task).ok_or_else(not_alive)??;
        if let Some(guard) = self.cursor.guard.take() {
            let failed = |source| ReplayError::Map { space: space_id, event: id, source };
            space.unmap(guard).map_err(failed)?;
        }
        apply_maps(&self.trace, (space_id, space), id, &event.maps)?;
        apply_writes(&self.trace, (space_id, space), id, &event.writes)?;
        space.set_registers(&event.after);
        if let Some(xstate) = &event.xstate {
            space.set_xstate(xstate).map_err(|source| ReplayError::Host { space: space_id, source })?;
        }
        if let Fact::Syscall(info) | Fact::SyscallLeave(info) = &event.fact {
            self.print(event, info, at, observer)?;
        }
        self.count(id, event)?;
        let at = Position { moment: self.cursor.moment, event: id };
        let (_, space) = self.live.enter(event.task).ok_or_else(not_alive)??;
        watched(observer.after_event(space, event, at))?;
        if let Some(live) = self.live.task_mut(event.task) {
            live.arrived = event.before.rip != event.after.rip;
        }
        if matches!(event.fact, Fact::Exit(_)) {
            self.leave(event.task, at, observer)?;
        }
        Ok(self.watched_write(space_id, event))
    }

    /// Counts the event's own instruction, and holds the sum against an earlier replay's.
    fn count(&mut self, id: EventId, event: &Event) -> Result<(), ReplayError> {
        let own = own(event);
        let count = self.cursor.ran + own;
        if let Some(moments) = &self.moments
            && moments.count(id).0 != count
        {
            let expected = moments.count(id).0;
            return Err(self.diverged(Difference::Count { expected, actual: count }));
        }
        self.cursor.moment.0 += own;
        self.cursor.ran = 0;
        if self.moments.is_none() {
            self.cursor.counts.truncate(id.index());
            self.cursor.counts.push(count);
        }
        Ok(())
    }

    /// A task leaves its space; the space goes with its last task.
    fn leave(&mut self, task: TaskId, at: Position, observer: &mut dyn Observer) -> Result<(), ReplayError> {
        match self.live.remove_task(task) {
            Some((id, mut space)) => watched(observer.space_ends(id, &mut space, at)),
            None => Ok(()),
        }
    }

    fn new_space(&mut self, id: SpaceId) -> Result<(), ReplayError> {
        let space = Space::new(&self.config).map_err(|source| ReplayError::New { space: id, source })?;
        self.add_space(id, space)
    }

    fn add_space(&mut self, id: SpaceId, mut space: Space) -> Result<(), ReplayError> {
        let at = self.position();
        stop_at(&mut space, id, &self.stops).map_err(|source| ReplayError::Run {
            task: self.task().unwrap_or(TaskId(0)),
            moment: at.moment,
            event: at.event,
            source,
        })?;
        self.live.add_space(id, space);
        Ok(())
    }

    /// A new task. A copied space is copied before the parent's own writes: the kernel makes those after the copy.
    fn spawn(&mut self, id: EventId, event: &Event, info: &SpawnInfo) -> Result<(), ReplayError> {
        let (parent_id, parent) =
            self.live.enter(event.task).ok_or(ReplayError::NotAlive { event: id })??;
        let xstate = parent.xstate().map_err(|source| ReplayError::Host { space: parent_id, source })?;
        if !info.shares {
            let child = parent
                .fork(Sharing::Kept)
                .map_err(|source| ReplayError::Fork { space: info.space, source })?;
            self.add_space(info.space, child)?;
        }
        self.live.add_task(info.child, (info.tid, info.pid), info.space, info.regs, xstate);
        let space = self.live.space_mut(info.space).ok_or(ReplayError::NotAlive { event: id })?;
        apply_writes(&self.trace, (info.space, space), id, &info.writes)
    }

    /// Hands on what a syscall printed, once its checksum is right.
    fn print(
        &mut self,
        event: &Event,
        info: &SyscallInfo,
        at: Position,
        observer: &mut dyn Observer,
    ) -> Result<(), ReplayError> {
        let Some(stream) = info.output.filter(|_| info.result.is_some_and(|result| result > 0)) else {
            return Ok(());
        };
        let Some(space) = self.live.space(event.space) else { return Ok(()) };
        let bytes = match output::bytes(space, info) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(()),
            Err(error) => return Err(self.diverged(Difference::OutputLost { what: error.to_string() })),
        };
        let actual = crc32fast::hash(&bytes);
        if actual != info.output_crc {
            return Err(self.diverged(Difference::Output { expected: info.output_crc, actual }));
        }
        watched(observer.output(stream, &bytes, at))
    }

    /// The watchpoint that the event's writes touch.
    fn watched_write(&self, space: SpaceId, event: &Event) -> Option<(GuestAddr, GuestAddr)> {
        if !self.stops.apply_to(space) {
            return None;
        }
        let touched = |range: GuestRange| {
            let written = |w: &trace::MemWrite| GuestRange::new(w.addr, w.data.len() as u64).overlaps(range);
            event.writes.iter().any(written)
        };
        let watch = self.stops.watchpoints.iter().find(|watch| touched(watch.range))?;
        Some((watch.range.start, event.before.pc()))
    }

    /// Reads the next event (of the unit).
    fn advance(&mut self) -> Result<(), ReplayError> {
        self.cursor.next = None;
        loop {
            if let (Some(members), Some(last)) = (&self.cursor.members, self.cursor.last_good)
                && members.is_over(EventId(last.0 + 1))
            {
                return Ok(());
            }
            let Some(item) = self.cursor.events.next() else { return Ok(()) };
            let (id, event) = item?;
            let belongs =
                self.cursor.members.as_mut().map_or(Belongs::Yes, |members| members.follow(id, &event));
            match belongs {
                Belongs::No => continue,
                Belongs::Leaves => {
                    self.live.remove_task(event.task);
                    continue;
                }
                Belongs::Yes => {}
            }
            if let (Some(moments), true) = (&self.moments, self.cursor.members.is_some()) {
                self.cursor.moment = moments.start(id);
            }
            self.cursor.next = Some((id, event));
            return Ok(());
        }
    }
}

/// How many instructions an event retires itself.
fn own(event: &Event) -> u64 {
    match event.fact {
        Fact::Syscall(_) | Fact::SyscallLeave(_) | Fact::Instruction => 1,
        Fact::Exec(_) | Fact::SyscallEnter(_) | Fact::Spawn(_) | Fact::Signal(_) | Fact::Exit(_) => 0,
    }
}

fn watched(answer: Watched) -> Result<(), ReplayError> {
    answer.map_err(ReplayError::Observer)
}

fn trapped(kind: engine::Trapped) -> Trapped {
    match kind {
        engine::Trapped::Rdtsc => Trapped::Rdtsc,
        engine::Trapped::Rdtscp => Trapped::Rdtscp,
        engine::Trapped::Cpuid => Trapped::Cpuid,
    }
}

fn name(kind: engine::Trapped) -> &'static str {
    match kind {
        engine::Trapped::Rdtsc => "rdtsc",
        engine::Trapped::Rdtscp => "rdtscp",
        engine::Trapped::Cpuid => "cpuid",
    }
}
