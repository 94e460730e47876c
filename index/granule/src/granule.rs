//! The decoder of one granule. Columns are fetched and decoded when first needed, and kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use guest::{GuestAddr, Moment};

use crate::dictionary::{Layout, Local, SlotAddress, SlotValue};
use crate::encode::column;
use crate::frames::{Call, Flow, Frames, Hint, Step, Turn, read_hints};
use crate::marks::Marks;
use crate::raw::{SystemWrite, VariableRun};
use crate::shape::{BlockId, BlockTable};
use crate::values::{PIECE, Plan};
use crate::wire::{Reader, WireError, unpack};
use crate::writes::{Place, Write};
use crate::{addresses, system};

/// Why a granule could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// A column is damaged.
    #[error("column {column}")]
    Column {
        /// Its number.
        column: u32,
        /// What is wrong.
        source: WireError,
    },
    /// A column is not there or could not be fetched.
    #[error("column {column} is missing: {reason}")]
    Missing {
        /// Its number.
        column: u32,
        /// Why.
        reason: String,
    },
}

/// Where a granule's columns come from.
pub trait ColumnSource: Send + Sync {
    /// The bytes of a column, `None` if the granule has no such column; else why they cannot be had.
    fn column(&self, number: u32) -> Result<Option<Vec<u8>>, String>;
}

/// What was decoded.
#[derive(Default, Debug)]
pub struct Counters {
    /// Granules whose block sequence was decoded.
    pub granules: AtomicU64,
    /// Pieces of values that were decoded.
    pub pieces: AtomicU64,
}

/// A granule that is being read.
pub struct Granule {
    source: Box<dyn ColumnSource>,
    table: Arc<BlockTable>,
    counters: Arc<Counters>,
    head: Head,
    sequence: OnceLock<Vec<u32>>,
    addresses: OnceLock<Vec<u64>>,
    runs: OnceLock<Vec<VariableRun>>,
    marks: OnceLock<(Marks, Vec<Hint>)>,
    system: OnceLock<Vec<SystemWrite>>,
    plan: OnceLock<Plan>,
    /// The pieces decoded so far, by column number.
    pieces: Mutex<HashMap<u32, Arc<Vec<u8>>>>,
}

struct Head {
    first_tick: u64,
    ticks: u64,
    bulk: u64,
    system_bytes: u64,
    layout: Layout,
    codings: Vec<u8>,
}

fn broken(column: u32) -> impl Fn(WireError) -> DecodeError {
    move |source| DecodeError::Column { column, source }
}

fn invalid(column: u32, what: &'static str) -> DecodeError {
    DecodeError::Column { column, source: WireError::Invalid { what } }
}

/// The value in `cell`, made now if it is not there yet.
fn once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T, DecodeError>) -> Result<&T, DecodeError> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

impl Granule {
    /// Opens a granule: only its head is decoded. `table` must hold the blocks it names.
    pub fn open(
        source: Box<dyn ColumnSource>,
        table: Arc<BlockTable>,
        counters: Arc<Counters>,
    ) -> Result<Self, DecodeError> {
        let bytes = fetch(source.as_ref(), column::HEAD)?
            .ok_or_else(|| DecodeError::Missing { column: column::HEAD, reason: "it has none".into() })?;
        let head = read_head(&bytes, &table).map_err(broken(column::HEAD))?;
        Ok(Self {
            source,
            table,
            counters,
            head,
            sequence: OnceLock::new(),
            addresses: OnceLock::new(),
            runs: OnceLock::new(),
            marks: OnceLock::new(),
            system: OnceLock::new(),
            plan: OnceLock::new(),
            pieces: Mutex::new(HashMap::new()),
        })
    }

    /// The tick of its first instruction.
    pub const fn first_tick(&self) -> u64 {
        self.head.first_tick
    }

    /// The tick after its last instruction.
    pub const fn end_tick(&self) -> u64 {
        self.head.first_tick + self.head.ticks
    }

