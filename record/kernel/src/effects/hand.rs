//! Effects that need code, one function per [`Hand`]. Facts from the man pages and the kernel's system call bodies.

use guest::{GuestAddr, GuestMemory, Unmapped};

use super::{FAULT_LIMIT, Ranges, applies, bpf, message, push_readable, set_bytes, word};
use crate::call::Call;
use crate::errno::Errno;
use crate::row::{Hand, When};
use crate::structs;

/// Why an effect is not known.
pub(super) enum Failure {
    /// Memory that must be there is not.
    Memory(Unmapped),
    /// It is another call's.
    Unknown,
}

impl From<Unmapped> for Failure {
    fn from(source: Unmapped) -> Self {
        Self::Memory(source)
    }
}

/// What `call` wrote.
pub(super) fn write(
    hand: Hand,
    call: &Call,
    mem: &dyn GuestMemory,
    ranges: &mut Ranges,
) -> Result<(), Failure> {
    match hand {
        Hand::Poll => poll(call, mem, ranges),
        Hand::Select => select(call, ranges),
        Hand::Recvmsg => message::recvmsg(call, mem, ranges)?,
        Hand::Recvmmsg => message::recvmmsg(call, mem, ranges)?,
        Hand::Sendmmsg => message::sendmmsg(call, ranges),
        Hand::Waitid => waitid(call, ranges),
        Hand::Clone => clone(call, ranges),
        Hand::Clone3 => clone3(call, mem, ranges)?,
        Hand::Capget => capget(call, ranges),
        Hand::Capset => capability_version(call, ranges),
        Hand::NameToHandle => name_to_handle(call, mem, ranges)?,
        Hand::Getxattrat => getxattrat(call, mem, ranges)?,
        Hand::GetMempolicy => get_mempolicy(call, ranges),
        Hand::LsmAttr => lsm_attr(call, mem, ranges)?,
        Hand::LsmModules => lsm_modules(call, ranges),
        Hand::SemGetall => sem_getall(call, mem, ranges),
        Hand::Ifconf => ifconf(call, mem, ranges)?,
        Hand::Fiemap => fiemap(call, mem, ranges)?,
        Hand::Statmount => statmount(call, mem, ranges)?,
        Hand::LockWord => lock_word(call, ranges),
        Hand::Sysfs => sysfs(call, mem, ranges)?,
        Hand::SetMm => set_mm(call, ranges),
        Hand::CounterSize => counter_size(call, ranges),
        Hand::Bridges => bridges(call, mem, ranges)?,
        Hand::OldCounters => old_counters(call, mem, ranges)?,
        Hand::RegisterSet => register_set(call, mem, ranges)?,
        Hand::SegmentBase => segment_base(call, ranges),
        Hand::BpfElement | Hand::BpfLog | Hand::BpfQuery | Hand::BpfInfo | Hand::BpfNextId => {
            bpf::write(hand, call, mem, ranges)?;
        }
        Hand::Restart => return Err(Failure::Unknown),
    }
    Ok(())
}

/// Notes the words that `call` reads and then overwrites.
pub(super) fn note(hand: Hand, call: &mut Call, mem: &dyn GuestMemory) {
    match hand {
        Hand::Recvmsg => message::note(call, call.args[1], mem),
        Hand::Recvmmsg => message::note_all(call, mem),
        Hand::Poll => note_timeout(call, 2, mem),
        Hand::Select => note_timeout(call, 4, mem),
        Hand::BpfQuery => bpf::note(call, mem),
        Hand::Capget | Hand::Capset => call.note_u32(GuestAddr(call.args[0]), mem),
        Hand::LsmAttr => call.note_u32(GuestAddr(call.args[2]), mem),
        _ => {}
    }
}

