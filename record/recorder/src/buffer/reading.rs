//! Instructions that read the time stamp counter, rewritten to lead to the code in the space: what that needs to know, and what it leaves to
//! be trapped.

use abi::buffer::{SITE, TSC_FROM, TSC_TOLD};
use guest::{GuestAddr, GuestMemory, Registers};
use trace::MapOp;

use crate::session::Core;
use crate::stop::StopError;
use crate::task::Task;
use crate::tsc::Line;

use super::{Mapped, may_rewrite, met, rewind};

/// The registers of a task that the code had trapped as if the program's own instruction, of this length, had been; `None` of others.
pub(crate) fn at_reading(task: &Task, regs: &Registers, len: usize) -> Result<Option<Registers>, StopError> {
    if !task.space.has_buffer() || !buffer::is_reading(regs.rip) {
        return Ok(None);
    }
    let memory = &task.space.memory;
    let descriptor = memory.read_u64(GuestAddr(SITE))?;
    let after = memory.read_u64(GuestAddr(descriptor))?;
    Ok(Some(Registers { rip: after.wrapping_sub(len as u64), ..*regs }))
}

/// Where a task goes on behind an instruction that is rewritten: perhaps in what was moved from there.
pub(crate) fn resume(task: &Task, site: u64) -> Option<u64> {
    let buffer = task.space.buffer.borrow();
    buffer.inside.as_ref()?.sites.get(&site).map(|site| site.resume)
}

/// What was told last in a task's space.
pub(crate) fn told(task: &Task) -> u64 {
    let knows = task.space.buffer.borrow().inside.as_ref().is_some_and(|inside| inside.line.is_some());
    if knows { task.space.memory.read_u64(GuestAddr(TSC_TOLD)).unwrap_or(0) } else { 0 }
}

/// An instruction at `site` was trapped, and is answered. Sees to it that the next ones need not be; what is rewritten for that.
pub(crate) fn after_reading(core: &mut Core, task: &Task, site: u64) -> Result<Vec<MapOp>, StopError> {
    if let Some(inside) = &mut task.space.buffer.borrow_mut().inside {
        rewind(&task.space, inside)?;
        tell(core, task, inside)?;
    }
    Ok(if may_rewrite(core, task) { met(core, task, site) } else { Vec::new() })
}

/// Tells a space how the counter is reckoned at present, if it has instructions that want to know, and does not.
fn tell(core: &Core, task: &Task, inside: &mut Mapped) -> Result<(), StopError> {
    let Some(line) = core.stamps.line().filter(|_| inside.sites.values().any(|site| site.reads)) else {
        return Ok(());
    };
    if inside.line == Some(line) {
        return Ok(());
    }
    let Line { from, lasts, rate, ticks, processor } = line;
    let words = [from, lasts, rate, ticks, processor.into()];
    task.space.memory.write(GuestAddr(TSC_FROM), &words.map(u64::to_le_bytes).concat())?;
    inside.line = Some(line);
    Ok(())
}
