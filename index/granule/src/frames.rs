//! Calls and returns, found from the block sequence and the return addresses pushed.
//!
//! A call pushes its return address, and where it does tells where the stack is: frames at or below that address are gone,
//! however they were left. A return pops the frame whose return address it goes to. Frames that a jump or a return to
//! elsewhere left (`longjmp`, an exception) are known to be gone at the next call or return, and were since that jump.

use std::collections::BTreeMap;

use guest::{GuestAddr, Moment, TaskId};

use crate::dictionary::{Slot, SlotAddress};
use crate::marks::{Mark, Marks};
use crate::shape::{BlockEnd, BlockShape, StoreContents, StoreSize};
use crate::wire::{Reader, WireError, put_signed, put_varint};

/// What entered a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallKind {
    /// A call instruction.
    Call,
    /// The delivery of a signal to a handler.
    Signal,
}

/// A function in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What entered it.
    pub kind: CallKind,
    /// The moment of its first instruction.
    pub entry: Moment,
    /// Its entry, behind a linkage stub if there was one.
    pub callee: GuestAddr,
    /// The call instruction; for a handler, the instruction that was interrupted.
    pub site: GuestAddr,
    /// Where it returns to.
    pub ret: GuestAddr,
    /// The address of its return address.
    pub sp: GuestAddr,
}

/// A function that was left, or is still in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The function.
    pub frame: Frame,
    /// Whose.
    pub task: TaskId,
    /// Number of calls around it.
    pub depth: u32,
    /// The moment after its return; `None` while it is in progress.
    pub exit: Option<Moment>,
    /// Whether it was in progress already when the granule in which it is left began.
    pub crossed: bool,
    /// Whether the task was in it from its beginning, because the task it was made by was: no call of its own.
    pub inherited: bool,
}

/// What happened to a task's call stack other than by calls and returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint {
    /// When, before that tick's instruction.
    pub tick: u64,
    /// When. (Another task may run from this very tick on, at a later moment.)
    pub moment: Moment,
    /// To whom.
    pub task: TaskId,
    /// What.
    pub kind: HintKind,
}

/// See [`Hint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HintKind {
    /// A signal handler was entered.
    Signal {
        /// The instruction that was interrupted.
        site: GuestAddr,
        /// The handler.
        handler: GuestAddr,
        /// Where it returns to.
        ret: GuestAddr,
        /// Its stack pointer.
        sp: GuestAddr,
    },
    /// The stack pointer is here: frames below it are gone.
    Unwind {
        /// The stack pointer.
        sp: GuestAddr,
    },
    /// The task begins in the middle of what another one does, on its stack (vfork).
    Adopt {
        /// The other one.
        from: TaskId,
    },
    /// The granule begins while the task is in the middle of something.
    GoOn(Unfinished),
}

/// What a task's last instructions began and its next ones end: a call that retired, a return that has led nowhere yet. A task
/// that others interrupted can be in the middle of it for many granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unfinished {
    pending: Pending,
    /// When a jump since the last call or return led elsewhere: perhaps out of frames.
    jumped: Option<Moment>,
    binding: Option<Binding>,
}

/// How far above a frame the stack can be for the frame to be called left, rather than on another stack.
const STACK_REACH: u64 = 8 << 20;

/// How many frames a return is looked for.
const RETURN_SEARCH: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Pending {
    #[default]
    Nothing,
    /// A call retired; the next block is the callee.
    Call { site: GuestAddr, ret: GuestAddr, sp: GuestAddr },
    /// A return retired; the next block says where to.
    Return,
    /// A linkage stub ran; the next block is the real callee.
    Stub,
    /// Another indirect jump ran.
    Jump,
}

/// A function whose linkage stub is not bound yet: the dynamic linker runs in its frame, and jumps to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Binding {
    /// The number of frames, its own included.
    depth: usize,
    /// Indirect jumps of that frame until it: one to the linker, one from there.
    jumps: u8,
}

/// The call stack of one task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    frames: Vec<Frame>,
    unfinished: Unfinished,
    /// How many frames, from the outermost, were in progress when the granule began.
    crossed: usize,
    /// How many were in progress when the task began.
    inherited: usize,
}

/// The call stacks of a space's tasks.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    stacks: BTreeMap<TaskId, Stack>,
}

impl Frames {
    /// The functions that `task` is in, the outermost first.
    pub fn of(&self, task: TaskId) -> &[Frame] {
        self.stacks.get(&task).map_or(&[], |stack| &stack.frames)
    }

