//! Calls that recorded programs make without a stop, and readings of the time stamp counter, from code of ours in their own space (the
//! `buffer` crate).
//!
//! A `syscall` instruction that was stopped at a few times, for calls that may be made so, is rewritten to lead there (`patch`
//! crate), and so is one that reads the counter. What the calls did is noted in the space's memory, and read from there before any other event of the task is written.
//! A task is never left standing inside: one that is to stop there runs on to where the instruction returns.
//!
//! Only instructions in private mappings of files that the program may not write are rewritten, and what they were is put back before a
//! call changes such a mapping. Where others watch what a task does (tracers, filters of its own), nothing is made so.
//!
//! - `areas`: mappings that only the recorder may change
//! - `files`: which descriptors are good for which calls
//! - `reading`: what the code needs to know to read the counter, and what it cannot read
//! - `sites`: the instructions that are rewritten

mod areas;
mod files;
mod reading;
mod sites;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use abi::buffer::{
    ALONE, CALLING, CODE, END, FAULTED, FIXED, FIXED_LEN, Form, GO, HEAD, IN_VAIN, LISTS, LISTS_LEN, RING,
    RING_LEN, ROW_COUNT, ROWS, Row, SITE, START, STATE, STUBS, Size, TRIED, WRITTEN_LEN,
};
use abi::calls::Noted;
use buffer::{Standing, Used};
use guest::{GuestAddr, GuestMemory, GuestRange, Registers, TaskId, Unmapped};
use kernel::{Call, Class, Good, Inside, Numbered, Wrote};
use ptrace::Stopped;
use trace::{Event, Fact, MapOp, Stop, TracedInfo};

use crate::api::{self, RecordError};
use crate::exec;
use crate::image::ImageError;
use crate::memmap;
use crate::procfs;
use crate::session::Core;
use crate::sink::Sink;
use crate::stop::StopError;
use crate::task::{Space, Task};
use crate::tsc::Line;

use areas::Areas;
pub(crate) use areas::changed;
use files::Known;
pub(crate) use files::{is_mapped, is_plain};
pub(crate) use reading::{after_reading, at_reading, resume, told};
use sites::Site;

/// Length of the `syscall` instruction.
const INSTRUCTION: u64 = 2;
/// Bytes in the ring from which on it is used from its start again.
const FULL: u32 = (RING_LEN / 2) as u32;

/// What a recording knows of buffering.
#[derive(Debug, Default)]
pub(crate) struct Buffering {
    /// Whether calls are made so at all.
    on: bool,
    /// How many more calls that could have been made so are stopped at before any is.
    patience: u32,
    /// The code of files, as it was before anything was rewritten.
    texts: HashMap<procfs::FilePart, Rc<patch::Text>>,
}

impl Buffering {
    pub(crate) fn new(when: Option<api::Buffer>) -> Self {
        // To look through a C library costs as much as some hundred stops: a short recording does without.
        const WORTH: u32 = 256;
        let patience = if when == Some(api::Buffer::Soon) { 0 } else { WORTH };
        Self { on: when.is_some(), patience, texts: HashMap::new() }
    }
}

/// What one space knows of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffer {
    /// Not here, not any more.
    off: bool,
    /// Stops at an instruction for calls that might be made without.
    met: HashMap<u64, u32>,
    /// Instructions that cannot be rewritten.
    refused: HashSet<u64>,
    /// Descriptors, as far as they were met.
    files: BTreeMap<u32, Known>,
    /// An instruction is to be rewritten, which takes what is not mapped yet.
    wanted: bool,
    /// Once it is mapped.
    inside: Option<Box<Mapped>>,
}

/// The state of what is mapped.
#[derive(Clone, Debug, Default)]
struct Mapped {
    /// Bytes of the ring that are in the trace.
    taken: u32,
    /// Whether calls may be made so at present.
    go: bool,
    /// Whether no other task waits for its turn.
    alone: bool,
    /// Rewritten instructions.
    sites: BTreeMap<u64, Site>,
    /// The mapping in which one was rewritten last, while no call concerned it: the next one mostly lies there, too.
    mapping: Option<procfs::Mapping>,
    /// What was written for instructions that were put back themselves.
    left: Vec<patch::Write>,
    /// Stubs there are.
    stubs: u64,
    /// Where the program goes on that has left one of them.
    exits: BTreeMap<u64, u64>,
    /// How the time stamp counter is reckoned there.
    line: Option<Line>,
    /// Where calls that change mappings are stopped at.
    areas: Areas,
}

