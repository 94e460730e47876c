//! The main loop: whose turn it is, who waits, and what a wait reported.
//!
//! One task at a time has the turn and is resumed. It loses it when it sleeps in the kernel, or when its slice is over and
//! another can go on; what it does then until its next stop (processes share no memory) is invisible to the others. A
//! system call begins only with the turn, so calls are made one at a time in the order of their events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use guest::{SpaceId, TaskId};
use ptrace::{Gone, HostTid, PtraceEvent, Report, Stopped, Waited};
use trace::{Event, Fact, Killed, Located, Machine, Status, Summary, TraceWriter};

use crate::affinity::{self, Pinned};
use crate::api::{Options, Outcome, RecordError};
use crate::buffer::Buffering;
use crate::chaos::Chaos;
use crate::command::Prepared;
use crate::count::Counting;
use crate::cpuid::Trapping;
use crate::ending::Requests;
use crate::memmap::LastMapped;
use crate::order::Order;
use crate::output::Streams;
use crate::ptracing::Tracing;
use crate::reading::Looking;
use crate::resolver::Resolvers;
use crate::scratch::Plan;
use crate::seccomp::Sandbox;
use crate::shared::{Identity, Object};
use crate::sink::Sink;
use crate::stop::{Next, StopError, message};
use crate::task::{Pending, Resume, Run, Space, Task};
use crate::timer::Timer;
use crate::turn::cannot_wait;
use crate::unrepeatable::Unrepeatable;
use crate::{
    buffer, cpuid, ending, exec, exit, follow, header, inherited, launch, point, procfs, ptracing, signal,
    spawn, syscall, tsc,
};

/// Ticks of a fair slice.
const SLICE: u32 = 2;
/// The same where the tick itself is set to the end of the slice.
const DRAWN_SLICE: u32 = 1;
/// When a turn ends that another thread waits for, which has woken up, in nanoseconds.
pub(crate) const SOON: u64 = 2_000_000;
/// While nothing happens, every so many ticks it is looked whether a process has lost its leader.
const LOOK: u32 = 8;
/// Ticks a signal waits for its task's next system call.
const HOLD: u32 = 1;

/// What handlers of stops work with, apart from the task itself.
pub(crate) struct Core {
    pub(crate) sink: Sink,
    pub(crate) streams: Streams,
    pub(crate) looking: Looking,
    pub(crate) paranoid: bool,
    /// What paranoia found.
    pub(crate) unexplained: Vec<String>,
    pub(crate) timer: Timer,
    /// What `cpuid` is answered, where it is trapped.
    pub(crate) cpuid: Option<Machine>,
    /// What `rdtsc` is answered.
    pub(crate) stamps: tsc::Stamps,
    /// Requests to end the recording.
    pub(crate) requests: Requests,
    /// What shared mappings show, while anything does.
    pub(crate) objects: Vec<Weak<Object>>,
    /// The files that other mappings show.
    pub(crate) follow: follow::Files,
    /// The file that was mapped last.
    pub(crate) last_mapped: Option<LastMapped>,
    /// Files that are a process's memory, opened to be written.
    pub(crate) memory_files: HashMap<Identity, Weak<Space>>,
    /// Spaces, while they exist.
    pub(crate) spaces: Vec<Weak<Space>>,
    /// Tasks just born, to be adopted by the session.
    pub(crate) newborn: Vec<Task>,
    /// Calls made without a stop.
    pub(crate) buffering: Buffering,
    pub(crate) resolvers: Resolvers,
    pub(crate) unrepeatable: Unrepeatable,
    /// What concerns tracers of the guest's own.
    pub(crate) tracing: Tracing,
    /// What was reported of tasks nobody announced yet.
    pub(crate) early: BTreeMap<HostTid, Report>,
    /// Which of them there were at the last tick, and at how many ticks in a row.
    unannounced: BTreeMap<HostTid, u32>,
    tasks: u32,
    space_count: u32,
    /// The recorded tasks, and what they have forbidden themselves.
    live: BTreeMap<HostTid, Rc<Sandbox>>,
}

