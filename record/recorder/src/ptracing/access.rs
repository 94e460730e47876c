//! What a tracer reads and changes in a stopped tracee. Changes of registers and memory are events of the tracee. Errors are the
//! kernel's own, which is asked wherever it knows.

use guest::{GuestAddr, GuestMemory, GuestRange, Registers, TaskId};
use kernel::Errno;
use ptrace::{Data, Stopped};
use trace::{Data as Bytes, Event, Fact, MemWrite, TracedInfo};

use super::notice::Siginfo;
use super::{EVENT_SECCOMP, EVENT_STOP, Stop, Traced};
use crate::answer::store;
use crate::session::Core;
use crate::stop::StopError;
use crate::task::{Run, Task};
use crate::{procfs, scratch, signal, syscall};

const EIO: i64 = -(libc::EIO as i64);
const WORD: u64 = 8;
/// More than any register set.
const ROOM: usize = 16 * 1024;

// Requests (`linux/ptrace.h`, `asm/ptrace-abi.h`).
const PEEKTEXT: u32 = 1;
const PEEKDATA: u32 = 2;
const PEEKUSER: u32 = 3;
const POKETEXT: u32 = 4;
const POKEDATA: u32 = 5;
const POKEUSER: u32 = 6;
const GETREGS: u32 = 12;
const SETREGS: u32 = 13;
const GETFPREGS: u32 = 14;
const SETFPREGS: u32 = 15;
const ARCH_PRCTL: u32 = 30;
const GETEVENTMSG: u32 = 0x4201;
const GETSIGINFO: u32 = 0x4202;
const SETSIGINFO: u32 = 0x4203;
const GETREGSET: u32 = 0x4204;
const SETREGSET: u32 = 0x4205;
const PEEKSIGINFO: u32 = 0x4209;
const GETSIGMASK: u32 = 0x420a;
const SETSIGMASK: u32 = 0x420b;
const GET_SYSCALL_INFO: u32 = 0x420e;
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;

/// A request of a tracer's about a tracee.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) request: u32,
    pub(super) addr: u64,
    pub(super) data: u64,
}

/// Does what is asked of a held task; the result, or a negated errno.
pub(super) fn access(
    core: &mut Core,
    tracer: &Task,
    task: &mut Task,
    asked: Asked,
) -> Result<i64, StopError> {
    let Asked { request, addr, data } = asked;
    let held = std::mem::replace(&mut task.run, Run::Running);
    let Run::Traced(mut stopped) = held else {
        task.run = held;
        return Ok(-i64::from(libc::ESRCH));
    };
    let result = match request {
        PEEKTEXT | PEEKDATA if is_ours(task, addr) => EIO,
        PEEKTEXT | PEEKDATA | PEEKUSER => get(tracer, &mut stopped, asked, WORD as usize),
        POKETEXT | POKEDATA | POKEUSER => poke(core, tracer, task, &mut stopped, asked)?,
        GETREGS => get(tracer, &mut stopped, asked, size_of::<Registers>()),
        GETFPREGS => get(tracer, &mut stopped, asked, FPREGS),
        SETREGS => set(core, tracer, task, &mut stopped, asked, size_of::<Registers>())?,
        SETFPREGS => set(core, tracer, task, &mut stopped, asked, FPREGS)?,
        GETREGSET | SETREGSET => register_set(core, tracer, task, &mut stopped, asked)?,
        ARCH_PRCTL => segment_base(core, tracer, task, &mut stopped, asked)?,
        GETEVENTMSG => store(tracer, data, &message(task).to_le_bytes(), 0),
        GETSIGINFO | SETSIGINFO => siginfo(tracer, task, &mut stopped, asked),
        PEEKSIGINFO => pending_signals(tracer, &mut stopped, asked),
        GETSIGMASK => get(tracer, &mut stopped, asked, WORD as usize),
        SETSIGMASK => match tracer.space.memory.read_vec(GuestAddr(data), WORD as usize) {
            Err(_) if addr == WORD => Errno::EFAULT.as_result(),
            bytes => {
                let result = stopped.pass(request, addr, Data::Memory(&mut bytes.unwrap_or(vec![0; 8])));
                task.segv.blocked = signal::blocks_segv(stopped.signal_mask()?);
                result
            }
        },
        GET_SYSCALL_INFO => {
            let info = syscall_info(task, &stopped.registers()?);
            let shown = info.len().min(addr as usize);
            store(tracer, data, &info[..shown], info.len() as i64)
        }
        GET_RSEQ_CONFIGURATION => {
            let mut room = [0; 64];
            let result = stopped.pass(request, addr.min(64), Data::Memory(&mut room));
            let len = (addr as usize).min(result.max(0) as usize);
            if result > 0 { store(tracer, data, &room[..len], result) } else { result }
        }
        _ => EIO,
    };
    task.run = Run::Traced(stopped);
    Ok(result)
}