impl Buffer {
    /// Whether memory of ours is there.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.is_some()
    }

    /// Whether memory of ours lies in a range.
    pub(crate) fn overlaps(&self, range: GuestRange) -> bool {
        self.inside.is_some() && GuestRange { start: GuestAddr(START), end: GuestAddr(END) }.overlaps(range)
    }
}

fn good(needs: Good) -> u8 {
    match needs {
        Good::ForAnything => 0,
        Good::ForReads => abi::buffer::READS,
        Good::ForWrites => abi::buffer::WRITES,
        Good::ForQuestions => abi::buffer::ASKS,
    }
}

/// A call's row, as the code in the space reads it.
fn row(call: Inside) -> Row {
    let size = |wrote| match wrote {
        Wrote::Fixed(len) => Size::Fixed(len),
        Wrote::Result(most, unit) => Size::Result(most, unit as u16),
        Wrote::Several => Size::Several,
    };
    let form = match call.form {
        kernel::Form::Plain => Form::Plain,
        kernel::Form::Vector => Form::Vector,
        kernel::Form::NoTime => Form::NoTime,
        kernel::Form::NoWait => Form::NoWait,
        kernel::Form::Open => Form::Open,
        kernel::Form::Close => Form::Close,
        kernel::Form::Send => Form::Send,
        kernel::Form::Poll => Form::Poll,
        kernel::Form::NoTimeAt => Form::NoTimeAt,
        kernel::Form::Vectors => Form::Vectors,
        kernel::Form::Message => Form::Message,
        kernel::Form::OpenAs => Form::OpenAs,
        kernel::Form::Alone => Form::Alone,
        kernel::Form::Compare => Form::Compare,
        kernel::Form::Range => Form::Range,
        kernel::Form::Fresh => Form::Fresh,
    };
    let out = call.out.map(|(at, wrote)| (at, size(wrote)));
    Row { needs: good(call.good), args: call.args, out, zero: call.zero, form }
}

/// The rows of all calls, and behind them the lists of those that requests have.
fn rows() -> Vec<u8> {
    const THIRD: usize = 2;
    let mut lists: Vec<u64> = Vec::new();
    let mut words: Vec<u64> = Vec::new();
    for nr in 0..ROW_COUNT as u32 {
        words.push(match kernel::numbered(nr) {
            None => 0,
            Some(Numbered::Call(call)) => row(call).to_word(),
            Some(Numbered::Requests(at, mask, all)) => {
                let list = LISTS + lists.len() as u64 * 8;
                lists.extend(abi::buffer::list_head(mask));
                lists.extend(all.into_iter().flat_map(|(of, call)| abi::buffer::list_entry(of, row(call))));
                lists.extend([0, 0]);
                abi::buffer::by_request(list, at == THIRD)
            }
        });
    }
    assert!(lists.len() as u64 * 8 <= LISTS_LEN, "the requests have room");
    words.into_iter().chain(lists).flat_map(u64::to_le_bytes).collect()
}

/// What was noted in a space since this was last asked becomes events of the task that made the calls.
pub(crate) fn drain(sink: &mut Sink, task: &mut Task) -> Result<(), RecordError> {
    let space = Rc::clone(&task.space);
    let mut buffer = space.buffer.borrow_mut();
    let Some(inside) = &mut buffer.inside else { return Ok(()) };
    let from = RING + u64::from(inside.taken);
    let Some((head, mut bytes)) = head(&space, from) else { return Ok(()) };
    if head == inside.taken {
        return Ok(());
    }
    let len = head.saturating_sub(inside.taken) as usize;
    if u64::from(head) > RING_LEN || len == 0 {
        return Err(RecordError::Bug { what: format!("the ring of a space ends at {head}") });
    }
    let had = bytes.len().min(len);
    bytes.resize(len, 0);
    space
        .memory
        .read(GuestAddr(from + had as u64), &mut bytes[had..])
        .map_err(|unmapped| RecordError::Bug { what: format!("the ring of a space: {unmapped}") })?;
    inside.taken = head;
    files::forget_closed(&mut buffer.files, &bytes);
    if let Some(last) = write(sink, task, &bytes)? {
        let Registers { rip, rax, .. } = last.after;
        task.after = match last.stop {
            Stop::Buffered => Registers { rip, rax, rcx: rip, orig_rax: u64::MAX, ..task.after },
            _ => last.completed(&task.after).after,
        };
        // Whether it ran since then is not known.
        task.at_point = true;
    }
    Ok(())
}

