//! A task made another: fork, vfork, clone.

use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, Registers, Tid};
use ptrace::{Gone, HostTid, Memory, PtraceEvent, Report, Stopped};
use trace::{Data, Event, Fact, MemWrite, SpawnInfo};

use crate::api::RecordError;
use crate::ptracing;
use crate::session::Core;
use crate::stop::{Next, StopError, message, wait_one};
use crate::syscall;
use crate::task::{Resume, Run, Space, Task};

const FORK: u32 = kernel::number("fork");
const VFORK: u32 = kernel::number("vfork");
const CLONE: u32 = kernel::number("clone");
const CLONE3: u32 = kernel::number("clone3");
const PIDFD: u64 = libc::CLONE_PIDFD as u64;

/// What the caller asked for.
struct Request {
    flags: u64,
    /// Where the child's thread id is stored (`CLONE_CHILD_SETTID`) and cleared (`CLONE_CHILD_CLEARTID`).
    child_tid: GuestAddr,
    /// Words of the parent's memory that are written before the child runs: its thread id, its pidfd.
    told: Vec<GuestAddr>,
}

fn request(task: &Task) -> Result<Request, StopError> {
    let Some(pending) = &task.pending else {
        return Err(StopError::bug("a task appeared outside a system call".into()));
    };
    let args = pending.call.args;
    Ok(match pending.call.nr {
        FORK => Request { flags: libc::SIGCHLD as u64, child_tid: GuestAddr(0), told: Vec::new() },
        VFORK => Request {
            flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64,
            child_tid: GuestAddr(0),
            told: Vec::new(),
        },
        CLONE3 => {
            let at = GuestAddr(args[0]);
            let memory = &task.space.memory;
            let field = |offset| memory.read_u64(at.wrapping_add(offset));
            let flags = field(0)?;
            let mut told = Vec::new();
            if flags & PIDFD != 0 {
                told.push(GuestAddr(field(8)?));
            }
            if flags & libc::CLONE_PARENT_SETTID as u64 != 0 {
                told.push(GuestAddr(field(24)?));
            }
            Request { flags, child_tid: GuestAddr(field(16)?), told }
        }
        _ => {
            let tells = args[0] & (libc::CLONE_PARENT_SETTID as u64 | PIDFD) != 0;
            let told = if tells { vec![GuestAddr(args[2])] } else { Vec::new() };
            Request { flags: args[0], child_tid: GuestAddr(args[3]), told }
        }
    })
}