impl Core {
    pub(crate) fn new_task_id(&mut self) -> TaskId {
        self.tasks += 1;
        TaskId(self.tasks - 1)
    }

    pub(crate) fn new_space_id(&mut self) -> SpaceId {
        self.space_count += 1;
        self.spaces.retain(|space| space.strong_count() > 0);
        SpaceId(self.space_count - 1)
    }

    /// Whether nothing has been recorded yet.
    pub(crate) fn nothing_recorded(&self) -> bool {
        self.sink.writer.next_id().0 == 0
    }

    /// The recorded task that a task's namespace knows by this id.
    pub(crate) fn named(&self, by: HostTid, id: i32) -> Option<HostTid> {
        let depth = procfs::ids(by).len().saturating_sub(1);
        if depth == 0 {
            return self.live.contains_key(&HostTid(id)).then_some(HostTid(id));
        }
        // One that a namespace beside the caller's knows by it would do as well: it is no worse than none.
        self.live.keys().copied().find(|tid| procfs::ids(*tid).get(depth) == Some(&id))
    }

    /// What a recorded task has forbidden itself.
    pub(crate) fn sandbox(&self, tid: HostTid) -> Option<&Rc<Sandbox>> {
        self.live.get(&tid)
    }
}

/// A recording in progress.
pub(crate) struct Session {
    pub(crate) core: Core,
    pub(crate) tasks: BTreeMap<HostTid, Task>,
    pub(crate) ready: BTreeSet<HostTid>,
    /// Who has the turn, and since which tick.
    pub(crate) turn: Option<(HostTid, u32)>,
    /// Who had it last.
    pub(crate) last: HostTid,
    /// Who gets it next, if fairness chooses.
    pub(crate) order: Order,
    pub(crate) seen_tick: u32,
    /// The tick at which the next one was last asked for earlier.
    pub(crate) hastened: Option<u32>,
    /// Spaces that stand still, and for whose call.
    pub(crate) standing: Vec<(HostTid, Rc<Space>)>,
    /// Leaders whose process goes on without them, to be reported at its end.
    zombies: BTreeSet<HostTid>,
    /// The first process.
    root: HostTid,
    /// Who is asked whether it sleeps.
    pub(crate) sleepers: procfs::States,
    /// Waiting for what happens inside the kernel meanwhile.
    settling: bool,
    /// Who makes the choices, if not fairness.
    pub(crate) chaos: Option<Chaos>,
    /// What counts how far tasks have come.
    pub(crate) counting: Option<Counting>,
    /// Reports since the last tick.
    pub(crate) busy: bool,
    /// Ticks in a row without any.
    idle: u32,
    pub(crate) exit_code: Option<i32>,
    /// How long the rest may go on after the first process, and since when it does.
    pub(crate) linger: Option<Duration>,
    pub(crate) ended: Option<Duration>,
    pub(crate) refused: Option<String>,
    pub(crate) ending: bool,
    /// The tick since which everything is being killed.
    pub(crate) killed: Option<u32>,
}

