//! The small tables, from the event stream and the moments of its events.

use std::collections::{BTreeMap, HashMap};

use guest::{EventId, GuestAddr, Moment, SpaceId, TaskId};
use store::{EventRow, Facts, ImageRow, SignalRow, SpaceRow, SyscallRow, TaskRow};
use trace::{
    Event, ExecInfo, Fact, Moments, SignalAction, SignalInfo, SpawnInfo, Status, SyscallInfo, Trace,
};

use crate::error::BuildError;
use crate::files::{Files, Finished};
use crate::mappings::Mappings;
use crate::switches::Switches;

/// Offsets in `siginfo_t` (asm-generic/siginfo.h).
const SI_CODE: usize = 8;
const SI_ADDR: usize = 16;

/// What path arguments pointed to.
type Paths = BTreeMap<(EventId, u8), String>;

/// Reads all events once.
pub(crate) fn read(trace: &Trace, moments: &Moments, paths: &Paths) -> Result<Facts, BuildError> {
    let mut reader = Reader {
        trace,
        paths,
        facts: Facts::default(),
        files: Files::new(&trace.header().fds),
        mappings: Mappings::default(),
        switches: Switches::default(),
        tasks: BTreeMap::new(),
        entered: HashMap::new(),
        in_space: HashMap::new(),
    };
    for item in trace.events() {
        let (id, event) = item?;
        let own = matches!(event.fact, Fact::Syscall(_) | Fact::SyscallLeave(_) | Fact::Instruction);
        let moment = Moment(moments.end(id).0.saturating_sub(u64::from(own)));
        reader.switches.event(id, &event, moments.start(id)..moments.end(id));
        reader.event(id, &event, moment)?;
    }
    let mut facts = reader.facts;
    for (task, (info, moment, enter, space)) in reader.entered {
        // Calls that never returned.
        let path = paths.get(&(enter, 0)).or_else(|| paths.get(&(enter, 1))).cloned();
        facts.syscalls.push(syscall(enter, moment, task, space, &info, path));
    }
    facts.syscalls.sort_by_key(|row| row.event);
    facts.tasks = reader.tasks.into_values().collect();
    facts.mappings = reader.mappings.finish();
    facts.switches = reader.switches.rows;
    Ok(facts)
}

struct Reader<'a> {
    trace: &'a Trace,
    paths: &'a Paths,
    facts: Facts,
    files: Files,
    mappings: Mappings,
    switches: Switches,
    tasks: BTreeMap<TaskId, TaskRow>,
    /// The call a task is in: when it began, at which event, in which space.
    entered: HashMap<TaskId, (SyscallInfo, Moment, EventId, SpaceId)>,
    in_space: HashMap<TaskId, SpaceId>,
}

