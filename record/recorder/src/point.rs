//! Execution points: what is noted of a task that was stopped at an arbitrary instruction, so that a replay can find that
//! instruction by its state.

use guest::{GuestAddr, GuestMemory, GuestRange, PAGE_SIZE, Registers, XState};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};
use ptrace::{HostTid, Memory, Report, Stopped};
use trace::{Event, Fact, KeyPiece, MemWrite, PageSum, PointInfo, Stop};

use crate::api::RecordError;
use crate::buffer::Killed;
use crate::pages::Tracker;
use crate::session::Core;
use crate::stop::{Next, StopError, check_alive, wait_one};
use crate::task::{Halt, Resume, Run, Task, same_place};
use crate::{buffer, image, procfs, ptracing, saved_state, scratch, signal, syscall, tsc, waking};

/// Offset of the debug registers in the `user` area (`sys/user.h`).
const DEBUG_REGISTERS: usize = std::mem::offset_of!(libc::user, u_debugreg);
/// Debug register 7: register 0 breaks on execution.
const BREAK_ON_EXECUTION: u64 = 1;

/// A task that was told to stop has stopped: notes the point, raises what it holds back, and lets others go on.
pub(crate) fn on_interrupt(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let regs = stopped.registers()?;
    if no_code_ran(task, &regs) {
        task.interrupted = false;
        signal::raise_held(task);
        return Ok((stopped, Resume::Cont(0)));
    }
    let (mut stopped, mut regs) = (stopped, regs);
    match repeat_end(task, &regs) {
        // The breakpoints there are may be its tracer's.
        Some(_) if ptracing::is_traced(task) => (stopped, regs) = leave_repeated(task, stopped, regs)?,
        Some(end) => return run_past(task, stopped, end),
        None => {}
    }
    task.interrupted = false;
    if task.halt == Halt::AfterRepeat {
        return halt_at(core, task, stopped, regs);
    }
    let signal = task.held.first().map_or(0, |held| held.signal);
    let stopped = capture(core, task, stopped, regs, signal)?;
    signal::raise_held(task);
    Ok((stopped, Resume::Cont(0)))
}

/// A counter ended the slice of a task.
pub(crate) fn on_slice_end(
    core: &mut Core,
    task: &mut Task,
    mut stopped: Stopped,
) -> Result<Next, StopError> {
    ran_past(task, &mut stopped, false)?;
    task.yields = true;
    on_interrupt(core, task, stopped)
}

/// A task was stopped with all of its process. What others do until it goes on comes after what it did until here.
pub(crate) fn on_group_stop(core: &mut Core, task: &mut Task, stopped: Stopped) -> Result<Next, StopError> {
    let regs = stopped.registers()?;
    let located = std::mem::take(&mut task.halt) == Halt::AtPoint || no_code_ran(task, &regs);
    if located || task.pending.is_some() || task.exiting.is_some() {
        return Ok((stopped, Resume::Listen));
    }
    if let Some(end) = repeat_end(task, &regs) {
        task.halt = Halt::AfterRepeat;
        return run_past(task, stopped, end);
    }
    halt_at(core, task, stopped, regs)
}

/// Notes where a task stopped with its process, and has it stop there again, if that is still stopped: it may have been let run for the
/// point's sake.
fn halt_at(core: &mut Core, task: &mut Task, stopped: Stopped, regs: Registers) -> Result<Next, StopError> {
    let signal = task.stopping.map_or(0, |(signal, _)| signal);
    let stopped = capture(core, task, stopped, regs, signal)?;
    signal::stopped_by(core, task)?;
    signal::raise_held(task);
    task.halt = Halt::AtPoint;
    ptrace::Running::assume(task.host).interrupt()?;
    Ok((stopped, Resume::Cont(0)))
}

