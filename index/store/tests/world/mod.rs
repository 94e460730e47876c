//! A synthetic run: space 0 with tasks 0 and 1, space 2 with task 2, and space 1, a fork of space 0, with task 3.

use backstory_store::{Facts, NewBlocks, Segment, SpaceRow, Store, Writer};
use guest::{EventId, GuestAddr, GuestRange, Moment, SpaceId, TaskId};

use super::granule::{
    BlockEnd, BlockId, BlockInterner, BlockShape, Call, CallKind, Encoder, Frame, Frames, HintKind,
    RawGranule, StoreAddress, StoreContents, StoreShape, StoreSize,
};
use super::made::{Random, TrueWrite, Truth, overlaps, random_shape, run};

pub(crate) const UUID: [u8; 16] = *b"sixteen bytes ok";

/// A call as it happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TrueCall {
    pub(crate) entry: u64,
    pub(crate) exit: Option<u64>,
    pub(crate) task: u32,
    pub(crate) space: u32,
    pub(crate) callee: u64,
    pub(crate) site: u64,
    pub(crate) depth: u32,
}

/// A function in progress: index into the calls, return address, slot.
type Open = (usize, u64, u64);

#[derive(Clone)]
struct Task {
    space: usize,
    sp: u64,
    frames: Vec<Open>,
}

struct Space {
    raw: RawGranule,
    frames: Frames,
    task: Option<u32>,
}

/// What happened, and its index.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) writes: Vec<TrueWrite>,
    pub(crate) executions: Vec<(u64, u32, u32, u64)>,
    pub(crate) calls: Vec<TrueCall>,
    pub(crate) moment: u64,
    pub(crate) granules: usize,
    fork: u64,
    /// From which moment on which task is in which calls.
    stacks: Vec<(u64, u32, Vec<usize>)>,
    ran: Vec<(u64, u32)>,
}

struct Builder {
    random: Random,
    interner: BlockInterner,
    shapes: Vec<(BlockId, BlockShape)>,
    spaces: Vec<Space>,
    tasks: Vec<Task>,
    world: World,
    encoder: Encoder,
    writer: Writer,
    segment: Segment,
    flushed: usize,
    events: u64,
}

impl World {
    pub(crate) fn new(seed: u64, steps: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(folder.path(), &UUID).unwrap();
        let world = Self {
            folder,
            writes: Vec::new(),
            executions: Vec::new(),
            calls: Vec::new(),
            moment: 0,
            granules: 0,
            fork: u64::MAX,
            stacks: Vec::new(),
            ran: Vec::new(),
        };
        let mut builder = Builder::new(seed, writer, world);
        for step in 0..steps {
            if step == steps / 3 {
                builder.fork();
            }
            builder.step();
        }
        builder.finish()
    }

    pub(crate) fn open(&self) -> Store {
        Store::open(self.folder.path(), &UUID).unwrap()
    }

    pub(crate) fn last_write(&self, space: u32, range: GuestRange, before: u64) -> Option<&TrueWrite> {
        let find = |space, before| {
            let wanted =
                |write: &&TrueWrite| write.space == space && write.moment < before && overlaps(write, range);
            self.writes.iter().rev().find(wanted)
        };
        find(space, before).or_else(|| (space == 1).then(|| find(0, before.min(self.fork))).flatten())
    }

    /// Entry and callee of the calls in progress in the task that runs at `moment`, the innermost first.
    pub(crate) fn stack_at(&self, moment: u64) -> Vec<(u64, u64)> {
        let at = self.ran.partition_point(|&(from, _)| from <= moment);
        let task = self.ran[at - 1].1;
        let known = self.stacks.iter().rev().find(|(from, whose, _)| *from <= moment && *whose == task);
        known.map_or(Vec::new(), |(_, _, calls)| {
            calls.iter().rev().map(|&at| (self.calls[at].entry, self.calls[at].callee)).collect()
        })
    }
}

impl Builder {
    fn new(seed: u64, writer: Writer, world: World) -> Self {
        let mut random = Random::new(seed);
        let mut interner = BlockInterner::default();
        let shapes = (0..40)
            .map(|_| {
                let mut shape = random_shape(&mut random);
                if matches!(shape.end, BlockEnd::Return | BlockEnd::IndirectJump) {
                    shape.end = BlockEnd::Jump;
                }
                (interner.intern(&shape), shape)
            })
            .collect();
        let space =
            |id| Space { raw: RawGranule::new(SpaceId(id), 0), frames: Frames::default(), task: None };
        let task = |space| Task { space, sp: 0x7fff_0000_0000, frames: Vec::new() };
        Self {
            random,
            interner,
            shapes,
            spaces: vec![space(0), space(1), space(2)],
            tasks: vec![task(0), task(0), task(2), task(1)],
            world,
            encoder: Encoder::new().unwrap(),
            writer,
            segment: Segment::default(),
            flushed: 0,
            events: 0,
        }
    }