    /// The blocks it runs, with how often.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, u32)> {
        self.head.layout.locals.iter().map(|local| (local.id, local.count))
    }

    /// The dictionary its blocks are in.
    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    pub(crate) const fn layout(&self) -> &Layout {
        &self.head.layout
    }

    /// What maps its ticks to moments.
    pub fn marks(&self) -> Result<&Marks, DecodeError> {
        self.marks_and_hints().map(|(marks, _)| marks)
    }

    fn marks_and_hints(&self) -> Result<&(Marks, Vec<Hint>), DecodeError> {
        once(&self.marks, || {
            let bytes = self.column(column::MARKS)?;
            let mut reader = Reader::new(&bytes);
            let marks = Marks::read(&mut reader).map_err(broken(column::MARKS))?;
            let hints = read_hints(&mut reader, &marks).map_err(broken(column::MARKS))?;
            if marks.all().first().is_none_or(|mark| mark.tick != self.head.first_tick) {
                return Err(invalid(column::MARKS, "first mark"));
            }
            Ok((marks, hints))
        })
    }

    /// Local block numbers in the order they ran.
    pub(crate) fn sequence(&self) -> Result<&[u32], DecodeError> {
        let sequence = once(&self.sequence, || {
            self.counters.granules.fetch_add(1, Ordering::Relaxed);
            let bytes = self.column(column::BLOCKS)?;
            read_sequence(&bytes, &self.head).map_err(broken(column::BLOCKS))
        })?;
        Ok(sequence)
    }

    /// All stored addresses, by slot.
    pub(crate) fn addresses(&self) -> Result<&[u64], DecodeError> {
        let addresses = once(&self.addresses, || {
            if self.head.layout.addresses == 0 {
                return Ok(Vec::new());
            }
            let bytes = self.column(column::ADDRESSES)?;
            addresses::read(&self.head.layout, self.sequence()?, &self.head.codings, &bytes)
                .map_err(broken(column::ADDRESSES))
        })?;
        Ok(addresses)
    }

    /// The runs of variable stores in the order they happened.
    pub(crate) fn runs(&self) -> Result<&[VariableRun], DecodeError> {
        let runs = once(&self.runs, || {
            let Some(bytes) = fetch(self.source.as_ref(), column::RUNS)? else { return Ok(Vec::new()) };
            let runs = system::read_runs(&mut Reader::new(&bytes)).map_err(broken(column::RUNS))?;
            let bytes: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
            let sequence = self.sequence()?;
            let known = |run: &VariableRun| {
                let local =
                    sequence.get(run.position as usize).map(|&at| &self.head.layout.locals[at as usize]);
                local.is_some_and(|local| run.store < local.slots)
            };
            if bytes != self.head.bulk || !runs.iter().all(known) {
                return Err(invalid(column::RUNS, "run of a store"));
            }
            Ok(runs)
        })?;
        Ok(runs)
    }

    /// What the kernel wrote, in order.
    pub fn system_writes(&self) -> Result<&[SystemWrite], DecodeError> {
        let writes = once(&self.system, || {
            let Some(bytes) = fetch(self.source.as_ref(), column::SYSTEM)? else { return Ok(Vec::new()) };
            let marks = self.marks()?;
            let read = system::read_system(&mut Reader::new(&bytes), marks);
            let writes = read.map_err(broken(column::SYSTEM))?;
            if writes.iter().map(|write| u64::from(write.len)).sum::<u64>() != self.head.system_bytes {
                return Err(invalid(column::SYSTEM, "length of the kernel's writes"));
            }
            Ok(writes)
        })?;
        Ok(writes)
    }

    /// The bytes that a write of this granule wrote. Decodes the pieces that hold them.
    pub fn value(&self, write: &Write) -> Result<Vec<u8>, DecodeError> {
        match write.place {
            Place::Fixed { slot, k } => self.fixed_value(slot, k),
            Place::Variable { bytes } => self.bulk(0, bytes, write.len),
            Place::System { bytes } => self.bulk(self.head.bulk.div_ceil(PIECE as u64), bytes, write.len),
        }
    }

    fn fixed_value(&self, slot: u32, k: u32) -> Result<Vec<u8>, DecodeError> {
        let lost = || invalid(column::HEAD, "place of a value");
        let facts = self.head.layout.slots.get(slot as usize).ok_or_else(lost)?;
        let size = usize::from(facts.size);
        match facts.value {
            SlotValue::Fixed(value) => {
                let mut bytes = value.to_le_bytes().to_vec();
                bytes.resize(size, 0);
                Ok(bytes)
            }
            SlotValue::Variable => Err(lost()),
            SlotValue::Stream(_) => {
                let chunk = *self.plan().find(slot, k).ok_or_else(lost)?;
                let number = column::VALUES + chunk.piece;
                let piece = self.piece(number)?;
                let at = chunk.at as usize + 1 + (k - chunk.first) as usize * size;
                Ok(piece.get(at..at + size).ok_or_else(lost)?.to_vec())
            }
        }
    }

    /// `len` bytes from `at` on of the bulk pieces that follow the first `pieces` of them.
    fn bulk(&self, pieces: u64, at: u64, len: u32) -> Result<Vec<u8>, DecodeError> {
        let first = u64::from(column::VALUES) + u64::from(self.plan().pieces) + pieces;
        let mut out = Vec::with_capacity(len as usize);
        let end = at + u64::from(len);
        let mut at = at;
        while at < end {
            let number = (first + at / PIECE as u64) as u32;
            let piece = self.piece(number)?;
            let from = (at % PIECE as u64) as usize;
            let to = (PIECE as u64).min(from as u64 + (end - at)) as usize;
            out.extend_from_slice(piece.get(from..to).ok_or_else(|| invalid(number, "length"))?);
            at += (to - from) as u64;
        }
        Ok(out)
    }

    fn plan(&self) -> &Plan {
        self.plan.get_or_init(|| Plan::new(&self.head.layout))
    }

    fn piece(&self, number: u32) -> Result<Arc<Vec<u8>>, DecodeError> {
        let mut pieces = self.pieces.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(piece) = pieces.get(&number) {
            return Ok(Arc::clone(piece));
        }
        let mut bytes = self.column(number)?;
        self.counters.pieces.fetch_add(1, Ordering::Relaxed);
        let decoded = self.plan().decode_piece(number - column::VALUES, &mut bytes, &self.head.layout);
        decoded.map_err(broken(number))?;
        let piece = Arc::new(bytes);
        pieces.insert(number, Arc::clone(&piece));
        Ok(piece)
    }

    /// Follows calls and returns through the granule up to (without) tick `until`, from the stacks in `frames` at its
    /// beginning. Functions that are left go to `left`, in the order they are left.
    pub fn follow(
        &self,
        frames: &mut Frames,
        until: u64,
        mut left: impl FnMut(Call),
    ) -> Result<(), DecodeError> {
        let (marks, hints) = self.marks_and_hints()?;
        let layout = &self.head.layout;
        let step =
            |local: &Local| Some(Step::new(Turn::new(self.table.get(local.id)?), layout.slots_of(local)));
        let steps: Option<Vec<Step>> = layout.locals.iter().map(step).collect();
        let steps = steps.ok_or_else(|| invalid(column::HEAD, "block number"))?;
        let mut tick = self.head.first_tick;
        let turns = self.sequence()?.iter().map(|&number| {
            let here = tick;
            tick += u64::from(steps[number as usize].turn().instructions);
            (number, here)
        });
        let addresses = self.addresses()?;
        // How often each block ran so far, counted for calls.
        let mut calls = vec![0u32; steps.len()];
        let pushed = |number: u32, step: &Step| {
            let count = &mut calls[number as usize];
            *count += 1;
            step.push().of(addresses, *count - 1)
        };
        let flow = Flow { steps: &steps, marks, hints, first_tick: self.head.first_tick };
        flow.follow(turns, pushed, frames, until, &mut left);
        Ok(())
    }

    /// The moment of one of its ticks.
    pub fn moment(&self, tick: u64) -> Result<Moment, DecodeError> {
        Ok(self.marks()?.moment(tick))
    }

    /// The instruction that retires at `tick`.
    pub fn pc(&self, tick: u64) -> Result<Option<GuestAddr>, DecodeError> {
        let mut at = self.head.first_tick;
        for &local in self.sequence()? {
            let local = &self.head.layout.locals[local as usize];
            let next = at + u64::from(local.instructions);
            if tick < next {
                let shape = self.table.get(local.id);
                return Ok(shape.filter(|_| tick >= at).map(|shape| shape.pc_of((tick - at) as u32)));
            }
            at = next;
        }
        Ok(None)
    }

    fn column(&self, number: u32) -> Result<Vec<u8>, DecodeError> {
        fetch(self.source.as_ref(), number)?
            .ok_or_else(|| DecodeError::Missing { column: number, reason: "it has none".into() })
    }
}