/// Records a prepared command to its end.
pub(crate) fn run(prepared: &Prepared, options: &Options) -> Result<Outcome, RecordError> {
    let pinned = affinity::pin()?;
    let started = Instant::now();
    let stamps = tsc::Stamps::begin();
    // What makes calls without a stop has branches of its own.
    let counting = if options.buffers() { None } else { Counting::choose(options.counter)? };
    let inherited = inherited::all()
        .map_err(|source| RecordError::System { what: "cannot list this process's descriptors", source })?;
    let located = counting.map_or(Located::State, |counting| counting.located);
    let header = header::make(prepared, &inherited, located)?;
    let machine = header.machine.clone();
    let follow = follow::Files::inherited(&inherited);
    let first = launch::launch(prepared)?;
    let tid = first.tid();
    let begun =
        TraceWriter::create(&options.output, &header).map_err(RecordError::from).and_then(|mut writer| {
            let elsewhere = pinned.elsewhere();
            writer.packing_begins_with(|| {
                elsewhere();
                // It begins as the thread that records is by then.
                tsc::do_not_trap();
                cpuid::do_not_trap();
            });
            let timer = Timer::start()
                .map_err(|source| RecordError::System { what: "cannot start the timer", source })?;
            let machine = (machine, stamps);
            Ok(Session { counting, ..Session::new(writer, timer, machine, follow, options, tid) })
        });
    let mut session = match begun {
        Ok(session) => session,
        Err(error) => {
            tid.kill();
            let _ = ptrace::wait_for(tid, 0);
            return Err(error);
        }
    };
    let trapping = (Trapping::begin(session.core.cpuid.is_some()), tsc::Trapping::begin());
    let result = session.record(first, &pinned);
    drop(trapping);
    if let Err(error) = result {
        session.kill_all();
        session.reap();
        session.core.sink.writer.give_up(&error);
        return Err(error);
    }
    session.finish(options, started.elapsed().as_nanos() as u64)
}

impl Session {
    fn new(
        writer: TraceWriter,
        timer: Timer,
        (machine, stamps): (Machine, tsc::Stamps),
        follow: follow::Files,
        options: &Options,
        first: HostTid,
    ) -> Self {
        let unrepeatable = Unrepeatable::on(&machine);
        let core = Core {
            sink: Sink::new(writer),
            streams: Streams::ours(),
            looking: Looking::default(),
            paranoid: options.paranoid,
            unexplained: Vec::new(),
            timer,
            cpuid: machine.cpuid_trapped.then_some(machine),
            stamps,
            requests: Requests::default(),
            objects: Vec::new(),
            follow,
            last_mapped: None,
            memory_files: HashMap::new(),
            spaces: Vec::new(),
            newborn: Vec::new(),
            buffering: Buffering::new(options.buffers().then_some(options.buffer)),
            resolvers: Resolvers::default(),
            unrepeatable,
            tracing: Tracing::default(),
            early: BTreeMap::new(),
            unannounced: BTreeMap::new(),
            tasks: 0,
            space_count: 0,
            live: BTreeMap::new(),
        };
        Self {
            core,
            tasks: BTreeMap::new(),
            ready: BTreeSet::new(),
            turn: None,
            last: first,
            order: Order::new(first),
            seen_tick: 0,
            hastened: None,
            standing: Vec::new(),
            zombies: BTreeSet::new(),
            root: first,
            sleepers: procfs::States::default(),
            settling: false,
            chaos: options.chaos.map(Chaos::new),
            counting: None,
            busy: false,
            idle: 0,
            exit_code: None,
            linger: options.linger,
            ended: None,
            refused: None,
            ending: false,
            killed: None,
        }
    }

    fn record(&mut self, first: Stopped, pinned: &Pinned) -> Result<(), RecordError> {
        let tid = first.tid();
        let id = self.core.new_task_id();
        let task = exec::first_task(id, &first, pinned.believed())?;
        self.adopt(task)?;
        self.report(Waited { tid, report: Report::Event(PtraceEvent::Exec, first) })?;
        while !(self.tasks.is_empty() && self.zombies.is_empty()) {
            self.take_turns()?;
            if let Some(waited) = self.wait()? {
                self.busy = true;
                self.report(waited)?;
            }
            let now = self.core.timer.now();
            if now != self.seen_tick {
                self.seen_tick = now;
                self.tick(now)?;
                self.end_the_rest();
            }
        }
        // Born of a task that was killed before it could announce them.
        self.core.early.keys().for_each(|tid| tid.kill());
        Ok(())
    }

