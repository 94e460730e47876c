//! The memory a finished call wrote, as ranges. Reads guest memory; writes nothing.
//!
//! - this file: effects that the kinds of a row's arguments describe
//! - `bpf`: effects of that call
//! - `hand`: effects that need code
//! - `message`: socket messages
//! - `output`: bytes that a call took out of memory
//! - `places`: where a call about to run may write

mod bpf;
mod hand;
mod message;
mod output;
mod places;

use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};

use crate::call::Call;
use crate::decide::answered_unknown;
use crate::errno::Errno;
use crate::row::{Arg, Class, Effect, Hand, Kind, Size, When};
use crate::table;

pub use output::{Output, output};
pub use places::{Place, Pointer, places};

/// Why the effects of a call are not known.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EffectError {
    /// There is no such call or request, or it is one whose effects are those of another call.
    #[error("the effects of {what} are not known")]
    Unknown {
        /// The call, with its request if it is that.
        what: String,
    },
    /// A structure that the kernel must have read is not there.
    #[error("cannot read the arguments of {name}")]
    Memory {
        /// Name of the call.
        name: &'static str,
        /// Where.
        source: Unmapped,
    },
}

/// The ranges of guest memory that the kernel wrote while it performed `call`, given memory as it is after the call.
/// In the order of the arguments; never empty ones; exact, but for
///
/// - rows whose support says otherwise;
/// - calls made by [`Call::finished`], where a length that was overwritten bounds what it governs;
/// - padding inside structures, which may count as written;
/// - `EFAULT`, after which whatever can be read of the first 64 MiB of each result counts as written.
///
/// Ranges too long are harmless to a replay: their bytes are what memory held anyhow.
///
/// Calls of class `Map`, `Spawn` and `Exec` change memory beyond this (mappings appear); what is listed here is what they
/// write through pointers. What `clone` writes in the child is in [`child_effects`]. For a `restart_syscall`, ask about the
/// call that it resumes.
pub fn effects(call: &Call, mem: &dyn GuestMemory) -> Result<Vec<GuestRange>, EffectError> {
    let Described { name, args, effect } = describe(call)?;
    let mut ranges = Ranges { list: Vec::new() };
    let memory = |source| EffectError::Memory { name, source };
    match effect {
        Effect::Args => by_arguments(call, args, mem, &mut ranges).map_err(memory)?,
        Effect::Hand(hand) => hand::write(hand, call, mem, &mut ranges).map_err(|error| match error {
            hand::Failure::Memory(source) => memory(source),
            hand::Failure::Unknown => EffectError::Unknown { what: name.to_string() },
        })?,
    }
    if !call.succeeded() || effect == Effect::Hand(Hand::Select) {
        ranges.keep_readable(mem);
    }
    Ok(ranges.list)
}

/// The word that a call changes already when it begins to wait, to say that it does: that of a lock whose owner is to inherit its priority.
pub fn marks_waiting(nr: u32, args: &[u64; 6]) -> Option<GuestAddr> {
    let request = table::row(nr)?.requests?.find(args)?;
    let marks = request.class == Class::MayBlock && matches!(request.effect, Effect::Hand(Hand::LockWord));
    marks.then_some(GuestAddr(args[0]))
}

/// Whether the kernel may write guest memory while it performs such a call.
pub fn may_write(nr: u32, args: &[u64; 6]) -> bool {
    let Ok(Described { args, effect, .. }) = describe(&Call::finished(nr, *args, 0)) else { return true };
    let writes =
        |arg: &Arg| matches!(arg.kind, Kind::Out(..) | Kind::InOut(..) | Kind::OutIov(_) | Kind::OutMsg);
    effect != Effect::Args || args.into_iter().flatten().any(writes)
}

/// The ranges of the *child's* memory that the kernel writes when a `clone` or `clone3` made a task: its thread id
/// (`CLONE_CHILD_SETTID`). `mem` is the parent's memory.
pub fn child_effects(call: &Call, mem: &dyn GuestMemory) -> Result<Vec<GuestRange>, EffectError> {
    let Described { name, effect, .. } = describe(call)?;
    let mut ranges = Ranges { list: Vec::new() };
    if let Effect::Hand(hand) = effect
        && call.result > 0
    {
        hand::write_child(hand, call, mem, &mut ranges)
            .map_err(|source| EffectError::Memory { name, source })?;
    }
    Ok(ranges.list)
}

/// Notes the words whose old values decide what `call` will have written.
pub(crate) fn note(call: &mut Call, mem: &dyn GuestMemory) {
    let Ok(Described { args, effect, .. }) = describe(call) else { return };
    match effect {
        Effect::Hand(hand) => hand::note(hand, call, mem),
        Effect::Args => {
            for (arg, at) in args.into_iter().flatten().zip(call.args) {
                if let Kind::Out(Size::Length(length), _) = arg.kind {
                    let at = GuestAddr(call.args[usize::from(length)]);
                    call.note_u32(at, mem);
                }
                if let Kind::OutIov(count) = arg.kind {
                    note_vector(call, at, call.args[usize::from(count)], mem);
                }
            }
        }
    }
}

