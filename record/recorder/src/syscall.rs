//! System calls, from the stop at entry to the stop at exit: what is noted, what is let through, what is answered instead.

use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, Registers};
use kernel::{Call, Class, Errno, MapCall};
use ptrace::Stopped;
use trace::{MemWrite, SyscallInfo};

use crate::buffer::{self, Left};
use crate::follow::{self, Changes};
use crate::ptracing;
use crate::reading::ReadOf;
use crate::scratch::{self, Plan, View};
use crate::seccomp::{Asked, Denial};
use crate::session::Core;
use crate::sink::Ended;
use crate::standing::Awaited;
use crate::stop::{Next, StopError};
use crate::task::{Pending, Restart, Resume, Task};
use crate::{
    answer, foreign, ignored, image, memmap, narrow, output, paranoid, programs, reading, seccomp, shared,
    signal, status, trap, unrepeatable, waking,
};

const RESTART_SYSCALL: u32 = kernel::number("restart_syscall");
const CLONE: u32 = kernel::number("clone");
const RT_SIGACTION: u32 = kernel::number("rt_sigaction");
const RT_SIGPROCMASK: u32 = kernel::number("rt_sigprocmask");
const SCHED_SETATTR: u32 = kernel::number("sched_setattr");
const SCHED_SETPARAM: u32 = kernel::number("sched_setparam");
const SCHED_SETSCHEDULER: u32 = kernel::number("sched_setscheduler");
const SCHED_YIELD: u32 = kernel::number("sched_yield");
const SETPRIORITY: u32 = kernel::number("setpriority");
const SET_TID_ADDRESS: u32 = kernel::number("set_tid_address");

/// Restart codes that a tracer sees in rax (`linux/errno.h`).
const RESTART_CODES: [i64; 3] = [-512, -513, -514];
const ERESTART_RESTARTBLOCK: i64 = -516;

/// Registers at a system call, as events have them: the instruction not yet executed.
pub(crate) fn at_instruction(regs: &Registers) -> Registers {
    const LENGTH: u64 = 2;
    Registers {
        rax: regs.orig_rax & 0xffff_ffff,
        rcx: 0,
        r11: 0,
        orig_rax: 0,
        rip: regs.rip.wrapping_sub(LENGTH),
        ..*regs
    }
}

/// A system call is about to be made.
pub(crate) fn on_entry(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let next = entered(core, task, stopped);
    task.cut_short = next.is_err() && core.sink.has_begun(task.id);
    next
}

