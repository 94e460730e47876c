//! The instructions that are rewritten: in private mappings of files that the program may not write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use abi::buffer::{CODE, SITE, SLOTS, STUB_COUNT, STUB_LEN, STUBS};
use guest::{GuestAddr, GuestMemory, GuestRange};
use kernel::MapCall;
use patch::{CodeAddr, Examined, Facts, LowAddr, Method, PcMap, Place, Plan, Target, Text, Write};
use ptrace::Memory;
use trace::MapOp;

use super::Mapped;
use crate::image;
use crate::procfs::{self, FilePart, Mapping};
use crate::task::Task;
use crate::unrepeatable;

/// A rewritten instruction.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// The instruction.
    pub(super) at: u64,
    /// Its length.
    len: u64,
    /// Where its stub lies.
    pub(super) stub: u64,
    /// Where that goes on behind the instruction.
    pub(super) resume: u64,
    /// Whether it reads the time stamp counter.
    pub(super) reads: bool,
    /// What was rewritten, the instruction last.
    writes: Vec<Write>,
    occupied: Vec<Range<CodeAddr>>,
    method: Method,
    pcs: PcMap,
}

impl Site {
    /// The address after the instruction.
    pub(super) fn after(&self) -> u64 {
        self.at + self.len
    }

    /// Where the program is of a task that stands on the way to or from the code of ours.
    pub(super) fn plain(&self, pc: u64) -> Option<Place> {
        self.pcs.plain(pc)
    }

    /// Whether nothing may go on at a pc: it lies in the middle of a jump that was written over several instructions.
    fn is_covered(&self, pc: u64) -> bool {
        let covers = |write: &Write| write.at.0 < pc && write.range().contains(&CodeAddr(pc));
        self.method != Method::Island && self.writes.last().is_some_and(covers)
    }

    /// Whether a pc lies in what leads from the instruction to its stub.
    pub(super) fn is_island(&self, pc: u64) -> bool {
        let leads = self.writes.len() - 1;
        self.writes[..leads].iter().any(|write| write.range().contains(&CodeAddr(pc)))
    }

    fn overlaps(&self, range: GuestRange) -> bool {
        self.writes.iter().any(|write| range_of(write).overlaps(range))
    }

    /// Puts back what was there.
    fn put_back(&self, memory: &Memory, ops: &mut Vec<MapOp>) {
        self.writes.iter().rev().for_each(|write| put_back_one(memory, write, ops));
    }

    /// The same of the instruction alone. What is left is no instruction of the program's, and it may yet write the jump again that it
    /// found in the instruction's place.
    fn put_back_instruction(mut self, memory: &Memory, ops: &mut Vec<MapOp>) -> Vec<Write> {
        self.writes.pop().into_iter().for_each(|write| put_back_one(memory, &write, ops));
        self.writes
    }

    /// What was written, as the trace has it.
    fn ops(&self) -> impl Iterator<Item = MapOp> {
        self.writes.iter().map(|Write { at, old, new }| MapOp::Rewrite {
            addr: GuestAddr(at.0),
            shown: new.clone(),
            own: old.clone(),
        })
    }
}

fn range_of(write: &Write) -> GuestRange {
    GuestRange::new(GuestAddr(write.at.0), write.new.len() as u64)
}

/// Puts into bytes read at an address what was there.
fn overlay<'a>(writes: impl IntoIterator<Item = &'a Write>, at: u64, bytes: &mut [u8]) {
    for write in writes {
        for (byte, addr) in write.old.iter().zip(write.at.0..) {
            let place = addr.checked_sub(at).and_then(|offset| bytes.get_mut(offset as usize));
            place.into_iter().for_each(|place| *place = *byte);
        }
    }
}

fn put_back_one(memory: &Memory, Write { at, old, new }: &Write, ops: &mut Vec<MapOp>) {
    let mut now = vec![0; new.len()];
    let addr = GuestAddr(at.0);
    if memory.read(addr, &mut now).is_err() || now != *new {
        return;
    }
    match memory.write(addr, old) {
        Ok(()) => ops.push(MapOp::Rewrite { addr, shown: old.clone(), own: old.clone() }),
        Err(unmapped) => tracing::debug!(%unmapped, "rewritten code cannot be put back"),
    }
}

/// The longest instruction that may be rewritten.
const LONGEST: u64 = 3;

/// Numbers of calls whose own instructions stay: they are not made here, and unwinders know some by their bytes.
const REFUSED: [u32; 9] = [
    kernel::number("clone"),
    kernel::number("clone3"),
    kernel::number("fork"),
    kernel::number("vfork"),
    kernel::number("rt_sigreturn"),
    kernel::number("exit"),
    kernel::number("exit_group"),
    kernel::number("execve"),
    kernel::number("execveat"),
];

