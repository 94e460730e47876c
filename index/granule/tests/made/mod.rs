//! Random granules and the plain list of what they hold.

use super::granule::{
    BlockEnd, BlockId, BlockInterner, BlockShape, BlockTable, ColumnSource, RawGranule, StoreAddress,
    StoreContents, StoreShape, StoreSize,
};
use guest::{EventId, GuestAddr, GuestRange, Moment, SpaceId, TaskId};

/// Columns in memory.
pub(crate) struct Source(pub(crate) Vec<(u32, Vec<u8>)>);

impl ColumnSource for Source {
    fn column(&self, number: u32) -> Result<Option<Vec<u8>>, String> {
        Ok(self.0.iter().find(|(column, _)| *column == number).map(|(_, bytes)| bytes.clone()))
    }
}

/// xorshift, so that a failing seed can be run again.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let step = self.below(3) as u8;
        let first = self.next() as u8;
        (0..len).map(|at| first.wrapping_add(step.wrapping_mul(at as u8))).collect()
    }
}

/// A write as it happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TrueWrite {
    pub(crate) tick: u64,
    pub(crate) moment: u64,
    pub(crate) task: u32,
    pub(crate) space: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) pc: Option<u64>,
    pub(crate) event: Option<u64>,
}

/// What really happened.
#[derive(Clone, Default, Debug)]
pub(crate) struct Truth {
    /// The local numbers of blocks.
    pub(crate) numbers: Vec<(BlockId, u32)>,
    pub(crate) writes: Vec<TrueWrite>,
    pub(crate) runs: Vec<(u64, BlockId)>,
}

pub(crate) fn overlaps(write: &TrueWrite, range: GuestRange) -> bool {
    GuestRange::new(GuestAddr(write.addr), write.bytes.len() as u64).overlaps(range)
}

/// A block with random stores of every form.
pub(crate) fn random_shape(random: &mut Random) -> BlockShape {
    let instructions = 1 + random.below(9) as usize;
    let lens: Vec<u8> = (0..instructions).map(|_| 1 + random.below(15) as u8).collect();
    let mut stores: Vec<StoreShape> = Vec::new();
    let mut record = 0u16;
    let mut instruction = 0;
    for _ in 0..random.below(5) {
        instruction = (instruction + random.below(3)).min(instructions as u64 - 1);
        if random.below(8) == 0 {
            stores.push(StoreShape::variable(instruction as u16));
            continue;
        }
        let size = [1, 2, 4, 8, 8, 8, 16, 32, 64, 10][random.below(10) as usize];
        let bases: Vec<u16> = (0..stores.len() as u16)
            .filter(|&at| {
                let store = &stores[usize::from(at)];
                store.size != StoreSize::Variable && !matches!(store.address, StoreAddress::Derived { .. })
            })
            .collect();
        let address = match random.below(4) {
            0 => StoreAddress::Fixed(0x60_0000 + random.below(9000)),
            1 if !bases.is_empty() => StoreAddress::Derived {
                store: bases[random.below(bases.len() as u64) as usize],
                delta: random.below(256) as i64 - 128,
            },
            _ => {
                record += 8;
                StoreAddress::Logged { at: record - 8 }
            }
        };
        let contents = if random.below(5) == 0 {
            StoreContents::Fixed(if size >= 8 {
                random.next()
            } else {
                random.next() & ((1 << (8 * size)) - 1)
            })
        } else {
            record += u16::from(size);
            StoreContents::Logged { at: record - u16::from(size) }
        };
        stores.push(StoreShape {
            instruction: instruction as u16,
            size: StoreSize::Fixed(size),
            address,
            contents,
        });
    }
    let end =
        [BlockEnd::Fall, BlockEnd::Jump, BlockEnd::IndirectJump, BlockEnd::Return][random.below(4) as usize];
    let pc = GuestAddr(0x40_0000 + random.below(0x3000));
    BlockShape { pc, lens: lens.into(), seams: Box::new([]), stores: stores.into(), record, end }
}

