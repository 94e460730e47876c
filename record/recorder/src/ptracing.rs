//! The guest's own tracers: debuggers, strace, crash handlers. The recorder is every task's one tracer; to a recorded task that
//! traces another it does what the kernel would.
//!
//! A tracee's stop is one of the recorder's own stops that is held: the task stays where it is, `Run::Traced`, and its tracer is told by
//! what its waits return and by SIGCHLD. Where it stands is always an event, so that what the tracer changes there (an event of the
//! tracee, `Fact::Traced`) has its place. Knows nothing of who runs next.
//!
//! - this file: what is known of a tracee, and of its stop
//! - `stops`: which stops of the recorder's are a tracer's
//! - `serve`: a tracer's `ptrace` calls, and what holds a task
//! - `attach`: how tracing begins and ends
//! - `resume`: how a tracee goes on
//! - `access`: registers, memory and signals of a stopped tracee
//! - `waits`, `wanted`: what waits of a tracer return, and what they want
//! - `notice`: SIGCHLD and its like

mod access;
mod attach;
mod notice;
mod resume;
mod serve;
mod stops;
mod waits;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use guest::{GuestRange, TaskId};
use ptrace::{HostTid, Waited};

use crate::task::{Resume, Run, Space, Task};

pub(crate) use attach::inherit;
pub(crate) use notice::{authentic, authentic_in_memory};
pub(crate) use stops::{
    Made, after_call, after_exec, at_entry, at_filter, decides_for_filter, is_asked, on_exit, on_group_stop,
    on_signal, on_trap, passes_filter, skipped, stepped, stepped_into_handler, stops_at_entry,
};

// Events (`linux/ptrace.h`).
const EVENT_FORK: i32 = libc::PTRACE_EVENT_FORK;
const EVENT_VFORK: i32 = libc::PTRACE_EVENT_VFORK;
const EVENT_CLONE: i32 = libc::PTRACE_EVENT_CLONE;
const EVENT_EXEC: i32 = libc::PTRACE_EVENT_EXEC;
const EVENT_VFORK_DONE: i32 = libc::PTRACE_EVENT_VFORK_DONE;
const EVENT_EXIT: i32 = libc::PTRACE_EVENT_EXIT;
const EVENT_SECCOMP: i32 = libc::PTRACE_EVENT_SECCOMP;
const EVENT_STOP: i32 = libc::PTRACE_EVENT_STOP;

/// How a tracee was told to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mode {
    /// `PTRACE_CONT`
    #[default]
    Free,
    /// `PTRACE_SYSCALL`
    Calls,
    /// `PTRACE_SINGLESTEP`
    Steps,
    /// `PTRACE_SYSEMU`
    Emulated,
    /// `PTRACE_SYSEMU_SINGLESTEP`
    EmulatedSteps,
}

impl Mode {
    const fn steps(self) -> bool {
        matches!(self, Self::Steps | Self::EmulatedSteps)
    }

    const fn emulates(self) -> bool {
        matches!(self, Self::Emulated | Self::EmulatedSteps)
    }
}

/// A stop that a tracer sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    /// A signal is about to be delivered.
    Signal(i32),
    /// At the entry of a system call.
    Entry,
    /// At its exit.
    Exit,
    /// An event, and what comes with it.
    Event(i32, u64),
    /// A group stop by this signal.
    Group(i32),
    /// `PTRACE_INTERRUPT`, the birth of a task whose parent is seized, or the end of a group stop.
    Trap,
    /// At the first instruction of a handler that it steps into.
    Handler,
}

/// What is known of a task that another one traces.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    /// The thread that traces it, and that one's process.
    tracer: HostTid,
    tracer_task: TaskId,
    tracer_process: HostTid,
    /// Its id as its tracer knows it.
    seen_as: i32,
    /// Whether it is its tracer's child, so that the kernel tells the tracer of its end.
    is_child: bool,
    seized: bool,
    /// `PTRACE_O_*`.
    options: u64,
    mode: Mode,
    /// The stop that it is in.
    stop: Option<Stop>,
    /// Whether that has not been waited for.
    unseen: bool,
    /// Signals on their way that stand for the kernel's, with what they would come with.
    sent: Vec<(i32, [u8; 128])>,
    /// In a group stop that its tracer does not hold (`PTRACE_LISTEN`).
    listening: bool,
    /// `PTRACE_INTERRUPT` is on its way.
    asked: bool,
    /// The call it is about to make was shown already. The inner: it is not to be made.
    entered: Option<bool>,
    /// The tracer was asked about that call in a filter's place.
    filtered: bool,
}

