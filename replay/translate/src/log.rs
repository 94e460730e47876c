//! What code in a logging mode writes, and a walker over it.
//!
//! The log is a sequence of records, little-endian, 4-byte granular, one for each execution of a block, in order. The
//! supervisor decides where the log lies by [`log_next`](crate::EnginePage::log_next); code only appends.
//!
//! ```text
//! record  := header: u32 (Header), then path.log_bytes bytes (see Slot), then for a block of one
//!            string store (or state save) the contents, `len` bytes padded to 4
//!          | header: u32 of path 15, instructions: u32, then the bytes of the slots of those first
//!            `instructions` instructions, and of a scatter that is next (`BlockLog::begun`): a block that a fault
//!            ended (written by the supervisor: `partial_record`)
//! ```
//!
//! A header also has the length of its record if that is short and always the same: who reads the log need not look at the block
//! to know where the next record begins.
//!
//! A block whose budget did not cover it has no record. Nothing checks for the log's end: the supervisor gives a
//! budget of at most `B` instructions with `B * MAX_BYTES_PER_INSTRUCTION` bytes of room, and sets
//! [`log_bulk_limit`](crate::EnginePage::log_bulk_limit) to the log's end minus that room. Then, whatever is run, the
//! log's end is not passed.

use guest::GuestAddr;

use crate::block::{Address, BlockId, Condition, Contents, Mark, Path, Slot, StateImage, Translated};

/// Most bytes that one instruction adds to the log, bulk contents aside. A block of no instructions adds none.
pub const MAX_BYTES_PER_INSTRUCTION: u64 = 160;

/// Bytes of a record's header.
pub const HEADER_BYTES: u32 = 4;

/// The path number of a record that a fault ended.
pub const PARTIAL_PATH: u32 = 15;

/// Blocks of logging modes have numbers below this.
pub const MAX_BLOCKS: u32 = 1 << 24;

/// What stands in a header for the length of a record that is long, or not always the same.
const LONG: u32 = 15;

/// A record's header: `id << 8 | path << 4 | words behind it`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header(pub u32);

impl Header {
    /// That of path `path` of a block, whose records always have `bytes` bytes behind it.
    pub(crate) const fn new(id: BlockId, path: u32, bytes: u32) -> Self {
        let words = bytes / 4;
        Self(id.0 << 8 | path << 4 | if words < LONG { words } else { LONG })
    }

    /// That of a path whose records have as many bytes as they say, or more than a header can say.
    pub(crate) const fn long(id: BlockId, path: u32) -> Self {
        Self(id.0 << 8 | path << 4 | LONG)
    }

    /// The block.
    #[inline]
    pub const fn id(self) -> u32 {
        self.0 >> 8
    }

    /// The path through it.
    #[inline]
    pub const fn path(self) -> u32 {
        self.0 >> 4 & 15
    }

    /// Bytes of the record with its header, if that says it.
    #[inline]
    pub const fn record_bytes(self) -> Option<usize> {
        let words = self.0 & 15;
        if words == LONG { None } else { Some((HEADER_BYTES + 4 * words) as usize) }
    }
}

/// What a walker must know of a block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockLog {
    /// The block's paths.
    pub paths: Vec<Path>,
    /// The block's slots.
    pub slots: Vec<Slot>,
}

impl From<&Translated> for BlockLog {
    fn from(block: &Translated) -> Self {
        Self { paths: block.paths.clone(), slots: block.slots.clone() }
    }
}

/// What a log says, in order: a block, then its stores.
pub trait Sink {
    /// Block `id` ran its first `instructions` instructions: all of path `path`, or, when that is [`PARTIAL_PATH`],
    /// as many as there were before a fault.
    fn block(&mut self, id: BlockId, path: u32, instructions: u32);

    /// Slot `slot` of that block stored `bytes` at `addr`. Masked and string stores come in as many pieces as they
    /// made runs.
    fn store(&mut self, slot: u32, addr: GuestAddr, bytes: &[u8]);
}