/// Rewrites an instruction, and tells what that wrote. `None` if it cannot be.
pub(super) fn rewrite(
    texts: &mut HashMap<FilePart, Rc<Text>>,
    task: &Task,
    inside: &mut Mapped,
    at: u64,
) -> Option<Vec<MapOp>> {
    let mapping = mapping(task, inside, at)?;
    let planned = planned(texts, task, inside, (&mapping, at));
    inside.mapping = Some(mapping);
    let (target, plan) = planned?;
    let memory = &task.space.memory;
    let Plan { method, writes, stub, occupied, map: pcs, exit } = plan;
    let slot = SLOTS + inside.stubs * 8;
    inside.stubs += 1;
    inside.exits.insert(stub.at.get(), exit?.0);
    let placed = memory.write(GuestAddr(stub.at.get()), &stub.bytes).is_ok()
        && memory.write(GuestAddr(slot), &stub.entry.get().to_le_bytes()).is_ok();
    if !placed {
        return None;
    }
    let (len, reads) = (target.bytes().len() as u64, target != Target::Syscall);
    let resume = stub.descriptor.resume;
    let site = Site { at, len, stub: stub.at.get(), resume, reads, writes, occupied, method, pcs };
    let mut ops = Vec::new();
    for left in inside.left.extract_if(.., |left| site.overlaps(range_of(left))) {
        put_back_one(memory, &left, &mut ops);
    }
    for write in &site.writes {
        if memory.write(GuestAddr(write.at.0), &write.new).is_err() {
            // As if nothing had been written.
            site.put_back(memory, &mut Vec::new());
            task.space.owed.borrow_mut().extend(ops);
            return None;
        }
    }
    ops.extend(site.ops());
    inside.sites.insert(at, site);
    Some(ops)
}

fn planned(
    texts: &mut HashMap<FilePart, Rc<Text>>,
    task: &Task,
    inside: &Mapped,
    (mapping, at): (&Mapping, u64),
) -> Option<(Target, Plan)> {
    if inside.stubs >= STUB_COUNT {
        return None;
    }
    let memory = &task.space.memory;
    let text = text(texts, task, inside, mapping)?;
    let low = |at| LowAddr::new(at).filter(|at| at.get().is_multiple_of(8));
    let target = Target::at(&text, CodeAddr(mapping.range.start.0), CodeAddr(at))?;
    let common = match target {
        Target::Syscall => CODE,
        Target::Rdtsc => buffer::reading(false),
        Target::Rdtscp => buffer::reading(true),
    };
    let site = patch::Site {
        base: CodeAddr(mapping.range.start.0),
        at: CodeAddr(at),
        slot: low(SLOTS + inside.stubs * 8)?,
        stub: low(STUBS + inside.stubs * STUB_LEN)?,
        common: LowAddr::new(common)?,
        noted: low(SITE)?,
    };
    let taken: Vec<Range<CodeAddr>> =
        inside.sites.values().flat_map(|site| site.occupied.iter().cloned()).collect();
    let facts = Facts { entries: &[], taken: &taken, refused: &REFUSED };
    let examined = Examined::new(&text, site, facts)
        .inspect_err(|refusal| tracing::debug!(%refusal, "an instruction is not rewritten"))
        .ok()?;
    // Other threads may stand at any instruction.
    let alone = task.space.tasks.get() == 1;
    let by = |method, obstacle| if alone { examined.by(method) } else { Err(obstacle) };
    // A call may be made again at its own address.
    let forward = |obstacle| match target {
        Target::Syscall => Err(obstacle),
        Target::Rdtsc | Target::Rdtscp => {
            by(Method::Forward, obstacle).and_then(|plan| plan.exit.map(|_| plan).ok_or(obstacle))
        }
    };
    let plan = examined
        .by(Method::Island)
        .or_else(|obstacle| by(Method::Backward, obstacle))
        .or_else(forward)
        .inspect_err(|obstacle| tracing::debug!(at = format_args!("{at:#x}"), %obstacle, "no method"))
        .ok()?;
    let is_there = |write: &Write| {
        let mut now = vec![0; write.old.len()];
        let read = memory.read(GuestAddr(write.at.0), &mut now);
        overlay(&inside.left, write.at.0, &mut now);
        read.is_ok() && now == write.old
    };
    plan.writes.iter().all(is_there).then_some((target, plan))
}

/// The mapping of an instruction, if code of it can be rewritten.
fn mapping(task: &Task, inside: &mut Mapped, at: u64) -> Option<Mapping> {
    let holds = |mapping: &Mapping| mapping.range.contains(GuestAddr(at));
    let found = inside.mapping.take().filter(holds);
    found.or_else(|| procfs::maps(task.host).ok()?.into_iter().find(holds)).filter(is_fit)
}

/// Whether code of a mapping can be rewritten unnoticed.
fn is_fit(mapping: &Mapping) -> bool {
    const LONGEST: u64 = 256 << 20;
    let prot = mapping.prot;
    let of_file = mapping.inode != 0 && mapping.name.starts_with('/');
    prot.exec && prot.read && !prot.write && !mapping.shared && of_file && mapping.range.len() <= LONGEST
}