fn entered(core: &mut Core, task: &mut Task, mut stopped: Stopped) -> Result<Next, StopError> {
    let regs = stopped.registers()?;
    if narrow::is_at(&stopped, &regs)? {
        return narrow::on_entry(core, task, stopped, &regs);
    }
    let (regs, Left { faulted, in_vain, .. }) = buffer::at_entry(task, &mut stopped, regs)?;
    if trap::is_vsyscall(&regs) {
        seccomp::check_vsyscall(task, &regs)?;
        return trap::on_vsyscall(core, task, stopped, regs);
    }
    if ptracing::stops_at_entry(task) {
        return ptracing::at_entry(core, task, stopped, &regs);
    }
    let before = at_instruction(&regs);
    let skipped = ptracing::skipped(task, &regs);
    let passes = ptracing::passes_filter(task);
    match seccomp::denial(task, &regs).filter(|_| skipped.is_none()) {
        None => {}
        Some(Denial::Trace(_)) if passes => {}
        Some(Denial::Trace(data)) if ptracing::decides_for_filter(task) => {
            return ptracing::at_filter(core, task, stopped, &regs, data);
        }
        Some(denial) => return seccomp::deny(core, task, stopped, before, denial),
    }
    let nr = regs.orig_rax as u32;
    let args = regs.syscall_args();
    let space = Rc::clone(&task.space);
    let class = match skipped {
        Some(_) => Class::Emulate(Errno::ENOSYS),
        None => kernel::decide(nr, &args, &space.memory)
            .map_err(|refusal| StopError::Refused(refusal.to_string()))?,
    };
    buffer::before_call(core, task, class, nr, &args);
    if let Class::Map(kind) = class {
        unrepeatable::before_map(task, kind, &args);
    } else {
        // No file is held open longer than there may be use for it.
        core.last_mapped = None;
    }
    let restarted = task.restart.take().filter(|_| nr == RESTART_SYSCALL);
    let (effect_nr, effect_args) = restarted.as_ref().map_or((nr, args), |restart| restart.call);
    let told = programs::element(task, effect_nr, &effect_args);
    let call = Call::enter(effect_nr, effect_args, &space.memory).telling(told);
    let unseen = output::moves_unseen(&core.streams, task, nr, &args);
    let mut writes = Plan::AsItIs;
    let shown = if skipped.is_none() && !faulted { status::read(core, task, &call) } else { None };
    let copied = ignored::mask_to_copy(task, class, &call);
    task.deafened = 0;
    if let Some(restart) = restarted {
        writes = restart.writes;
    } else if !faulted
        && shown.is_none()
        && class == Class::MayBlock
        && !unseen
        && (space.is_shared() || copied.is_some())
    {
        (stopped, writes) = scratch::plan(task, stopped, &call, copied)?;
        if copied.is_some() {
            task.deafened = ignored::block_in_copy(task, &stopped, &mut writes)?;
        }
    }
    let info = SyscallInfo { nr, args, result: None, output: None, output_crc: 0 };
    core.sink.begin(task.id, task.space.id, before, info);
    if let Some(word) = kernel::marks_waiting(effect_nr, &effect_args) {
        core.sink.watch_word(&task.space, word);
    }
    task.after = before;

    let mut filters = seccomp::Part::None;
    let emulated = match class {
        _ if skipped.is_some() => skipped,
        _ if faulted => Some(Errno::EFAULT.as_result()),
        _ if shown.is_some() => shown,
        Class::Emulate(errno) => Some(errno.as_result()),
        Class::Map(MapCall::ForkRule) => memmap::fork_rule(&args),
        Class::Answer(answer) => answer::give(core, task, answer, &args),
        Class::Restrict => match seccomp::asked(task, nr, &args)? {
            Asked::Answer(result) => Some(result),
            Asked::Install(program) => {
                filters = seccomp::Part::Installs(program);
                None
            }
            Asked::Fails => None,
        },
        Class::Spawn if untraced(nr, &args) => {
            // Restored at exit, and in the child.
            stopped.set_registers(&Registers { rdi: args[0] & !kernel::CLONE_UNTRACED, ..regs })?;
            None
        }
        _ if unseen => Some(Errno::EINVAL.as_result()),
        _ => None,
    };
    if let Some(result) = emulated {
        stopped.set_registers(&Registers { orig_rax: u64::MAX, rax: result as u64, ..regs })?;
    } else if class == Class::Map(MapCall::DiscardLater) {
        // Restored at exit.
        stopped.set_registers(&Registers { rdx: libc::MADV_DONTNEED as u64, ..regs })?;
    } else if let seccomp::Part::Installs(_) = filters {
        // Likewise.
        stopped.set_registers(&Registers { rdx: abi::ALLOW_ALL, ..regs })?;
    } else if let (Plan::Moved(scratch), true) = (&writes, nr == effect_nr) {
        // Likewise.
        stopped.set_registers(&with_args(regs, scratch.args))?;
    }
    let mask = if emulated.is_none() { ignored::block(task, &mut stopped, class, &call)? } else { None };
    let pending = Pending {
        call,
        class,
        writes,
        alone: kernel::needs_space(class, nr, &args, &space.memory),
        made: (nr, args),
        narrow: None,
        new_action: new_segv_action(task, nr, &args),
        emulated,
        filters,
        idle: false,
        waits: in_vain && emulated.is_none(),
        announced: false,
        mask,
        // A vfork child writes its parent's memory; that is its own doing.
        // Nor can what other threads do meanwhile be told from the call's effects.
        snapshot: (core.paranoid && class != Class::Spawn && !task.space.is_shared())
            .then(|| paranoid::Snapshot::take(task)),
    };
    until_return(core, task, stopped, pending)
}

