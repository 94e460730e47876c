//! A task made another: fork, vfork, clone.

use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, Registers, Tid};
use ptrace::{HostTid, Memory, PtraceEvent, Report, Stopped};
use trace::{Data, Event, Fact, MemWrite, SpawnInfo, Stop};

use crate::api::RecordError;
use crate::session::Core;
use crate::stop::{Next, StopError, wait_one};
use crate::task::{Resume, Run, Space, Task};

const FORK: u32 = kernel::number("fork");
const VFORK: u32 = kernel::number("vfork");
const CLONE3: u32 = kernel::number("clone3");

/// What the caller asked for.
struct Request {
    flags: u64,
    /// Where the child's thread id is stored, with `CLONE_CHILD_SETTID`.
    child_tid: GuestAddr,
}

fn request(task: &Task) -> Result<Request, StopError> {
    let Some(pending) = &task.pending else {
        return Err(StopError::bug("a task appeared outside a system call".into()));
    };
    let args = pending.call.args;
    Ok(match pending.call.nr {
        FORK => Request { flags: libc::SIGCHLD as u64, child_tid: GuestAddr(0) },
        VFORK => Request {
            flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64,
            child_tid: GuestAddr(0),
        },
        CLONE3 => {
            let at = GuestAddr(args[0]);
            let memory = &task.space.memory;
            Request {
                flags: memory.read_u64(at)?,
                child_tid: GuestAddr(memory.read_u64(at.wrapping_add(16))?),
            }
        }
        _ => Request { flags: args[0], child_tid: GuestAddr(args[3]) },
    })
}

/// At the parent's fork, vfork or clone event.
pub(crate) fn on_spawn(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let Request { flags, child_tid } = request(task)?;
    let host = HostTid(stopped.event_message()? as i32);
    let has = |flag: i32| flags & flag as u64 != 0;
    let shares = has(libc::CLONE_VM);
    if has(libc::CLONE_THREAD) {
        return Err(StopError::Refused("a second thread (clone with CLONE_THREAD) is not supported".into()));
    }
    if shares && !has(libc::CLONE_VFORK) {
        return Err(StopError::Refused(
            "a process that shares its parent's memory (clone with CLONE_VM but not CLONE_VFORK) is not supported".into(),
        ));
    }
    core.sink.announce(task.id)?;
    let (run, raw) = first_stop(core, host, task)?;
    let id = core.new_task_id();
    let space = if shares { Rc::clone(&task.space) } else { copied_space(core, task, host)? };
    let mut writes = Vec::new();
    if has(libc::CLONE_CHILD_SETTID) {
        let bytes = space.memory.read_vec(child_tid, 4);
        writes.extend(bytes.ok().map(|bytes| MemWrite { addr: child_tid, data: Data::Inline(bytes) }));
    }
    let after = Registers { orig_rax: u64::MAX, ..raw };
    let (tid, space_id) = (Tid(host.0), space.id);
    core.sink.event(&Event {
        task: task.id,
        space: task.space.id,
        stop: Stop::None,
        before: task.after,
        after: task.after,
        xstate: None,
        maps: Vec::new(),
        writes: Vec::new(),
        fact: Fact::Spawn(Box::new(SpawnInfo {
            child: id,
            tid,
            pid: tid,
            space: space_id,
            shares,
            flags,
            regs: after,
            writes,
        })),
    })?;
    core.newborn.push(Task {
        id,
        tid,
        host,
        space,
        run,
        pending: None,
        after,
        raw,
        held: Vec::new(),
        raised: Vec::new(),
        restart: None,
        segv: task.segv,
        guise: task.guise.clone(),
        dying: 0,
    });
    Ok((stopped, Resume::ToExit))
}

/// The child's first stop, before it runs any code, and its registers there.
fn first_stop(core: &mut Core, host: HostTid, parent: &Task) -> Result<(Run, Registers), StopError> {
    let report = match core.early.remove(&host) {
        Some(report) => report,
        None => wait_one(host)?,
    };
    match report {
        Report::Event(PtraceEvent::Stop, child) => {
            let regs = child.registers()?;
            Ok((Run::Ready(child, Resume::Cont(0)), regs))
        }
        // Killed before it ran: it never uses these registers.
        report @ (Report::Exited(_) | Report::Killed(..)) => {
            core.early.insert(host, report);
            Ok((Run::Running, Registers { rax: 0, ..parent.after }))
        }
        other => Err(StopError::bug(format!("a new task began with {other:?}"))),
    }
}

fn copied_space(core: &mut Core, task: &Task, child: HostTid) -> Result<Rc<Space>, StopError> {
    if !task.space.shared.borrow().is_empty() {
        task.space.sharing.set(true);
    }
    let memory = Memory::open(child)
        .map_err(|source| RecordError::System { what: "cannot open the memory of a tracee", source })?;
    let space = Rc::new(task.space.forked(core.new_space_id(), child, memory));
    core.spaces.push(Rc::downgrade(&space));
    Ok(space)
}