    /// Task 3 begins in space 1, in the middle of what task 0 is in.
    fn fork(&mut self) {
        self.world.fork = self.world.moment;
        let parent = self.tasks[0].clone();
        let frame = |&(call, ret, sp): &Open| {
            let call = self.world.calls[call];
            Frame {
                kind: CallKind::Call,
                entry: Moment(call.entry),
                callee: GuestAddr(call.callee),
                site: GuestAddr(call.site),
                ret: GuestAddr(ret),
                sp: GuestAddr(sp),
            }
        };
        let copied: Vec<Frame> = parent.frames.iter().map(frame).collect();
        for (depth, &frame) in (0..).zip(&copied) {
            let call = Call { frame, task: TaskId(3), depth, exit: None, crossed: true, inherited: true };
            self.segment.inherited.push((SpaceId(1), call));
        }
        self.spaces[1].frames.set(TaskId(3), copied);
        self.tasks[3] = Task { space: 1, ..parent };
        self.changed(3);
    }

    fn step(&mut self) {
        let tasks = if self.world.fork == u64::MAX { 3 } else { 4 };
        let task = self.random.below(tasks) as usize;
        self.switch(task);
        for _ in 0..1 + self.random.below(4) {
            match self.random.below(12) {
                0 | 1 => self.call(task),
                2 | 3 => self.ret(task),
                4 if self.tasks[task].frames.len() > 3 => self.unwind(task),
                5 => self.kernel(task),
                _ => {
                    let at = self.random.below(self.shapes.len() as u64) as usize;
                    let (_, shape) = self.shapes[at].clone();
                    self.run(task, &shape, None);
                }
            }
        }
        if self.random.below(12) == 0 {
            self.cut(self.tasks[task].space);
        }
        if self.random.below(60) == 0 {
            self.commit(false);
        }
    }

    fn switch(&mut self, task: usize) {
        let space = self.tasks[task].space;
        let moment = self.world.moment;
        self.spaces[space].raw.mark(Moment(moment), TaskId(task as u32));
        self.spaces[space].task = Some(task as u32);
        self.world.ran.push((moment, task as u32));
    }

    /// Runs a block; a call's return address goes to `push`.
    fn run(&mut self, task: usize, shape: &BlockShape, push: Option<u64>) {
        let id = self.interner.intern(shape);
        let space = self.tasks[task].space;
        let moment = self.world.moment;
        let mut pc = shape.pc;
        for (at, &len) in (moment..).zip(&shape.lens) {
            self.world.executions.push((at, task as u32, space as u32, pc.0));
            pc = pc.wrapping_add(u64::from(len));
        }
        let at = (moment, task as u32, space as u32);
        let raw = &mut self.spaces[space].raw;
        match push {
            None => {
                let mut truth = Truth::default();
                run(&mut self.random, raw, &mut truth, (id, shape), at);
                self.world.writes.append(&mut truth.writes);
            }
            Some(slot) => {
                raw.block(id, 1);
                raw.log(&[&[0; 4][..], &slot.to_le_bytes()].concat());
                let bytes = shape.end_pc().0.to_le_bytes().to_vec();
                let pc = Some(shape.pc.0);
                let (moment, task, space) = at;
                self.world.writes.push(TrueWrite {
                    tick: 0,
                    moment,
                    task,
                    space,
                    addr: slot,
                    bytes,
                    pc,
                    event: None,
                });
            }
        }
        self.world.moment += u64::from(shape.instructions());
    }

    fn plain(pc: u64, end: BlockEnd) -> BlockShape {
        BlockShape {
            pc: GuestAddr(pc),
            lens: Box::new([4, 1]),
            seams: Box::new([]),
            stores: Box::new([]),
            record: 0,
            end,
        }
    }