/// What `call` wrote in the memory of the task it made.
pub(super) fn write_child(
    hand: Hand,
    call: &Call,
    mem: &dyn GuestMemory,
    ranges: &mut Ranges,
) -> Result<(), Unmapped> {
    match hand {
        Hand::Clone if call.args[0] & CLONE_CHILD_SETTID != 0 => ranges.push(call.args[3], 4),
        Hand::Clone3 => {
            let args = GuestAddr(call.args[0]);
            if mem.read_u64(args)? & CLONE_CHILD_SETTID != 0 {
                ranges.push(mem.read_u64(args.wrapping_add(16))?, 4);
            }
        }
        _ => {}
    }
    Ok(())
}

/// The `struct iovec` in the last argument: the kernel fills the buffer and says how much of it.
fn register_set(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    if applies(call, When::Success) {
        let iov = GuestAddr(call.args[3]);
        ranges.push(mem.read_u64(iov)?, mem.read_u64(iov.wrapping_add(8))?);
        ranges.push(call.args[3] + 8, 8);
    }
    Ok(())
}

/// The requests that ask are those of `arch_prctl`.
fn segment_base(call: &Call, ranges: &mut Ranges) {
    const GET: [u64; 2] = [0x1003, 0x1004]; // ARCH_GET_FS, ARCH_GET_GS
    if applies(call, When::Success) && GET.contains(&(call.args[3] & 0xffff_ffff)) {
        ranges.push(call.args[2], 8);
    }
}

/// The row of `poll`: its third argument is a number there, a pointer in `ppoll`.
const POLL: u32 = crate::table::number("poll");

/// Most descriptors a process may have (`fs.nr_open`, unless raised).
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// `revents` is the last of the 8 bytes of each entry. It is written even when a signal ends the wait.
fn poll(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) {
    let count = u64::from(call.args[1] as u32).min(MAX_DESCRIPTORS);
    if applies(call, When::Failure(Errno::EFAULT)) {
        push_readable(call.args[0], count * 8, mem, ranges);
    } else if applies(call, When::Success) || applies(call, When::Interrupted) {
        for at in 0..count {
            ranges.push(call.args[0].wrapping_add(at * 8 + 6), 2);
        }
    }
    if call.nr != POLL {
        time_left(call, call.args[2], ranges);
    }
}

/// The sets are written on success only; the time left always.
fn select(call: &Call, ranges: &mut Ranges) {
    if applies(call, When::Success) {
        for set in &call.args[1..4] {
            ranges.push(*set, set_bytes(call.args[0]));
        }
    }
    time_left(call, call.args[4], ranges);
}

/// A timeout of zero is left alone, and so is one that could not be read.
fn time_left(call: &Call, at: u64, ranges: &mut Ranges) {
    let words = [at, at.wrapping_add(8)].map(|at| call.before(GuestAddr(at)));
    let zero = words == [Some(0), Some(0)];
    if !zero && !applies(call, When::Failure(Errno::EFAULT)) {
        ranges.push(at, 16);
    }
}

fn note_timeout(call: &mut Call, position: usize, mem: &dyn GuestMemory) {
    let at = GuestAddr(call.args[position]);
    if call.nr != POLL && at.0 != 0 {
        call.note_u64(at, mem);
        call.note_u64(at.wrapping_add(8), mem);
    }
}

/// Six fields of `siginfo_t`, even on failure (but of a fault); the usage when a child was found, which the result does not tell.
fn waitid(call: &Call, ranges: &mut Ranges) {
    let [_, _, info, _, usage, _] = call.args;
    if !applies(call, When::Failure(Errno::EFAULT)) && info != 0 {
        ranges.push(info, 12);
        ranges.push(info.wrapping_add(16), 12);
    }
    if applies(call, When::Success) {
        ranges.push(usage, u64::from(structs::RUSAGE.size));
    }
}

const CLONE_PIDFD: u64 = 0x1000;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;

/// `CLONE_PIDFD` and `CLONE_PARENT_SETTID` share one pointer and exclude each other.
fn clone(call: &Call, ranges: &mut Ranges) {
    if call.result > 0 && call.args[0] & (CLONE_PIDFD | CLONE_PARENT_SETTID) != 0 {
        ranges.push(call.args[2], 4);
    }
}

