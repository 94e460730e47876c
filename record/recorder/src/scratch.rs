//! Calls that may wait write to memory of ours while others of their space run; what they wrote is put where it belongs when the
//! call's return is an event. So memory changes at events only, wherever in between the kernel wrote.
//!
//! Addresses keep their offsets in pages. The memory is mapped in the space when first needed; no trace tells of it.

use std::cell::RefCell;
use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, Registers, Unmapped};
use kernel::{Errno, Place, Pointer};
use ptrace::{Memory, Stopped};

use crate::buffer;
use crate::exec;
use crate::memmap::{USER_END, gaps};
use crate::procfs;
use crate::stop::{Onward, StopError, as_it_stood};
use crate::task::Task;

/// What is mapped at once, at least.
const REGION: u64 = 256 << 10;
/// Room for more is given back at once.
const KEPT: u64 = 1 << 20;
/// What is copied at once.
const CHUNK: u64 = 1 << 20;

/// The memory of ours in one space.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    regions: Vec<GuestRange>,
    /// Ascending.
    used: Vec<GuestRange>,
    /// The kernel gave no more than less than this.
    exhausted: Option<u64>,
}

impl Pool {
    /// A forked space's: the same memory, and no call that uses it.
    pub(crate) fn forked(&self) -> Self {
        Self { regions: self.regions.clone(), used: Vec::new(), exhausted: None }
    }

    /// Whether any of it lies in a range.
    pub(crate) fn overlaps(&self, range: GuestRange) -> bool {
        self.regions.iter().any(|region| region.overlaps(range))
    }

    /// Takes so many whole pages.
    fn take(&mut self, len: u64) -> Option<GuestRange> {
        let gap = self.regions.iter().find_map(|region| {
            let used = self.used.iter().copied().filter(|used| region.overlaps(*used));
            gaps(*region, used).find(|gap| gap.len() >= len)
        })?;
        let taken = GuestRange::new(gap.start, len);
        let at = self.used.partition_point(|used| used.start < taken.start);
        self.used.insert(at, taken);
        Some(taken)
    }
}

/// Pages taken from a pool. Dropping them gives them back.
#[derive(Debug)]
struct Block {
    range: GuestRange,
    pool: Rc<RefCell<Pool>>,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.borrow_mut().used.retain(|used| *used != self.range);
    }
}

/// Where a call writes instead.
#[derive(Debug)]
pub(crate) struct Scratch {
    block: Block,
    /// Where the guest wants it, and where it is.
    moved: Vec<(GuestRange, GuestAddr)>,
    /// Pointers in moved memory, as the guest has them.
    pointers: Vec<(GuestAddr, [u8; 8])>,
    /// The call's arguments that lead there.
    pub(crate) args: [u64; 6],
}

/// What to do about a call that may wait.
#[derive(Debug)]
pub(crate) enum Plan {
    /// It writes nothing, or nobody runs meanwhile whom that concerns.
    AsItIs,
    /// It writes in place while others run.
    InPlace,
    /// It writes here.
    Moved(Scratch),
}

/// Finds out where a call that is about to be made is to write, or to read what is copied for it, which is the last place.
pub(crate) fn plan(
    task: &Task,
    mut stopped: Stopped,
    call: &kernel::Call,
    copied: Option<Place>,
) -> Result<(Stopped, Plan), StopError> {
    let memory = &task.space.memory;
    let written = if task.space.is_shared() { kernel::places(call, memory) } else { Some(Vec::new()) };
    let Some(mut places) = written else { return Ok((stopped, Plan::InPlace)) };
    places.extend(copied);
    if places.is_empty() {
        return Ok((stopped, Plan::AsItIs));
    }
    if !places.iter().all(|place| may_hold(task, place.range)) {
        return Ok((stopped, Plan::InPlace));
    }
    let len = places.iter().map(pages).fold(0, u64::saturating_add);
    let mut taken = task.space.scratch.borrow_mut().take(len);
    if taken.is_none() && task.space.scratch.borrow().exhausted.is_none_or(|least| len < least) {
        stopped = grow(task, stopped, len)?;
        taken = task.space.scratch.borrow_mut().take(len);
    }
    let moved = taken.and_then(|range| {
        let block = Block { range, pool: Rc::clone(&task.space.scratch) };
        // Where that fails the kernel will not be able to read it either.
        Scratch::fill(memory, block, &places, call.args).ok()
    });
    Ok((stopped, moved.map_or(Plan::InPlace, Plan::Moved)))
}

/// Whether a range is such that the kernel gets to its end. Of short ones that is not asked: what a call wrote there can be put or it fails.
fn may_hold(task: &Task, range: GuestRange) -> bool {
    if range.len() <= KEPT {
        return true;
    }
    let Ok(mappings) = procfs::maps(task.host) else { return false };
    let written = mappings.into_iter().filter(|mapping| mapping.prot.write && mapping.range.overlaps(range));
    let written = written.map(|mapping| mapping.range);
    range.end.0 <= USER_END && gaps(range, written).next().is_none()
}