    fn call(&mut self, task: usize) {
        let site = 0x50_0000 + self.random.below(20) * 0x100;
        let callee = 0x70_0000 + self.random.below(10) * 0x1000;
        let push = StoreShape {
            instruction: 0,
            size: StoreSize::Fixed(8),
            address: StoreAddress::Logged { at: 0 },
            contents: StoreContents::Fixed(site + 5),
        };
        let shape = BlockShape {
            pc: GuestAddr(site),
            lens: Box::new([5]),
            seams: Box::new([]),
            stores: Box::new([push]),
            record: 8,
            end: BlockEnd::Call,
        };
        let slot = self.tasks[task].sp - 8 * (1 + self.random.below(9));
        self.tasks[task].sp = slot;
        self.run(task, &shape, Some(slot));
        let call = TrueCall {
            entry: self.world.moment,
            exit: None,
            task: task as u32,
            space: self.tasks[task].space as u32,
            callee,
            site,
            depth: self.tasks[task].frames.len() as u32,
        };
        self.tasks[task].frames.push((self.world.calls.len(), site + 5, slot));
        self.world.calls.push(call);
        self.changed(task);
        self.run(task, &Self::plain(callee, BlockEnd::Jump), None);
    }

    fn ret(&mut self, task: usize) {
        let Some((call, ret, slot)) = self.tasks[task].frames.pop() else { return };
        self.run(task, &Self::plain(self.world.calls[call].callee + 0x80, BlockEnd::Return), None);
        self.tasks[task].sp = slot + 8;
        self.leave(task, call);
        self.changed(task);
        self.run(task, &Self::plain(ret, BlockEnd::Jump), None);
    }

    /// A call that a fork's child inherited is left by the child for itself only.
    fn leave(&mut self, task: usize, call: usize) {
        let exit = self.world.moment;
        let call = &mut self.world.calls[call];
        if call.task == task as u32 {
            call.exit = Some(exit);
        }
    }

    fn unwind(&mut self, task: usize) {
        let keep = self.random.below(self.tasks[task].frames.len() as u64) as usize;
        let left = self.tasks[task].frames.split_off(keep);
        let sp = left[0].2 + 8;
        self.tasks[task].sp = sp;
        left.iter().for_each(|frame| self.leave(task, frame.0));
        let raw = &mut self.spaces[self.tasks[task].space].raw;
        raw.hint(HintKind::Unwind { sp: GuestAddr(sp) });
        self.changed(task);
    }

    fn changed(&mut self, task: usize) {
        let calls = self.tasks[task].frames.iter().map(|frame| frame.0).collect();
        self.world.stacks.push((self.world.moment, task as u32, calls));
    }

    fn kernel(&mut self, task: usize) {
        let space = self.tasks[task].space;
        self.events += 1;
        let addr = 0x7000_0000 + self.random.below(6000);
        let len = 1 + self.random.below(300) as usize;
        let bytes = self.random.bytes(len);
        self.spaces[space].raw.system(EventId(self.events), GuestAddr(addr), &bytes);
        self.world.writes.push(TrueWrite {
            tick: 0,
            moment: self.world.moment,
            task: task as u32,
            space: space as u32,
            addr,
            bytes,
            pc: None,
            event: Some(self.events),
        });
    }

    fn cut(&mut self, space: usize) {
        let Space { raw, frames, task } = &mut self.spaces[space];
        if raw.is_empty() {
            return;
        }
        let encoded = self.encoder.encode(raw, self.interner.table(), frames).unwrap();
        self.segment.granules.push(encoded);
        self.world.granules += 1;
        raw.restart(raw.tick());
        if let Some(task) = *task {
            raw.mark(Moment(self.world.moment), TaskId(task));
        }
    }

    fn commit(&mut self, last: bool) {
        let table = self.interner.table();
        let data = table.write_from(self.flushed).unwrap();
        let count = (table.len() - self.flushed) as u64;
        let blocks = NewBlocks { first: self.flushed as u64, count, data };
        self.flushed = table.len();
        self.segment.resumes_at = (!last).then_some((Moment(self.world.moment), EventId(self.events)));
        self.writer.commit(&self.segment, &blocks).unwrap();
        self.segment = Segment { part: self.segment.part + 1, ..Segment::default() };
    }

    fn finish(mut self) -> World {
        (0..3).for_each(|space| self.cut(space));
        self.commit(true);
        let row = |space, parent, first| SpaceRow {
            space: SpaceId(space),
            parent,
            first: Moment(first),
            event: EventId(0),
        };
        let fork = self.world.fork;
        let spaces = vec![row(0, None, 0), row(1, Some(SpaceId(0)), fork), row(2, None, 0)];
        self.writer.commit_facts(&Facts { spaces, ..Facts::default() }, true).unwrap();
        self.writer.finish().unwrap();
        self.world
    }
}