    /// Lets `task` be in `frames`, the outermost first, before the granule begins.
    pub fn set(&mut self, task: TaskId, frames: Vec<Frame>) {
        let crossed = frames.len();
        self.stacks.insert(task, Stack { frames, crossed, ..Stack::default() });
    }

    /// What tasks are in the middle of.
    pub fn unfinished(&self) -> impl Iterator<Item = (TaskId, Unfinished)> {
        let all = self.stacks.iter().map(|(&task, stack)| (task, stack.unfinished));
        all.filter(|(_, unfinished)| *unfinished != Unfinished::default())
    }

    /// Ends a granule: the functions in progress that were entered in it, and from now on count as crossing.
    pub fn cross(&mut self, mut opened: impl FnMut(Call)) {
        for (&task, stack) in &mut self.stacks {
            for (depth, &frame) in stack.frames.iter().enumerate().skip(stack.crossed) {
                opened(stack.call(task, depth, frame, None));
            }
            stack.crossed = stack.frames.len();
        }
    }

    /// All functions in progress.
    pub fn in_progress(&self) -> impl Iterator<Item = Call> {
        self.stacks.iter().flat_map(|(&task, stack)| {
            let call = move |(depth, &frame)| stack.call(task, depth, frame, None);
            stack.frames.iter().enumerate().map(call)
        })
    }

    /// Takes a task's stack out, to be put back with [`Frames::put`].
    fn take(&mut self, task: TaskId) -> Stack {
        self.stacks.remove(&task).unwrap_or_default()
    }

    fn put(&mut self, task: TaskId, stack: Stack) {
        self.stacks.insert(task, stack);
    }

    /// Applies a hint. Left functions go to `left`.
    fn apply(&mut self, hint: &Hint, left: &mut impl FnMut(Call)) {
        let Hint { task, moment, .. } = *hint;
        match hint.kind {
            HintKind::Adopt { from } => {
                let frames = self.of(from).to_vec();
                let inherited = frames.len();
                self.put(task, Stack { frames, inherited, ..Stack::default() });
            }
            HintKind::Unwind { sp } => self.stacks.entry(task).or_default().unwind(task, sp, moment, left),
            HintKind::Signal { site, handler, ret, sp } => {
                let stack = self.stacks.entry(task).or_default();
                stack.arrive(task, site, moment, left);
                stack.unfinished.pending = Pending::Nothing;
                let frame = Frame { kind: CallKind::Signal, entry: moment, callee: handler, site, ret, sp };
                stack.frames.push(frame);
            }
            HintKind::GoOn(unfinished) => self.stacks.entry(task).or_default().unfinished = unfinished,
        }
    }

    /// Whether the hint that the stack of `task` is at `sp` would end a function.
    pub fn unwinds(&self, task: TaskId, sp: GuestAddr) -> bool {
        self.of(task).last().is_some_and(|frame| frame.sp < sp && sp.0 - frame.sp.0 <= STACK_REACH)
    }
}

impl Stack {
    /// Whether the next block means something whatever it is.
    #[inline]
    fn is_waiting(&self) -> bool {
        self.unfinished.pending != Pending::Nothing
    }

    /// A frame of it, left at `exit`.
    fn call(&self, task: TaskId, depth: usize, frame: Frame, exit: Option<Moment>) -> Call {
        let (crossed, inherited) = (depth < self.crossed, depth < self.inherited);
        Call { frame, task, depth: depth as u32, exit, crossed, inherited }
    }

    /// Execution goes on at `pc`.
    fn arrive(&mut self, task: TaskId, pc: GuestAddr, moment: Moment, left: &mut impl FnMut(Call)) {
        match std::mem::take(&mut self.unfinished.pending) {
            Pending::Nothing => {}
            Pending::Call { site, ret, sp } => {
                let frame = Frame { kind: CallKind::Call, entry: moment, callee: pc, site, ret, sp };
                self.frames.push(frame);
            }
            Pending::Return => {
                let found = self.frames.iter().rev().take(RETURN_SEARCH).position(|frame| frame.ret == pc);
                let Some(inner) = found else { return self.unfinished.jumped = Some(moment) };
                let jumped = self.unfinished.jumped.take().unwrap_or(moment);
                self.leave(task, inner, jumped, left);
                self.leave(task, 1, moment, left);
            }
            Pending::Stub => {
                if let Some(frame) = self.frames.last_mut() {
                    frame.callee = pc;
                }
            }
            Pending::Jump if is_recorders(pc) => {}
            Pending::Jump => {
                self.unfinished.jumped.get_or_insert(moment);
                self.bind(pc);
            }
        }
    }