impl Traced {
    fn has(&self, option: i32) -> bool {
        self.options & option as u64 != 0
    }

    /// The stop as waits report it, without its lowest byte.
    fn code(&self, stop: Stop) -> i32 {
        match stop {
            Stop::Signal(signal) => signal,
            Stop::Entry | Stop::Exit if self.has(libc::PTRACE_O_TRACESYSGOOD) => libc::SIGTRAP | 0x80,
            Stop::Entry | Stop::Exit | Stop::Handler => libc::SIGTRAP,
            Stop::Event(event, _) => libc::SIGTRAP | event << 8,
            Stop::Group(signal) if self.seized => signal | EVENT_STOP << 8,
            Stop::Group(signal) => signal,
            Stop::Trap => libc::SIGTRAP | EVENT_STOP << 8,
        }
    }

    /// The stop that its tracer has not waited for yet.
    fn news(&self) -> Option<Stop> {
        self.stop.filter(|_| self.unseen && !self.listening)
    }
}

/// The end of a tracee that the kernel does not tell its tracer of.
#[derive(Clone, Debug)]
struct Dead {
    tracer: HostTid,
    tracer_process: HostTid,
    tid: HostTid,
    seen_as: i32,
    uid: u32,
    /// As waits report it.
    status: i32,
}

/// What tracing concerns beyond one task.
#[derive(Debug, Default)]
pub(crate) struct Tracing {
    dead: Vec<Dead>,
    /// SIGCHLDs on their way to a process, with what they would come with.
    notices: Vec<(HostTid, [u8; 128])>,
    /// Tracers whose wait is a `pause`, there being no child to wait for.
    pausing: BTreeSet<HostTid>,
    /// Tracees that go on, that show another stop, and what was met on the way.
    resumed: Vec<HostTid>,
    shown: Vec<HostTid>,
    met: Vec<Waited>,
    /// Tracees and their tracers, and whether these hold them, as of the last stop; only once `ptrace` was called.
    tracers: BTreeMap<HostTid, (HostTid, bool)>,
    is_used: bool,
    /// What was changed in spaces whose tasks are held, by other calls than `ptrace`.
    changed: Vec<(Rc<Space>, Vec<GuestRange>)>,
}

impl Tracing {
    /// The call that has just ended changed memory of a space that has a held task.
    pub(crate) fn changed(&mut self, space: Rc<Space>, ranges: Vec<GuestRange>) {
        self.changed.push((space, ranges));
    }

    /// Who traces another task than the one that has stopped, and whether that one is held.
    pub(crate) fn tracer_of(&self, tid: HostTid) -> Option<(HostTid, bool)> {
        self.tracers.get(&tid).copied()
    }

    /// Before a stop of a task is looked at.
    pub(crate) fn note_tracers(&mut self, tasks: &BTreeMap<HostTid, Task>) {
        if self.is_used {
            self.tracers = tasks.iter().filter_map(|(tid, task)| Some((*tid, tracer(task)?))).collect();
        }
    }

    /// A task is gone.
    pub(crate) fn forget(&mut self, tid: HostTid) {
        self.pausing.remove(&tid);
    }
}

/// Whether a task is stopped for its tracer.
pub(crate) fn is_held(task: &Task) -> bool {
    task.tracing.as_ref().is_some_and(|traced| traced.stop.is_some())
}

/// Who traces a task, and whether that one is held.
pub(crate) fn tracer(task: &Task) -> Option<(HostTid, bool)> {
    task.tracing.as_ref().map(|traced| (traced.tracer, traced.stop.is_some()))
}

/// Whether a task is traced.
pub(crate) const fn is_traced(task: &Task) -> bool {
    task.tracing.is_some()
}

/// Whether a task is to stop after one instruction.
pub(crate) fn steps(task: &Task) -> bool {
    task.tracing.as_ref().is_some_and(|traced| traced.mode.steps())
}

/// A stop that nobody asked for ended the one that its tracer saw: the task was killed.
pub(crate) fn leaves_stop(task: &mut Task) {
    if let Some(traced) = &mut task.tracing {
        traced.stop = None;
    }
}

/// Everything ends: no tracer holds a task any longer.
pub(crate) fn let_go(task: &mut Task) {
    task.tracing = None;
    task.run = match std::mem::replace(&mut task.run, Run::Running) {
        Run::Traced(stopped) => Run::Ready(stopped, Resume::Cont(0)),
        other => other,
    };
}