/// Size of `struct user_fpregs_struct`.
const FPREGS: usize = 512;

/// Whether a word lies in memory of ours, which is not there for the guest.
fn is_ours(task: &Task, addr: u64) -> bool {
    let end = GuestAddr(addr.saturating_add(WORD));
    scratch::is_ours(task, GuestRange { start: GuestAddr(addr), end })
}

/// A request that fills `len` bytes.
fn get(tracer: &Task, stopped: &mut Stopped, asked: Asked, len: usize) -> i64 {
    let mut bytes = vec![0; len];
    let result = stopped.pass(asked.request, asked.addr, Data::Memory(&mut bytes));
    if result < 0 { result } else { store(tracer, asked.data, &bytes, result) }
}

/// A request that takes `len` bytes of registers.
fn set(
    core: &mut Core,
    tracer: &Task,
    task: &mut Task,
    stopped: &mut Stopped,
    asked: Asked,
    len: usize,
) -> Result<i64, StopError> {
    let Ok(mut bytes) = tracer.space.memory.read_vec(GuestAddr(asked.data), len) else {
        return Ok(Errno::EFAULT.as_result());
    };
    let result = stopped.pass(asked.request, asked.addr, Data::Memory(&mut bytes));
    changed(core, (tracer.id, asked.request), task, stopped, Vec::new())?;
    Ok(result)
}

fn poke(
    core: &mut Core,
    tracer: &Task,
    task: &mut Task,
    stopped: &mut Stopped,
    asked: Asked,
) -> Result<i64, StopError> {
    let Asked { request, addr, data } = asked;
    if request != POKEUSER && is_ours(task, addr) {
        return Ok(EIO);
    }
    let result = stopped.pass(request, addr, Data::Value(data));
    if result < 0 {
        return Ok(result);
    }
    let bytes = Bytes::Inline(data.to_le_bytes().to_vec());
    let writes =
        if request == POKEUSER { Vec::new() } else { vec![MemWrite { addr: GuestAddr(addr), data: bytes }] };
    changed(core, (tracer.id, request), task, stopped, writes)?;
    Ok(result)
}

/// `PTRACE_GETREGSET` and `PTRACE_SETREGSET`: the last argument is a `struct iovec`.
fn register_set(
    core: &mut Core,
    tracer: &Task,
    task: &mut Task,
    stopped: &mut Stopped,
    asked: Asked,
) -> Result<i64, StopError> {
    let Asked { request, addr, data } = asked;
    let memory = &tracer.space.memory;
    let word = |at: u64| memory.read_u64(GuestAddr(at));
    let fault = Errno::EFAULT.as_result();
    let (Ok(base), Ok(len)) = (word(data), word(data.wrapping_add(WORD))) else { return Ok(fault) };
    let mut len = (len as usize).min(ROOM);
    let mut bytes = vec![0; len];
    if request == SETREGSET && memory.read(GuestAddr(base), &mut bytes).is_err() {
        return Ok(fault);
    }
    let result = stopped.pass(request, addr, Data::Vector(&mut bytes, &mut len));
    if result < 0 {
        return Ok(result);
    }
    if request == SETREGSET {
        changed(core, (tracer.id, request), task, stopped, Vec::new())?;
    } else if store(tracer, base, &bytes[..len], 0) < 0 {
        return Ok(fault);
    }
    Ok(store(tracer, data.wrapping_add(WORD), &(len as u64).to_le_bytes(), result))
}

/// `PTRACE_ARCH_PRCTL`: the bases of fs and gs.
fn segment_base(
    core: &mut Core,
    tracer: &Task,
    task: &mut Task,
    stopped: &mut Stopped,
    asked: Asked,
) -> Result<i64, StopError> {
    const SET: std::ops::RangeInclusive<u64> = 0x1001..=0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    let regs = stopped.registers()?;
    Ok(match asked.data {
        GET_FS => store(tracer, asked.addr, &regs.fs_base.to_le_bytes(), 0),
        GET_GS => store(tracer, asked.addr, &regs.gs_base.to_le_bytes(), 0),
        code if SET.contains(&code) => {
            let result = stopped.pass(asked.request, asked.addr, Data::Value(code));
            changed(core, (tracer.id, asked.request), task, stopped, Vec::new())?;
            result
        }
        _ => Errno::EINVAL.as_result(),
    })
}

/// Writes down what a tracer changed.
fn changed(
    core: &mut Core,
    (tracer, request): (TaskId, u32),
    task: &mut Task,
    stopped: &Stopped,
    writes: Vec<MemWrite>,
) -> Result<(), StopError> {
    let regs = stopped.registers()?;
    let inside = task.pending.is_some();
    let after = match stop(task) {
        // What it changes there shows at the end of the call.
        _ if inside => task.after,
        Some(Stop::Entry | Stop::Event(EVENT_SECCOMP, _)) => syscall::at_instruction(&regs),
        _ => syscall::resumed(&regs),
    };
    let vector = matches!(request, SETFPREGS | SETREGSET | POKEUSER);
    let xstate = if vector { Some(stopped.xstate()?) } else { None };
    if after == task.after && writes.is_empty() && xstate.is_none() {
        return Ok(());
    }
    let fact = Fact::Traced(TracedInfo { tracer, request: Some(request) });
    let event = Event::in_place(task.id, task.space.id, task.after, fact);
    core.sink.event(&Event { after, writes, xstate, ..event })?;
    if !inside {
        let at_point = task.at_point;
        task.goes_on(after, regs);
        task.at_point = at_point;
    }
    Ok(())
}