/// Whether a stopped task has run no code of its own since its last event. That it shows the same registers does not tell: a loop may have
/// come back to them. Nor is it told of one that stands where its instructions were moved to. What enters the kernel for another reason than a system call has no number of one.
pub(crate) fn no_code_ran(task: &Task, regs: &Registers) -> bool {
    let leaves_a_call = regs.orig_rax as i64 >= 0;
    let here = same_place(regs, &task.raw) && !buffer::is_moved(task, regs.rip);
    !task.at_point && here && (leaves_a_call || task.unmoved)
}

/// Writes the event of a task that stands at `regs`.
pub(crate) fn capture(
    core: &mut Core,
    task: &mut Task,
    stopped: Stopped,
    regs: Registers,
    signal: i32,
) -> Result<Stopped, StopError> {
    let begun = tsc::clock();
    let stopped = track(task, stopped)?;
    let written = written(core, task, &stopped)?;
    let pages = written.pages.len();
    write(core, task, (regs, signal), written)?;
    waking::after_point(task, pages);
    tracing::debug!(micros = tsc::clock().saturating_sub(begun).as_micros(), pages, "took a point");
    Ok(stopped)
}

/// A task was killed, and stands at its end. Writes down where it was in its own code; whether that could be told.
pub(crate) fn at_death(core: &mut Core, task: &mut Task, stopped: &Stopped) -> Result<bool, StopError> {
    let ran = matches!(task.run, Run::Running) || task.adrift || task.put_off;
    let regs = stopped.registers()?;
    if !ran || no_code_ran(task, &regs) {
        return Ok(true);
    }
    let regs = match buffer::at_death(task, &regs) {
        None => {
            tracing::debug!(
                pc = format_args!("{:#x}", regs.rip),
                "a task was killed on its way to or from a call"
            );
            return Ok(false);
        }
        Some(Killed::At(regs)) => regs,
        Some(Killed::BehindCall) => return Ok(true),
        Some(Killed::InCall(regs)) => return syscall::never_made(core, task, &regs).map(|()| true),
    };
    if regs.orig_rax as i64 >= 0 {
        syscall::never_made(core, task, &regs)?;
        return Ok(true);
    }
    if repeats(task, &regs) {
        return Ok(false);
    }
    let untracked = task.space.tracker.borrow().is_none();
    if untracked {
        task.space.tracker.replace(Tracker::without_faults(task.host).ok());
        task.space.remapped.set(true);
    }
    let written = written(core, task, stopped);
    if untracked {
        task.space.tracker.replace(None);
    }
    match written {
        Ok(written) => write(core, task, (regs, libc::SIGKILL), written).map(|()| true),
        Err(error) => {
            tracing::debug!(%error, "the memory of a killed task cannot be read");
            Ok(false)
        }
    }
}

/// Writes the event.
fn write(
    core: &mut Core,
    task: &mut Task,
    (regs, signal): (Registers, i32),
    written: Written,
) -> Result<(), StopError> {
    let before = Registers { orig_rax: u64::MAX, ..regs };
    let now = procfs::cpu_nanos(task.host);
    let info = PointInfo {
        signal,
        xstate: written.xstate,
        key: key(task, &regs),
        pages: written.pages,
        cpu_nanos: now.saturating_sub(task.cpu_nanos),
        branches: task.count.branches(),
    };
    task.cpu_nanos = now;
    let fact = Fact::Point(Box::new(info));
    let mut event = Event { stop: Stop::Point, ..Event::in_place(task.id, task.space.id, before, fact) };
    for (addr, bytes) in written.images {
        event.writes.push(MemWrite { addr, data: image::data(bytes, &mut core.sink.writer)? });
    }
    core.sink.event(&event)?;
    task.goes_on(before, regs);
    task.at_point = true;
    Ok(())
}

/// Sees to it that the pages that are written are known from now on.
fn track(task: &Task, stopped: Stopped) -> Result<Stopped, StopError> {
    if task.space.tracker.borrow().is_some() {
        return Ok(stopped);
    }
    let (tracker, stopped) = Tracker::new(stopped, task.process)?;
    task.space.tracker.replace(Some(tracker));
    task.space.remapped.set(true);
    Ok(stopped)
}