    /// An indirect jump led to `pc`.
    fn bind(&mut self, pc: GuestAddr) {
        let depth = self.frames.len();
        let Some(binding) = self.unfinished.binding.as_mut().filter(|binding| binding.depth == depth) else {
            return;
        };
        binding.jumps -= 1;
        if binding.jumps == 0 {
            self.unfinished.binding = None;
            self.frames.last_mut().into_iter().for_each(|frame| frame.callee = pc);
        }
    }

    /// A block ran, from `moment` on; `pushed` is where its last store went.
    fn run(&mut self, task: TaskId, turn: &Turn, moment: Moment, pushed: u64, left: &mut impl FnMut(Call)) {
        let entered = matches!(self.unfinished.pending, Pending::Call { .. });
        let through_stub = self.unfinished.pending == Pending::Stub;
        self.arrive(task, turn.pc, moment, left);
        if through_stub && turn.unbound {
            self.unfinished.binding = Some(Binding { depth: self.frames.len(), jumps: 2 });
        }
        match turn.end {
            BlockEnd::Call => {
                let sp = GuestAddr(pushed);
                let last = Moment(moment.0 + u64::from(turn.instructions) - 1);
                let jumped = self.unfinished.jumped.take().unwrap_or(last);
                self.unwind(task, sp.wrapping_add(1), jumped, left);
                self.unfinished.pending = Pending::Call { site: turn.site, ret: turn.ret, sp };
            }
            BlockEnd::Return => self.unfinished.pending = Pending::Return,
            BlockEnd::IndirectJump if entered && turn.instructions <= 2 => {
                self.unfinished.pending = Pending::Stub
            }
            BlockEnd::IndirectJump if is_recorders(turn.pc) => {}
            BlockEnd::IndirectJump => self.unfinished.pending = Pending::Jump,
            _ => {}
        }
    }

    /// The stack is at `sp`: what is below it is gone, and so is a signal handler on a stack of its own, if that is not it.
    fn unwind(&mut self, task: TaskId, sp: GuestAddr, moment: Moment, left: &mut impl FnMut(Call)) {
        let far = |frame: &Frame| frame.sp.0.abs_diff(sp.0) > STACK_REACH;
        if self.frames.last().is_some_and(far) {
            let handler =
                |pair: &[Frame]| pair[1].kind == CallKind::Signal && far(&pair[1]) && !far(&pair[0]);
            if let Some(interrupted) = self.frames.windows(2).position(handler) {
                self.leave(task, self.frames.len() - 1 - interrupted, moment, left);
            }
        }
        let gone = |frame: &&Frame| frame.sp < sp && sp.0 - frame.sp.0 <= STACK_REACH;
        let count = self.frames.iter().rev().take_while(gone).count();
        self.leave(task, count, moment, left);
    }

    fn leave(&mut self, task: TaskId, count: usize, moment: Moment, left: &mut impl FnMut(Call)) {
        for _ in 0..count {
            let Some(frame) = self.frames.pop() else { return };
            let depth = self.frames.len();
            self.unfinished.binding.take_if(|binding| binding.depth > depth);
            left(self.call(task, depth, frame, Some(moment)));
            self.crossed = self.crossed.min(depth);
            self.inherited = self.inherited.min(depth);
        }
    }
}

/// What a granule says about control flow, decoded.
pub(crate) struct Flow<'a> {
    /// By local number.
    pub(crate) steps: &'a [Step],
    pub(crate) marks: &'a Marks,
    pub(crate) hints: &'a [Hint],
    pub(crate) first_tick: u64,
}

/// How a block begins and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) pc: GuestAddr,
    /// Its last instruction, and what follows it, for calls.
    site: GuestAddr,
    ret: GuestAddr,
    pub(crate) instructions: u32,
    end: BlockEnd,
    /// Whether it is what follows a linkage stub that is not bound: it pushes a number and jumps.
    unbound: bool,
}

impl Turn {
    pub(crate) fn new(shape: &BlockShape) -> Self {
        let (instructions, calls) = (shape.instructions(), shape.end == BlockEnd::Call);
        let at = |index| if calls { shape.pc_of(index) } else { GuestAddr(0) };
        Self {
            pc: shape.pc,
            site: at(instructions.saturating_sub(1)),
            ret: at(instructions),
            instructions,
            end: shape.end,
            unbound: is_unbound(shape),
        }
    }