fn fetch(source: &dyn ColumnSource, number: u32) -> Result<Option<Vec<u8>>, DecodeError> {
    let bytes = source.column(number).map_err(|reason| DecodeError::Missing { column: number, reason })?;
    bytes.map(|bytes| unpack(&bytes).map_err(broken(number))).transpose()
}

fn read_head(bytes: &[u8], table: &BlockTable) -> Result<Head, WireError> {
    let mut reader = Reader::new(bytes);
    let (first_tick, ticks) = (reader.varint()?, reader.varint()?);
    let (bulk, system_bytes) = (reader.varint()?, reader.varint()?);
    let count = reader.count(2)?;
    let mut ids = Vec::with_capacity(count);
    let mut last = 0i64;
    for _ in 0..count {
        last = last.wrapping_add(reader.signed()?);
        ids.push(BlockId(u32::try_from(last).map_err(|_| WireError::Invalid { what: "block number" })?));
    }
    table.load(ids.iter().copied())?;
    let mut blocks = Vec::with_capacity(count);
    for id in ids {
        let times = reader.varint()?;
        blocks.push((id, u32::try_from(times).map_err(|_| WireError::Invalid { what: "block count" })?));
    }
    let layout = Layout::new(&blocks, table)?;
    let owned =
        |slot: &&crate::dictionary::Slot| matches!(slot.address, SlotAddress::Stream { owns: true, .. });
    let codings = reader.take(layout.slots.iter().filter(owned).count())?.to_vec();
    reader.finish()?;
    first_tick.checked_add(ticks).ok_or(WireError::Invalid { what: "tick" })?;
    Ok(Head { first_tick, ticks, bulk, system_bytes, layout, codings })
}

fn read_sequence(bytes: &[u8], head: &Head) -> Result<Vec<u32>, WireError> {
    let locals = &head.layout.locals;
    let sequence: Vec<u32> = if locals.len() <= 1 << 16 {
        bytes.chunks_exact(2).map(|two| u32::from(two[0]) | u32::from(two[1]) << 8).collect()
    } else {
        bytes.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
    };
    let mut counts = vec![0u32; locals.len()];
    for &local in &sequence {
        *counts.get_mut(local as usize).ok_or(WireError::Invalid { what: "local block" })? += 1;
    }
    let ticks: u64 = locals.iter().map(|local| u64::from(local.count) * u64::from(local.instructions)).sum();
    if ticks != head.ticks || counts.iter().zip(locals).any(|(&count, local)| count != local.count) {
        return Err(WireError::Invalid { what: "block sequence" });
    }
    Ok(sequence)
}
