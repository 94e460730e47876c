//! What `bpf` writes: into its `union bpf_attr`, and through pointers in it (linux/bpf.h, kernel/bpf/syscall.c).

use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};

use super::hand::Failure;
use super::{Ranges, applies, readable};
use crate::call::Call;
use crate::errno::Errno;
use crate::row::{Hand, When};

/// Where `BPF_PROG_QUERY` says how many ids there is room for, and then how many there are.
const QUERY_COUNT: u64 = 24;

/// What a command of this kind wrote.
pub(super) fn write(
    hand: Hand,
    call: &Call,
    mem: &dyn GuestMemory,
    ranges: &mut Ranges,
) -> Result<(), Failure> {
    match hand {
        Hand::BpfElement => element(call, mem, ranges)?,
        Hand::BpfLog => log(call, mem, ranges)?,
        Hand::BpfQuery => query(call, mem, ranges)?,
        Hand::BpfInfo => info(call, mem, ranges)?,
        Hand::BpfNextId if applies(call, When::Success) => ranges.push(call.args[1].wrapping_add(4), 4),
        _ => {}
    }
    Ok(())
}

pub(super) fn note(call: &mut Call, mem: &dyn GuestMemory) {
    call.note_u32(GuestAddr(call.args[1]).wrapping_add(QUERY_COUNT), mem);
}

/// A value or key, as long as the map says, through the third field.
fn element(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Failure> {
    const PLACE: u64 = 16;
    if applies(call, When::Success) {
        let len = call.told().ok_or(Failure::Unknown)?;
        ranges.push(mem.read_u64(GuestAddr(call.args[1]).wrapping_add(PLACE))?, len);
    }
    Ok(())
}

/// The verifier's log, also of a program that was not loaded, and how long it would be.
fn log(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    const SIZE: u64 = 28;
    const BUFFER: u64 = 32;
    const TRUE_SIZE: u64 = 140;
    let [_, attr, size, ..] = call.args;
    if size < BUFFER + 8 || applies(call, When::Failure(Errno::EFAULT)) {
        return Ok(());
    }
    let len = u64::from(mem.read_u32(GuestAddr(attr).wrapping_add(SIZE))?);
    let buffer = GuestRange::new(GuestAddr(mem.read_u64(GuestAddr(attr).wrapping_add(BUFFER))?), len);
    ranges.push(buffer.start.0, readable(buffer, mem).0 - buffer.start.0);
    if size >= TRUE_SIZE + 4 {
        ranges.push(attr.wrapping_add(TRUE_SIZE), 4);
    }
    Ok(())
}

/// Flags, how many there are, and four lists of 32-bit numbers where they were asked for.
fn query(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    const FLAGS: u64 = 12;
    const LISTS: [u64; 4] = [16, 32, 40, 48];
    const REVISION: u64 = 56;
    const ENOSPC: When = When::SuccessOr(Errno::ENOSPC);
    let [_, attr, size, ..] = call.args;
    if !applies(call, ENOSPC) {
        return Ok(());
    }
    let at = |offset| GuestAddr(attr).wrapping_add(offset);
    let there = u64::from(mem.read_u32(at(QUERY_COUNT))?);
    let count = call.before(at(QUERY_COUNT)).map_or(there, |room| room.min(there));
    ranges.push(at(FLAGS).0, 4);
    ranges.push(at(QUERY_COUNT).0, 4);
    for list in LISTS.into_iter().filter(|list| list + 8 <= size) {
        ranges.push(mem.read_u64(at(list))?, 4 * count);
    }
    if REVISION + 8 <= size {
        ranges.push(at(REVISION).0, 8);
    }
    Ok(())
}

/// A description, and how long it is.
fn info(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    const LENGTH: u64 = 4;
    const BUFFER: u64 = 8;
    let at = |offset| GuestAddr(call.args[1]).wrapping_add(offset);
    if applies(call, When::Success) {
        ranges.push(at(LENGTH).0, 4);
        ranges.push(mem.read_u64(at(BUFFER))?, u64::from(mem.read_u32(at(LENGTH))?));
    }
    Ok(())
}
