//! The observer that feeds granules while a replay runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use engine::Space;
use granule::{Call, Encoder, Frame, Frames, HintKind};
use guest::{EventId, GuestAddr, GuestMemory, Moment, SpaceId, TaskId};
use kernel::name;
use replayer::{Look, Moments, Observer, Position, Watched};
use store::{OutputRow, Segment};
use trace::{Event, Fact, MemWrite, OutputStream, SignalAction, SpawnInfo, SyscallInfo, Trace};

use crate::error::FeedError;
use crate::feed::{Dictionary, Feed, Tools};

/// Most bytes of a path that are kept.
const PATH: usize = 4096;

/// What all observers of a build share.
pub(crate) struct Shared {
    pub(crate) trace: Trace,
    pub(crate) moments: Option<Moments>,
    /// Instructions of a segment, about.
    pub(crate) step: u64,
    /// As the build's options say.
    pub(crate) one_by_one: bool,
    pub(crate) dictionary: Dictionary,
    /// Instructions taken in.
    pub(crate) done: AtomicU64,
}

/// Where a unit's observer begins: at the unit's beginning, or behind what was committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    pub(crate) part: u32,
    /// The place up to which everything is committed.
    pub(crate) from: Option<Position>,
    /// First tick and call stacks of the spaces alive there.
    pub(crate) spaces: Vec<(SpaceId, u64, Frames)>,
}