/// A log that no code can have written, or the wrong blocks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadLog {
    /// A record names a block that is not known.
    #[error("log record at byte {at} names the unknown block {id}")]
    UnknownBlock {
        /// Offset of the record, in bytes.
        at: usize,
        /// The block.
        id: u32,
    },
    /// A record names a path its block does not have.
    #[error("log record at byte {at}: block {id} has no path {path}")]
    UnknownPath {
        /// Offset of the record, in bytes.
        at: usize,
        /// The block.
        id: u32,
        /// The path.
        path: u32,
    },
    /// The log ends in the middle of a record.
    #[error("log record at byte {at} is cut off")]
    Truncated {
        /// Offset of the record, in bytes.
        at: usize,
    },
}

/// Hands every record of `log` to `sink`. `blocks` is indexed by block id.
///
/// # Errors
///
/// See [`BadLog`]; what came before the bad record has been handed over.
pub fn walk(log: &[u8], blocks: &[BlockLog], sink: &mut impl Sink) -> Result<(), BadLog> {
    let mut at = 0;
    while at < log.len() {
        let truncated = BadLog::Truncated { at };
        let record = &log[at..];
        let header = Header(word32(record, 0).ok_or(truncated)?);
        let (id, number) = (header.id(), header.path());
        let block = blocks.get(id as usize).ok_or(BadLog::UnknownBlock { at, id })?;
        let (instructions, slots, start, fixed) = if number == PARTIAL_PATH {
            let instructions = word32(record, 4).ok_or(truncated)?;
            let (slots, bytes) = block.begun(instructions);
            (instructions, slots, 8, bytes)
        } else {
            let path =
                block.paths.get(number as usize).ok_or(BadLog::UnknownPath { at, id, path: number })?;
            (path.instructions, &block.slots[..path.slots as usize], 4, path.log_bytes)
        };
        sink.block(BlockId(id), number, instructions);
        let body = record.get(start..).ok_or(truncated)?;
        let fixed_bytes = body.get(..fixed as usize).ok_or(truncated)?;
        let mut bulk = 0;
        for (index, slot) in slots.iter().enumerate() {
            let after = body.get(fixed as usize..).unwrap_or(&[]);
            bulk = store(slots, index, slot, fixed_bytes, after, sink).ok_or(truncated)?;
        }
        at += start + fixed as usize + bulk;
    }
    Ok(())
}

impl BlockLog {
    /// What a record of the first `instructions` instructions holds, when a fault ended the block there: its slots, a
    /// string store's also when it is not among them; and its bytes after the instruction count. These end where the
    /// next slot's begin, and are those of the longest path when that slot has none.
    pub fn part(&self, instructions: u32) -> (&[Slot], u32) {
        self.first(self.slots.partition_point(|slot| slot.instruction < instructions || slot.is_bulk()))
    }

    /// The same with the slot of the next instruction if that is a scatter: it stores elements before one faults.
    pub fn begun(&self, instructions: u32) -> (&[Slot], u32) {
        let done = self.part(instructions);
        let next = done.0.len();
        let scatters = |slot: &Slot| slot.instruction == instructions && slot.is_scatter();
        if self.slots.get(next).is_some_and(scatters) { self.first(next + 1) } else { done }
    }

    /// The first `count` slots, and where their bytes end.
    fn first(&self, count: usize) -> (&[Slot], u32) {
        let all = self.paths.first().map_or(0, |path| path.log_bytes);
        let bytes = self.slots.get(count).and_then(Slot::first_byte).unwrap_or(all);
        (&self.slots[..count], bytes)
    }
}

impl Slot {
    /// Whether its contents follow the record's fixed part.
    pub fn is_bulk(&self) -> bool {
        matches!(self.contents, Contents::String(_) | Contents::State(_))
    }

    const fn is_scatter(&self) -> bool {
        matches!(self.condition, Condition::Scatter { .. })
    }

    /// The least offset of its bytes in the record.
    fn first_byte(&self) -> Option<u32> {
        let address = match self.address {
            Address::Logged { at } => Some(at),
            _ => None,
        };
        let contents = match self.contents {
            Contents::Logged { at } => Some(at),
            _ => None,
        };
        let condition = match self.condition {
            Condition::Logged { at }
            | Condition::Mask { at, .. }
            | Condition::Packed { at, .. }
            | Condition::Scatter { at, .. } => Some(at),
            Condition::Always => None,
        };
        [address, contents, condition].into_iter().flatten().min()
    }
}