/// Fields of `struct clone_args`: flags, pidfd, child_tid, parent_tid, ..., 8 bytes each.
fn clone3(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    if call.result <= 0 {
        return Ok(());
    }
    let args = GuestAddr(call.args[0]);
    let flags = mem.read_u64(args)?;
    if flags & CLONE_PIDFD != 0 {
        ranges.push(mem.read_u64(args.wrapping_add(8))?, 4);
    }
    if flags & CLONE_PARENT_SETTID != 0 {
        ranges.push(mem.read_u64(args.wrapping_add(24))?, 4);
    }
    Ok(())
}

/// Version 1 has one 12-byte element, versions 2 and 3 two.
fn capget(call: &Call, ranges: &mut Ranges) {
    capability_version(call, ranges);
    if applies(call, When::Success) {
        let elements =
            if call.before(GuestAddr(call.args[0])) == Some(CAPABILITY_VERSIONS[0]) { 1 } else { 2 };
        ranges.push(call.args[1], 12 * elements);
    }
}

const CAPABILITY_VERSIONS: [u64; 3] = [0x1998_0330, 0x2007_1026, 0x2008_0522];

/// An unknown version is replaced by the one the kernel prefers.
fn capability_version(call: &Call, ranges: &mut Ranges) {
    let known =
        call.before(GuestAddr(call.args[0])).is_some_and(|version| CAPABILITY_VERSIONS.contains(&version));
    if !known && !applies(call, When::Failure(Errno::EFAULT)) {
        ranges.push(call.args[0], 4);
    }
}

/// `struct file_handle`: handle_bytes, handle_type, then that many bytes; only the first two when there was no room.
fn name_to_handle(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    const AT_HANDLE_MNT_ID_UNIQUE: u64 = 1;
    let [_, _, handle, mount, flags, _] = call.args;
    let body = match Errno::from_result(call.result) {
        None => u64::from(mem.read_u32(GuestAddr(handle))?),
        Some(Errno::EOVERFLOW) => 0,
        Some(_) => return Ok(()),
    };
    ranges.push(handle, 8 + body);
    ranges.push(mount, if flags & AT_HANDLE_MNT_ID_UNIQUE != 0 { 8 } else { 4 });
    Ok(())
}

/// `struct xattr_args`: value pointer, 32-bit size, flags.
fn getxattrat(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    if call.result > 0 {
        let args = GuestAddr(call.args[4]);
        let room = u64::from(mem.read_u32(args.wrapping_add(8))?);
        ranges.push(mem.read_u64(args)?, room.min(call.result as u64));
    }
    Ok(())
}

/// The node set is `maxnode - 1` bits, in 64-bit words.
fn get_mempolicy(call: &Call, ranges: &mut Ranges) {
    let [policy, nodes, max, ..] = call.args;
    if applies(call, When::Success) {
        ranges.push(policy, 4);
        ranges.push(nodes, max.saturating_sub(1).div_ceil(64).saturating_mul(8));
    }
}

/// The size is written back even where no security module answers.
fn lsm_attr(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    let [_, context, size, ..] = call.args;
    if applies(call, When::Success) {
        let after = u64::from(mem.read_u32(GuestAddr(size))?);
        ranges.push(context, call.before(GuestAddr(size)).map_or(after, |before| before.min(after)));
    }
    if !matches!(Errno::from_result(call.result), Some(Errno::EINVAL | Errno::EFAULT)) {
        ranges.push(size, 4);
    }
    Ok(())
}

fn lsm_modules(call: &Call, ranges: &mut Ranges) {
    let [ids, size, ..] = call.args;
    if call.result > 0 {
        ranges.push(ids, (call.result as u64).saturating_mul(8));
    }
    if applies(call, When::SuccessOr(Errno::E2BIG)) {
        ranges.push(size, 4);
    }
}

