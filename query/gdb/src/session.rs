//! What gdb looks at: one moment of a timeline, the process that runs there, and how it moves. Knows no protocol.

use gdbstub::common::Pid;
use guest::{GuestAddr, GuestMemory, GuestRange, Moment, SpaceId, TaskId, Tid, When};
use timeline::{Bias, Position, StopReason, Stops, TaskView, Timeline, TimelineError, Watch};
use trace::{ExecInfo, Fact, ReadError, Status, Trace};

use crate::arch::RegisterFile;
use crate::catch::{Caught, Passage};
use crate::files::Files;
use crate::lives::{Ending, Life, Lives, Process};
use crate::maps;
use crate::target::thread;
use crate::tls::Thread;

/// Instructions run between two looks at whether gdb wants to interrupt.
const SLICE: u64 = 20_000_000;
/// Debug registers of the CPU, each covering up to eight aligned bytes.
const DEBUG_REGISTERS: u64 = 4;

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The timeline failed.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// The recording cannot be read.
    #[error("cannot read the recording")]
    Read(#[from] ReadError),
}

/// A movement that gdb asks for. Steps are a thread's, by its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Motion {
    /// On to a stop.
    Continue,
    /// One instruction.
    Step(usize),
    /// Steps while the pc stays in these bounds.
    StepRange(usize, u64, u64),
    /// Back to a stop.
    ReverseContinue,
    /// One instruction back.
    ReverseStep(usize),
}

/// Why a movement ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halt {
    /// As far as asked for.
    Done,
    /// Before a breakpoint.
    Breakpoint,
    /// At a watchpoint.
    Watchpoint(Watchpoint),
    /// Where a signal strikes, before it does.
    Signal(i32),
    /// Where a call begins or returns of which gdb wants to hear.
    Call(Passage),
    /// gdb interrupted it.
    Interrupted,
    /// Where the process has just begun to be another program, or (backwards) still is the one before.
    Exec,
    /// Where the process ends, or the recording.
    End,
    /// Where the process begins.
    Start,
}

/// A watchpoint as gdb set it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watchpoint {
    pub(crate) watch: Watch,
    /// gdb's own kind of it.
    pub(crate) kind: gdbstub::target::ext::breakpoints::WatchKind,
}

/// Told after every `monitor` command what is shown now.
pub struct News(pub Box<Tell>);

/// What is told.
type Tell = dyn FnMut(Shown<'_>);

/// What gdb has to be brought to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown<'a> {
    /// What it showed before.
    Same,
    /// The thread with this thread pointer, which runs next.
    Thread(u64),
    /// Another process, of this executable: it has to connect again.
    Process(&'a str),
}

impl std::fmt::Debug for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("News")
    }
}

/// A timeline with gdb's breakpoints and its idea of a process.
#[derive(Debug)]
pub struct Session {
    pub(crate) timeline: Timeline,
    pub(crate) lives: Lives,
    pub(crate) files: Files,
    /// The process that gdb is shown.
    pub(crate) shown: Process,
    /// The process id that gdb is told, which stays as long as it is connected: it would take another one for another process
    /// that it has to attach to.
    pub(crate) pid: Pid,
    pub(crate) breakpoints: Vec<GuestAddr>,
    pub(crate) watchpoints: Vec<Watchpoint>,
    /// What gdb asked for last and is not done yet.
    pub(crate) motion: Motion,
    /// Whether it asked for one thread alone to move, as it does to get past a breakpoint that it has taken out meanwhile.
    pub(crate) alone: bool,
    /// Whether it interrupted when nothing moved: the next movement ends at once.
    pub(crate) interrupted: bool,
    /// Who did what gdb is told of, where that is not who runs next.
    stopped: Option<TaskId>,
    /// Where gdb was last told of a signal.
    told: Option<Position>,
    /// The system calls that gdb wants to hear of, and where it was last told of one.
    pub(crate) caught: Caught,
    passed: Option<Position>,
    /// Whether gdb was told what its watchpoints do not see.
    warned: bool,
    /// Who can have gdb connect again.
    pub(crate) news: Option<News>,
}