/// What is noted of a stopped task's memory and extended state.
struct Written {
    xstate: XState,
    pages: Vec<PageSum>,
    /// Register images in those pages.
    images: Vec<(GuestAddr, Vec<u8>)>,
}

/// Reads the pages that were written since the space's last point.
fn written(core: &Core, task: &Task, stopped: &Stopped) -> Result<Written, StopError> {
    let mut written = Written { xstate: stopped.xstate()?, pages: Vec::new(), images: Vec::new() };
    let system = |source| RecordError::System { what: "cannot tell which pages a tracee wrote", source };
    let mut slot = task.space.tracker.borrow_mut();
    let Some(tracker) = slot.as_mut() else { return Ok(written) };
    if task.space.remapped.replace(false) {
        tracker.cover(task.host).map_err(system)?;
    }
    let ranges = if core.paranoid { Tracker::all(task.host) } else { tracker.take_written(task.host) };
    let ranges = ranges.map_err(system)?;
    let features = saved_state::features(&written.xstate);
    each_page(&task.space.memory, &ranges, |addr, bytes| {
        if scratch::is_ours(task, GuestRange::new(addr, PAGE_SIZE)) {
            return;
        }
        written.pages.push(PageSum { page: addr.0 / PAGE_SIZE, crc: crc32fast::hash(bytes) });
        for range in saved_state::images(addr, bytes, features) {
            let mut image = vec![0; range.len() as usize];
            if task.space.memory.read_some(range.start, &mut image) == image.len() {
                written.images.push((range.start, image));
            }
        }
    });
    Ok(written)
}

/// Reads the pages of ranges, many at once. Those that only the kernel may read now cannot be read by the guest before they are made
/// readable: they are passed over.
fn each_page(memory: &Memory, ranges: &[GuestRange], mut each: impl FnMut(GuestAddr, &[u8])) {
    const AT_ONCE: usize = 32;
    const SIZE: usize = PAGE_SIZE as usize;
    let mut bytes = vec![0; AT_ONCE * SIZE];
    let pages = |range: &GuestRange| (range.start.0..range.end.0).step_by(SIZE);
    // The kernel looks memory up anew for each part, so pages that lie side by side are one.
    let beside = |at: &u64, next: &u64| at + PAGE_SIZE == *next;
    let part = |pages: &[u64]| GuestRange::new(GuestAddr(pages[0]), pages.len() as u64 * PAGE_SIZE);
    let all: Vec<u64> = ranges.iter().flat_map(pages).collect();
    for mut group in all.chunks(AT_ONCE) {
        while !group.is_empty() {
            let parts: Vec<GuestRange> = group.chunk_by(beside).map(part).collect();
            let read = memory.read_ranges(&parts, &mut bytes[..group.len() * SIZE]) / SIZE;
            for (at, bytes) in group[..read].iter().zip(bytes.chunks(SIZE)) {
                each(GuestAddr(*at), bytes);
            }
            group = group.get(read + 1..).unwrap_or_default();
        }
    }
}

/// Memory near the stack pointer, near what the registers point to, and what the code ahead will access.
fn key(task: &Task, regs: &Registers) -> Vec<KeyPiece> {
    const BELOW: u64 = 128;
    const STACK: usize = 384;
    const AROUND: usize = 64;
    let memory = &task.space.memory;
    let mut pieces: Vec<KeyPiece> = Vec::new();
    let mut add = |start: u64, len: usize| {
        let known = |piece: &KeyPiece| {
            piece.addr.0 <= start && start + len as u64 <= piece.addr.0 + piece.bytes.len() as u64
        };
        // Memory of ours is not there when replaying.
        let end = start.saturating_add(len as u64);
        let ours = scratch::is_ours(task, GuestRange { start: GuestAddr(start), end: GuestAddr(end) });
        if start < PAGE_SIZE || end > i64::MAX as u64 || ours || pieces.iter().any(known) {
            return;
        }
        let mut bytes = vec![0; len];
        let read = memory.read_some(GuestAddr(start), &mut bytes);
        bytes.truncate(read & !7);
        if !bytes.is_empty() {
            pieces.push(KeyPiece { addr: GuestAddr(start), bytes });
        }
    };
    add(regs.rsp.wrapping_sub(BELOW) & !7, STACK);
    for at in operands(task, regs) {
        add(at, 8);
    }
    for pointer in &regs.to_words()[..15] {
        add((pointer & !7).wrapping_sub(AROUND as u64 / 4), AROUND);
    }
    pieces
}