/// Whether anything was noted in a space that is not in the trace yet.
pub(crate) fn has_noted(space: &Space) -> bool {
    let taken = space.buffer.borrow().inside.as_ref().map(|inside| inside.taken);
    taken.is_some_and(|taken| space.memory.read_u32(GuestAddr(HEAD)).is_ok_and(|head| head != taken))
}

/// Where what is noted in a space ends, and the bytes from an address of the ring on, as far as they are likely to be of use. `None` where
/// the memory is gone, and with it what was noted there.
fn head(space: &Space, from: u64) -> Option<(u32, Vec<u8>)> {
    const LIKELY: u64 = 512;
    const WORD: usize = 4;
    let parts = [(HEAD, WORD as u64), (from, LIKELY)].map(|(at, len)| GuestRange::new(GuestAddr(at), len));
    let mut bytes = vec![0; WORD + LIKELY as usize];
    let read = space.memory.read_ranges(&parts, &mut bytes);
    bytes.truncate(read);
    let head = u32::from_le_bytes(*bytes.first_chunk()?);
    Some((head, bytes.split_off(WORD)))
}

/// Writes calls that a task has noted; the last of them. Those that changed mappings each have an event for themselves, which says so.
fn write(sink: &mut Sink, task: &Task, bytes: &[u8]) -> Result<Option<Event>, RecordError> {
    let (mut last, mut from, mut at) = (None, 0, 0);
    while let Some((noted, len)) = abi::calls::first(&bytes[at..]) {
        if let Noted::Call(call) = noted
            && let Some(kind) = kernel::changes_mappings(call.nr, &call.args)
        {
            if from < at {
                sink.calls(task.id, task.space.id, &bytes[from..at])?;
            }
            let maps = memmap::of_noted(task, kind, &Call::finished(call.nr, call.args, call.result));
            last = sink.mapping_call(task.id, task.space.id, &bytes[at..at + len], maps)?;
            from = at + len;
        }
        at += len;
    }
    if from < bytes.len() {
        last = sink.calls(task.id, task.space.id, &bytes[from..])?;
    }
    Ok(last)
}

/// A call is about to be made. From the buffer, where it could not be made: the task shall seem to stand at the instruction it has
/// come from. Its registers, and what the buffer left behind: that it made the call and that failed, so that what it wrote before has to be
/// told, only once.
pub(crate) fn at_entry(
    task: &Task,
    stopped: &mut Stopped,
    regs: Registers,
) -> Result<(Registers, Left), StopError> {
    let mut buffer = task.space.buffer.borrow_mut();
    let Some(inside) = &mut buffer.inside else { return Ok((regs, Left::default())) };
    rewind(&task.space, inside)?;
    let memory = &task.space.memory;
    let Some((seen, left)) = outside(task, &regs)? else { return Ok((regs, Left::default())) };
    if left.faulted {
        memory.write(GuestAddr(FAULTED), &0u32.to_le_bytes())?;
    }
    stopped.set_registers(&seen)?;
    Ok((seen, left))
}

/// Uses the ring from its start again where it is full enough. All of it is in the trace.
fn rewind(space: &Space, inside: &mut Mapped) -> Result<(), StopError> {
    if inside.taken > FULL {
        space.memory.write(GuestAddr(HEAD), &0u32.to_le_bytes())?;
        inside.taken = 0;
    }
    Ok(())
}

/// What the buffer left behind that stops at a call.
#[derive(Default)]
pub(crate) struct Left {
    /// The address of the site's descriptor.
    pub(crate) descriptor: u64,
    /// Whether it was made and failed.
    pub(crate) faulted: bool,
    /// Whether it was tried, and would have waited.
    pub(crate) in_vain: bool,
}

/// What the buffer left behind at a call that it stops at.
pub(crate) fn left(space: &Space) -> Result<Left, Unmapped> {
    // By one system call: this is asked at every such stop.
    let mut bytes = [0; (FAULTED + 8 - SITE) as usize];
    space.memory.read(GuestAddr(SITE), &mut bytes)?;
    let word = |at: u64| u64::from_le_bytes(std::array::from_fn(|i| bytes[(at - SITE) as usize + i]));
    const _: () = assert!(IN_VAIN == FAULTED + 4);
    let how = word(FAULTED);
    Ok(Left { descriptor: word(SITE), faulted: how as u32 != 0, in_vain: how >> 32 != 0 })
}

