//! What is not in the instruction stream's fixed slots: runs of variable stores, and what the kernel wrote.

use guest::{EventId, GuestAddr, Moment, TaskId};

use crate::marks::Marks;
use crate::raw::{SystemWrite, VariableRun};
use crate::wire::{Reader, WireError, put_signed, put_varint};

const INVALID: WireError = WireError::Invalid { what: "length of a write" };

/// The runs of variable stores, without their bytes.
pub(crate) fn write_runs(out: &mut Vec<u8>, runs: &[VariableRun]) {
    put_varint(out, runs.len() as u64);
    let (mut position, mut end) = (0, 0u64);
    for run in runs {
        put_varint(out, u64::from(run.position - position));
        put_varint(out, u64::from(run.store));
        put_signed(out, run.addr.wrapping_sub(end) as i64);
        put_varint(out, u64::from(run.len));
        (position, end) = (run.position, run.addr.wrapping_add(u64::from(run.len)));
    }
}

pub(crate) fn read_runs(reader: &mut Reader<'_>) -> Result<Vec<VariableRun>, WireError> {
    let mut runs = Vec::new();
    let (mut position, mut end, mut bytes) = (0u64, 0u64, 0usize);
    for _ in 0..reader.count(4)? {
        position += reader.varint()?;
        let store = u16::try_from(reader.varint()?).map_err(|_| INVALID)?;
        let addr = end.wrapping_add(reader.signed()? as u64);
        let len = u32::try_from(reader.varint()?).map_err(|_| INVALID)?;
        let place = u32::try_from(position).map_err(|_| INVALID)?;
        runs.push(VariableRun { position: place, store, addr, len, bytes });
        bytes += len as usize;
        end = addr.wrapping_add(u64::from(len));
    }
    Ok(runs)
}

/// The kernel's writes, without their bytes.
pub(crate) fn write_system(out: &mut Vec<u8>, writes: &[SystemWrite], marks: &Marks) {
    put_varint(out, writes.len() as u64);
    let (mut tick, mut event, mut end) = (0, 0u64, 0u64);
    for write in writes {
        put_varint(out, write.tick - tick);
        put_signed(out, write.event.0.wrapping_sub(event) as i64);
        put_signed(out, write.addr.0.wrapping_sub(end) as i64);
        put_varint(out, u64::from(write.len));
        put_varint(out, marks.moment(write.tick).0.wrapping_sub(write.moment.0));
        put_signed(out, i64::from(write.task.0) - i64::from(marks.at(write.tick).task.0));
        (tick, event) = (write.tick, write.event.0);
        end = write.addr.0.wrapping_add(u64::from(write.len));
    }
}

pub(crate) fn read_system(reader: &mut Reader<'_>, marks: &Marks) -> Result<Vec<SystemWrite>, WireError> {
    let mut writes = Vec::new();
    let (mut tick, mut event, mut end, mut bytes) = (0u64, 0u64, 0u64, 0u64);
    for _ in 0..reader.count(6)? {
        tick = tick.checked_add(reader.varint()?).ok_or(INVALID)?;
        event = event.wrapping_add(reader.signed()? as u64);
        let addr = end.wrapping_add(reader.signed()? as u64);
        let len = u32::try_from(reader.varint()?).map_err(|_| INVALID)?;
        let moment = Moment(marks.moment(tick).0.wrapping_sub(reader.varint()?));
        let task = i64::from(marks.at(tick).task.0).wrapping_add(reader.signed()?);
        let task = TaskId(u32::try_from(task).map_err(|_| INVALID)?);
        let (addr_here, event_here) = (GuestAddr(addr), EventId(event));
        writes.push(SystemWrite { tick, addr: addr_here, len, event: event_here, moment, task, bytes });
        bytes += u64::from(len);
        end = addr.wrapping_add(u64::from(len));
    }
    Ok(writes)
}