impl Session {
    /// Opens a recording for gdb, standing at `when`.
    pub fn open(trace: &Trace, when: When) -> Result<Self, SessionError> {
        let timeline = Timeline::open(trace)?;
        let lives = Lives::read(trace, timeline.moments())?;
        let mut session = Self {
            shown: Process { space: SpaceId(0), leader: TaskId(0) },
            pid: Pid::MIN,
            files: Files::new(trace),
            timeline,
            lives,
            breakpoints: Vec::new(),
            watchpoints: Vec::new(),
            motion: Motion::Continue,
            alone: false,
            interrupted: false,
            stopped: None,
            told: None,
            caught: Caught::default(),
            passed: None,
            warned: false,
            news: None,
        };
        session.goto(when)?;
        session.connected();
        Ok(session)
    }

    /// A gdb that connects now is told the process id of the process shown, and has set nothing yet.
    pub(crate) fn connected(&mut self) {
        self.pid = self.own_pid();
        self.breakpoints.clear();
        self.watchpoints.clear();
        (self.caught, self.passed) = (Caught::default(), None);
        (self.warned, self.interrupted) = (false, false);
    }

    /// Has `news` told when gdb has to connect again.
    pub fn tell(&mut self, news: News) {
        self.news = Some(news);
    }

    fn own_pid(&self) -> Pid {
        self.life().and_then(|life| thread(life.pid)).unwrap_or(Pid::MIN)
    }

    /// Where it stands.
    pub fn moment(&self) -> Moment {
        self.timeline.moment()
    }

    /// The last moment of the recording.
    pub(crate) fn end(&self) -> Moment {
        self.timeline.landmarks().end
    }

    /// The program in the process shown.
    pub(crate) fn program(&self) -> Option<&ExecInfo> {
        self.life().map(|life| &*life.program)
    }

    /// The tasks of the process shown, the one that runs next first.
    pub(crate) fn tasks(&self) -> Vec<TaskView> {
        let mut tasks = self.timeline.tasks();
        tasks.retain(|task| self.lives.process(task.task, task.space) == Some(self.shown));
        let current = self.stopped.unwrap_or(self.timeline.task());
        tasks.sort_by_key(|task| (task.task != current, task.task));
        tasks
    }

    /// The task with that thread id in the process shown. Where there is none (gdb has not noticed yet that it was taken
    /// elsewhere), the one that runs next.
    pub(crate) fn task(&self, tid: usize) -> Option<TaskId> {
        let tasks = self.tasks();
        let named = tasks.iter().find(|task| usize::try_from(task.tid.0) == Ok(tid));
        named.or(tasks.first()).map(|task| task.task)
    }

    /// The thread id of the task that runs next.
    pub(crate) fn current_tid(&self) -> Option<Tid> {
        self.tasks().first().map(|task| task.tid)
    }

    /// Whether the thread with that id runs the next instruction of all.
    pub(crate) fn runs_next(&self, tid: usize) -> bool {
        let mut tasks = self.tasks().into_iter();
        tasks.any(|task| task.task == self.timeline.task() && usize::try_from(task.tid.0) == Ok(tid))
    }

    /// The thread pointer of the task that runs next.
    pub(crate) fn thread_pointer(&self) -> Option<u64> {
        self.timeline.registers(self.tasks().first()?.task).ok().map(|regs| regs.fs_base)
    }

    /// A task's registers as gdb numbers them.
    pub(crate) fn registers(&self, task: TaskId) -> Result<RegisterFile, TimelineError> {
        Ok(RegisterFile::new(&self.timeline.registers(task)?, &self.timeline.xstate(task)?))
    }

    /// Reads memory of the process shown: as many bytes as there are from `addr` on.
    pub(crate) fn read(&self, addr: GuestAddr, into: &mut [u8]) -> usize {
        let Some(space) = self.timeline.memory(self.shown.space) else { return 0 };
        let memory = space.own();
        match memory.read(addr, into) {
            Ok(()) => into.len(),
            Err(hole) => {
                let there = hole.addr.0.saturating_sub(addr.0).min(into.len() as u64) as usize;
                memory.read(addr, &mut into[..there]).map_or(0, |()| there)
            }
        }
    }

    /// The answer to gdb's question for a thread-local variable, `THREAD,OFFSET,LINKMAP`: its address, or an error.
    pub(crate) fn thread_local(&self, asked: &str) -> String {
        self.thread_local_address(asked).map_or_else(|| "E01".to_owned(), |addr| format!("{:x}", addr.0))
    }