/// Whether a word of the state is not 0.
fn is_set(space: &Space, at: u64) -> bool {
    space.has_buffer() && space.memory.read_u32(GuestAddr(at)).is_ok_and(|word| word != 0)
}

/// The registers of a call that the buffer did not make as if the program's own instruction made it; `None` of other calls.
fn outside(task: &Task, regs: &Registers) -> Result<Option<(Registers, Left)>, StopError> {
    if regs.rip != buffer::traced_return() {
        return Ok(None);
    }
    let left = left(&task.space)?;
    let after = task.space.memory.read_u64(GuestAddr(left.descriptor))?;
    Ok(Some((Registers { rip: after, rcx: after, ..*regs }, left)))
}

/// Where a task was killed.
pub(crate) enum Killed {
    /// In its own code, with these registers.
    At(Registers),
    /// At a call, or in one of which nothing was noted: these are its registers as the kernel shows them there.
    InCall(Registers),
    /// Behind its last event, or its last call, which is noted.
    BehindCall,
}

/// Where a task was killed that may stand in memory of ours; `None` if that cannot be told.
pub(crate) fn at_death(task: &Task, regs: &Registers) -> Option<Killed> {
    let memory = &task.space.memory;
    if let Some((regs, _)) = outside(task, regs).ok()? {
        return Some(Killed::InCall(regs));
    }
    if (abi::PAGE..abi::RESOLVER).contains(&regs.rip) {
        // While calls were made on its behalf, right after its last event.
        return Some(Killed::BehindCall);
    }
    let end = CODE + buffer::code().len() as u64;
    if task.space.buffer.borrow().inside.is_none() || !(CODE..end).contains(&regs.rip) {
        return elsewhere(task, regs);
    }
    let Registers { rax, rbx, rbp, r12, rcx, r11, rsp, eflags, .. } = *regs;
    let now = Used { rax, args: regs.syscall_args(), rbx, rbp, r12, rcx, r11, rsp, eflags };
    match buffer::standing(regs.rip, now, |at| memory.read_u64(GuestAddr(at)).ok())? {
        Standing::Behind => Some(Killed::BehindCall),
        Standing::AtCall(used) => {
            let descriptor =
                if regs.rip == CODE { regs.r11 } else { memory.read_u64(GuestAddr(SITE)).ok()? };
            let after = memory.read_u64(GuestAddr(descriptor)).ok()?;
            let regs = Registers { rip: after, rax: regs.rax, ..as_used(regs, used) };
            Some(Killed::InCall(Registers { orig_rax: used.rax, rcx: after, r11: regs.r11, ..regs }))
        }
        Standing::AtReading(used) => {
            let at = site_in_use(task)?;
            Some(Killed::At(Registers { rip: at, ..as_used(regs, used) }))
        }
    }
}

/// Registers, but for those that the code uses.
fn as_used(regs: &Registers, used: Used) -> Registers {
    let Used { rax, args: [rdi, rsi, rdx, r10, r8, r9], rbx, rbp, r12, rcx, r11, rsp, eflags } = used;
    Registers { rax, rdi, rsi, rdx, r10, r8, r9, rbx, rbp, r12, rcx, r11, rsp, eflags, ..*regs }
}

/// The instruction that led into the code last.
fn site_in_use(task: &Task) -> Option<u64> {
    let descriptor = task.space.memory.read_u64(GuestAddr(SITE)).ok()?;
    let buffer = task.space.buffer.borrow();
    let mut sites = buffer.inside.as_ref()?.sites.values();
    sites.find(|site| site.stub == descriptor).map(|site| site.at)
}

/// The same of one that does not stand in the code that all calls share.
fn elsewhere(task: &Task, regs: &Registers) -> Option<Killed> {
    let buffer = task.space.buffer.borrow();
    let mut sites = buffer.inside.iter().flat_map(|inside| inside.sites.values());
    match sites.find_map(|site| site.plain(regs.rip)) {
        None if (STUBS..ROWS).contains(&regs.rip) => None,
        None => Some(Killed::At(*regs)),
        Some(place) if place.registers == patch::Registers::All => {
            Some(Killed::At(Registers { rip: place.pc.0, ..*regs }))
        }
        Some(place) => {
            let after = place.pc.0 + INSTRUCTION;
            Some(Killed::InCall(Registers { rip: after, orig_rax: regs.rax, ..*regs }))
        }
    }
}