impl Reader<'_> {
    fn event(&mut self, id: EventId, event: &Event, moment: Moment) -> Result<(), BuildError> {
        let (task, space) = (event.task, event.space);
        self.facts.events.push(EventRow { event: id, moment, task, space });
        if let Fact::Exec(info) = &event.fact {
            self.exec(id, event, info, moment);
        }
        // A child's copy is made before the parent's own changes.
        if let Fact::Spawn(info) = &event.fact {
            self.spawn(id, event, info, moment);
        }
        for op in &event.maps {
            if !maps_anew(&event.fact) {
                self.mappings.renew(space, op);
            }
            self.mappings.apply(space, op, id, moment);
        }
        match &event.fact {
            Fact::Syscall(info) => self.finished(id, event, info, (moment, id))?,
            Fact::SyscallEnter(info) => {
                self.entered.insert(task, (*info, moment, id, space));
            }
            Fact::SyscallLeave(info) => {
                let began = self.entered.remove(&task).map_or(id, |(_, _, enter, _)| enter);
                self.finished(id, event, info, (moment, began))?;
            }
            Fact::Signal(info) => self.signal(id, event, info, moment),
            Fact::Exit(status) => self.exit(task, *status, moment),
            Fact::Exec(_) | Fact::Spawn(_) | Fact::Instruction | Fact::Point(_) | Fact::Traced(_) => {}
        }
        Ok(())
    }

    fn exec(&mut self, id: EventId, event: &Event, info: &ExecInfo, moment: Moment) {
        let (task, space) = (event.task, event.space);
        let tid = info.tid;
        let row = self.tasks.entry(task).or_insert_with(|| born(task, tid, tid, None, moment));
        row.tid = tid;
        self.leave_space(task, moment);
        self.in_space.insert(task, space);
        self.facts.spaces.push(SpaceRow { space, parent: None, first: moment, event: id });
        self.files.exec(task);
        if let Some((call, began, enter, old)) = self.entered.remove(&task) {
            let path = self.path(enter);
            self.facts.syscalls.push(syscall(enter, began, task, old, &call, path));
        }
        let argv: Vec<_> = info.argv.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        self.facts.images.push(ImageRow {
            event: id,
            moment,
            task,
            space,
            exe: info.exe.clone(),
            argv: argv.join(" "),
            cwd: info.cwd.clone(),
        });
    }

    fn spawn(&mut self, id: EventId, event: &Event, info: &SpawnInfo, moment: Moment) {
        self.tasks.insert(info.child, born(info.child, info.tid.0, info.pid.0, Some(event.task), moment));
        self.files.spawn(event.task, info.child, info.flags);
        self.in_space.insert(info.child, info.space);
        if !info.shares {
            let row = SpaceRow { space: info.space, parent: Some(event.space), first: moment, event: id };
            self.facts.spaces.push(row);
            self.mappings.copy(event.space, info.space, moment);
        }
    }

    fn exit(&mut self, task: TaskId, status: Status, moment: Moment) {
        if let Some(row) = self.tasks.get_mut(&task) {
            row.last = Some(moment);
            match status {
                Status::Exited(code) => row.exit_code = Some(code),
                Status::Killed(killed) => row.signal = Some(killed.signo),
            }
        }
        self.files.exit(task);
        self.leave_space(task, moment);
    }

    /// A space ends with its last task.
    fn leave_space(&mut self, task: TaskId, moment: Moment) {
        if let Some(space) = self.in_space.remove(&task)
            && !self.in_space.values().any(|&other| other == space)
        {
            self.mappings.end(space, moment);
        }
    }

    fn path(&self, event: EventId) -> Option<String> {
        (0..6).find_map(|argument| self.paths.get(&(event, argument))).cloned()
    }

    fn finished(
        &mut self,
        id: EventId,
        event: &Event,
        info: &SyscallInfo,
        (moment, began): (Moment, EventId),
    ) -> Result<(), BuildError> {
        let path = self.path(began);
        let pair = self.pair(event, info)?;
        let used = self.files.finished(&Finished { task: event.task, info, path: path.as_deref(), pair });
        let mut row = syscall(id, moment, event.task, event.space, info, used.path);
        (row.fd, row.offset) = (used.fd, used.offset);
        self.facts.syscalls.push(row);
        Ok(())
    }

    /// The two descriptors that a call wrote into memory, where it does that.
    fn pair(&self, event: &Event, info: &SyscallInfo) -> Result<Option<[i32; 2]>, BuildError> {
        let argument = match kernel::name(info.nr) {
            Some("pipe" | "pipe2") => 0,
            Some("socketpair") => 3,
            _ => return Ok(None),
        };
        for write in event.writes.iter().filter(|write| write.addr == GuestAddr(info.args[argument])) {
            let bytes = self.trace.data(&write.data)?;
            if let Some(bytes) = bytes.first_chunk::<8>() {
                let number = |at: usize| i32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
                return Ok(Some([number(0), number(4)]));
            }
        }
        Ok(None)
    }

    fn signal(&mut self, id: EventId, event: &Event, info: &SignalInfo, moment: Moment) {
        let (action, handler) = match info.action {
            SignalAction::Handler { handler } => ("handler", Some(handler)),
            SignalAction::Fatal => ("fatal", None),
            SignalAction::Ignored => ("ignored", None),
            SignalAction::Stopped => ("stopped", None),
            SignalAction::Traced => ("traced", None),
        };
        let code = info.siginfo.get(SI_CODE..).and_then(|bytes| bytes.first_chunk()).copied();
        let addr = info.siginfo.get(SI_ADDR..).and_then(|bytes| bytes.first_chunk()).copied();
        let code = code.map_or(0, i32::from_le_bytes);
        let faults = matches!(info.signo, 4 | 5 | 7 | 8 | 11) && code > 0;
        self.facts.signals.push(SignalRow {
            event: id,
            moment,
            task: event.task,
            space: event.space,
            signo: info.signo,
            action: action.into(),
            handler,
            pc: event.before.pc(),
            code,
            addr: addr.map(|addr| GuestAddr(u64::from_le_bytes(addr))).filter(|_| faults),
        });
    }
}

/// Whether what an event maps is what a program asked to see there, rather than what it saw before.
fn maps_anew(fact: &Fact) -> bool {
    match fact {
        Fact::Syscall(info) | Fact::SyscallLeave(info) => {
            matches!(kernel::name(info.nr), Some("mmap" | "shmat" | "remap_file_pages"))
        }
        Fact::Exec(_) => true,
        _ => false,
    }
}

fn born(task: TaskId, tid: i32, pid: i32, parent: Option<TaskId>, first: Moment) -> TaskRow {
    TaskRow { task, tid, pid, parent, first, last: None, exit_code: None, signal: None }
}

fn syscall(
    event: EventId,
    moment: Moment,
    task: TaskId,
    space: SpaceId,
    info: &SyscallInfo,
    path: Option<String>,
) -> SyscallRow {
    let name = kernel::name(info.nr).map_or_else(|| format!("syscall_{}", info.nr), str::to_owned);
    SyscallRow {
        event,
        moment,
        task,
        space,
        nr: info.nr,
        name,
        args: info.args,
        result: info.result,
        fd: None,
        path,
        offset: None,
    }
}