/// At the parent's fork, vfork or clone event.
pub(crate) fn on_spawn(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let Request { flags, child_tid, told } = request(task)?;
    let host = HostTid(message(&stopped)? as i32);
    let has = |flag: i32| flags & flag as u64 != 0;
    let shares = has(libc::CLONE_VM);
    core.sink.announce(task.id)?;
    let (mut run, mut raw) = first_stop(core, host, task)?;
    let (nr, args) = task.pending.as_ref().map(|pending| pending.made).unwrap_or_default();
    if syscall::untraced(nr, &args) {
        raw.rdi = args[0];
        if let Run::Ready(child, _) = &mut run {
            child.set_registers(&raw)?;
        }
    }
    let id = core.new_task_id();
    let space = if shares { Rc::clone(&task.space) } else { copied_space(core, task, host)? };
    let mut writes = Vec::new();
    if has(libc::CLONE_CHILD_SETTID) {
        let bytes = space.memory.read_vec(child_tid, 4);
        writes.extend(bytes.ok().map(|bytes| MemWrite { addr: child_tid, data: Data::Inline(bytes) }));
    }
    let after = Registers { orig_rax: u64::MAX, ..raw };
    let process = if has(libc::CLONE_THREAD) { task.process } else { host };
    let (tid, pid, space_id) = (Tid(host.0), Tid(process.0), space.id);
    let info = SpawnInfo { child: id, tid, pid, space: space_id, shares, flags, regs: after, writes };
    let word = |addr| {
        let bytes = task.space.memory.read_vec(addr, 4).ok()?;
        Some(MemWrite { addr, data: Data::Inline(bytes) })
    };
    let event = Event::in_place(task.id, task.space.id, task.after, Fact::Spawn(Box::new(info)));
    let maps = task.space.owed.take();
    core.sink.event(&Event { maps, writes: told.into_iter().filter_map(word).collect(), ..event })?;
    let by_vfork = shares && has(libc::CLONE_VFORK);
    space.join(by_vfork);
    let mut child = Task::new(id, (host, process), space, task.guise.clone());
    child.goes_on(after, raw);
    child.by_vfork = by_vfork;
    // One that was killed before its first stop shows registers that nothing tells of.
    child.cut_short = matches!(run, Run::Running);
    child.run = run;
    child.creator = task.host;
    child.rank = task.rank;
    child.ignored = if has(libc::CLONE_SIGHAND) {
        Rc::clone(&task.ignored)
    } else {
        Rc::new(task.ignored.as_ref().clone())
    };
    child.segv = task.segv.inherited(has(libc::CLONE_SIGHAND));
    child.sandbox = task.sandbox.inherited(has(libc::CLONE_THREAD));
    if has(libc::CLONE_CHILD_CLEARTID) {
        child.clear_tid = child_tid;
    }
    ptracing::inherit(task, &mut child, flags);
    core.newborn.push(child);
    if let Some(pending) = &mut task.pending {
        pending.announced = true;
    }
    Ok((stopped, Resume::ToExit))
}

/// Whether a task may yet announce another, however long it takes to: it is in the call that makes one.
pub(crate) fn may_announce(task: &Task) -> bool {
    match &task.run {
        Run::Waits(report) => {
            matches!(report, Report::Event(PtraceEvent::Fork | PtraceEvent::Vfork | PtraceEvent::Clone, _))
        }
        Run::Running => task.pending.as_ref().is_some_and(|pending| {
            !pending.announced && [FORK, VFORK, CLONE, CLONE3].contains(&pending.call.nr)
        }),
        _ => false,
    }
}

/// The child's first stop, before it runs any code, and its registers there.
fn first_stop(core: &mut Core, host: HostTid, parent: &Task) -> Result<(Run, Registers), StopError> {
    let never = Registers { rax: 0, ..parent.after };
    let report = match core.early.remove(&host) {
        Some(report) => report,
        None => match wait_one(host) {
            Err(StopError::LeaderEnded) => return Ok((Run::Running, never)),
            report => report?,
        },
    };
    match report {
        Report::Event(PtraceEvent::Stop, child) => {
            match child.registers() {
                Ok(regs) => Ok((Run::Ready(child, Resume::Cont(0)), regs)),
                // It is being killed: its end will be reported.
                Err(Gone { errno: libc::ESRCH, .. }) => Ok((Run::Running, never)),
                Err(gone) => Err(gone.into()),
            }
        }
        // Killed before it ran: it never uses these registers. The session reports it once it knows the task.
        report @ (Report::Exited(_) | Report::Killed(..) | Report::Event(PtraceEvent::Exit, _)) => {
            core.early.insert(host, report);
            Ok((Run::Running, never))
        }
        other => Err(StopError::bug(format!("a new task began with {other:?}"))),
    }
}

fn copied_space(core: &mut Core, task: &Task, child: HostTid) -> Result<Rc<Space>, StopError> {
    if !task.space.shared.borrow().is_empty() {
        task.space.sharing.set(true);
    }
    let memory = match Memory::open(child) {
        // Killed before it ran.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Memory::of_dead(child),
        opened => opened,
    };
    let memory = memory
        .map_err(|source| RecordError::System { what: "cannot open the memory of a tracee", source })?;
    let space = Rc::new(task.space.forked(core.new_space_id(), child, memory));
    core.spaces.push(Rc::downgrade(&space));
    Ok(space)
}