    /// Ticks a task keeps the turn while others could go on.
    pub(crate) fn slice(&self) -> u32 {
        if self.chaos.is_some() { DRAWN_SLICE } else { SLICE }
    }

    fn adopt(&mut self, task: Task) -> Result<(), RecordError> {
        let tid = task.host;
        self.core.live.insert(tid, Rc::clone(&task.sandbox));
        if let Some(chaos) = &mut self.chaos {
            chaos.born(tid);
        }
        if task.is_ready() {
            self.ready.insert(tid);
        }
        self.tasks.insert(tid, task);
        match self.core.early.remove(&tid) {
            Some(report) => self.report(Waited { tid, report }),
            None => Ok(()),
        }
    }

    pub(crate) fn report(&mut self, waited: Waited) -> Result<(), RecordError> {
        let Waited { tid, mut report } = waited;
        self.let_wait(Some(tid));
        // Who had the turn last may run still.
        let holder = self.turn.map_or(self.last, |(holder, _)| holder);
        if holder != tid {
            self.let_note(holder);
            self.drain(holder)?;
        }
        let before = self.core.sink.writer.next_id();
        self.drain(tid)?;
        let noted = self.core.sink.writer.next_id() != before;
        if self.comes_too_early(tid, &report) {
            if let Some(task) = self.tasks.get_mut(&tid) {
                if task.pending.is_some() {
                    self.order.woke(tid);
                }
                task.run = Run::Waits(report);
                self.ready.insert(tid);
            }
            self.tell_holder();
            self.hasten(tid);
            return Ok(());
        }
        self.end_wait(tid, &mut report);
        report = match report {
            Report::Signal(libc::SIGCHLD, stopped) if self.is_told_otherwise(tid, &stopped) => {
                self.tasks.get_mut(&tid).into_iter().for_each(|task| task.adrift = true);
                return self.conclude_and_go_on(tid, Ok((stopped, Resume::Cont(0))));
            }
            other => other,
        };
        match &report {
            Report::Event(PtraceEvent::Exec, stopped) => match message(stopped) {
                Ok(former) => self.becomes_leader(tid, HostTid(former as i32))?,
                // It was killed there.
                Err(StopError::Instead(report)) => return self.report(Waited { tid, report }),
                Err(gone) => tracing::debug!(%gone, "a task is gone that executed a program"),
            },
            Report::Event(PtraceEvent::Stop, _) | Report::Group(..) => self.settle(tid)?,
            &Report::Signal(signal, _) => {
                if signal == libc::SIGCONT {
                    self.forget_stops(tid);
                }
                self.settle(tid)?;
            }
            &Report::Exited(code) if tid == self.root => self.root_ended(code),
            &Report::Killed(signo, _) if tid == self.root => self.root_ended(128 + signo),
            _ => {}
        }
        if matches!(report, Report::Exited(_) | Report::Killed(..)) && self.zombies.remove(&tid) {
            return Ok(());
        }
        let Some(mut report) = self.put_off(tid, noted, report)? else { return Ok(()) };
        self.core.tracing.note_tracers(&self.tasks);
        if self.tasks.get(&tid).is_some_and(|task| task.awaits.is_some()) {
            self.count_held();
        }
        loop {
            let Some(task) = self.tasks.get_mut(&tid) else {
                match report {
                    report if self.ending => ending::finish_off(tid, report),
                    // Killed before it ran. Whoever announces it yet finds it gone.
                    Report::Event(PtraceEvent::Exit, stopped) => drop(stopped.cont(0)),
                    report => drop(self.core.early.insert(tid, report)),
                }
                return Ok(());
            };
            let result = match report {
                Report::Exited(code) => return self.ended(tid, Status::Exited(code)),
                Report::Killed(signo, core) => return self.killed(tid, signo, core),
                other if self.ending => {
                    ending::finish_off(tid, other);
                    return Ok(());
                }
                other => {
                    let (waits, turn) = (task.pending.is_some(), self.turn);
                    if waits && turn.is_none_or(|(holder, _)| holder != tid) {
                        self.order.woke(tid);
                    }
                    dispatch(&mut self.core, task, other)
                }
            };
            match self.conclude(tid, result)? {
                Some(instead) => report = instead,
                None => return Ok(()),
            }
        }
    }

