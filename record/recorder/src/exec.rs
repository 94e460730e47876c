//! A task's program was replaced: what is hidden from the new one, and the event.

use std::rc::Rc;

use guest::{GuestAddr, GuestRange, Registers, SpaceId, TaskId};
use ptrace::{Memory, Report, Stopped};
use trace::{Event, Fact};

use crate::answer::Guise;
use crate::api::RecordError;
use crate::cpuid;
use crate::image::{self, MappedFiles};
use crate::procfs::{self, Mapping};
use crate::resolver;
use crate::saved_state;
use crate::seccomp::Sandbox;
use crate::session::Core;
use crate::stop::{Next, Onward, StopError, as_it_stood, check_alive, wait_one};
use crate::task::{Resume, Space, Task};
use crate::unrepeatable;

/// `cs` of 32-bit code.
const CS_32: u64 = 0x23;

/// Task 0, at the exec stop of its first program.
pub(crate) fn first_task(id: TaskId, stopped: &Stopped, affinity: Vec<u8>) -> Result<Task, RecordError> {
    let host = stopped.tid();
    let system = |source| RecordError::System { what: "cannot open the memory of a tracee", source };
    let memory = Memory::open(host).map_err(system)?;
    // Of no account: the exec event, the first of all, makes the space that is recorded.
    let space = Space::new(SpaceId(0), host, memory, GuestAddr(0));
    space.join(false);
    let mut task = Task::new(id, (host, host), Rc::new(space), Guise::of_command(affinity));
    task.sandbox = Sandbox::of_command();
    Ok(task)
}

/// At `PTRACE_EVENT_EXEC`, the kernel still inside `execve`: goes on to its end, prepares the space, writes the event.
pub(crate) fn on_exec(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    core.sink.announce(task.id)?;
    if task.pending.take().is_some() {
        task.space.count_call(-1);
    }
    let mut stopped = to_exit(stopped)?;
    let raw = stopped.registers()?;
    if raw.cs == CS_32 {
        let exe = procfs::link(task.host, "exe");
        return Err(StopError::Refused(format!("32-bit program {exe} is not supported")));
    }
    let memory = Memory::open(task.host)
        .map_err(|source| RecordError::System { what: "cannot open the memory of a tracee", source })?;
    let mappings;
    (stopped, mappings) = prepare_space(core, stopped, &memory, &raw)?;
    let raw = Registers { orig_rax: u64::MAX, ..raw };
    stopped.set_registers(&raw)?;

    let stack = image::start_stack(&memory, raw.sp())?;
    let auxv = image::hide_vdso(&memory, &stack)?;
    let xstate = stopped.xstate()?;
    let mut files = MappedFiles::of(task.host);
    let features = saved_state::features(&xstate);
    let ours = resolver::rewrite(core, &memory, &mut files, &mappings, raw.pc(), features)?;
    let (sites, rewritten) = unrepeatable::in_new(core, &memory, &mut files, &mappings);
    let mut taken = image::take(&mut files, mappings, &memory, &mut core.sink.writer)?;
    taken.maps.extend(rewritten);
    if !ours.is_empty() {
        taken.show_page(image::data(ours, &mut core.sink.writer)?);
    }
    let info = image::describe(task.host, task.tid.0, stack, auxv);
    let space = core.new_space_id();
    task.space.leave(task.by_vfork);
    task.by_vfork = false;
    task.space = Rc::new(Space::new(space, task.host, memory, info.brk));
    task.space.unrepeatable.replace(sites);
    task.space.join(false);
    core.spaces.push(Rc::downgrade(&task.space));
    let first = core.nothing_recorded();
    let before = if first { raw } else { task.after };
    core.sink.event(&Event {
        after: raw,
        xstate: Some(xstate),
        maps: taken.maps,
        writes: taken.writes,
        ..Event::in_place(task.id, space, before, Fact::Exec(Box::new(info)))
    })?;
    task.goes_on(raw, raw);
    task.clear_tid = GuestAddr(0);
    task.restart = None;
    task.segv.forget_handler();
    task.ignored = Rc::default();
    task.guise.exec();
    Ok((stopped, Resume::Cont(0)))
}

/// Runs to the exit stop.
fn to_exit(stopped: Stopped) -> Result<Stopped, StopError> {
    let tid = stopped.tid();
    check_alive(tid)?;
    stopped.cont_to_syscall(0)?;
    match wait_one(tid)? {
        Report::Syscall(stopped) => Ok(stopped),
        report => Err(StopError::Instead(report)),
    }
}