/// Whether a pc is of one of a program's instructions that were moved into a stub.
pub(crate) fn is_moved(task: &Task, pc: u64) -> bool {
    (STUBS..ROWS).contains(&pc) && task.space.has_buffer()
}

/// Where a task comes out that stands in memory of ours, or on its way there; `None` where it does not.
pub(crate) fn way_out(task: &Task, regs: &Registers) -> Option<u64> {
    let buffer = task.space.buffer.borrow();
    let inside = buffer.inside.as_ref()?;
    let memory = &task.space.memory;
    let pc = regs.rip;
    let descriptor = if pc == CODE {
        regs.r11
    } else if (CODE..CODE + buffer::code().len() as u64).contains(&pc) {
        memory.read_u64(GuestAddr(SITE)).ok()?
    } else if (STUBS..ROWS).contains(&pc) {
        pc - (pc - STUBS) % abi::buffer::STUB_LEN
    } else {
        return inside.sites.values().find(|site| site.is_island(pc)).map(Site::after);
    };
    inside.exits.get(&descriptor).copied()
}

/// A task goes on at a pc to which nothing but the kernel leads: at a call that is made again, or where a handler returns to. What is put
/// back for that.
pub(crate) fn goes_on_at(task: &Task, pc: u64) -> Vec<MapOp> {
    let mut buffer = task.space.buffer.borrow_mut();
    let uncovered = buffer.inside.as_mut().and_then(|inside| sites::uncover(&task.space.memory, inside, pc));
    let Some((site, ops)) = uncovered else { return Vec::new() };
    buffer.refused.insert(site);
    ops
}

/// Where a call that is to be stopped at can be made from instead of by an instruction that may be rewritten.
pub(crate) fn traced_call(task: &Task) -> Option<u64> {
    task.space.buffer.borrow().inside.is_some().then(|| buffer::traced_return() - INSTRUCTION)
}

/// Lets a space's calls be made without a stop, or not.
pub(crate) fn allow(space: &Space, go: bool) {
    let mut buffer = space.buffer.borrow_mut();
    let off = buffer.off;
    if let Some(inside) = &mut buffer.inside {
        let go = go && !off;
        if inside.go != go && space.memory.write(GuestAddr(GO), &u32::from(go).to_le_bytes()).is_ok() {
            inside.go = go;
        }
    }
}

/// Tells a space whether no other task waits for its turn.
pub(crate) fn tell_alone(space: &Space, alone: bool) {
    if let Some(inside) = &mut space.buffer.borrow_mut().inside
        && inside.alone != alone
        && space.memory.write(GuestAddr(ALONE), &u32::from(alone).to_le_bytes()).is_ok()
    {
        inside.alone = alone;
    }
}

/// Whether a space has a call that may have been made and is not noted yet.
pub(crate) fn is_calling(space: &Space) -> bool {
    is_set(space, CALLING)
}

/// From now on every call of a space stops. Its own instructions are put back where an event will tell of that: now if all of its tasks are
/// in calls, else at the next one that a task of it makes, or when a tracer asks for something.
pub(crate) fn turn_off(space: &Space) {
    space.buffer.borrow_mut().off = true;
    allow(space, false);
    if space.in_call() {
        put_back_owing(space);
    }
}

/// Puts back the instructions of a space that is turned off, which belongs to the next return from a call there.
fn put_back_owing(space: &Space) {
    let ops = put_back(space);
    space.owed.borrow_mut().extend(ops);
}

fn put_back(space: &Space) -> Vec<MapOp> {
    let mut buffer = space.buffer.borrow_mut();
    let off = buffer.off;
    let inside = buffer.inside.as_mut().filter(|inside| off && !inside.sites.is_empty());
    inside.map_or_else(Vec::new, |inside| sites::put_back(&space.memory, inside, None))
}