/// The room that a place takes.
fn pages(place: &Place) -> u64 {
    place.range.pages().len()
}

impl Scratch {
    /// Takes in places, copies what the kernel reads, and lets pointers lead there.
    fn fill(memory: &Memory, block: Block, places: &[Place], args: [u64; 6]) -> Result<Self, Unmapped> {
        let mut scratch = Self { block, moved: Vec::with_capacity(places.len()), pointers: Vec::new(), args };
        let mut start = scratch.block.range.start;
        for place in places {
            let range = place.range;
            let to = start.wrapping_add(range.start.page_offset());
            if place.read {
                memory.write(to, &memory.read_vec(range.start, range.len() as usize)?)?;
            }
            scratch.moved.push((range, to));
            start = start.wrapping_add(pages(place));
            match place.pointer {
                Pointer::Argument(position) => scratch.args[usize::from(position)] = to.0,
                Pointer::Word(at) => {
                    let word = scratch.place_of(at).ok_or(Unmapped { addr: at })?;
                    let mut bytes = [0; 8];
                    memory.read(at, &mut bytes)?;
                    memory.write(word, &to.0.to_le_bytes())?;
                    scratch.pointers.push((at, bytes));
                }
            }
        }
        Ok(scratch)
    }

    /// Where the place is that was copied for the call to read, and which it writes nothing to: from here on it counts as if it had not moved, for
    /// what the call writes may lie over it.
    pub(crate) fn take_copied(&mut self) -> Option<GuestAddr> {
        self.moved.pop().map(|(_, at)| at)
    }

    /// Where a byte of moved memory is.
    fn place_of(&self, addr: GuestAddr) -> Option<GuestAddr> {
        let (range, to) = self.moved.iter().find(|(range, _)| range.contains(addr))?;
        Some(to.wrapping_add(addr.0 - range.start.0))
    }

    /// Puts what the call wrote in these ranges where the guest wants it; fails where the guest may not write.
    pub(crate) fn put(&self, memory: &Memory, ranges: &[GuestRange]) -> Result<(), Unmapped> {
        let view = View { memory, scratch: self };
        let chunks = ranges.iter().zip(self.sources(ranges)).flat_map(|(range, source)| {
            let starts = (0..range.len()).step_by(CHUNK as usize);
            starts.map(move |at| (range.start.wrapping_add(at), (range.len() - at).min(CHUNK), source, at))
        });
        for (start, len, source, at) in chunks {
            let bytes = match source {
                Some(from) => memory.read_vec(from.wrapping_add(at), len as usize)?,
                None => view.read_vec(start, len as usize)?,
            };
            memory.write_pieces(&bytes, &[(start.0, bytes.len())])?;
        }
        Ok(())
    }

    /// Where each of these ranges is, if it begins a place that another one overlaps: the kernel writes them in order, and so do we.
    fn sources(&self, ranges: &[GuestRange]) -> Vec<Option<GuestAddr>> {
        let mut places = self.moved.iter();
        let source = |range: &GuestRange| {
            let others =
                self.moved.iter().filter(|(place, _)| place.overlaps(*range)).count().saturating_sub(1);
            let rest = places.clone();
            let holds =
                |(place, _): &&(GuestRange, GuestAddr)| place.start == range.start && range.end <= place.end;
            let found = places.find(holds);
            if found.is_none() {
                places = rest;
            }
            found.filter(|_| others > 0).map(|(_, to)| *to)
        };
        ranges.iter().map(source).collect()
    }
}

/// A call returned that wrote to memory of ours: what that holds of much is dropped. Signals wait meanwhile. Not after a call that a signal
/// cut short: what the kernel makes of that it decides where the task stands, and another call there would have it forget.
pub(crate) fn give_back(plan: &Plan, result: i64, mut stopped: Stopped) -> Result<Stopped, StopError> {
    let Plan::Moved(Scratch { block: Block { range, .. }, .. }) = plan else { return Ok(stopped) };
    if range.len() <= KEPT || Errno::from_result(result).is_some_and(Errno::is_interruption) {
        return Ok(stopped);
    }
    let mask = stopped.signal_mask()?;
    stopped.set_signal_mask(u64::MAX)?;
    let args = [range.start.0, range.len(), libc::MADV_DONTNEED as u64, 0, 0, 0];
    let (mut stopped, result) =
        exec::make_call(stopped, GuestAddr(abi::SYSCALL), libc::SYS_madvise as u64, args)?;
    tracing::trace!(result, "gave back scratch memory");
    stopped.set_signal_mask(mask)?;
    Ok(stopped)
}

/// Memory as it would be had the call written in place.
pub(crate) struct View<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) scratch: &'a Scratch,
}