    fn thread_local_address(&self, asked: &str) -> Option<GuestAddr> {
        let mut parts = asked.split(',');
        // `pPID.TID`, or the thread's id alone.
        let tid = parts.next()?.rsplit('.').next()?;
        let [tid, offset, map] = [Some(tid), parts.next(), parts.next()]
            .map(|part| part.and_then(|part| u64::from_str_radix(part, 16).ok()));
        let task = self.task(usize::try_from(tid?).ok()?)?;
        let space = self.timeline.memory(self.shown.space)?;
        let thread = Thread {
            memory: &space.own(),
            auxv: &self.program()?.auxv,
            pointer: self.timeline.registers(task).ok()?.fs_base,
        };
        let found = thread.address(map?, offset?);
        found
            .inspect_err(|error| tracing::debug!(%error, asked, "no address for a thread-local variable"))
            .ok()
    }

    /// What the kernel says of the signal that strikes here, if one does.
    pub(crate) fn siginfo(&self) -> Option<Vec<u8>> {
        let here = self.timeline.position();
        self.life()?.signal(here).filter(|(at, _)| *at == here)?;
        match self.timeline.trace().event(here.event).ok()?.fact {
            Fact::Signal(info) => Some(info.siginfo),
            _ => None,
        }
    }

    /// What to know of a halt, in words: what an end means, and, once for a connection, that stops of a watchpoint may be missing.
    pub(crate) fn remark(&mut self, halt: Halt) -> Option<String> {
        let end = self.end_remark(halt);
        let moved = matches!(halt, Halt::Watchpoint(_) | Halt::Start | Halt::End);
        let Some(addr) = self.shared_watch().filter(|_| moved && !self.warned) else { return end };
        self.warned = true;
        Some(format!(
            "backstory: {addr} is shared memory: what other processes do to it, or this one through another mapping, is no \
             stop of this watchpoint; `backstory why` tells\n{}",
            end.unwrap_or_default()
        ))
    }

    /// A watched address whose memory others may have, too.
    fn shared_watch(&self) -> Option<GuestAddr> {
        let mappings = match self.watchpoints.is_empty() {
            true => return None,
            false => self.timeline.mappings(self.shown.space),
        };
        let shared = |range: GuestRange| mappings.iter().any(|m| m.shared && m.range.overlaps(range));
        self.watchpoints
            .iter()
            .map(|set| set.watch.range)
            .find(|&range| shared(range))
            .map(|range| range.start)
    }

    fn end_remark(&self, halt: Halt) -> Option<String> {
        let Halt::End = halt else {
            return (halt == Halt::Start).then(|| "backstory: the process begins here\n".to_owned());
        };
        let life = self.life()?;
        Some(match &life.ending {
            Ending::Recording => "backstory: the recording ends here\n".to_owned(),
            Ending::Exit(Status::Exited(code)) => {
                format!("backstory: the process ends here, with exit status {code}\n")
            }
            Ending::Exit(Status::Killed(killed)) => {
                format!("backstory: the process ends here, killed by signal {}\n", killed.signo)
            }
            Ending::Exec(exe, _) => format!("backstory: the process executes {exe} here\n"),
        })
    }

    /// The mappings of the process shown, as `/proc/PID/maps` has them but for devices and inodes.
    pub(crate) fn maps(&self) -> Result<String, ReadError> {
        let position = self.timeline.position();
        let names = maps::names(self.timeline.trace(), self.shown.space, position.event)?;
        Ok(maps::lines(&self.timeline.mappings(self.shown.space), &names))
    }

    /// The processes of the recording, a line each: when they ran, and their programs.
    pub(crate) fn processes(&self) -> String {
        let mut text = String::new();
        for (process, life) in self.lives.all() {
            let mark = if process == self.shown { '*' } else { ' ' };
            let Some((from, to)) = life.span() else { continue };
            let (from, to) = (from.to_string(), to.to_string());
            text.push_str(&format!("{mark} {:>7}  {from:>14} to {to:>14}  {}\n", life.pid, life.program.exe));
        }
        text
    }

    /// Goes to `when` and shows the process that runs there.
    pub(crate) fn goto(&mut self, when: When) -> Result<Moment, SessionError> {
        (self.told, self.passed, self.stopped, self.interrupted) = (None, None, None, false);
        let moment = when.resolve(self.timeline.landmarks()).map_err(TimelineError::from)?;
        let named = match when {
            When::Exit => self.lives.exit,
            When::Signal => self.lives.signal,
            When::End => Some(self.lives.end),
            _ => None,
        };
        match named {
            Some(position) => self.timeline.seek_position(position)?,
            None => {
                self.timeline.seek(moment, Bias::NextInstruction)?;
                if self.timeline.space_of(self.timeline.task()).is_none() {
                    // Nothing runs after it: show what ran last.
                    self.timeline.seek_position(self.lives.end)?;
                }
            }
        }
        if let Some(process) = self.running() {
            self.shown = process;
        }
        Ok(self.moment())
    }