/// Hands over one slot; how many bytes of contents follow the record's fixed part. `None` when the record is too
/// short.
fn store(
    slots: &[Slot],
    index: usize,
    slot: &Slot,
    fixed: &[u8],
    after: &[u8],
    sink: &mut impl Sink,
) -> Option<usize> {
    let number = index as u32;
    if let Contents::String(_) | Contents::State(_) = slot.contents {
        return bulk(slot, number, fixed, after, sink);
    }
    let addr = match slot.address {
        Address::Fixed(addr) => addr,
        Address::Logged { at } => word64(fixed, at)?,
        Address::Derived { slot, delta } => match slots.get(slot as usize)?.address {
            Address::Fixed(addr) => addr.wrapping_add(delta as u64),
            Address::Logged { at } => word64(fixed, at)?.wrapping_add(delta as u64),
            Address::Derived { .. } => return None,
        },
    };
    let value;
    let bytes = match slot.contents {
        Contents::Fixed(fixed) => {
            value = fixed.to_le_bytes();
            value.get(..slot.size as usize)?
        }
        Contents::Logged { at } => fixed.get(at as usize..(at + slot.size) as usize)?,
        Contents::String(_) | Contents::State(_) => return None,
    };
    match slot.condition {
        Condition::Always => sink.store(number, GuestAddr(addr), bytes),
        Condition::Logged { at } => {
            if *fixed.get(at as usize)? != 0 {
                sink.store(number, GuestAddr(addr), bytes);
            }
        }
        Condition::Mask { at, element } => {
            masked(number, addr, bytes, word64(fixed, at)?, usize::from(element), sink);
        }
        Condition::Packed { at, element } => {
            let elements = bytes.chunks(usize::from(element.max(1))).zip(bits(word64(fixed, at)?));
            let stored: usize = elements.filter(|(_, set)| *set).map(|(element, _)| element.len()).sum();
            if stored != 0 {
                sink.store(number, GuestAddr(addr), &bytes[..stored]);
            }
        }
        Condition::Scatter { at, indices, index, scale, element, .. } => {
            let elements = bytes.chunks(usize::from(element.max(1))).zip(bits(word64(fixed, at)?));
            for (i, (bytes, set)) in (0..).zip(elements) {
                let index = match index {
                    4 => word32(fixed, indices + 4 * i)? as i32 as u64,
                    _ => word64(fixed, indices + 8 * i)?,
                };
                if set {
                    let offset = index.wrapping_mul(u64::from(scale));
                    sink.store(number, GuestAddr(addr.wrapping_add(offset)), bytes);
                }
            }
        }
    }
    Some(0)
}

/// The bits of a word, the lowest first.
fn bits(word: u64) -> impl Iterator<Item = bool> {
    (0..64).map(move |bit| word >> bit & 1 != 0)
}

/// Runs of elements whose mask bits are set.
fn masked(number: u32, addr: u64, bytes: &[u8], mask: u64, element: usize, sink: &mut impl Sink) {
    let elements = bytes.len() / element.max(1);
    let is_set = |i: usize| i < elements && mask >> i & 1 != 0;
    let mut first = 0;
    while first < elements {
        let mut end = first;
        while is_set(end) {
            end += 1;
        }
        if end > first {
            let at = addr.wrapping_add((first * element) as u64);
            sink.store(number, GuestAddr(at), &bytes[first * element..end * element]);
        }
        first = end + 1;
    }
}

/// A string store or a state image: `start`, `end`, `len`, then the contents.
fn bulk(slot: &Slot, number: u32, fixed: &[u8], after: &[u8], sink: &mut impl Sink) -> Option<usize> {
    let (start, end, len) = (word64(fixed, 0)?, word64(fixed, 8)?, word32(fixed, 16)? as usize);
    let contents = after.get(..len)?;
    let padded = len.next_multiple_of(4);
    after.get(..padded)?;
    let first = bulk_first(slot, start, end);
    match slot.contents {
        _ if len == 0 => {}
        Contents::State(image) => {
            for (from, to) in image_ranges(image, contents) {
                let addr = GuestAddr(first.wrapping_add(from as u64));
                sink.store(number, addr, contents.get(from..to)?);
            }
        }
        _ => sink.store(number, GuestAddr(first), contents),
    }
    Some(padded)
}