    pub(crate) fn calls(&self) -> bool {
        self.end == BlockEnd::Call
    }

    /// Whether it means something to a call stack that waits for nothing: then the next block does, too.
    pub(crate) const fn leads_on(&self) -> bool {
        self.end.leads_on()
    }
}

/// What a block does to call stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    turn: Turn,
    /// Where its last store goes, for calls.
    push: SlotAddress,
}

impl Step {
    /// Of a block whose slots are `slots`.
    pub(crate) fn new(turn: Turn, slots: &[Slot]) -> Self {
        let push = slots.last().filter(|_| turn.calls());
        Self { turn, push: push.map_or(SlotAddress::Variable, |slot| slot.address) }
    }

    pub(crate) const fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Where its last store goes, for calls.
    pub(crate) const fn push(&self) -> SlotAddress {
        self.push
    }
}

/// The ticks before which something else than a block's end can mean something to call stacks.
pub(crate) struct Pauses<'a> {
    marks: &'a [Mark],
    hints: &'a [Hint],
}

impl<'a> Pauses<'a> {
    pub(crate) const fn new(marks: &'a Marks, hints: &'a [Hint]) -> Self {
        Self { marks: marks.all(), hints }
    }

    /// The first one after `tick`. Later ones are asked for later.
    pub(crate) fn after(&mut self, tick: u64) -> u64 {
        while let Some((_, rest)) = self.marks.split_first().filter(|(mark, _)| mark.tick <= tick) {
            self.marks = rest;
        }
        while let Some((_, rest)) = self.hints.split_first().filter(|(hint, _)| hint.tick <= tick) {
            self.hints = rest;
        }
        let mark = self.marks.first().map_or(u64::MAX, |mark| mark.tick);
        self.hints.first().map_or(mark, |hint| hint.tick.min(mark))
    }
}

/// Whether instructions are the recorder's that stand for some of the dynamic linker's (`abi::RESOLVER`): no program has memory there. What jumps
/// there comes back to behind those.
fn is_recorders(pc: GuestAddr) -> bool {
    const LOWEST: u64 = 0x2_0000;
    pc.0 < LOWEST
}

/// Whether a block begins as the second half of a linkage stub does, `push NUMBER; jmp`: no compiled function does.
fn is_unbound(shape: &BlockShape) -> bool {
    let pushes = shape.stores.first().is_some_and(|store| {
        let constant = matches!(store.contents, StoreContents::Fixed(_));
        constant && store.size == StoreSize::Fixed(8) && store.instruction <= 1
    });
    pushes && shape.instructions() <= 6 && matches!(shape.end, BlockEnd::Jump | BlockEnd::IndirectJump)
}

impl Flow<'_> {
    /// Follows calls and returns up to (without) tick `until`, from the stacks that `frames` holds. Left functions go to
    /// `left` as they are left. `turns` are the granule's blocks with their ticks; those may be left out that neither lead on
    /// nor follow one that does nor are the first at or after a pause. `pushed` is asked for each call in turn where it pushed its
    /// return address.
    pub(crate) fn follow(
        &self,
        turns: impl Iterator<Item = (u32, u64)>,
        mut pushed: impl FnMut(u32, &Step) -> u64,
        frames: &mut Frames,
        until: u64,
        left: &mut impl FnMut(Call),
    ) {
        let mut mark = self.marks.at(self.first_tick);
        let mut stack = frames.take(mark.task);
        let (mut next_mark, mut next_hint, mut pause) = (1, 0, self.first_tick);
        for (number, tick) in turns {
            if tick >= pause {
                if tick >= until {
                    break;
                }
                frames.put(mark.task, stack);
                while self.marks.all().get(next_mark).is_some_and(|next| next.tick <= tick) {
                    mark = self.marks.all()[next_mark];
                    next_mark += 1;
                }
                while let Some(hint) = self.hints.get(next_hint).filter(|hint| hint.tick <= tick) {
                    frames.apply(hint, left);
                    next_hint += 1;
                }
                stack = frames.take(mark.task);
                let next = self.marks.all().get(next_mark).map_or(u64::MAX, |next| next.tick);
                pause = self.hints.get(next_hint).map_or(next, |hint| hint.tick.min(next)).min(until);
            }
            let step = &self.steps[number as usize];
            if step.turn.leads_on() || stack.is_waiting() {
                let pushed = if step.turn.calls() { pushed(number, step) } else { 0 };
                let moment = Moment(mark.moment.0 + (tick - mark.tick));
                stack.run(mark.task, &step.turn, moment, pushed, left);
            }
        }
        frames.put(mark.task, stack);
        for hint in self.hints.iter().skip(next_hint).take_while(|hint| hint.tick < until) {
            frames.apply(hint, left);
        }
    }
}