/// The code of a mapping as it was before anything was rewritten.
fn text(
    texts: &mut HashMap<FilePart, Rc<Text>>,
    task: &Task,
    inside: &Mapped,
    mapping: &Mapping,
) -> Option<Rc<Text>> {
    let memory = &task.space.memory;
    let range = mapping.range;
    match texts.entry(mapping.part()) {
        Entry::Occupied(known) => Some(Rc::clone(known.get())),
        Entry::Vacant(new) => {
            let mut bytes =
                bytes(task, mapping).or_else(|| memory.read_vec(range.start, range.len() as usize).ok())?;
            let writes = inside.sites.values().flat_map(|site| &site.writes).chain(&inside.left);
            overlay(writes, range.start.0, &mut bytes);
            unrepeatable::put_own(&task.space, range.start.0, &mut bytes);
            Some(Rc::clone(new.insert(Rc::new(Text::new(bytes)))))
        }
    }
}

/// The bytes of a mapping as its file has them, and as memory has them where it has pages of its own: reading all of them there would bring
/// each page into the task's memory. `None` where this user may not open what is mapped.
fn bytes(task: &Task, mapping: &Mapping) -> Option<Vec<u8>> {
    let range = mapping.range;
    let file = image::exactly(task.host, range).ok()?;
    let mut bytes = vec![0; range.len() as usize];
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], mapping.offset + len as u64).ok()? {
            0 => break,
            read => len += read,
        }
    }
    for own in procfs::own_pages(task.host, range).ok()? {
        let at = (own.start.0 - range.start.0) as usize;
        task.space.memory.read(own.start, &mut bytes[at..][..own.len() as usize]).ok()?;
    }
    Some(bytes)
}

/// Puts back what lies in a range, or all. Tells what that wrote.
pub(super) fn put_back(memory: &Memory, inside: &mut Mapped, range: Option<GuestRange>) -> Vec<MapOp> {
    let mut ops = Vec::new();
    let concerned = |site: &Site| range.is_none_or(|range| site.overlaps(range));
    for (_, site) in inside.sites.extract_if(.., |_, site| concerned(site)) {
        site.put_back(memory, &mut ops);
    }
    let concerned = |write: &Write| range.is_none_or(|range| range_of(write).overlaps(range));
    for write in inside.left.extract_if(.., |write| concerned(write)) {
        put_back_one(memory, &write, &mut ops);
    }
    ops
}

/// Puts back the instructions in a range. Tells what that wrote.
fn put_back_instructions(memory: &Memory, inside: &mut Mapped, range: GuestRange) -> Vec<MapOp> {
    let mut ops = Vec::new();
    for (_, site) in inside.sites.extract_if(.., |_, site| site.overlaps(range)) {
        inside.left.extend(site.put_back_instruction(memory, &mut ops));
    }
    ops
}

/// A task goes on at a pc: what was written over that is put back, for good. The instruction, and what that wrote.
pub(super) fn uncover(memory: &Memory, inside: &mut Mapped, pc: u64) -> Option<(u64, Vec<MapOp>)> {
    let at = inside.sites.values().find(|site| site.is_covered(pc))?.at;
    let mut ops = Vec::new();
    inside.sites.remove(&at)?.put_back(memory, &mut ops);
    Some((at, ops))
}

/// A call is about to change mappings. What is put back for that belongs to its return.
pub(super) fn before_map(task: &Task, kind: MapCall, args: &[u64; 6]) {
    let [addr, len, third, fourth, fifth, _] = *args;
    let fixed = fourth & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64 != 0;
    let ranges = match kind {
        MapCall::Mmap if !fixed => return,
        MapCall::Brk | MapCall::ForkRule => return,
        MapCall::Mremap => [(addr, len.max(third)), (fifth, third)],
        // Whatever its length.
        MapCall::Shmat | MapCall::Shmdt => [(addr, u64::MAX), (0, 0)],
        MapCall::Mmap
        | MapCall::Munmap
        | MapCall::Mprotect
        | MapCall::Discard
        | MapCall::DiscardLater
        | MapCall::Remove => [(addr, len), (0, 0)],
    };
    let mut buffer = task.space.buffer.borrow_mut();
    let changes = |range: GuestRange, at: u64| range.overlaps(GuestRange::new(GuestAddr(at), LONGEST));
    for (start, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
        let range = GuestRange { start: GuestAddr(start), end: GuestAddr(start.saturating_add(len)) };
        let range = GuestRange { start: range.start.page(), end: range.end.page_up() };
        buffer.met.retain(|at, _| !changes(range, *at));
        buffer.refused.retain(|at| !changes(range, *at));
        if let Some(inside) = &mut buffer.inside {
            inside.mapping.take_if(|mapping| mapping.range.overlaps(range));
            let memory = &task.space.memory;
            let ops = match kind {
                MapCall::Mprotect => put_back_instructions(memory, inside, range),
                _ => put_back(memory, inside, Some(range)),
            };
            task.space.owed.borrow_mut().extend(ops);
        }
    }
}