/// Feeds granules from one unit's replay.
pub(crate) struct Watch<'a> {
    shared: &'a Shared,
    segments: SyncSender<Segment>,
    segment: Segment,
    encoder: Encoder,
    feeds: HashMap<SpaceId, Feed>,
    /// Where tasks that share a stack begin: in what another one does.
    adopts: HashMap<TaskId, TaskId>,
    /// The syscall a task is in.
    entered: HashMap<TaskId, GuestAddr>,
    /// From where the next event's task runs.
    run_from: Moment,
    /// The event that `run_from` is for, if what leads to it is taken in already in part.
    running: Option<EventId>,
    /// Instructions in the segment.
    ticks: u64,
    /// Up to here nothing is taken in.
    skip_to: Option<Position>,
    /// Who is in which syscall, for output.
    current: Option<(TaskId, SyscallInfo)>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        unit: u32,
        start: Start,
        segments: SyncSender<Segment>,
    ) -> Result<Self, FeedError> {
        let feeds = start
            .spaces
            .into_iter()
            .map(|(space, tick, frames)| (space, Feed::new(space, tick, frames)))
            .collect();
        Ok(Self {
            shared,
            segments,
            segment: Segment { unit, part: start.part, ..Segment::default() },
            encoder: Encoder::new()?,
            feeds,
            adopts: HashMap::new(),
            entered: HashMap::new(),
            run_from: Moment(0),
            running: None,
            ticks: 0,
            skip_to: start.from,
            current: None,
        })
    }

    /// Whether what happens at `at` was committed by an earlier build.
    fn skips(&self, at: Position) -> bool {
        self.skip_to.is_some_and(|from| at < from)
    }

    /// Takes in what `task` ran since the last drain.
    fn drain(&mut self, id: SpaceId, space: &mut Space, task: TaskId, at: Position) -> Result<(), FeedError> {
        let committed = self.skip_to.map_or(Moment(0), |from| from.moment);
        let start = match (&self.shared.moments, self.running) {
            (_, Some(event)) if event == at.event => self.run_from,
            (Some(moments), _) => moments.start(at.event),
            (None, _) => self.run_from,
        };
        let feed = self.feeds.entry(id).or_insert_with(|| Feed::new(id, 0, Frames::default()));
        if let Some(from) = self.adopts.remove(&task) {
            feed.mark(start, task);
            feed.raw().hint(HintKind::Adopt { from });
        }
        let mut tools = Tools {
            dictionary: &self.shared.dictionary,
            encoder: &mut self.encoder,
            granules: &mut self.segment.granules,
        };
        feed.learn(space.blocks());
        if let Some(from) = self.skip_to.take_if(|from| start < from.moment) {
            feed.skip_to(from.moment);
        }
        let run = (start, at.moment, at.event);
        space.drain_log_with(|log| feed.take(log, run, task, &mut tools))?;
        let ran = at.moment.0 - start.0.max(committed.0);
        self.ticks += ran;
        self.shared.done.fetch_add(ran, Ordering::Relaxed);
        (self.run_from, self.running) = (at.moment, Some(at.event));
        Ok(())
    }

    fn tools<'b>(&'b mut self, id: SpaceId) -> (&'b mut Feed, Tools<'b>) {
        let feed = self.feeds.entry(id).or_insert_with(|| Feed::new(id, 0, Frames::default()));
        let tools = Tools {
            dictionary: &self.shared.dictionary,
            encoder: &mut self.encoder,
            granules: &mut self.segment.granules,
        };
        (feed, tools)
    }

    /// Hands over a segment if it is long enough.
    fn maybe_send(&mut self, at: Position) -> Result<(), FeedError> {
        if self.ticks >= self.shared.step && self.feeds.values().all(Feed::may_end) {
            self.send(Some(at))?;
        }
        Ok(())
    }

    /// Hands over what there is. Without a place to go on from, it is the unit's last.
    pub(crate) fn send(&mut self, at: Option<Position>) -> Result<(), FeedError> {
        let mut spaces: Vec<SpaceId> = self.feeds.keys().copied().collect();
        spaces.sort_unstable();
        for id in spaces {
            let (feed, mut tools) = self.tools(id);
            feed.seal(&mut tools)?;
        }
        let next = Segment { unit: self.segment.unit, part: self.segment.part + 1, ..Segment::default() };
        let mut segment = std::mem::replace(&mut self.segment, next);
        segment.resumes_at = at.map(|at| (at.moment, at.event));
        self.ticks = 0;
        self.segments.send(segment).map_err(|_| FeedError::WriterGone)
    }

    /// Puts what the kernel wrote into the granule of a space.
    fn system_writes(
        &mut self,
        (id, task): (SpaceId, TaskId),
        writes: &[MemWrite],
        at: Position,
    ) -> Result<(), FeedError> {
        let shared = self.shared;
        let (feed, _) = self.tools(id);
        if writes.is_empty() {
            return Ok(());
        }
        feed.mark(at.moment, task);
        for write in writes {
            let bytes = shared.trace.data(&write.data)?;
            feed.raw().system(at.event, write.addr, &bytes);
        }
        Ok(())
    }

    /// The paths that a syscall names.
    fn note_paths(&mut self, space: &Space, info: &SyscallInfo, event: EventId) {
        for (at, pointer) in paths(info) {
            if let Ok(path) = space.read_cstr(GuestAddr(pointer), PATH) {
                let path = String::from_utf8_lossy(&path).into_owned();
                self.segment.paths.push((event, at as u8, path));
            }
        }
    }

    fn spawn(&mut self, event: &Event, info: &SpawnInfo, at: Position) -> Result<(), FeedError> {
        let (parent, task) = (event.space, event.task);
        if adopts(event, info) {
            self.adopts.insert(info.child, task);
        }
        if !info.shares {
            let (feed, mut tools) = self.tools(parent);
            feed.seal(&mut tools)?;
            let stack: Vec<Frame> = feed.frames().of(task).to_vec();
            for (depth, &frame) in (0..).zip(&stack) {
                let call =
                    Call { frame, task: info.child, depth, exit: None, crossed: true, inherited: true };
                self.segment.inherited.push((info.space, call));
            }
            let mut frames = Frames::default();
            frames.set(info.child, stack);
            self.feeds.insert(info.space, Feed::new(info.space, 0, frames));
        }
        self.system_writes((info.space, info.child), &info.writes, at)
    }

    /// The event's own instruction, and what it does to the call stack.
    fn retire(&mut self, event: &Event, before: Position) {
        let (task, id) = (event.task, event.space);
        let own = match &event.fact {
            Fact::Syscall(_) => Some((event.before.pc(), 2)),
            Fact::SyscallLeave(_) => self.entered.remove(&task).map(|pc| (pc, 2)),
            Fact::Instruction => {
                let len = event.after.rip.wrapping_sub(event.before.rip).clamp(1, 15) as u8;
                Some((event.before.pc(), len))
            }
            _ => None,
        };
        let dictionary = &self.shared.dictionary;
        let feed = self.feeds.entry(id).or_insert_with(|| Feed::new(id, 0, Frames::default()));
        if let Some((pc, len)) = own {
            feed.mark(before.moment, task);
            feed.system(pc, len, dictionary);
            self.ticks += 1;
            self.shared.done.fetch_add(1, Ordering::Relaxed);
        }
        if let Fact::Syscall(info) | Fact::SyscallLeave(info) = &event.fact
            && name(info.nr) == Some("rt_sigreturn")
        {
            feed.raw().mark(Moment(before.moment.0 + 1), task);
            feed.raw().hint(HintKind::Unwind { sp: event.after.sp() });
        }
    }

    fn signal(&mut self, event: &Event, at: Position) -> Result<(), FeedError> {
        let Fact::Signal(info) = &event.fact else { return Ok(()) };
        let SignalAction::Handler { handler } = info.action else { return Ok(()) };
        let sp = event.after.sp();
        let mut ret = GuestAddr(0);
        for write in &event.writes {
            let Some(skip) = sp.0.checked_sub(write.addr.0) else { continue };
            let bytes = self.shared.trace.data(&write.data)?;
            if let Some(word) = bytes.get(skip as usize..).and_then(|bytes| bytes.first_chunk::<8>()) {
                ret = GuestAddr(u64::from_le_bytes(*word));
            }
        }
        let (feed, _) = self.tools(event.space);
        feed.mark(at.moment, event.task);
        feed.raw().hint(HintKind::Signal { site: event.before.pc(), handler, ret, sp });
        Ok(())
    }

    fn happened(&mut self, event: &Event, at: Position) -> Result<(), FeedError> {
        let own =
            u64::from(matches!(event.fact, Fact::Syscall(_) | Fact::SyscallLeave(_) | Fact::Instruction));
        let before = Position { moment: Moment(at.moment.0 - own), event: at.event };
        // At a point the program has written already what is put there.
        if !matches!(event.fact, Fact::Point(_)) {
            self.system_writes((event.space, event.task), &event.writes, before)?;
        }
        match &event.fact {
            Fact::SyscallEnter(_) => {
                self.entered.insert(event.task, event.before.pc());
            }
            Fact::Spawn(info) => self.spawn(event, info, before)?,
            Fact::Signal(_) => self.signal(event, before)?,
            _ => {}
        }
        self.retire(event, before);
        (self.run_from, self.running) = (at.moment, None);
        self.maybe_send(Position { moment: at.moment, event: EventId(at.event.0 + 1) })
    }
}