fn stop(task: &Task) -> Option<Stop> {
    task.tracing.as_ref().and_then(|traced| traced.stop)
}

/// What `PTRACE_GETEVENTMSG` tells.
fn message(task: &Task) -> u64 {
    match stop(task) {
        Some(Stop::Event(_, message)) => message,
        Some(Stop::Entry) => 1,
        Some(Stop::Exit) => 2,
        _ => 0,
    }
}

/// `PTRACE_GETSIGINFO` and `PTRACE_SETSIGINFO`.
fn siginfo(tracer: &Task, task: &Task, stopped: &mut Stopped, asked: Asked) -> i64 {
    const LEN: usize = 128;
    let (Some(traced), Some(stop)) = (&task.tracing, stop(task)) else { return EIO };
    match stop {
        Stop::Signal(_) if asked.request == GETSIGINFO => get(tracer, stopped, asked, LEN),
        Stop::Group(_) if !traced.seized => Errno::EINVAL.as_result(),
        _ if asked.request == GETSIGINFO => {
            store(tracer, asked.data, &of_stop(task, traced, stop).bytes(), 0)
        }
        _ => match tracer.space.memory.read_vec(GuestAddr(asked.data), LEN) {
            Err(_) => Errno::EFAULT.as_result(),
            Ok(mut info) if matches!(stop, Stop::Signal(_)) => {
                stopped.pass(asked.request, asked.addr, Data::Memory(&mut info))
            }
            // It stands for nothing that is delivered.
            Ok(_) => 0,
        },
    }
}

/// What the kernel puts together for a stop that is not a signal's.
fn of_stop(task: &Task, traced: &Traced, stop: Stop) -> Siginfo {
    let code = traced.code(stop);
    let signo = match stop {
        Stop::Group(signal) => signal,
        _ => libc::SIGTRAP,
    };
    debug_assert!(code >> 8 == 0 || code >> 8 != EVENT_STOP || traced.seized, "only seized tasks stop so");
    Siginfo { signo, code, pid: traced.seen_as, uid: procfs::uid(task.host), status: 0 }
}

/// `PTRACE_PEEKSIGINFO`.
fn pending_signals(tracer: &Task, stopped: &mut Stopped, asked: Asked) -> i64 {
    const LEN: usize = 128;
    const MOST: i32 = 256;
    let Ok(mut which) = tracer.space.memory.read_vec(GuestAddr(asked.addr), 16) else {
        return Errno::EFAULT.as_result();
    };
    let count = i32::from_le_bytes([which[12], which[13], which[14], which[15]]).min(MOST);
    which[12..].copy_from_slice(&count.to_le_bytes());
    let mut infos = vec![0; count.max(0) as usize * LEN];
    let result = stopped.pass(asked.request, 0, Data::Both(&mut which, &mut infos));
    if result <= 0 {
        return result;
    }
    store(tracer, asked.data, &infos[..result as usize * LEN], result)
}

/// `struct ptrace_syscall_info` (`linux/ptrace.h`), as long as the stop's kind has it.
fn syscall_info(task: &Task, regs: &Registers) -> Vec<u8> {
    const NONE: u8 = 0;
    const ENTRY: u8 = 1;
    const EXIT: u8 = 2;
    const SECCOMP: u8 = 3;
    const ARCH_X86_64: u32 = 0xc000_003e;
    let kind = match stop(task) {
        Some(Stop::Entry) => ENTRY,
        Some(Stop::Exit) => EXIT,
        Some(Stop::Event(EVENT_SECCOMP, _)) => SECCOMP,
        _ => NONE,
    };
    let mut info = vec![kind, 0, 0, 0];
    info.extend(ARCH_X86_64.to_le_bytes());
    info.extend(regs.rip.to_le_bytes());
    info.extend(regs.rsp.to_le_bytes());
    if kind == ENTRY || kind == SECCOMP {
        info.extend(regs.orig_rax.to_le_bytes());
        regs.syscall_args().iter().for_each(|arg| info.extend(arg.to_le_bytes()));
    }
    if kind == SECCOMP {
        info.extend((message(task) as u32).to_le_bytes());
    } else if kind == EXIT {
        info.extend(regs.rax.to_le_bytes());
        info.push(u8::from(Errno::from_result(regs.rax as i64).is_some()));
    }
    info
}