/// A tracer asks for something of a task that is held for it.
pub(crate) fn before_request(core: &mut Core, tracer: TaskId, task: &Task) -> Result<(), StopError> {
    if task.pending.is_some() {
        put_back_owing(&task.space);
        return Ok(());
    }
    let maps = put_back(&task.space);
    if !maps.is_empty() {
        let fact = Fact::Traced(TracedInfo { tracer, request: None });
        let event = Event::in_place(task.id, task.space.id, task.after, fact);
        core.sink.event(&Event { maps, ..event })?;
    }
    Ok(())
}

/// From now on every call stops.
pub(crate) fn turn_off_everywhere(core: &mut Core) {
    core.buffering.on = false;
    core.spaces.iter().filter_map(std::rc::Weak::upgrade).for_each(|space| turn_off(&space));
}

const CLONE: u32 = kernel::number("clone");
const CLONE3: u32 = kernel::number("clone3");
const CLOSE: u32 = kernel::number("close");
const CLOSE_RANGE: u32 = kernel::number("close_range");
const DUP2: u32 = kernel::number("dup2");
const DUP3: u32 = kernel::number("dup3");
const FCNTL: u32 = kernel::number("fcntl");
const IOCTL: u32 = kernel::number("ioctl");
const SETSOCKOPT: u32 = kernel::number("setsockopt");
const UNSHARE: u32 = kernel::number("unshare");
const PRCTL: u32 = kernel::number("prctl");
const PROCESS_VM_WRITEV: u32 = kernel::number("process_vm_writev");
const SET_SYSCALL_USER_DISPATCH: u64 = 59;
/// From here on tasks may differ in whether `rdtsc` runs.
const SET_TSC: u64 = libc::PR_SET_TSC as u64;

/// A call is about to be made that may concern what is buffered.
pub(crate) fn before_call(core: &mut Core, task: &Task, class: Class, nr: u32, args: &[u64; 6]) {
    if core.buffering.on {
        concern(core, task, class, nr, args);
    }
    if task.space.buffer.borrow().off {
        put_back_owing(&task.space);
    }
}

fn concern(core: &mut Core, task: &Task, class: Class, nr: u32, args: &[u64; 6]) {
    match class {
        Class::Trace => turn_off_everywhere(core),
        Class::Restrict => turn_off(&task.space),
        Class::Map(kind) => sites::before_map(task, kind, args),
        Class::Spawn => before_spawn(&task.space, nr, args),
        _ => {}
    }
    match nr {
        CLOSE => files::forget(&task.space, args[0] as u32..=args[0] as u32),
        DUP2 | DUP3 => files::forget(&task.space, args[1] as u32..=args[1] as u32),
        CLOSE_RANGE => {
            files::forget(&task.space, args[0] as u32..=args[1] as u32);
            if args[2] & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0 {
                turn_off(&task.space);
            }
        }
        FCNTL if args[1] as i32 == libc::F_SETFL => {
            files::forget(&task.space, args[0] as u32..=args[0] as u32);
            if args[2] & libc::O_NONBLOCK as u64 == 0 {
                files::may_wait_from_now_on(core);
            }
        }
        IOCTL if args[1] == libc::FIONBIO => {
            files::forget(&task.space, args[0] as u32..=args[0] as u32);
            if task.space.memory.read_u32(GuestAddr(args[2])).unwrap_or(0) == 0 {
                files::may_wait_from_now_on(core);
            }
        }
        // Less than all that was asked for may be too little.
        SETSOCKOPT if args[1] as i32 == libc::SOL_SOCKET && args[2] as i32 == libc::SO_RCVLOWAT => {
            turn_off_everywhere(core);
        }
        // There may be less room for what is sent.
        SETSOCKOPT
            if args[1] as i32 == libc::SOL_SOCKET
                && matches!(args[2] as i32, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) =>
        {
            files::may_wait_from_now_on(core);
        }
        UNSHARE if args[0] & libc::CLONE_FILES as u64 != 0 => turn_off(&task.space),
        PRCTL if matches!(args[0], SET_SYSCALL_USER_DISPATCH | SET_TSC) => turn_off(&task.space),
        PROCESS_VM_WRITEV => turn_off_everywhere(core),
        _ => {}
    }
}

/// A task is about to be made: tasks that share descriptors and not memory, or memory and not descriptors, have their calls stop.
fn before_spawn(space: &Space, nr: u32, args: &[u64; 6]) {
    let flags = match nr {
        CLONE => args[0],
        CLONE3 => space.memory.read_u64(GuestAddr(args[0])).unwrap_or(0),
        _ => return,
    };
    let has = |flag: i32| flags & flag as u64 != 0;
    let (memory, files) = (has(libc::CLONE_VM), has(libc::CLONE_FILES));
    if memory != files && !(memory && has(libc::CLONE_VFORK)) {
        turn_off(space);
    }
}