/// Ranges as they are found.
struct Ranges {
    list: Vec<GuestRange>,
}

impl Ranges {
    /// `len` bytes at `at` were written, unless it is NULL or they are none.
    fn push(&mut self, at: u64, len: u64) {
        let range = GuestRange::new(GuestAddr(at), len);
        if at != 0 && !range.is_empty() {
            self.list.push(range);
        }
    }

    /// Cuts off what is not there: a failed call may not have looked at its results, and `select` may look at fewer
    /// descriptors than it was told.
    fn keep_readable(&mut self, mem: &dyn GuestMemory) {
        for range in &mut self.list {
            range.end = readable(*range, mem);
        }
        self.list.retain(|range| !range.is_empty());
    }
}

/// The end of what can be read of a range from its start on.
fn readable(range: GuestRange, mem: &dyn GuestMemory) -> GuestAddr {
    let mut end = range.start;
    while end < range.end {
        let next = range.end.min(end.page().wrapping_add(guest::PAGE_SIZE));
        if mem.read_vec(end, (next.0 - end.0) as usize).is_err() {
            break;
        }
        end = next;
    }
    end
}

/// A call that Linux does not know, or whose request no table has: it failed, and wrote nothing.
const UNKNOWN: Described = Described { name: "system call", args: [&[], &[]], effect: Effect::Args };