    /// What another task did may have come of a call that this one has made and not noted yet: it notes that first.
    pub(crate) fn let_note(&self, tid: HostTid) {
        const PATIENCE: u32 = 1000;
        let Some(task) = self.tasks.get(&tid).filter(|task| task.runs_own_code()) else { return };
        for _ in 0..PATIENCE {
            if !buffer::is_calling(&task.space) || !procfs::is_runnable(task.host) {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// What a task noted since its last stop comes before what follows.
    pub(crate) fn drain(&mut self, tid: HostTid) -> Result<(), RecordError> {
        match self.tasks.get_mut(&tid) {
            Some(task) if task.runs_own_code() => buffer::drain(&mut self.core.sink, task),
            _ => Ok(()),
        }
    }

    /// What handling a stop came to, or the report that came instead.
    fn conclude(
        &mut self,
        tid: HostTid,
        result: Result<Next, StopError>,
    ) -> Result<Option<Report>, RecordError> {
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(None) };
        match result {
            Ok((stopped, resume)) => {
                task.run = Run::Ready(stopped, resume);
                self.ready.insert(tid);
                let mut stopped = vec![tid];
                while let Some(child) = self.core.newborn.pop() {
                    stopped.push(child.host);
                    self.adopt(child)?;
                }
                self.tell_holder();
                self.hasten(tid);
                stopped.into_iter().try_for_each(|tid| self.after_stop(tid))?;
            }
            Err(StopError::Gone(Gone { errno: libc::ESRCH, .. }) | StopError::LeaderEnded) => {
                task.run = Run::Running;
            }
            Err(StopError::Gone(gone)) => return Err(RecordError::Bug { what: gone.to_string() }),
            Err(StopError::Instead(instead)) => return Ok(Some(instead)),
            Err(StopError::Refused(why)) => self.refuse(why),
            Err(StopError::Fatal(error)) => return Err(error),
        }
        Ok(None)
    }

    /// As [`Session::conclude`], dealing with what came instead.
    pub(crate) fn conclude_and_go_on(
        &mut self,
        tid: HostTid,
        result: Result<Next, StopError>,
    ) -> Result<(), RecordError> {
        match self.conclude(tid, result)? {
            Some(report) => self.report(Waited { tid, report }),
            None => Ok(()),
        }
    }

    /// Ends the recording because of what the guest did.
    pub(crate) fn refuse(&mut self, why: String) {
        self.refused.get_or_insert(why);
        self.kill_all();
    }

    /// Whether another task runs that would see what becomes of this stop. What a call wrote in place is seen already.
    fn comes_too_early(&self, tid: HostTid, report: &Report) -> bool {
        if self.ending
            || matches!(report, Report::Exited(_) | Report::Killed(..) | Report::Event(PtraceEvent::Exec, _))
        {
            return false;
        }
        let in_place = |pending: &Pending| matches!(pending.writes, Plan::InPlace);
        let waits = |task: &Task| task.space.is_shared() && !task.pending.as_ref().is_some_and(in_place);
        // One that was put off has run since its last event.
        let has_run = |task: &Task| task.runs_on_shared_memory() || task.put_off && task.adrift;
        let others = || self.tasks.values().any(|task| task.host != tid && has_run(task));
        self.tasks.get(&tid).is_some_and(waits) && others()
    }

    fn killed(&mut self, tid: HostTid, signo: i32, core: bool) -> Result<(), RecordError> {
        // One that was not seen on its way out was killed where it stood, just before it was resumed.
        let located = self.tasks.get(&tid).is_some_and(|task| {
            task.pending.is_some()
                || task.dying == signo
                || task.exiting.as_ref().map_or(signo == libc::SIGKILL, |exiting| exiting.located)
        });
        self.ended(tid, Status::Killed(Killed { signo, core, unlocated: !located }))
    }

    fn ended(&mut self, tid: HostTid, status: Status) -> Result<(), RecordError> {
        self.ready.remove(&tid);
        self.after_change(tid);
        self.core.live.remove(&tid);
        self.core.tracing.forget(tid);
        if let Some(chaos) = &mut self.chaos {
            chaos.gone(tid);
        }
        let Some(task) = self.tasks.remove(&tid) else { return Ok(()) };
        self.order.forget(tid);
        self.core.sink.announce(task.id)?;
        if task.pending.is_some() {
            task.space.count_call(-1);
        }
        task.space.leave(task.by_vfork);
        if self.core.nothing_recorded() {
            return Ok(());
        }
        let writes = exit::last_writes(&self.core, &task);
        let event = Event::in_place(task.id, task.space.id, task.after, Fact::Exit(status));
        // For those that stay.
        let stays = task.space.tasks.get() > 0;
        let maps = if stays { task.space.owed.take() } else { Vec::new() };
        self.core.sink.event(&Event { maps, writes, ..event })?;
        self.tracee_gone(&task, status)?;
        self.tracer_gone(tid)
    }

    fn root_ended(&mut self, code: i32) {
        self.exit_code = Some(code);
        self.ended = Some(tsc::clock());
        self.core.timer.heed_terminal();
    }

    /// Leaders that ended before their processes, and were not seen on their way out.
    fn bury_leaders(&mut self) -> Result<(), RecordError> {
        let gone = |task: &&Task| {
            let runs = task.host == task.process && matches!(task.run, Run::Running);
            runs && self.has_threads(task) && procfs::is_dead(task.host)
        };
        let gone: Vec<HostTid> = self.tasks.values().filter(gone).map(|task| task.host).collect();
        gone.into_iter().try_for_each(|tid| self.leader_ended(tid))
    }

    /// A leader that ended before its process: its end shows, though no wait reports it yet.
    pub(crate) fn leader_ended(&mut self, tid: HostTid) -> Result<(), RecordError> {
        let seen = self.tasks.get(&tid).and_then(|task| Some(task.exiting.as_ref()?.status));
        match seen.or_else(|| procfs::exit_status(tid)).map(exit::reported) {
            Some(Report::Killed(signo, core)) => self.killed(tid, signo, core)?,
            Some(Report::Exited(code)) => self.ended(tid, Status::Exited(code))?,
            _ => return Ok(()),
        }
        self.zombies.insert(tid);
        Ok(())
    }

    /// At an exec: a thread that executes a program takes its process's id; the leader is gone.
    fn becomes_leader(&mut self, tid: HostTid, former: HostTid) -> Result<(), RecordError> {
        if former == tid {
            return Ok(());
        }
        self.zombies.remove(&tid);
        self.tracing_moves(former, tid);
        self.ended(tid, Status::Exited(0))?;
        let Some(mut task) = self.tasks.remove(&former) else { return Ok(()) };
        self.core.live.remove(&former);
        self.ready.remove(&former);
        (task.host, task.tid) = (tid, guest::Tid(tid.0));
        if let Some((holder, _)) = &mut self.turn
            && *holder == former
        {
            *holder = tid;
        }
        self.adopt(task)
    }

    /// A process goes on: signals to stop it that did not come to that are void.
    fn forget_stops(&mut self, tid: HostTid) {
        let process = self.tasks.get(&tid).map(|task| task.process);
        for task in self.tasks.values_mut().filter(|task| Some(task.process) == process) {
            task.held.retain(|held| !signal::is_stop(held.signal));
            task.stopping = None;
        }
    }

    /// Something else happens than that this task goes on: the others whose calls change memory when they begin to wait come to that.
    pub(crate) fn let_wait(&mut self, but: Option<HostTid>) {
        const PATIENCE: u32 = 1000;
        let but = but.and_then(|tid| self.tasks.get(&tid)).map(|task| task.id);
        for id in self.core.sink.about_to_wait(but) {
            let task = self.tasks.values().find(|task| task.id == id && matches!(task.run, Run::Running));
            let Some(host) = task.map(|task| task.host) else { continue };
            for _ in 0..PATIENCE {
                if !procfs::is_runnable(host) {
                    break;
                }
                std::thread::yield_now();
            }
            self.core.sink.waits(id);
        }
    }

    /// A task was stopped in its own code. Before its memory is looked at, system calls of others that are on their way
    /// through the kernel come to where they sleep or are reported.
    fn settle(&mut self, tid: HostTid) -> Result<(), RecordError> {
        const PATIENCE: u32 = 1000;
        let Some(space) = self.tasks.get(&tid).map(|task| std::rc::Rc::clone(&task.space)) else {
            return Ok(());
        };
        if !space.is_shared() || self.ending || std::mem::replace(&mut self.settling, true) {
            return Ok(());
        }
        for _ in 0..PATIENCE {
            while let Some(waited) = ptrace::wait_any(libc::WNOHANG).map_err(cannot_wait)? {
                self.report(waited)?;
            }
            let on_its_way = |task: &Task| {
                let inside = task.pending.is_some() && matches!(task.run, Run::Running);
                inside && std::rc::Rc::ptr_eq(&task.space, &space) && procfs::is_runnable(task.host)
            };
            if !self.tasks.values().any(on_its_way) {
                break;
            }
            std::thread::yield_now();
        }
        self.settling = false;
        Ok(())
    }

    /// Kills what was born of tasks that were killed before they could announce it: others may wait for its end.
    fn end_orphans(&mut self) {
        const PATIENCE: u32 = 3;
        // Those that are gone hold up nobody.
        const FORGOTTEN: u32 = 100;
        if self.core.early.is_empty() || self.tasks.values().any(spawn::may_announce) {
            self.core.unannounced.clear();
            return;
        }
        let before = std::mem::take(&mut self.core.unannounced);
        let ticks = |tid: &HostTid| before.get(tid).map_or(1, |ticks| ticks + 1);
        self.core.unannounced = self.core.early.keys().map(|tid| (*tid, ticks(tid))).collect();
        let late = |tid: &HostTid, report: &mut Report| match report {
            Report::Exited(_) | Report::Killed(..) => ticks(tid) > FORGOTTEN,
            _ => ticks(tid) > PATIENCE,
        };
        for (tid, report) in self.core.early.extract_if(.., late) {
            ending::finish_off(tid, report);
        }
    }

    fn tick(&mut self, now: u32) -> Result<(), RecordError> {
        if let Some((tid, since)) = self.turn
            && now.wrapping_sub(since) >= self.slice()
            && self.others_ready(tid)
        {
            self.turn = None;
        }
        let slice = self.slice();
        let chaos = self.chaos.is_some();
        let waiting = self.ready.iter().any(|tid| !self.may_run(*tid));
        for task in self.tasks.values_mut() {
            let late = task.held.iter().any(|held| now.wrapping_sub(held.since) >= HOLD);
            let runs = task.runs_own_code() && task.runs_to.is_none();
            let over = waiting && task.holds_up(slice, now);
            if late && runs || over && (chaos || !makes_calls(task)) {
                point::interrupt(task);
            } else if over {
                // At the next one of them, where nothing need be noted of memory.
                task.yields = true;
                buffer::allow(&task.space, false);
                self.core.timer.next_in(SOON);
            }
        }
        self.stop_awaited(now);
        self.end_orphans();
        self.heed_requests(now);
        self.idle = if std::mem::take(&mut self.busy) { 0 } else { self.idle + 1 };
        if self.idle > 0 {
            // It may go on so for long.
            if let Some((tid, _)) = self.turn {
                self.drain(tid)?;
            }
            self.core.sink.writer.push()?;
            // To ask costs as much as some ten stops.
            if self.idle % LOOK == 1 {
                self.bury_leaders()?;
            }
        }
        self.check_dying(now)
    }

    fn finish(self, options: &Options, nanos: u64) -> Result<Outcome, RecordError> {
        let exit_code = self.exit_code.unwrap_or(0);
        let writer = self.core.sink.writer;
        let (tasks, spaces) = writer.counts();
        let events = writer.next_id().0;
        let refused = self.refused;
        writer.finish(&Summary { exit_code, nanos, events, tasks, spaces, refused: refused.clone() })?;
        Ok(Outcome { exit_code, trace: options.output.clone(), refused, unexplained: self.core.unexplained })
    }
}

/// Whether a task that runs has made calls without a stop of late, and was not told yet that its turn ends at the next one.
fn makes_calls(task: &Task) -> bool {
    !task.yields && buffer::has_noted(&task.space)
}

fn dispatch(core: &mut Core, task: &mut Task, mut report: Report) -> Result<Next, StopError> {
    // Any stop takes the place of the one that was asked for.
    let told_to_stop = std::mem::take(&mut task.interrupted);
    ptracing::leaves_stop(task);
    if let Report::Seccomp(stopped) | Report::Syscall(stopped) | Report::Event(_, stopped) = &mut report {
        point::ran_past(task, stopped, false)?;
    }
    match report {
        Report::Event(PtraceEvent::Stop, stopped) if ptracing::is_asked(task) => {
            ptracing::on_trap(core, task, stopped)
        }
        Report::Event(PtraceEvent::Stop, stopped) if told_to_stop && task.pending.is_none() => {
            point::on_interrupt(core, task, stopped)
        }
        Report::Event(PtraceEvent::Exit, stopped) => {
            let status = stopped.event_message()?;
            let next = exit::on_exit(core, task, stopped)?;
            ptracing::on_exit(task, status);
            Ok(next)
        }
        Report::Seccomp(stopped) => syscall::on_entry(core, task, stopped),
        Report::Syscall(stopped) => {
            let made = ptracing::Made::by(task);
            let next = syscall::on_exit(core, task, stopped)?;
            ptracing::after_call(task, next, made)
        }
        Report::Event(PtraceEvent::Exec, stopped) => {
            let (made, former) = (ptracing::Made::by(task), message(&stopped)?);
            let next = exec::on_exec(core, task, stopped)?;
            ptracing::after_exec(task, next, former, made)
        }
        Report::Event(PtraceEvent::Fork | PtraceEvent::Vfork | PtraceEvent::Clone, stopped) => {
            spawn::on_spawn(core, task, stopped)
        }
        Report::Event(_, stopped) => {
            // One that was stopped with its process stands where it stood.
            task.adrift = task.pending.is_none() && !matches!(task.run, Run::Halted);
            let resume = if task.pending.is_none() { Resume::Cont(0) } else { Resume::ToExit };
            Ok((stopped, resume))
        }
        Report::Signal(signal, stopped) if task.count.is_over(signal, &stopped) => {
            point::on_slice_end(core, task, stopped)
        }
        Report::Signal(signal, stopped) => {
            if task.id == TaskId(0) {
                core.requests.met(signal, &stopped, core.timer.now());
            }
            signal::on_signal(core, task, signal, stopped)
        }
        Report::Group(signal, stopped) if ptracing::is_traced(task) => {
            ptracing::on_group_stop(core, task, signal, stopped)
        }
        Report::Group(_, stopped) => point::on_group_stop(core, task, stopped),
        Report::Exited(_) | Report::Killed(..) => Err(StopError::Instead(report)),
    }
}