/// `struct statmount` begins with its size, strings included.
fn statmount(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    let [_, buffer, room, ..] = call.args;
    if applies(call, When::Success) {
        ranges.push(buffer, room.min(u64::from(mem.read_u32(GuestAddr(buffer))?)));
    }
    Ok(())
}

/// Two bytes a semaphore, of which there are as many as the set has: at most 32,000, so the limit of a fault holds them all.
fn sem_getall(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) {
    if applies(call, When::Success) {
        push_readable(call.args[3], FAULT_LIMIT, mem, ranges);
    }
}

/// `struct ifconf`: 32-bit length, padding, buffer.
fn ifconf(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    if applies(call, When::Success) {
        let header = GuestAddr(call.args[2]);
        ranges.push(header.0, 4);
        let used = u64::from(mem.read_u32(header)?);
        ranges.push(mem.read_u64(header.wrapping_add(8))?, used);
    }
    Ok(())
}

/// `struct fiemap` is written back whole, whatever the result; 56 bytes an extent follow it.
fn fiemap(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    let at = GuestAddr(call.args[2]);
    if applies(call, When::Failure(Errno::EFAULT)) {
        return Ok(());
    }
    let header = mem.read_vec(at, structs::FIEMAP.size as usize)?;
    let (mapped, room) = (word(&header[20..24]), word(&header[24..28]));
    ranges.push(
        at.0,
        u64::from(structs::FIEMAP.size) + mapped.min(room) * u64::from(structs::FIEMAP_EXTENT.size),
    );
    Ok(())
}

/// Option 2 stores a name and the byte that ends it.
fn sysfs(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    const NAME_OF: u64 = 2;
    const LONGEST: usize = 4096;
    let [option, _, buffer, ..] = call.args;
    if applies(call, When::Success) && option & 0xffff_ffff == NAME_OF {
        ranges.push(buffer, mem.read_cstr(GuestAddr(buffer), LONGEST)?.len() as u64 + 1);
    }
    Ok(())
}

fn set_mm(call: &Call, ranges: &mut Ranges) {
    const MAP_SIZE: u64 = 15;
    let [_, what, address, ..] = call.args;
    if applies(call, When::Success) && what & 0xffff_ffff == MAP_SIZE {
        ranges.push(address, 4);
    }
}

/// `struct perf_event_attr`: type, size.
fn counter_size(call: &Call, ranges: &mut Ranges) {
    if applies(call, When::Failure(Errno::E2BIG)) {
        ranges.push(call.args[0].wrapping_add(4), 4);
    }
}

/// Three words: what is asked, a buffer of 32-bit numbers, its room. The result is how many there are.
fn bridges(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    const LIST: u64 = 1;
    let words = GuestAddr(call.args[2]);
    if call.result > 0 && mem.read_u64(words)? == LIST {
        ranges.push(mem.read_u64(words.wrapping_add(8))?, 4 * call.result as u64);
    }
    Ok(())
}

/// `struct ipt_replace` and `ip6t_replace`: how many counters of 16 bytes, and where to.
fn old_counters(call: &Call, mem: &dyn GuestMemory, ranges: &mut Ranges) -> Result<(), Unmapped> {
    const COUNT: u64 = 84;
    const COUNTERS: u64 = 88;
    const COUNTER: u64 = 16;
    let table = GuestAddr(call.args[3]);
    if applies(call, When::Success) {
        let count = mem.read_u32(table.wrapping_add(COUNT))?;
        ranges.push(mem.read_u64(table.wrapping_add(COUNTERS))?, u64::from(count) * COUNTER);
    }
    Ok(())
}

/// The kernel may set the waiters' bit in the word even where the call fails.
fn lock_word(call: &Call, ranges: &mut Ranges) {
    if !applies(call, When::Failure(Errno::EFAULT)) {
        ranges.push(call.args[0], 4);
    }
}