/// A call with its request looked up.
struct Described {
    name: &'static str,
    /// The call's own arguments, then the request's.
    args: [&'static [Arg]; 2],
    effect: Effect,
}

fn describe(call: &Call) -> Result<Described, EffectError> {
    if (call.nr as i32) < 0 {
        return Ok(UNKNOWN);
    }
    let Some(row) = table::row(call.nr) else {
        if answered_unknown(call.nr, &call.args, call.result).is_ok() {
            return Ok(UNKNOWN);
        }
        return Err(EffectError::Unknown { what: format!("system call {}", call.nr as i32) });
    };
    let Some(requests) = row.requests else {
        return Ok(Described { name: row.name, args: [row.args, &[]], effect: row.effect });
    };
    let Some(request) = requests.find(&call.args) else {
        if answered_unknown(call.nr, &call.args, call.result).is_ok() {
            return Ok(UNKNOWN);
        }
        return Err(EffectError::Unknown { what: format!("{}({:#x})", row.name, requests.key(&call.args)) });
    };
    Ok(Described { name: row.name, args: [requests.own(row), request.args], effect: request.effect })
}

/// How much of a result counts as written when the call failed with `EFAULT`, in bytes.
const FAULT_LIMIT: u64 = 64 << 20;

fn by_arguments(
    call: &Call,
    args: [&[Arg]; 2],
    mem: &dyn GuestMemory,
    ranges: &mut Ranges,
) -> Result<(), Unmapped> {
    let fault = Errno::from_result(call.result) == Some(Errno::EFAULT);
    for (arg, at) in args.into_iter().flatten().zip(call.args) {
        if fault {
            faulted(call, arg.kind, at, mem, ranges);
        } else {
            written(call, arg.kind, at, mem, ranges)?;
        }
    }
    Ok(())
}

/// What the kernel wrote through one argument.
fn written(
    call: &Call,
    kind: Kind,
    at: u64,
    mem: &dyn GuestMemory,
    ranges: &mut Ranges,
) -> Result<(), Unmapped> {
    match kind {
        Kind::Out(size, when) | Kind::InOut(size, when) if at != 0 && applies(call, when) => {
            ranges.push(at, length(call, size, mem)?);
        }
        Kind::OutIov(count) if call.result > 0 => {
            fill(&entered(call, at, call.args[usize::from(count)], mem)?, call.result as u64, ranges);
        }
        _ => {}
    }
    Ok(())
}

/// What the kernel may have written through one argument before it met memory that is not there.
fn faulted(call: &Call, kind: Kind, at: u64, mem: &dyn GuestMemory, ranges: &mut Ranges) {
    match kind {
        Kind::Out(_, When::Interrupted | When::InterruptedUnless(..)) => {}
        Kind::Out(size, _) | Kind::InOut(size, _) => push_readable(at, room(call, size), mem, ranges),
        Kind::OutIov(count) => {
            for (base, len) in entered(call, at, call.args[usize::from(count)], mem).unwrap_or_default() {
                push_readable(base, len, mem, ranges);
            }
        }
        _ => {}
    }
}

/// Whether memory is written under `when`, given the call's result.
fn applies(call: &Call, when: When) -> bool {
    let errno = Errno::from_result(call.result);
    match when {
        When::Success => errno.is_none(),
        When::Positive => call.result > 0,
        When::Interrupted => errno.is_some_and(Errno::is_interruption),
        When::InterruptedUnless(at, bits) => {
            errno.is_some_and(Errno::is_interruption) && call.args[usize::from(at)] & bits == 0
        }
        When::SuccessWith(at) => errno.is_none() && call.args[usize::from(at)] != 0,
        When::SuccessOr(this) => errno.is_none_or(|errno| errno == this),
        When::Failure(this) => errno == Some(this),
        When::Always => true,
    }
}

/// How many bytes were written, given that some were.
fn length(call: &Call, size: Size, mem: &dyn GuestMemory) -> Result<u64, Unmapped> {
    let result = call.result.max(0) as u64;
    Ok(match size {
        Size::Result(_) | Size::ResultItems(..) | Size::ResultAfter(..) => match size {
            Size::ResultItems(_, one) => result.saturating_mul(u64::from(one.size)),
            Size::ResultAfter(one, _) => result.saturating_add(u64::from(one.size)),
            _ => result,
        }
        .min(room(call, size)),
        Size::Length(at) => {
            let at = GuestAddr(call.args[usize::from(at)]);
            let after = u64::from(mem.read_u32(at)?);
            call.before(at).map_or(after, |before| before.min(after))
        }
        _ => room(call, size),
    })
}

/// How many bytes there are at most.
fn room(call: &Call, size: Size) -> u64 {
    let arg = |at: u8| call.args[usize::from(at)];
    match size {
        Size::Fixed(bytes) => u64::from(bytes),
        Size::One(one) => u64::from(one.size),
        Size::Arg(at) | Size::Result(at) => arg(at),
        Size::Items(at, one) | Size::ResultItems(at, one) => arg(at).saturating_mul(u64::from(one.size)),
        Size::ResultAfter(one, at) => arg(at).saturating_add(u64::from(one.size)),
        Size::Pages(at) => arg(at).div_ceil(guest::PAGE_SIZE),
        Size::Bits(at) => set_bytes(arg(at)),
        Size::Length(at) => call.before(GuestAddr(arg(at))).unwrap_or(0),
    }
}

/// Bytes of an `fd_set` of `bits` (a C `int`) bits.
fn set_bytes(bits: u64) -> u64 {
    let bits = (bits as u32 as i32).max(0) as u64;
    bits.div_ceil(64) * 8
}

/// What can be read of the `len` bytes at `at`, up to the limit.
fn push_readable(at: u64, len: u64, mem: &dyn GuestMemory, ranges: &mut Ranges) {
    let range = GuestRange::new(GuestAddr(at), len.min(FAULT_LIMIT));
    ranges.push(at, readable(range, mem).0 - at);
}

/// Most entries a vector may have (`UIO_MAXIOV`).
const MAX_VECTOR: u64 = 1024;

/// Bases and lengths of buffers, as in an array of `struct iovec`.
type Vector = Vec<(u64, u64)>;

/// The `count` `struct iovec` at `at`.
fn iovecs(at: u64, count: u64, mem: &dyn GuestMemory) -> Result<Vector, Unmapped> {
    let count = count.min(MAX_VECTOR);
    let bytes = mem.read_vec(GuestAddr(at), (count * 16) as usize)?;
    Ok(bytes.chunks_exact(16).map(|entry| (word(&entry[..8]), word(&entry[8..]))).collect())
}

/// The same as it was when the call was entered: it may have been written over since.
fn entered(call: &Call, at: u64, count: u64, mem: &dyn GuestMemory) -> Result<Vector, Unmapped> {
    let mut vector = iovecs(at, count, mem)?;
    if call.has_noted() {
        for (entry, (base, len)) in (0..).map(|i| GuestAddr(at).wrapping_add(i * 16)).zip(&mut vector) {
            *base = call.before(entry).unwrap_or(*base);
            *len = call.before(entry.wrapping_add(8)).unwrap_or(*len);
        }
    }
    Ok(vector)
}

/// Notes a vector where its own buffers lie over it.
fn note_vector(call: &mut Call, at: u64, count: u64, mem: &dyn GuestMemory) {
    let Ok(vector) = iovecs(at, count, mem) else { return };
    let all = GuestRange::new(GuestAddr(at), vector.len() as u64 * 16);
    if vector.iter().any(|&(base, len)| GuestRange::new(GuestAddr(base), len).overlaps(all)) {
        (0..vector.len() as u64 * 2).for_each(|i| call.note_u64(all.start.wrapping_add(i * 8), mem));
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// `total` bytes were put into the buffers of `vector`, in order.
fn fill(vector: &[(u64, u64)], total: u64, ranges: &mut Ranges) {
    let mut left = total;
    for &(base, len) in vector {
        let part = len.min(left);
        ranges.push(base, part);
        left -= part;
    }
}

#[cfg(test)]
mod tests;