/// A call is made now, or was answered: what comes before its return.
pub(crate) fn until_return(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    mut pending: Pending,
) -> Result<Next, StopError> {
    task.space.count_call(1);
    if pending.emulated.is_none() {
        pending.idle = shared::is_idle(task, &pending.call);
        let mut spaces = shared::awaited(core, task, &pending.call);
        spaces.extend(foreign::awaited(core, task, &pending.call));
        task.awaits = Awaited::new(&spaces, core.timer.now());
    }
    let ends = pending.class == Class::Exit;
    task.pending = Some(pending);
    if ends {
        core.sink.announce(task.id)?;
        return Ok((stopped, Resume::Cont(0)));
    }
    signal::raise_held(task);
    Ok((stopped, Resume::ToExit))
}

/// A task was killed between a `syscall` instruction and the stop at its entry.
pub(crate) fn never_made(core: &mut Core, task: &mut Task, regs: &Registers) -> Result<(), StopError> {
    if narrow::never_made(core, task, regs) {
        return Ok(core.sink.announce(task.id)?);
    }
    let (nr, args) = (regs.orig_rax as u32, regs.syscall_args());
    let before = at_instruction(regs);
    let info = SyscallInfo { nr, args, result: None, output: None, output_crc: 0 };
    core.sink.begin(task.id, task.space.id, before, info);
    core.sink.announce(task.id)?;
    task.after = before;
    Ok(())
}

/// The registers with other arguments.
fn with_args(regs: Registers, [rdi, rsi, rdx, r10, r8, r9]: [u64; 6]) -> Registers {
    Registers { rdi, rsi, rdx, r10, r8, r9, ..regs }
}

/// Whether a `clone` asks for a child that is not traced.
pub(crate) fn untraced(nr: u32, args: &[u64; 6]) -> bool {
    nr == CLONE && args[0] & kernel::CLONE_UNTRACED != 0
}

fn new_segv_action(task: &Task, nr: u32, args: &[u64; 6]) -> Option<[u8; 32]> {
    if nr != RT_SIGACTION || args[0] != libc::SIGSEGV as u64 || args[1] == 0 {
        return None;
    }
    let mut action = [0; 32];
    task.space.memory.read(GuestAddr(args[1]), &mut action).ok()?;
    Some(action)
}

/// A system call returned.
pub(crate) fn on_exit(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let next = returned(core, task, stopped);
    task.cut_short = next.is_err();
    next
}