/// A call returned that was stopped at. Sees to it that the next ones from there need not be; what is rewritten for that.
pub(crate) fn after_call(
    core: &mut Core,
    task: &Task,
    (nr, args): (u32, [u64; 6]),
    regs: &Registers,
) -> Vec<MapOp> {
    let Some(call) = kernel::inside(nr, &args) else { return Vec::new() };
    if !may_rewrite(core, task) {
        return Vec::new();
    }
    let needs = good(call.good);
    let good = if needs == 0 { 0 } else { files::good_for(core, task, args[0] as u32) };
    let tried = match call.form {
        kernel::Form::Vector | kernel::Form::Vectors | kernel::Form::NoWait | kernel::Form::Message => {
            needs << TRIED
        }
        _ => needs,
    };
    if good & needs != needs && good & tried != tried || areas::concerns_others(task, call.form, &args) {
        return Vec::new();
    }
    met(core, task, regs.rip.wrapping_sub(INSTRUCTION))
}

/// Whether a task's instructions may be rewritten.
fn may_rewrite(core: &Core, task: &Task) -> bool {
    let watched = task.sandbox.mode() != 0 || task.tracing.is_some() || task.by_vfork;
    core.buffering.on && !watched && task.space.lent.get() == 0 && !task.space.buffer.borrow().off
}

/// A task was stopped at an instruction, where it need not have been. What is rewritten for that.
fn met(core: &mut Core, task: &Task, site: u64) -> Vec<MapOp> {
    const PATIENCE: u32 = 4;
    let buffer = &mut *task.space.buffer.borrow_mut();
    let known = buffer.inside.as_ref().is_some_and(|inside| inside.sites.contains_key(&site));
    if known || buffer.refused.contains(&site) {
        return Vec::new();
    }
    let met = buffer.met.entry(site).or_default();
    *met += 1;
    core.buffering.patience = core.buffering.patience.saturating_sub(1);
    if *met < PATIENCE || core.buffering.patience > 0 {
        return Vec::new();
    }
    let Some(inside) = &mut buffer.inside else {
        buffer.wanted = true;
        return Vec::new();
    };
    let ops = sites::rewrite(&mut core.buffering.texts, task, inside, site);
    ops.unwrap_or_else(|| {
        buffer.refused.insert(site);
        Vec::new()
    })
}

/// Maps what a space needs, if that is wanted. All signals wait meanwhile.
pub(crate) fn map(task: &Task, mut stopped: Stopped) -> Result<Stopped, StopError> {
    if !std::mem::take(&mut task.space.buffer.borrow_mut().wanted) {
        return Ok(stopped);
    }
    let mask = stopped.signal_mask()?;
    stopped.set_signal_mask(u64::MAX)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let areas = [
        (FIXED, FIXED_LEN, libc::PROT_READ | libc::PROT_EXEC),
        (STATE, WRITTEN_LEN, libc::PROT_READ | libc::PROT_WRITE),
    ];
    let mut fits = true;
    for (at, len, prot) in areas {
        let args = [at, len, prot as u64, flags as u64, u64::MAX, 0];
        let (again, result) = exec::make_call(stopped, GuestAddr(abi::SYSCALL), libc::SYS_mmap as u64, args)?;
        stopped = again;
        fits &= result == at as i64;
    }
    stopped.set_signal_mask(mask)?;
    let mut buffer = task.space.buffer.borrow_mut();
    let mappings = procfs::maps(task.host).map_err(ImageError::Proc)?;
    if !fits {
        tracing::debug!("a program leaves no room for the buffer");
        buffer.off = true;
        return Ok(stopped);
    }
    let memory = &task.space.memory;
    memory.write(GuestAddr(CODE), buffer::code())?;
    memory.write(GuestAddr(ROWS), &rows())?;
    files::tell_all(memory, &buffer.files)?;
    let areas = Areas::of(&mappings);
    areas.tell(memory)?;
    memory.write(GuestAddr(GO), &1u32.to_le_bytes())?;
    buffer.inside = Some(Box::new(Mapped { go: true, areas, ..Mapped::default() }));
    Ok(stopped)
}