/// The addresses that the next instructions access, as far as the present registers tell.
fn operands(task: &Task, regs: &Registers) -> Vec<u64> {
    const BYTES: usize = 384;
    const MOST: usize = 48;
    let mut code = [0; BYTES];
    let mut at = regs.rip;
    let mut found = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    for _ in 0..MOST {
        let read = task.space.memory.read_some(GuestAddr(at), &mut code[..16]);
        let instruction = Decoder::with_ip(64, &code[..read], at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            break;
        }
        for memory in factory.info(&instruction).used_memory() {
            let value = |register: iced_x86::Register, _, _| Some(value_of(regs, register));
            found.extend(memory.virtual_address(0, value));
        }
        at = match instruction.flow_control() {
            FlowControl::UnconditionalBranch => instruction.near_branch_target(),
            // A loop is most likely gone around once more.
            FlowControl::ConditionalBranch if instruction.near_branch_target() < at => {
                instruction.near_branch_target()
            }
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call => instruction.next_ip(),
            _ => break,
        };
        if at == regs.rip {
            break;
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn value_of(regs: &Registers, register: iced_x86::Register) -> u64 {
    use iced_x86::Register as R;
    match register.full_register() {
        general if general.is_gpr64() => regs.general(general.number() as u8),
        R::FS => regs.fs_base,
        R::GS => regs.gs_base,
        // The other segments begin at 0; vector indices belong to gathers, of which the first element is not told.
        _ => 0,
    }
}

/// The end of the instruction at the pc if it repeats itself, or of the call if it is made in memory of ours: a task stopped in the middle
/// of one stands at no boundary that a count of instructions can name.
fn repeat_end(task: &Task, regs: &Registers) -> Option<u64> {
    if let Some(end) = buffer::way_out(task, regs) {
        return Some(end);
    }
    let mut code = [0; 16];
    let read = task.space.memory.read_some(regs.pc(), &mut code);
    let instruction = Decoder::with_ip(64, &code[..read], regs.rip, DecoderOptions::NONE).decode();
    is_repeated(&instruction).then(|| instruction.next_ip())
}

/// Whether a task stands in the middle of an instruction, for all that can be told.
pub(crate) fn repeats(task: &Task, regs: &Registers) -> bool {
    repeat_end(task, regs).is_some()
}

/// Whether an instruction does its work step by step, and shows in registers how far it has come when it is interrupted. What gathers and
/// scatters does: it takes from its mask what is done.
fn is_repeated(instruction: &Instruction) -> bool {
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    instruction.is_string_instruction() && repeats || instruction.is_vsib()
}

/// Lets a task run so many instructions, fewer where the next one would show that it is stepped (`pushf` and `syscall` store the
/// trap flag) or be taken apart (what repeats itself). Whether it was that many.
pub(crate) fn step(task: &Task, mut stopped: Stopped, steps: u64) -> Result<(Stopped, bool), StopError> {
    for _ in 0..steps {
        let regs = stopped.registers()?;
        let mut code = [0; 16];
        let read = task.space.memory.read_some(regs.pc(), &mut code);
        let instruction = Decoder::with_ip(64, &code[..read], regs.rip, DecoderOptions::NONE).decode();
        let tells = matches!(
            instruction.mnemonic(),
            Mnemonic::Pushfq
                | Mnemonic::Pushf
                | Mnemonic::Popfq
                | Mnemonic::Popf
                | Mnemonic::Syscall
                | Mnemonic::Int
        );
        if tells || instruction.is_invalid() || is_repeated(&instruction) {
            return Ok((stopped, false));
        }
        (stopped, _) = step_once(task, stopped)?;
    }
    Ok((stopped, true))
}

/// Whether a SIGTRAP is that of a single step.
fn is_step(stopped: &Stopped) -> Result<bool, StopError> {
    const TRAP_TRACE: i32 = 2;
    let info = stopped.siginfo()?;
    Ok(signal::si_code(&info) == TRAP_TRACE)
}

/// A task that may stand inside an instruction that repeats itself runs to its end.
pub(crate) fn leave_repeated(
    task: &Task,
    mut stopped: Stopped,
    mut regs: Registers,
) -> Result<(Stopped, Registers), StopError> {
    while repeats(task, &regs) {
        let at = regs.rip;
        (stopped, regs) = step_once(task, stopped)?;
        if regs.rip != at {
            break;
        }
    }
    Ok((stopped, regs))
}

/// A tracer stepped a task: to the end of an instruction that repeats itself, and unseen by the program.
pub(crate) fn after_step(
    task: &Task,
    mut stopped: Stopped,
    mut regs: Registers,
) -> Result<(Stopped, Registers), StopError> {
    const TRAP_FLAG: u64 = 1 << 8;
    let from = task.after;
    let info = stopped.siginfo()?;
    while regs.rip == from.rip && repeats(task, &regs) {
        (stopped, regs) = step_once(task, stopped)?;
    }
    stopped.set_siginfo(&info)?;
    let mut code = [0; 16];
    let read = task.space.memory.read_some(from.pc(), &mut code);
    let instruction = Decoder::with_ip(64, &code[..read], from.rip, DecoderOptions::NONE).decode();
    if matches!(instruction.mnemonic(), Mnemonic::Pushfq) && from.eflags & TRAP_FLAG == 0 {
        let pushed = task.space.memory.read_u64(regs.sp())?;
        task.space.memory.write(regs.sp(), &(pushed & !TRAP_FLAG).to_le_bytes())?;
    }
    Ok((stopped, regs))
}

fn step_once(task: &Task, stopped: Stopped) -> Result<(Stopped, Registers), StopError> {
    check_alive(task.host)?;
    stopped.step(0)?;
    let stopped = match wait_one(task.host)? {
        Report::Signal(libc::SIGTRAP, stopped) if is_step(&stopped)? => stopped,
        report => return Err(StopError::Instead(report)),
    };
    let regs = stopped.registers()?;
    Ok((stopped, regs))
}

/// Lets a task run to `end`.
fn run_past(task: &mut Task, mut stopped: Stopped, end: u64) -> Result<Next, StopError> {
    stopped.poke_user(DEBUG_REGISTERS, end)?;
    stopped.poke_user(DEBUG_REGISTERS + 7 * 8, BREAK_ON_EXECUTION)?;
    task.runs_to = Some(end);
    task.adrift = true;
    Ok((stopped, Resume::Cont(0)))
}

/// Clears the breakpoint that [`run_past`] set. Whether the task has just reached it.
pub(crate) fn ran_past(task: &mut Task, stopped: &mut Stopped, trap: bool) -> Result<bool, StopError> {
    let Some(end) = task.runs_to.take() else { return Ok(false) };
    stopped.poke_user(DEBUG_REGISTERS + 7 * 8, 0)?;
    let reached = trap && stopped.registers()?.rip == end;
    // Something else came first; the next tick tries again.
    task.interrupted &= reached;
    Ok(reached)
}

/// Tells a running task to stop soon.
pub(crate) fn interrupt(task: &mut Task) {
    if !std::mem::replace(&mut task.interrupted, true) {
        let tid: HostTid = task.host;
        if let Err(gone) = ptrace::Running::assume(tid).interrupt() {
            tracing::debug!(%gone, "interrupted a task that is gone");
        }
    }
}
