//! Effects of socket messages (recvmsg(2), recvmmsg(2), sendmmsg(2)).

use guest::{GuestAddr, GuestMemory, Unmapped};

use super::{Ranges, Vector, applies, entered, fill, iovecs, note_vector, push_readable};
use crate::call::Call;
use crate::errno::Errno;
use crate::row::When;

/// Offsets in `struct msghdr`.
pub(super) const NAME_LENGTH: u64 = 8;
pub(super) const VECTOR: u64 = 16;
pub(super) const VECTOR_LENGTH: u64 = 24;
pub(super) const CONTROL: u64 = 32;
pub(super) const CONTROL_LENGTH: u64 = 40;
const FLAGS: u64 = 48;
/// Offset of `msg_len` in `struct mmsghdr`, and its size.
pub(super) const MESSAGE_LENGTH: u64 = 56;
pub(super) const ENTRY: u64 = 64;
/// Most messages of one call (`UIO_MAXIOV`).
const MAX_MESSAGES: u64 = 1024;

/// Notes the room for an address in the header at `header`, and buffers that lie over what tells of them.
pub(super) fn note(call: &mut Call, header: u64, mem: &dyn GuestMemory) {
    let field = |offset| GuestAddr(header).wrapping_add(offset);
    call.note_u32(field(NAME_LENGTH), mem);
    if let (Ok(at), Ok(count)) = (mem.read_u64(field(VECTOR)), mem.read_u64(field(VECTOR_LENGTH))) {
        note_vector(call, at, count, mem);
    }
}

/// How many messages `recvmmsg` or `sendmmsg` was given.
pub(super) fn count(call: &Call) -> u64 {
    u64::from(call.args[2] as u32).min(MAX_MESSAGES)
}

/// Notes the same in each of `recvmmsg`'s headers.
pub(super) fn note_all(call: &mut Call, mem: &dyn GuestMemory) {
    for at in 0..count(call) {
        note(call, call.args[1].wrapping_add(at * ENTRY), mem);
    }
}

pub(super) fn recvmsg(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    let header = GuestAddr(call.args[1]);
    if applies(call, When::Failure(Errno::EFAULT)) {
        // What is not there, the kernel did not get to.
        let _ = faulted(call, header, mem, ranges);
    } else if applies(call, When::Success) {
        received(call, header, call.result as u64, mem, ranges)?;
    }
    Ok(())
}

/// What may have been written of a message before the kernel met memory that is not there.
fn faulted(
    call: &Call,
    header: GuestAddr,
    mem: &dyn GuestMemory,
    ranges: &mut Ranges,
) -> Result<(), Unmapped> {
    let field = |offset| header.wrapping_add(offset);
    for (base, len) in buffers(header, mem)? {
        push_readable(base, len, mem, ranges);
    }
    let room = call.before(field(NAME_LENGTH)).unwrap_or_default();
    push_readable(mem.read_u64(header)?, room, mem, ranges);
    push_readable(mem.read_u64(field(CONTROL))?, mem.read_u64(field(CONTROL_LENGTH))?, mem, ranges);
    push_readable(field(NAME_LENGTH).0, FLAGS + 4 - NAME_LENGTH, mem, ranges);
    Ok(())
}

pub(super) fn recvmmsg(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    let [_, vector, _, _, timeout, _] = call.args;
    for at in 0..(call.result.max(0) as u64).min(MAX_MESSAGES) {
        let entry = GuestAddr(vector).wrapping_add(at * ENTRY);
        let length = entry.wrapping_add(MESSAGE_LENGTH);
        received(call, entry, u64::from(mem.read_u32(length)?), mem, ranges)?;
        ranges.push(length.0, 4);
    }
    if call.result > 0 {
        ranges.push(timeout, 16);
    }
    Ok(())
}

/// Each message that was sent gets its length.
pub(super) fn sendmmsg(call: &Call, ranges: &mut Ranges) {
    for at in 0..(call.result.max(0) as u64).min(MAX_MESSAGES) {
        ranges.push(call.args[1].wrapping_add(at * ENTRY + MESSAGE_LENGTH), 4);
    }
}

/// A message of `len` bytes arrived in the header at `header`: the address (if one is wanted) and its length, the buffers,
/// control data and its length, flags.
fn received(
    call: &Call,
    header: GuestAddr,
    len: u64,
    mem: &dyn GuestMemory,
    ranges: &mut Ranges,
) -> Result<(), Unmapped> {
    let field = |offset| header.wrapping_add(offset);
    let name = mem.read_u64(header)?;
    if name != 0 {
        let at = field(NAME_LENGTH);
        let after = u64::from(mem.read_u32(at)?);
        ranges.push(name, call.before(at).map_or(after, |before| before.min(after)));
        ranges.push(at.0, 4);
    }
    let vector = entered(call, mem.read_u64(field(VECTOR))?, mem.read_u64(field(VECTOR_LENGTH))?, mem)?;
    fill(&vector, len, ranges);
    ranges.push(mem.read_u64(field(CONTROL))?, mem.read_u64(field(CONTROL_LENGTH))?);
    // The control length, the flags after it.
    ranges.push(field(CONTROL_LENGTH).0, FLAGS + 4 - CONTROL_LENGTH);
    Ok(())
}

/// The buffers of the message at `header`, for `output`.
pub(super) fn buffers(header: GuestAddr, mem: &dyn GuestMemory) -> Result<Vector, Unmapped> {
    let vector = mem.read_u64(header.wrapping_add(VECTOR))?;
    iovecs(vector, mem.read_u64(header.wrapping_add(VECTOR_LENGTH))?, mem)
}

/// The buffers and length of each message `sendmmsg` sent, for `output`.
pub(super) fn sent(call: &Call, mem: &dyn GuestMemory) -> Result<Vec<(Vector, u64)>, Unmapped> {
    (0..(call.result.max(0) as u64).min(MAX_MESSAGES))
        .map(|at| {
            let entry = GuestAddr(call.args[1]).wrapping_add(at * ENTRY);
            Ok((buffers(entry, mem)?, u64::from(mem.read_u32(entry.wrapping_add(MESSAGE_LENGTH))?)))
        })
        .collect()
}