fn returned(core: &mut Core, task: &mut Task, mut stopped: Stopped) -> Result<Next, StopError> {
    let Some(pending) = task.pending.take() else {
        return Err(StopError::bug("a system call returned that was never made".into()));
    };
    task.space.count_call(-1);
    if let Some(mask) = pending.mask {
        stopped.set_signal_mask(mask)?;
    }
    let (nr, args) = pending.made;
    if let seccomp::Part::Denied(denial) = pending.filters {
        return seccomp::on_exit(core, task, stopped, (nr, args), denial);
    }
    let mut regs = stopped.registers()?;
    if pending.class == Class::SignalReturn {
        return on_sigreturn(core, task, stopped, regs, nr, args);
    }
    if pending.narrow.is_none() && regs.syscall_args() != args {
        // It was made with others.
        regs = with_args(regs, args);
        stopped.set_registers(&regs)?;
    }
    answer::keep(task)?;
    let mut call = pending.call.returned(regs.rax as i64);
    if let Plan::Moved(scratch) = &pending.writes {
        let view = View { memory: &task.space.memory, scratch };
        if scratch.put(&task.space.memory, &effects(&call, &view)?).is_err() {
            // Where the guest may not write, nor could the kernel.
            regs.rax = Errno::EFAULT.as_result() as u64;
            stopped.set_registers(&regs)?;
            call = call.returned(regs.rax as i64);
        }
    }
    let result = call.result;
    waking::after_call(task, (nr, args), result);
    if result != Errno::EINTR.as_result() {
        task.deafened = 0;
    }
    match pending.class {
        Class::Unknown => kernel::answered_unknown(nr, &args, result)
            .map_err(|refusal| StopError::Refused(refusal.to_string()))?,
        Class::Adjusted => image::hide_vdso_from(&task.space.memory, &call)?,
        _ => {}
    }
    // What the recorder did for the guest wrote what the call would have.
    let done = matches!(pending.class, Class::Answer(_) | Class::Trace | Class::Plain | Class::MayBlock);
    let refused = pending.emulated.is_some() && !done;
    ptracing::authentic_in_memory(core, task, &call)?;
    let mut ranges = if refused { Vec::new() } else { effects(&call, &task.space.memory)? };
    if let Some(narrow) = pending.narrow {
        ranges = narrow.effects(ranges);
    }
    let Changes { maps: mut late, mut writes } = follow::caught_up(core, task)?;
    let mut maps = task.space.owed.take();
    maps.append(&mut late);
    if let Class::Map(kind) = pending.class {
        task.space.remapped.set(true);
        maps.extend(memmap::ops(core, task, kind, &call)?);
    }
    if let Some(snapshot) = &pending.snapshot {
        let found = snapshot.unexplained(task, &ranges, &maps);
        let shown = kernel::format_call(nr, &args, Some(result), Some(&task.space.memory));
        core.unexplained.extend(found.into_iter().map(|what| format!("{shown}: {what}")));
    }
    let mut foreign = task.space.changed.take();
    foreign.extend(foreign::changes(core, task, &call)?);
    writes.extend(read_ranges(core, task, &foreign, None)?);
    // No other recording reads what this one writes: that is better packed than kept.
    let not_written = |read: &ReadOf| !core.follow.was_writable((read.file.dev, read.file.ino));
    let from = core.looking.of_call(task.process, &call).filter(not_written);
    writes.extend(read_ranges(core, task, &ranges, from)?);
    if let Class::Map(kind) = pending.class {
        writes.extend(follow::uncovered(core, task, kind, &call)?);
    }
    let changed = shared::file_changes(core, task, &call, pending.idle)?;
    task.awaits = None;
    maps.extend(changed.maps);
    writes.extend(changed.writes);
    let (stream, crc) = output::of_call(core, task, &call)?;
    let after = going_on(&regs, pending.narrow.map_or(nr, |narrow| narrow.nr), result);
    let mut written = pending.writes;
    if result == ERESTART_RESTARTBLOCK {
        let writes = std::mem::replace(&mut written, Plan::AsItIs);
        task.restart = Some(Restart { call: (call.nr, call.args), writes });
    }
    if pending.class == Class::Restrict && pending.emulated.is_none() {
        seccomp::installed(task, pending.filters, (nr, args), result)?;
    }
    follow(task, &stopped, &call, nr, pending.new_action)?;
    let goes_on_behind = after == outside_calls(&regs);
    if pending.narrow.is_none() {
        maps.extend(match goes_on_behind {
            true => buffer::after_call(core, task, (nr, args), &regs),
            false => buffer::goes_on_at(task, after.rip),
        });
    }
    let info = SyscallInfo { nr, args, result: Some(result), output: stream, output_crc: crc };
    let ended = Ended { info, after, xstate: None, maps, writes };
    core.sink.end(task.id, task.space.id, task.after, ended)?;
    task.goes_on(after, regs);
    let stopped = scratch::give_back(&written, result, stopped)?;
    Ok((buffer::map(task, stopped)?, Resume::Cont(0)))
}

fn on_sigreturn(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    regs: Registers,
    nr: u32,
    args: [u64; 6],
) -> Result<Next, StopError> {
    let after = Registers { orig_rax: u64::MAX, ..regs };
    let mut maps = task.space.owed.take();
    maps.extend(buffer::goes_on_at(task, after.rip));
    let info = SyscallInfo { nr, args, result: None, output: None, output_crc: 0 };
    let xstate = Some(stopped.xstate()?);
    // Where it is gone by now, its end must find it where the last event has left it.
    let blocked = signal::blocks_segv(stopped.signal_mask()?);
    let ended = Ended { info, after, xstate, maps, writes: Vec::new() };
    core.sink.end(task.id, task.space.id, task.after, ended)?;
    task.segv.blocked = blocked;
    task.goes_on(after, regs);
    Ok((stopped, Resume::Cont(0)))
}

