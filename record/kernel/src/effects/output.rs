//! Bytes that a call took out of guest memory for a descriptor.

use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};

use super::{EffectError, Ranges, fill, iovecs, message};
use crate::call::Call;
use crate::row::{Hand, Kind, Row};
use crate::table;

/// Bytes a call took from guest memory for a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// The descriptor.
    pub fd: i32,
    /// Where the bytes are, in order.
    pub ranges: Vec<GuestRange>,
}

/// The bytes that a successful `write`, `writev`, `pwrite`, `send` or the like took out of guest memory and their descriptor;
/// `None` for calls that do no such thing, failed, or moved nothing.
pub fn output(call: &Call, mem: &dyn GuestMemory) -> Result<Option<Output>, EffectError> {
    let Some(row) = table::row(call.nr).filter(|row| row.sends && call.result > 0) else {
        return Ok(None);
    };
    let mut ranges = Ranges { list: Vec::new() };
    collect(row, call, mem, &mut ranges).map_err(|source| EffectError::Memory { name: row.name, source })?;
    Ok(Some(Output { fd: call.args[0] as u32 as i32, ranges: ranges.list }))
}

fn collect(row: &Row, call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    let at = call.args[1];
    let moved = call.result as u64;
    if row.effect == crate::row::Effect::Hand(Hand::Sendmmsg) {
        for (vector, len) in message::sent(call, mem)? {
            fill(&vector, len, ranges);
        }
        return Ok(());
    }
    match row.args[1].kind {
        Kind::InIov(count) => fill(&iovecs(at, call.args[usize::from(count)], mem)?, moved, ranges),
        Kind::InMsg => fill(&message::buffers(GuestAddr(at), mem)?, moved, ranges),
        _ => ranges.push(at, moved.min(call.args[2])),
    }
    Ok(())
}