/// Runs `shape` once: fills `raw`, and `truth` with what it wrote.
pub(crate) fn run(
    random: &mut Random,
    raw: &mut RawGranule,
    truth: &mut Truth,
    (id, shape): (BlockId, &BlockShape),
    at: (u64, u32, u32),
) {
    let (moment, task, space) = at;
    let tick = raw.tick();
    truth.runs.push((tick, id));
    let known = truth.numbers.iter().find(|(known, _)| *known == id).map(|(_, local)| *local);
    let local = known.filter(|_| random.below(4) > 0).unwrap_or_else(|| raw.local(id));
    truth.numbers.push((id, local));
    raw.run(local, shape.instructions());
    let mut record = vec![0u8; 4 + usize::from(shape.record)];
    let mut addresses = Vec::new();
    for (index, store) in shape.stores.iter().enumerate() {
        let offset = u64::from(store.instruction);
        let pc = shape.pc_of(u32::from(store.instruction)).0;
        let mut push = |addr, bytes: Vec<u8>| {
            let (tick, moment) = (tick + offset, moment + offset);
            truth.writes.push(TrueWrite {
                tick,
                moment,
                task,
                space,
                addr,
                bytes,
                pc: Some(pc),
                event: None,
            });
        };
        let StoreSize::Fixed(size) = store.size else {
            addresses.push(0);
            for _ in 0..random.below(3) {
                let addr = 0x7000_0000 + random.below(20_000);
                let len = [random.below(12), random.below(9000)][random.below(2) as usize] as usize;
                let bytes = random.bytes(len);
                raw.variable(index as u16, GuestAddr(addr), &bytes);
                if !bytes.is_empty() {
                    push(addr, bytes);
                }
            }
            continue;
        };
        let addr = match store.address {
            StoreAddress::Fixed(addr) => addr,
            StoreAddress::Derived { store, delta } => {
                let base: u64 = addresses[usize::from(store)];
                base.wrapping_add(delta as u64)
            }
            StoreAddress::Logged { at } => {
                let addr = match random.below(3) {
                    0 => 0x7fff_0000 + random.below(300) * 8,
                    1 => 0x7000_0000 + tick * 16,
                    _ => 0x7000_0ff0 + random.below(64),
                };
                record[4 + usize::from(at)..][..8].copy_from_slice(&addr.to_le_bytes());
                addr
            }
        };
        addresses.push(addr);
        let mut bytes = vec![0u8; usize::from(size)];
        match store.contents {
            StoreContents::Fixed(value) => {
                let len = bytes.len().min(8);
                bytes[..len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
            StoreContents::Logged { at } => {
                bytes = random.bytes(bytes.len());
                record[4 + usize::from(at)..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        push(addr, bytes);
    }
    raw.log(&record);
}

/// A granule of `blocks` executions of random blocks, with some writes of the kernel and some task switches.
pub(crate) fn generate(random: &mut Random, blocks: usize) -> (RawGranule, BlockTable, Truth) {
    let mut interner = BlockInterner::default();
    let shapes: Vec<(BlockId, BlockShape)> = (0..1 + random.below(60))
        .map(|_| {
            let shape = random_shape(random);
            (interner.intern(&shape), shape)
        })
        .collect();
    let mut raw = RawGranule::new(SpaceId(3), 1000 + random.below(1000));
    let mut truth = Truth::default();
    let (mut moment, mut task) = (5000, 0);
    raw.mark(Moment(moment), TaskId(task));
    let mut favourite = 0;
    for number in 0..blocks {
        if random.below(30) == 0 {
            let addr = 0x7000_0000 + random.below(6000);
            let len = 1 + random.below(5000) as usize;
            let bytes = random.bytes(len);
            raw.system(EventId(number as u64), GuestAddr(addr), &bytes);
            truth.writes.push(TrueWrite {
                tick: raw.tick(),
                moment,
                task,
                space: 3,
                addr,
                bytes,
                pc: None,
                event: Some(number as u64),
            });
        }
        if random.below(50) == 0 {
            moment += random.below(5000);
            task = random.below(3) as u32;
            raw.mark(Moment(moment), TaskId(task));
        }
        if random.below(4) == 0 {
            favourite = random.below(shapes.len() as u64) as usize;
        }
        let (id, shape) = &shapes[favourite];
        run(random, &mut raw, &mut truth, (*id, shape), (moment, task, 3));
        moment += u64::from(shape.instructions());
    }
    (raw, interner.table().clone(), truth)
}