/// The arguments that point to paths, with their positions.
fn paths(info: &SyscallInfo) -> impl Iterator<Item = (usize, u64)> {
    let args = kernel::row(info.nr).map_or(&[][..], |row| row.args);
    let paths = args.iter().zip(info.args).enumerate();
    paths
        .filter(|(_, (arg, _))| matches!(arg.kind, kernel::Kind::Path))
        .map(|(at, (_, pointer))| (at, pointer))
}

/// Whether a new task begins in what its parent does: on its stack. A thread has one of its own.
fn adopts(event: &Event, info: &SpawnInfo) -> bool {
    info.shares && info.regs.rsp == event.before.rsp
}

impl Observer for Watch<'_> {
    fn looks_at(&self, call: Option<&SyscallInfo>) -> Look {
        // A path is in memory while the call is made.
        if call.is_some_and(|info| paths(info).next().is_some()) { Look::There } else { Look::Afterwards }
    }

    fn log_full(&mut self, id: SpaceId, space: &mut Space, task: TaskId, at: Position) -> Watched {
        if self.skips(at) {
            space.drain_log_with(|_| ());
            (self.run_from, self.running) = (at.moment, Some(at.event));
            return Ok(());
        }
        self.drain(id, space, task, at)?;
        Ok(self.maybe_send(at)?)
    }

    fn before_event(&mut self, id: SpaceId, space: &mut Space, event: &Event, at: Position) -> Watched {
        if self.skips(at) {
            space.drain_log_with(|_| ());
            self.adopts.remove(&event.task);
            return Ok(());
        }
        self.drain(id, space, event.task, at)?;
        self.feeds.get_mut(&id).into_iter().for_each(Feed::interrupt);
        if let Fact::Syscall(info) | Fact::SyscallEnter(info) = &event.fact {
            self.note_paths(space, info, at.event);
        }
        self.current = match &event.fact {
            Fact::Syscall(info) | Fact::SyscallLeave(info) => Some((event.task, *info)),
            _ => None,
        };
        Ok(())
    }

    fn after_event(&mut self, _space: &mut Space, event: &Event, at: Position) -> Watched {
        if self.skips(at) {
            // What a task is in must be known behind the committed part.
            match &event.fact {
                Fact::SyscallEnter(_) => {
                    self.entered.insert(event.task, event.before.pc());
                }
                Fact::Spawn(info) if adopts(event, info) => {
                    self.adopts.insert(info.child, event.task);
                }
                _ => {}
            }
            (self.run_from, self.running) = (at.moment, None);
            return Ok(());
        }
        Ok(self.happened(event, at)?)
    }

    fn space_ends(&mut self, id: SpaceId, _space: &mut Space, at: Position) -> Watched {
        if !self.skips(at) {
            let (feed, mut tools) = self.tools(id);
            feed.seal(&mut tools)?;
            self.feeds.remove(&id);
        }
        Ok(())
    }

    fn output(&mut self, stream: OutputStream, bytes: &[u8], at: Position) -> Watched {
        if self.skips(at) {
            return Ok(());
        }
        let Some((task, info)) = self.current else { return Ok(()) };
        self.segment.output.push(OutputRow {
            event: at.event,
            moment: at.moment,
            task,
            fd: i32::try_from(info.args[0]).ok(),
            stream: match stream {
                OutputStream::Stdout => "stdout".into(),
                OutputStream::Stderr => "stderr".into(),
            },
            len: bytes.len() as u64,
            bytes: bytes.to_vec(),
        });
        Ok(())
    }
}