/// Maps the page of ours, removes the kernel's mappings, and has `cpuid` trapped, which exec ended. All signals wait meanwhile. Returns what is
/// mapped then but for that page.
fn prepare_space(
    core: &Core,
    mut stopped: Stopped,
    memory: &Memory,
    raw: &Registers,
) -> Result<(Stopped, Vec<Mapping>), StopError> {
    let tid = stopped.tid();
    let mask = stopped.signal_mask()?;
    stopped.set_signal_mask(u64::MAX)?;

    // The first call is made from the program's own first instruction, which is put back afterwards.
    let mut original = [0; 2];
    guest::GuestMemory::read(memory, raw.pc(), &mut original)?;
    memory.write(raw.pc(), &[0x0f, 0x05])?;
    let prot = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let args = [abi::PAGE, abi::PAGE_LEN, prot as u64, flags as u64, u64::MAX, 0];
    let (stopped_again, result) = make_call(stopped, raw.pc(), libc::SYS_mmap as u64, args)?;
    stopped = stopped_again;
    memory.write(raw.pc(), &original)?;
    if result != abi::PAGE as i64 {
        return Err(StopError::Refused(format!(
            "the program leaves no room for the page at {:#x} (mmap said {result})",
            abi::PAGE
        )));
    }
    memory.write(GuestAddr(abi::PAGE), &abi::page_bytes())?;

    let mut mappings = procfs::maps(tid).map_err(image::ImageError::Proc)?;
    mappings.retain(|mapping| mapping.range.start != GuestAddr(abi::PAGE));
    let kernels: Vec<Mapping> = mappings.extract_if(.., |mapping| image::is_kernels(&mapping.name)).collect();
    for range in merged(kernels.iter().map(|mapping| mapping.range)) {
        let args = [range.start.0, range.len(), 0, 0, 0, 0];
        let (stopped_again, result) =
            make_call(stopped, GuestAddr(abi::SYSCALL), libc::SYS_munmap as u64, args)?;
        stopped = stopped_again;
        if result != 0 {
            return Err(StopError::bug("the vDSO cannot be unmapped".into()));
        }
    }
    if core.cpuid.is_some() {
        let args = [cpuid::SET_CPUID, 0, 0, 0, 0, 0];
        let (stopped_again, result) =
            make_call(stopped, GuestAddr(abi::SYSCALL), libc::SYS_arch_prctl as u64, args)?;
        stopped = stopped_again;
        if result != 0 {
            return Err(StopError::bug("cpuid cannot be trapped in a new program".into()));
        }
    }
    stopped.set_signal_mask(mask)?;
    Ok((stopped, mappings))
}

/// Adjacent ranges as one: the vDSO and its data can only be unmapped whole.
fn merged(ranges: impl Iterator<Item = GuestRange>) -> Vec<GuestRange> {
    let mut out: Vec<GuestRange> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => out.push(range),
        }
    }
    out
}

/// Makes a system call from `site`, whether or not the filter stops it there. Registers are left as the call left them.
pub(crate) fn make_call(
    mut tracee: Stopped,
    site: GuestAddr,
    nr: u64,
    args: [u64; 6],
) -> Result<(Stopped, i64), StopError> {
    let (tid, saved) = (tracee.tid(), tracee.registers()?);
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    let call = Registers { rip: site.0, rax: nr, orig_rax: u64::MAX, rdi, rsi, rdx, r10, r8, r9, ..saved };
    let made = tracee.set_registers(&call).map_err(StopError::from).and_then(|()| to_end_of_call(tracee));
    let (mut stopped, result) = made.map_err(|why| as_it_stood(why, tid, &saved))?;
    stopped.set_registers(&Registers { orig_rax: u64::MAX, ..saved })?;
    Ok((stopped, result))
}

/// Makes the call that a tracee stands before. Its result.
fn to_end_of_call(mut tracee: Stopped) -> Result<(Stopped, i64), StopError> {
    let mut onward = Onward::default();
    let mut entered = false;
    loop {
        let (stopped, by_filter) = onward.next_call(tracee, Stopped::cont_to_syscall)?;
        if entered && !by_filter {
            onward.over(&stopped)?;
            let result = stopped.registers()?.rax as i64;
            return Ok((stopped, result));
        }
        entered |= !by_filter;
        tracee = stopped;
    }
}
