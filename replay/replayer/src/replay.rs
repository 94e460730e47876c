//! A replay and its run through the events: run a task to its stop, let the event happen, go on.

use engine::{Branches, Config, Space, has_rtm};
use guest::{EventId, GuestRange, Moment, Registers, SpaceId, TaskId, XState};
use trace::{Event, Events, Fact, Located, Moments, Stop, Trace};

use crate::error::ReplayError;
use crate::find::Finder;
use crate::live::{Live, TaskView};
use crate::observer::{Observer, Watched};
use crate::options::{Bias, Options, Position, Stopped, Stops, Until};
use crate::reach::Reach;
use crate::units::{Belongs, Members, Unit};

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
    /// The search for an execution point that no replay has found yet.
    pub(crate) finder: Option<Finder>,
    /// How many instructions were searched for points so far.
    pub(crate) searched: u64,
    /// Whether every call is stopped at.
    pub(crate) one_by_one: bool,
}

/// The place in the event stream.
#[derive(Clone)]
pub(crate) struct Cursor {
    pub(crate) events: Events,
    pub(crate) members: Option<Members>,
    pub(crate) next: Option<(EventId, Event)>,
    /// Number of events read, or where they end.
    pub(crate) end: EventId,
    /// Instructions retired so far, over all tasks.
    pub(crate) moment: Moment,
    /// Of these, since the last event, towards the next one.
    pub(crate) ran: u64,
    /// What the space of the next event's task had counted in branches at the last event.
    pub(crate) branches: u64,
    pub(crate) last_good: Option<EventId>,
    /// Set when the task that runs next was just stopped at its pc, so that it goes on from there.
    pub(crate) resume: bool,
    /// Whether the arithmetic flags at the stop just reached are the guest's.
    pub(crate) flags_exact: bool,
    /// The inaccessible page that stands for the end of a stack until the next event.
    pub(crate) guard: Option<GuestRange>,
    /// How many calls are prepared at a time.
    pub(crate) stride: usize,
    /// Each event's count.
    pub(crate) counts: Vec<u64>,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("moment", &self.moment).field("end", &self.end).finish_non_exhaustive()
    }
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

    /// Opens a whole recording of which nothing is known, whatever a counter told.
    pub(crate) fn open_uncounted(trace: &Trace, options: &Options) -> Result<Self, ReplayError> {
        let mut replay = Self::start(trace, options, trace.events(), None, None)?;
        replay.config.branches = Branches::Uncounted;
        Ok(replay)
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
            branches: if moments.is_some() { Branches::Uncounted } else { counted(trace) },
            rtm: trace
                .header()
                .machine
                .cpuid
                .iter()
                .any(|row| (row.leaf, row.subleaf) == (7, Some(0)) && has_rtm(row.result)),
        };
        let cursor = Cursor {
            events,
            members,
            next: None,
            end: EventId(trace.len()),
            moment: Moment(0),
            ran: 0,
            branches: 0,
            last_good: None,
            resume: false,
            flags_exact: true,
            guard: None,
            stride: crate::batch::FEW,
            counts: Vec::new(),
        };
        let mut replay = Self {
            trace: trace.clone(),
            config,
            moments,
            stops: Stops::default(),
            live: Live::default(),
            cursor,
            finder: None,
            searched: 0,
            one_by_one: options.one_by_one,
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

    /// How many instructions searches for execution points went through so far, for diagnostics.
    pub fn searched(&self) -> u64 {
        self.searched
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
            let reached = match self.reach(until, observer) {
                Err(error) if self.was_led_astray(&error) => {
                    self.disregard_counts()?;
                    continue;
                }
                reached => reached?,
            };
            match reached {
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

    pub(crate) fn next_id(&self) -> EventId {
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
    pub(crate) fn budget(&self, until: Until) -> Option<u64> {
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

    /// Reads the next event (of the unit).
    pub(crate) fn advance(&mut self) -> Result<(), ReplayError> {
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

/// Which branches to count so that points can be located by their number.
fn counted(trace: &Trace) -> Branches {
    match trace.header().machine.located() {
        Located::State => Branches::Uncounted,
        Located::Jcc => Branches::Jcc,
        Located::Branches => Branches::All,
    }
}

/// How many instructions an event retires itself.
pub(crate) fn own(event: &Event) -> u64 {
    match event.fact {
        Fact::Syscall(_) | Fact::SyscallLeave(_) | Fact::Instruction => 1,
        Fact::Exec(_)
        | Fact::SyscallEnter(_)
        | Fact::Spawn(_)
        | Fact::Signal(_)
        | Fact::Exit(_)
        | Fact::Point(_)
        | Fact::Traced(_) => 0,
    }
}

pub(crate) fn watched(answer: Watched) -> Result<(), ReplayError> {
    answer.map_err(ReplayError::Observer)
}