impl GuestMemory for View<'_> {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
        let wanted = GuestRange::new(addr, into.len() as u64);
        let moved = &self.scratch.moved;
        let within = |range: &GuestRange| range.start <= wanted.start && wanted.end <= range.end;
        if let Some((range, to)) = moved.iter().find(|(range, _)| within(range)) {
            self.memory.read(to.wrapping_add(addr.0 - range.start.0), into)?;
        } else {
            self.memory.read(addr, into)?;
            for (range, to) in moved.iter().filter(|(range, _)| range.overlaps(wanted)) {
                let part = range.intersect(wanted);
                let at = (part.start.0 - addr.0) as usize;
                let from = to.wrapping_add(part.start.0 - range.start.0);
                self.memory.read(from, &mut into[at..at + part.len() as usize])?;
            }
        }
        for (at, bytes) in &self.scratch.pointers {
            for (i, byte) in bytes.iter().enumerate() {
                let at = at.wrapping_add(i as u64);
                if wanted.contains(at) {
                    into[(at.0 - addr.0) as usize] = *byte;
                }
            }
        }
        Ok(())
    }
}

/// Maps more room at the entry of a call, which is made again for that, up to there. Signals wait meanwhile.
fn grow(task: &Task, mut stopped: Stopped, len: u64) -> Result<Stopped, StopError> {
    let regs = stopped.registers()?;
    let mask = stopped.signal_mask()?;
    let grown = stopped
        .set_signal_mask(u64::MAX)
        .map_err(StopError::from)
        .and_then(|()| grow_before_call(task, stopped, &regs, len));
    let mut stopped = grown.map_err(|why| as_it_stood(why, task.host, &regs))?;
    stopped.set_signal_mask(mask)?;
    Ok(stopped)
}

/// Maps more room while a task stands at the entry of a call with these registers, and has it stand there again.
fn grow_before_call(
    task: &Task,
    mut stopped: Stopped,
    regs: &Registers,
    len: u64,
) -> Result<Stopped, StopError> {
    const INSTRUCTION: u64 = 2;
    let at_rest = Registers { orig_rax: u64::MAX, ..*regs };
    stopped.set_registers(&at_rest)?;
    let mut onward = Onward::default();
    let (stopped, _) = onward.next_call(stopped, Stopped::cont_to_syscall)?;
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let len = len.max(REGION);
    let args = [0, len, prot, flags, u64::MAX, 0];
    let (mut stopped, result) =
        exec::make_call(stopped, GuestAddr(abi::SYSCALL), libc::SYS_mmap as u64, args)?;
    let mut pool = task.space.scratch.borrow_mut();
    if result > 0 {
        pool.regions.push(GuestRange::new(GuestAddr(result as u64), len));
    } else {
        pool.exhausted = Some(len);
    }
    drop(pool);
    let rip = buffer::traced_call(task).unwrap_or(regs.rip.wrapping_sub(INSTRUCTION));
    stopped.set_registers(&Registers { rip, rax: regs.orig_rax, ..at_rest })?;
    let (mut stopped, _) = onward.next_call(stopped, Stopped::cont)?;
    let again = stopped.registers()?;
    stopped.set_registers(&Registers { rip: regs.rip, rcx: regs.rip, ..again })?;
    onward.over(&stopped)?;
    Ok(stopped)
}

/// Whether memory of ours lies in a range: the page that every space has, the space's pool, its buffer.
pub(crate) fn is_ours(task: &Task, range: GuestRange) -> bool {
    let page = GuestRange::new(GuestAddr(abi::PAGE), abi::PAGE_LEN);
    page.overlaps(range)
        || task.space.scratch.borrow().overlaps(range)
        || task.space.buffer.borrow().overlaps(range)
}

#[cfg(test)]
mod tests {
    use guest::PAGE_SIZE;

    use super::*;

    #[test]
    fn a_pool_gives_what_is_free() {
        let region = |start, pages| GuestRange::new(GuestAddr(start), pages * PAGE_SIZE);
        let mut pool = Pool { regions: vec![region(0x10000, 4), region(0x80000, 2)], ..Pool::default() };
        assert_eq!(pool.take(2 * PAGE_SIZE), Some(region(0x10000, 2)));
        assert_eq!(pool.take(3 * PAGE_SIZE), None);
        assert_eq!(pool.take(2 * PAGE_SIZE), Some(region(0x12000, 2)));
        assert_eq!(pool.take(PAGE_SIZE), Some(region(0x80000, 1)));
        let pool = Rc::new(RefCell::new(pool));
        drop(Block { range: region(0x10000, 2), pool: Rc::clone(&pool) });
        assert_eq!(pool.borrow_mut().take(PAGE_SIZE), Some(region(0x10000, 1)));
        assert_eq!(pool.borrow().forked().used, []);
        assert!(pool.borrow().overlaps(region(0x81000, 9)) && !pool.borrow().overlaps(region(0x82000, 9)));
    }
}