    /// Sets a watchpoint; `false` when the CPU has no room for it.
    pub(crate) fn watch(&mut self, watchpoint: Watchpoint) -> bool {
        let needed = |watch: &Watch| debug_registers(watch.range.start.0, watch.range.len());
        let used: u64 = self.watchpoints.iter().map(|other| needed(&other.watch)).sum();
        let fits = used + needed(&watchpoint.watch) <= DEBUG_REGISTERS;
        if fits {
            self.watchpoints.push(watchpoint);
        }
        fits
    }

    /// Moves as asked for. `interrupted` is asked now and then whether to stop.
    pub(crate) fn go(
        &mut self,
        motion: Motion,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Halt, TimelineError> {
        self.stopped = None;
        if std::mem::take(&mut self.interrupted) {
            return Ok(Halt::Interrupted);
        }
        match motion {
            Motion::Step(tid) => self.step(self.named(tid)),
            Motion::StepRange(tid, start, end) => self.step_range(self.named(tid), start..end, interrupted),
            Motion::Continue => self.forward(interrupted),
            Motion::ReverseStep(tid) => self.step_back(self.named(tid)),
            Motion::ReverseContinue => self.backward(interrupted),
        }
    }

    fn life(&self) -> Option<&Life> {
        self.lives.get(self.shown)
    }

    /// The process of the task that runs next.
    fn running(&self) -> Option<Process> {
        self.process_of(self.timeline.task())
    }

    fn process_of(&self, task: TaskId) -> Option<Process> {
        self.lives.process(task, self.timeline.space_of(task)?)
    }

    /// Whether a stop is one of the process shown. A child that borrows its memory meets breakpoints of its own, of which gdb would
    /// not know; what it does to watched memory counts.
    fn concerns(&self, reason: StopReason) -> bool {
        match reason {
            StopReason::Breakpoint { task } => self.process_of(task) == Some(self.shown),
            _ => true,
        }
    }

    /// At its end: goes on as the program that the process executes there, if it does.
    fn follow_exec(&mut self) -> Result<Halt, TimelineError> {
        let Some(Life { ending: Ending::Exec(_, next), end, .. }) = self.life() else {
            return Ok(Halt::End);
        };
        let (next, after) = (*next, Position { event: guest::EventId(end.event.0 + 1), ..*end });
        self.timeline.seek_position(after)?;
        (self.shown, self.stopped, self.told) = (next, None, None);
        Ok(Halt::Exec)
    }

    /// At its begin: goes back to where the process was the program before, if it was one.
    fn unfollow_exec(&mut self) -> Result<Option<Halt>, TimelineError> {
        let Some((before, at)) = self.life().and_then(|life| life.before) else { return Ok(None) };
        self.timeline.seek_position(at)?;
        (self.shown, self.stopped, self.told) = (before, None, None);
        Ok(Some(Halt::Exec))
    }

    /// Where the process shown ends, within the recording.
    fn limit(&self) -> Position {
        let end = Position { moment: self.end(), event: self.lives.end.event };
        self.life().map_or(end, |life| life.end.min(end))
    }

    fn stops(&self) -> Stops {
        Stops {
            breakpoints: self.breakpoints.clone(),
            watchpoints: self.watchpoints.iter().map(|watchpoint| watchpoint.watch).collect(),
            spaces: vec![self.shown.space],
        }
    }

    /// The task that gdb means; where there is none, the one that runs next.
    fn named(&self, tid: usize) -> TaskId {
        self.task(tid).unwrap_or_else(|| self.timeline.task())
    }

    /// Runs until `task` has retired one instruction and its next one is due.
    fn step(&mut self, task: TaskId) -> Result<Halt, TimelineError> {
        let (here, limit) = (self.timeline.position(), self.limit());
        if here >= limit {
            return self.follow_exec();
        }
        if self.alone {
            return self.step_alone(task);
        }
        let runs = self.life().map(|life| life.task(task));
        let now = runs.and_then(|runs| runs.next(here.moment)).unwrap_or(here.moment);
        let next = runs.and_then(|runs| runs.next(Moment(now.0 + 1)));
        if let Some((at, halt)) = self.incident_ahead()
            && next.is_none_or(|next| at.moment <= next)
        {
            return self.go_to_incident(at, halt);
        }
        // gdb looks after breakpoints where it steps; others may run in between and meet some.
        let mut stops = self.stops();
        if next.is_some_and(|next| next.0 == here.moment.0 + 1) {
            stops.breakpoints.clear();
        }
        let reason = loop {
            let reason = match next {
                Some(next) => self.timeline.cont_until(&stops, next)?,
                None => self.timeline.cont_to(&stops, limit)?,
            };
            if self.concerns(reason) {
                break reason;
            }
        };
        Ok(self.halt(reason).unwrap_or(Halt::Done))
    }

    /// Runs one instruction of `task` where it is next. Otherwise it stays: others would run past the breakpoints that gdb has taken
    /// out, and it puts them in again after this. gdb takes no news of others now.
    fn step_alone(&mut self, task: TaskId) -> Result<Halt, TimelineError> {
        let here = self.moment();
        let next = self.life().and_then(|life| life.task(task).next(here));
        let mut halt = None;
        if self.timeline.task() == task && !self.timeline.is_at_point() && next == Some(here) {
            let stops = Stops { breakpoints: Vec::new(), ..self.stops() };
            let reason = self.timeline.cont_until(&stops, Moment(here.0 + 1))?;
            halt = self.halt(reason);
        }
        self.stopped = Some(task);
        Ok(halt.unwrap_or(Halt::Done))
    }

    /// The next signal that gdb was not told of yet, before the process ends.
    fn signal_ahead(&self) -> Option<(Position, i32)> {
        let here = self.timeline.position();
        let life = self.life()?;
        let (at, signo) = life.signal(here)?;
        let (at, signo) = if self.told == Some(at) {
            life.signal(Position { event: guest::EventId(at.event.0 + 1), ..at })?
        } else {
            (at, signo)
        };
        (at < self.limit()).then_some((at, signo))
    }

    /// The next signal or call that gdb was not told of yet.
    fn incident_ahead(&self) -> Option<(Position, Halt)> {
        let signal = self.signal_ahead().map(|(at, signo)| (at, Halt::Signal(signo)));
        let call = self.caught.next(self.shown, self.timeline.position(), self.passed);
        let call = call.filter(|call| call.at < self.limit()).map(|call| (call.at, Halt::Call(call)));
        call.into_iter().chain(signal).min_by_key(|(at, _)| *at)
    }

    fn incident_before(&self, here: Position) -> Option<(Position, Halt)> {
        let signal = self.life().and_then(|life| life.signal_before(here));
        let signal = signal.map(|(at, signo)| (at, Halt::Signal(signo)));
        let call = self.caught.previous(self.shown, here).map(|call| (call.at, Halt::Call(call)));
        call.into_iter().chain(signal).max_by_key(|(at, _)| *at)
    }

    fn go_to_incident(&mut self, at: Position, halt: Halt) -> Result<Halt, TimelineError> {
        if self.timeline.position() < at {
            self.timeline.cont_to(&Stops::default(), at)?;
        }
        Ok(self.tell_of(at, halt))
    }

    fn tell_of(&mut self, at: Position, halt: Halt) -> Halt {
        match halt {
            Halt::Call(call) => (self.passed, self.stopped) = (Some(at), Some(call.task)),
            _ => (self.told, self.stopped) = (Some(at), None),
        }
        halt
    }

    fn step_range(
        &mut self,
        task: TaskId,
        range: std::ops::Range<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Halt, TimelineError> {
        for n in 1u64.. {
            let halt = self.step(task)?;
            let Ok(regs) = self.timeline.registers(task) else { return Ok(halt) };
            if halt != Halt::Done || !range.contains(&regs.rip) {
                return Ok(halt);
            }
            if self.breakpoints.contains(&regs.pc()) {
                return Ok(Halt::Breakpoint);
            }
            if n.is_multiple_of(64) && interrupted() {
                return Ok(Halt::Interrupted);
            }
        }
        Ok(Halt::Done)
    }

    fn forward(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<Halt, TimelineError> {
        let incident = self.incident_ahead();
        let limit = incident.map_or(self.limit(), |(at, _)| at);
        let stops = self.stops();
        loop {
            if self.timeline.position() >= limit {
                return match incident {
                    Some((at, halt)) => self.go_to_incident(at, halt),
                    None => self.follow_exec(),
                };
            }
            let slice =
                Position { moment: Moment(self.moment().0.saturating_add(SLICE)), event: guest::EventId(0) };
            let reason = self.timeline.cont_to(&stops, limit.min(slice))?;
            if !self.concerns(reason) {
                continue;
            }
            if let Some(halt) = self.halt(reason) {
                return Ok(halt);
            }
            // A run does not meet the breakpoint it begins at, so the next slice would not.
            if self.at_breakpoint() {
                return Ok(Halt::Breakpoint);
            }
            if interrupted() {
                return Ok(Halt::Interrupted);
            }
        }
    }

    fn step_back(&mut self, task: TaskId) -> Result<Halt, TimelineError> {
        let here = self.moment();
        let Some(previous) = self.life().and_then(|life| life.task(task).previous(here)) else {
            return Ok(Halt::Start);
        };
        self.timeline.seek(previous, Bias::NextInstruction)?;
        let stops = Stops { breakpoints: Vec::new(), ..self.stops() };
        if stops.is_empty() {
            return Ok(Halt::Done);
        }
        let reason = self.timeline.cont_until(&stops, Moment(previous.0 + 1))?;
        self.timeline.seek(previous, Bias::NextInstruction)?;
        Ok(self.halt(reason).unwrap_or(Halt::Done))
    }

    fn backward(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<Halt, TimelineError> {
        let stops = self.stops();
        let here = self.timeline.position();
        let incident = self.incident_before(here);
        let reason = loop {
            let reason = match stops.is_empty() {
                true => Some(StopReason::Start),
                false => self.timeline.reverse_cont_while(&stops, &mut || !interrupted())?,
            };
            if reason.is_none_or(|reason| self.concerns(reason)) {
                break reason;
            }
        };
        let Some(reason) = reason else { return Ok(Halt::Interrupted) };
        let halt = self.halt(reason).filter(|halt| matches!(halt, Halt::Breakpoint | Halt::Watchpoint(_)));
        match (halt, incident) {
            (Some(halt), Some((at, _))) if self.timeline.position() >= at => Ok(halt),
            (Some(halt), None) => Ok(halt),
            (_, Some((at, halt))) => {
                self.timeline.seek_position(at)?;
                Ok(self.tell_of(at, halt))
            }
            (None, None) => {
                if let Some(halt) = self.unfollow_exec()? {
                    return Ok(halt);
                }
                let first = self.life().and_then(|life| life.ran.next(Moment(0))).unwrap_or_default();
                self.timeline.seek(first, Bias::NextInstruction)?;
                Ok(Halt::Start)
            }
        }
    }

    /// What gdb is told about a stop; `None` where there is nothing but having arrived.
    fn halt(&mut self, reason: StopReason) -> Option<Halt> {
        match reason {
            StopReason::Step => None,
            StopReason::End => Some(Halt::End),
            StopReason::Start => Some(Halt::Start),
            StopReason::Breakpoint { .. } => Some(Halt::Breakpoint),
            StopReason::Watchpoint { addr, task } => {
                self.stopped = Some(task);
                Some(self.met(addr))
            }
        }
    }

    fn at_breakpoint(&self) -> bool {
        let task = self.timeline.task();
        self.running() == Some(self.shown)
            && !self.timeline.is_at_point()
            && self.timeline.registers(task).is_ok_and(|regs| self.breakpoints.contains(&regs.pc()))
    }

    fn met(&self, addr: GuestAddr) -> Halt {
        let met = self.watchpoints.iter().find(|watchpoint| watchpoint.watch.range.start == addr);
        met.map_or(Halt::Done, |&watchpoint| Halt::Watchpoint(watchpoint))
    }
}

/// How many debug registers cover `len` bytes at `start`: each takes 1, 2, 4 or 8 naturally aligned ones.
fn debug_registers(start: u64, len: u64) -> u64 {
    let end = start.saturating_add(len);
    let mut at = start;
    let mut count = 0;
    while at < end && count <= DEBUG_REGISTERS {
        let fits = |size: &u64| at.is_multiple_of(*size) && end - at >= *size;
        at += [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_bytes_take_debug_registers() {
        let cases = [
            (0x1000, 8, 1),
            (0x1000, 16, 2),
            (0x1004, 8, 2),
            (0x1001, 4, 3),
            (0x1000, 32, 4),
            (0x1000, 40, 5),
        ];
        for (start, len, expected) in cases {
            assert_eq!(debug_registers(start, len), expected, "{start:#x}+{len}");
        }
    }
}