/// The registers with which a task goes on after a call: where a signal cut it short, the kernel backs up to make
/// it again (unless a handler is entered, which is an event of its own).
fn going_on(regs: &Registers, nr: u32, result: i64) -> Registers {
    let mut after = Registers { orig_rax: u64::MAX, ..*regs };
    if RESTART_CODES.contains(&result) || result == ERESTART_RESTARTBLOCK {
        after.rip = after.rip.wrapping_sub(2);
        after.rax = u64::from(if result == ERESTART_RESTARTBLOCK { RESTART_SYSCALL } else { nr });
    }
    after
}

/// The registers with which a stopped task goes on, as events have them.
pub(crate) fn resumed(regs: &Registers) -> Registers {
    let outside = outside_calls(regs);
    if (regs.orig_rax as i64) < 0 {
        return outside;
    }
    going_on(&outside, regs.orig_rax as u32, regs.rax as i64)
}

/// Registers of user code, as events have them: in no call, and without the flag by which the processor goes past a breakpoint.
pub(crate) fn outside_calls(regs: &Registers) -> Registers {
    const RESUME_FLAG: u64 = 1 << 16;
    Registers { orig_rax: u64::MAX, eflags: regs.eflags & !RESUME_FLAG, ..*regs }
}

fn effects(call: &Call, memory: &dyn GuestMemory) -> Result<Vec<GuestRange>, StopError> {
    kernel::effects(call, memory).map_err(|error| {
        StopError::Refused(format!("{}: {error}", kernel::format_call(call.nr, &call.args, None, None)))
    })
}

/// What the kernel wrote, one range after the other, read from a file if `from` says so.
fn read_ranges(
    core: &mut Core,
    task: &Task,
    ranges: &[GuestRange],
    mut from: Option<ReadOf>,
) -> Result<Vec<MemWrite>, StopError> {
    let writer = &mut core.sink.writer;
    let mut writes = Vec::with_capacity(ranges.len());
    for range in ranges {
        match task.space.memory.read_vec(range.start, range.len() as usize) {
            Ok(bytes) => {
                let data = match from {
                    Some(read) if range.len() >= reading::SHORTEST => {
                        writer.of_file(read.file, &|| read.open(), read.offset, &bytes)?
                    }
                    _ => image::data(bytes, writer)?,
                };
                writes.push(MemWrite { addr: range.start, data });
            }
            // The kernel could not write there either.
            Err(unmapped) => tracing::debug!(?range, %unmapped, "an effect lies in unmapped memory"),
        }
        from = from.map(|read| read.after(range.len()));
    }
    Ok(writes)
}

/// Follows what the recorder must know of a task's signal and filter state.
fn follow(
    task: &mut Task,
    stopped: &Stopped,
    call: &Call,
    nr: u32,
    new_action: Option<[u8; 32]>,
) -> Result<(), StopError> {
    if !call.succeeded() {
        return Ok(());
    }
    match nr {
        RT_SIGPROCMASK => task.segv.blocked = signal::blocks_segv(stopped.signal_mask()?),
        RT_SIGACTION => {
            if let Some(action) = new_action {
                task.segv.action.set(action);
            }
            let [signal, action, ..] = call.args;
            if action != 0 {
                task.ignored.acted(&task.space.memory, signal, GuestAddr(action));
            }
        }
        SCHED_YIELD => task.yields = true,
        SETPRIORITY | SCHED_SETPARAM | SCHED_SETSCHEDULER | SCHED_SETATTR => task.ranks_anew = true,
        SET_TID_ADDRESS => task.clear_tid = GuestAddr(call.args[0]),
        _ => {}
    }
    Ok(())
}