/// The lowest address of a string store from `start` on that left the register at `end`.
fn bulk_first(slot: &Slot, start: u64, end: u64) -> u64 {
    if (end.wrapping_sub(start) as i64) < 0 { end.wrapping_add(u64::from(slot.size)) } else { start }
}

/// Which bytes of a state image its instruction wrote. For `xsave` by the image's own header: a component that is in
/// its initial state, or was not asked for, is left out; those beyond the legacy area are taken together.
fn image_ranges(image: StateImage, contents: &[u8]) -> Vec<(usize, usize)> {
    let whole = vec![(0, contents.len())];
    let header = match image {
        StateImage::Whole => return whole,
        StateImage::FxSave => return vec![(0, contents.len().min(416))],
        StateImage::XSave | StateImage::XSaveCompact => contents.get(512..520),
    };
    let Some(header) = header else { return whole };
    let mut ranges = Vec::new();
    if header[0] & 1 != 0 {
        ranges.extend([(0, 24), (32, 160)]);
    }
    if header[0] & 6 != 0 {
        ranges.push((24, 32));
    }
    if header[0] & 2 != 0 {
        ranges.push((160, 416));
    }
    ranges.push((512, if image == StateImage::XSave { 520 } else { 528 }));
    if header[0] & !3 != 0 || header[1..].iter().any(|&byte| byte != 0) {
        ranges.push((576, contents.len()));
    }
    ranges
}