pub(crate) fn write_hints(out: &mut Vec<u8>, hints: &[Hint], marks: &Marks) {
    put_varint(out, hints.len() as u64);
    let mut last = 0;
    for hint in hints {
        put_varint(out, hint.tick - last);
        last = hint.tick;
        put_varint(out, marks.moment(hint.tick).0.wrapping_sub(hint.moment.0));
        put_varint(out, u64::from(hint.task.0));
        match hint.kind {
            HintKind::Signal { site, handler, ret, sp } => {
                out.push(0);
                for addr in [site, handler, ret, sp] {
                    put_signed(out, addr.0 as i64);
                }
            }
            HintKind::Unwind { sp } => {
                out.push(1);
                put_signed(out, sp.0 as i64);
            }
            HintKind::Adopt { from } => {
                out.push(2);
                put_varint(out, u64::from(from.0));
            }
            HintKind::GoOn(unfinished) => {
                out.push(3);
                unfinished.write(out);
            }
        }
    }
}

impl Unfinished {
    fn write(&self, out: &mut Vec<u8>) {
        match self.pending {
            Pending::Nothing => out.push(0),
            Pending::Call { site, ret, sp } => {
                out.push(1);
                for addr in [site, ret, sp] {
                    put_signed(out, addr.0 as i64);
                }
            }
            Pending::Return => out.push(2),
            Pending::Stub => out.push(3),
            Pending::Jump => out.push(4),
        }
        // Moments and numbers are told from none by one more.
        put_varint(out, self.jumped.map_or(0, |moment| moment.0 + 1));
        put_varint(out, self.binding.map_or(0, |binding| binding.depth as u64 + 1));
        put_varint(out, self.binding.map_or(0, |binding| u64::from(binding.jumps)));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let invalid = WireError::Invalid { what: "unfinished call" };
        let addr = |reader: &mut Reader<'_>| reader.signed().map(|value| GuestAddr(value as u64));
        let pending = match reader.byte()? {
            0 => Pending::Nothing,
            1 => {
                let (site, ret) = (addr(reader)?, addr(reader)?);
                Pending::Call { site, ret, sp: addr(reader)? }
            }
            2 => Pending::Return,
            3 => Pending::Stub,
            4 => Pending::Jump,
            _ => return Err(invalid),
        };
        let jumped = reader.varint()?.checked_sub(1).map(Moment);
        let (depth, jumps) = (reader.varint()?.checked_sub(1), reader.varint()?);
        let binding = match (depth, jumps) {
            (None, 0) => None,
            (Some(depth), 1..=2) => Some(Binding { depth: depth as usize, jumps: jumps as u8 }),
            _ => return Err(invalid),
        };
        Ok(Self { pending, jumped, binding })
    }
}

pub(crate) fn read_hints(reader: &mut Reader<'_>, marks: &Marks) -> Result<Vec<Hint>, WireError> {
    fn task(value: u64) -> Result<TaskId, WireError> {
        u32::try_from(value).map(TaskId).map_err(|_| WireError::Invalid { what: "task of a hint" })
    }
    let mut hints = Vec::new();
    let mut tick = 0u64;
    for _ in 0..reader.count(5)? {
        tick = tick.checked_add(reader.varint()?).ok_or(WireError::Invalid { what: "hint" })?;
        let moment = Moment(marks.moment(tick).0.wrapping_sub(reader.varint()?));
        let whose = task(reader.varint()?)?;
        let addr = |reader: &mut Reader<'_>| reader.signed().map(|value| GuestAddr(value as u64));
        let kind = match reader.byte()? {
            0 => {
                let (site, handler) = (addr(reader)?, addr(reader)?);
                HintKind::Signal { site, handler, ret: addr(reader)?, sp: addr(reader)? }
            }
            1 => HintKind::Unwind { sp: addr(reader)? },
            2 => HintKind::Adopt { from: task(reader.varint()?)? },
            3 => HintKind::GoOn(Unfinished::read(reader)?),
            _ => return Err(WireError::Invalid { what: "kind of a hint" }),
        };
        hints.push(Hint { tick, moment, task: whose, kind });
    }
    Ok(hints)
}
