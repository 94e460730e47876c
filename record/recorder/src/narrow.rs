//! System calls made by `int 0x80`, which are those of the 32-bit table: the kernel makes them, events have their twins of the 64-bit one.
//!
//! From the stop at exit on they are system calls like all others. Knows nothing of what a twin does.

use std::rc::Rc;

use guest::{GuestMemory, Registers};
use kernel::{Call, Class, Narrow};
use ptrace::Stopped;
use trace::SyscallInfo;

use crate::scratch::Plan;
use crate::session::Core;
use crate::stop::{Next, StopError};
use crate::task::{Pending, Task};
use crate::{buffer, filter, ignored, paranoid, ptracing, seccomp, signal, syscall};

/// Whether a stop at a call's entry is at one of these. The registers nearly always tell.
pub(crate) fn is_at(stopped: &Stopped, regs: &Registers) -> Result<bool, StopError> {
    Ok(regs.rcx != regs.rip && stopped.event_message()? == u64::from(filter::FOREIGN_CALL))
}

/// Refuses one that the filter trapped because its registers would not have told.
pub(crate) fn refuse_trapped(signal: i32, info: &[u8; 128]) -> Result<(), StopError> {
    let of_filter = signal == libc::SIGSYS && signal::si_code(info) == seccomp::SYS_SECCOMP;
    let arch = signal::info_word(info, 28) as u32;
    let data = signal::info_word(info, 4) as u32;
    if of_filter && arch == filter::AUDIT_ARCH_I386 && data == filter::FOREIGN_CALL {
        let why = "whose ecx is the address behind it is not supported";
        return Err(refused(signal::info_word(info, 24) as u32, why));
    }
    Ok(())
}

/// A task was killed on its way into a call. Whether it was one of these, which then began.
pub(crate) fn never_made(core: &mut Core, task: &mut Task, regs: &Registers) -> bool {
    let mut instruction = [0; 2];
    let read = task.space.memory.read(regs.pc().wrapping_sub(LENGTH), &mut instruction);
    let call = kernel::narrow(regs.orig_rax as u32).filter(|_| read.is_ok() && instruction == [0xcd, 0x80]);
    if let Some(call) = call {
        begin(core, task, call, call.args(arguments(regs)), regs);
    }
    call.is_some()
}

const LENGTH: u64 = 2;

fn begin(core: &mut Core, task: &mut Task, call: &Narrow, args: [u64; 6], regs: &Registers) {
    let before = Registers {
        rax: regs.orig_rax & 0xffff_ffff,
        orig_rax: 0,
        rip: regs.rip.wrapping_sub(LENGTH),
        ..*regs
    };
    let info = SyscallInfo { nr: call.twin, args, result: None, output: None, output_crc: 0 };
    core.sink.begin_narrow(task.id, task.space.id, before, info);
    task.after = before;
}

fn arguments(regs: &Registers) -> [u64; 6] {
    [regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp].map(|word| word & 0xffff_ffff)
}

fn refused(nr: u32, why: &str) -> StopError {
    StopError::Refused(format!("int 0x80 (32-bit system call {nr}) {why}"))
}

/// A system call is about to be made so.
pub(crate) fn on_entry(
    core: &mut Core,
    task: &mut Task,
    mut stopped: Stopped,
    regs: &Registers,
) -> Result<Next, StopError> {
    let nr = regs.orig_rax as u32;
    if ptracing::stops_at_entry(task) {
        return Err(refused(nr, "before a tracer is not supported"));
    }
    if seccomp::denies_narrow(task, nr, regs.rip, &arguments(regs)) {
        return Err(refused(nr, "which a filter denies is not supported"));
    }
    let (call, class, args) = decide(task, nr, regs)?;
    let space = Rc::clone(&task.space);
    let may_write = kernel::may_write(call.twin, &args);
    if class == Class::MayBlock && may_write && space.is_shared() {
        return Err(refused(nr, "that waits, beside other tasks in its memory, is not supported"));
    }
    buffer::before_call(core, task, class, call.twin, &args);
    begin(core, task, call, args, regs);
    let emulated = match class {
        Class::Emulate(errno) => Some(errno.as_result()),
        _ => None,
    };
    if let Some(result) = emulated {
        stopped.set_registers(&Registers { orig_rax: u64::MAX, rax: result as u64, ..*regs })?;
    }
    let made = Call::enter(call.twin, args, &space.memory);
    let mask = if emulated.is_none() { ignored::block(task, &mut stopped, class, &made)? } else { None };
    let pending = Pending {
        call: made,
        class,
        writes: Plan::AsItIs,
        alone: kernel::needs_space(class, call.twin, &args, &space.memory),
        made: (call.twin, args),
        narrow: Some(call),
        new_action: None,
        emulated,
        filters: seccomp::Part::None,
        idle: false,
        waits: false,
        announced: false,
        mask,
        snapshot: (core.paranoid && !space.is_shared()).then(|| paranoid::Snapshot::take(task)),
    };
    syscall::until_return(core, task, stopped, pending)
}

/// What is to be done about a call, and the arguments that its twin would have.
fn decide(task: &Task, nr: u32, regs: &Registers) -> Result<(&'static Narrow, Class, [u64; 6]), StopError> {
    let call = kernel::narrow(nr).ok_or_else(|| refused(nr, "is not supported"))?;
    let args = call.args(arguments(regs));
    let class = kernel::decide(call.twin, &args, &task.space.memory)
        .map_err(|refusal| StopError::Refused(format!("int 0x80: {refusal}")))?;
    match class {
        Class::Plain | Class::MayBlock | Class::Map(_) | Class::Exit | Class::Emulate(_) => {
            Ok((call, class, args))
        }
        _ => Err(refused(nr, "is not supported")),
    }
}