fn word32(bytes: &[u8], at: u32) -> Option<u32> {
    bytes.get(at as usize..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn word64(bytes: &[u8], at: u32) -> Option<u64> {
    bytes.get(at as usize..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The record of a block that a fault ended at `mark`, to be appended to the log (at or after `log_next`). `written`
/// are the bytes from [`log_next`](crate::EnginePage::log_next) on (as many as the block's longest path has, plus the
/// header); `start` is [`bulk_start`](crate::EnginePage::bulk_start), `rdi` the guest's rdi at the fault, and
/// `contents` reads guest memory for a string store that was interrupted (start, bytes to fill), `opmask` the guest's opmask
/// register of a number for a scatter that was.
pub fn partial_record(
    block: &Translated,
    mark: &Mark,
    written: &[u8],
    (start, rdi): (u64, u64),
    contents: &mut dyn FnMut(GuestAddr, &mut [u8]),
    opmask: &mut dyn FnMut(u8) -> u64,
) -> Vec<u8> {
    let header = Header::long(block.id, PARTIAL_PATH);
    let mut record = Vec::new();
    record.extend_from_slice(&header.0.to_le_bytes());
    record.extend_from_slice(&mark.retired.to_le_bytes());
    match block.slots.first() {
        Some(slot) if slot.is_bulk() => {
            // A state image that faults is not stored as far as anyone can tell.
            let rdi = if matches!(slot.contents, Contents::State(_)) { start } else { rdi };
            bulk_body(&mut record, slot, start, rdi, contents);
        }
        _ => {
            let log = BlockLog::from(block);
            let (slots, len) = log.begun(mark.retired);
            let body = written.get(HEADER_BYTES as usize..).unwrap_or(&[]);
            let from = record.len();
            record.extend_from_slice(&body[..body.len().min(len as usize)]);
            if let Some(slot) = slots.last().filter(|slot| slot.instruction == mark.retired) {
                keep_stored(&mut record[from..], slot, opmask);
            }
        }
    }
    record
}

/// Leaves those bits of an interrupted scatter whose elements were stored: the instruction has cleared them.
fn keep_stored(body: &mut [u8], slot: &Slot, opmask: &mut dyn FnMut(u8) -> u64) {
    if let Condition::Scatter { at, mask, .. } = slot.condition
        && let Some(bits) = body.get_mut(at as usize..).and_then(<[u8]>::first_chunk_mut::<8>)
    {
        *bits = (u64::from_le_bytes(*bits) & !opmask(mask)).to_le_bytes();
    }
}

/// The record of a block that left by [`ExitKind::LogBulk`](crate::ExitKind::LogBulk) or
/// [`ExitKind::X87Pointer`](crate::ExitKind::X87Pointer): `start` is [`bulk_start`](crate::EnginePage::bulk_start),
/// `rdi` the guest's rdi now; `contents` reads guest memory (start, bytes to fill).
pub fn bulk_record(
    block: &Translated,
    start: u64,
    rdi: u64,
    contents: &mut dyn FnMut(GuestAddr, &mut [u8]),
) -> Vec<u8> {
    let mut record = Vec::new();
    record.extend_from_slice(&Header::long(block.id, 0).0.to_le_bytes());
    if let Some(slot) = block.slots.first() {
        let end = match slot.contents {
            Contents::State(_) => start.wrapping_add(u64::from(slot.size)),
            _ => rdi,
        };
        bulk_body(&mut record, slot, start, end, contents);
    }
    record
}

fn bulk_body(
    record: &mut Vec<u8>,
    slot: &Slot,
    start: u64,
    end: u64,
    contents: &mut dyn FnMut(GuestAddr, &mut [u8]),
) {
    let len = (end.wrapping_sub(start) as i64).unsigned_abs() as usize;
    record.extend_from_slice(&start.to_le_bytes());
    record.extend_from_slice(&end.to_le_bytes());
    record.extend_from_slice(&(len as u32).to_le_bytes());
    let from = record.len();
    record.resize(from + len.next_multiple_of(4), 0);
    if len > 0 {
        contents(GuestAddr(bulk_first(slot, start, end)), &mut record[from..from + len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{StringOp, Terminator};

    /// Everything as text, one line a row.
    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Sink for Lines {
        fn block(&mut self, id: BlockId, path: u32, instructions: u32) {
            self.0.push(format!("block {} path {path} ran {instructions}", id.0));
        }

        fn store(&mut self, slot: u32, addr: GuestAddr, bytes: &[u8]) {
            self.0.push(format!("slot {slot} at {addr}: {bytes:02x?}"));
        }
    }

    fn path(instructions: u32, slots: u32, log_bytes: u32) -> Path {
        Path { instructions, slots, log_bytes, end: Terminator::Return }
    }

    fn slot(instruction: u32, size: u32, address: Address, contents: Contents, condition: Condition) -> Slot {
        Slot { instruction, size, address, contents, condition }
    }

    /// Block 0: a logged store, one derived from it, a conditional one, a masked one; a side path after the first
    /// two. Block 1: a string store.
    fn blocks() -> Vec<BlockLog> {
        let logged = |at| Address::Logged { at };
        let slots = vec![
            slot(0, 4, logged(0), Contents::Logged { at: 8 }, Condition::Always),
            slot(1, 2, Address::Derived { slot: 0, delta: -8 }, Contents::Fixed(0xBEEF), Condition::Always),
            slot(3, 1, Address::Fixed(0x77), Contents::Logged { at: 12 }, Condition::Logged { at: 16 }),
            slot(4, 8, logged(20), Contents::Logged { at: 28 }, Condition::Mask { at: 36, element: 2 }),
        ];
        let string = slot(0, 2, logged(0), Contents::String(StringOp::Fill), Condition::Always);
        vec![
            BlockLog { paths: vec![path(6, 4, 44), path(3, 2, 12)], slots },
            BlockLog { paths: vec![path(1, 1, 20)], slots: vec![string] },
        ]
    }

    /// The header of a path whose records have `bytes` bytes behind it, `None` where each says how many.
    fn header(id: u32, path: u32, bytes: Option<u32>) -> [u8; 4] {
        let long = Header::long(BlockId(id), path);
        bytes.map_or(long, |bytes| Header::new(BlockId(id), path, bytes)).0.to_le_bytes()
    }

    fn words(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[track_caller]
    fn check(log: &[u8], expected: &[&str]) {
        let mut lines = Lines::default();
        walk(log, &blocks(), &mut lines).unwrap();
        assert_eq!(lines.0, expected);
    }

    #[test]
    fn paths_and_conditions() {
        let addr = 0x1000u64.to_le_bytes();
        let long = words(&[
            &header(0, 0, Some(44)),
            &addr,
            &[1, 2, 3, 4],
            &[9, 0, 0, 0],
            &[1, 0, 0, 0],
            &0x2000u64.to_le_bytes(),
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &0b1011u64.to_le_bytes(),
        ]);
        let side = words(&[&header(0, 1, Some(12)), &addr, &[5, 6, 7, 8]]);
        let log = [long.as_slice(), &side].concat();
        check(
            &log,
            &[
                "block 0 path 0 ran 6",
                "slot 0 at 0x1000: [01, 02, 03, 04]",
                "slot 1 at 0xff8: [ef, be]",
                "slot 2 at 0x77: [09]",
                "slot 3 at 0x2000: [01, 02, 03, 04]",
                "slot 3 at 0x2006: [07, 08]",
                "block 0 path 1 ran 3",
                "slot 0 at 0x1000: [05, 06, 07, 08]",
                "slot 1 at 0xff8: [ef, be]",
            ],
        );
        for cut in 1..log.len() {
            let bad = walk(&log[..cut], &blocks(), &mut Lines::default());
            let whole = cut == long.len();
            assert_eq!(bad.is_ok(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn blocks_that_faults_ended() {
        let addr = 0x1000u64.to_le_bytes();
        let partial = header(0, PARTIAL_PATH, None);
        let two = words(&[&partial, &[2, 0, 0, 0], &addr, &[1, 2, 3, 4]]);
        let log = words(&[&two, &partial, &[0; 4]]);
        check(
            &log,
            &[
                "block 0 path 15 ran 2",
                "slot 0 at 0x1000: [01, 02, 03, 04]",
                "slot 1 at 0xff8: [ef, be]",
                "block 0 path 15 ran 0",
            ],
        );
    }

    #[test]
    fn string_stores_up_and_down() {
        let record = |start: u64, end: u64, contents: &[u8]| {
            let mut padded = contents.to_vec();
            padded.resize(contents.len().next_multiple_of(4), 0xEE);
            let len = (contents.len() as u32).to_le_bytes();
            words(&[&header(1, 0, None), &start.to_le_bytes(), &end.to_le_bytes(), &len, &padded])
        };
        let log = [record(0x100, 0x106, &[1; 6]), record(0x100, 0xFC, &[2; 4]), record(5, 5, &[])].concat();
        check(
            &log,
            &[
                "block 1 path 0 ran 1",
                "slot 0 at 0x100: [01, 01, 01, 01, 01, 01]",
                "block 1 path 0 ran 1",
                "slot 0 at 0xfe: [02, 02, 02, 02]",
                "block 1 path 0 ran 1",
            ],
        );
    }

    #[test]
    fn headers_say_how_long_short_records_are() {
        let bytes = |bytes| Header::new(BlockId(MAX_BLOCKS - 1), 14, bytes).record_bytes();
        assert_eq!([bytes(0), bytes(56), bytes(60)], [Some(4), Some(60), None]);
        let long = Header::long(BlockId(MAX_BLOCKS - 1), PARTIAL_PATH);
        assert_eq!((long.id(), long.path(), long.record_bytes()), (MAX_BLOCKS - 1, PARTIAL_PATH, None));
    }

    #[test]
    fn bad_logs_are_refused() {
        let walked = |log: &[u8]| walk(log, &blocks(), &mut Lines::default());
        assert_eq!(walked(&header(2, 0, Some(0))), Err(BadLog::UnknownBlock { at: 0, id: 2 }));
        assert_eq!(walked(&header(0, 2, Some(0))), Err(BadLog::UnknownPath { at: 0, id: 0, path: 2 }));
        assert_eq!(walked(&[1, 0]), Err(BadLog::Truncated { at: 0 }));
    }

    #[test]
    fn no_bytes_make_the_walker_panic() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        let image =
            slot(0, 64, Address::Logged { at: 0 }, Contents::State(StateImage::XSave), Condition::Always);
        let mut blocks = blocks();
        blocks.push(BlockLog { paths: vec![path(1, 1, 20)], slots: vec![image] });
        for _ in 0..20_000 {
            let mut log: Vec<u8> = (0..64 + usize::from(next()))
                .map(|_| next() & if next() & 1 == 0 { 0x2F } else { 0xFF })
                .collect();
            // A header that exists, mostly, and small lengths.
            log[1] &= 3;
            log[2..4].fill(0);
            log[21..24].fill(0);
            let _ = walk(&log, &blocks, &mut Lines::default());
        }
    }
}
