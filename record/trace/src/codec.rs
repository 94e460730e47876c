//! How an event is written in a frame: registers as differences, extended state without its zeroes, long data elsewhere.
//! Pure: bytes in, bytes out. Each frame stands alone: differences start from zero registers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use guest::{Registers, SpaceId, TaskId, XState};
use serde::{Deserialize, Serialize};

use crate::event::{Event, Fact, MapOp, MemWrite, PayloadRef, Stop, Trapped};

/// The largest extended state accepted, in bytes (AMX needs 11,008).
pub(crate) const MAX_XSTATE: usize = 64 << 10;

/// Registers as differences to others: which differ, and by how much.
#[derive(Serialize, Deserialize)]
struct RegsDelta {
    changed: u32,
    by: Vec<i64>,
}

impl RegsDelta {
    fn between(base: &Registers, regs: &Registers) -> Self {
        let (base, regs) = (base.to_words(), regs.to_words());
        let mut delta = Self { changed: 0, by: Vec::new() };
        for (i, (&old, &new)) in base.iter().zip(&regs).enumerate() {
            if old != new {
                delta.changed |= 1 << i;
                delta.by.push(new.wrapping_sub(old) as i64);
            }
        }
        delta
    }

    fn apply(&self, base: &Registers) -> Option<Registers> {
        if self.changed >> Registers::COUNT != 0 || self.changed.count_ones() as usize != self.by.len() {
            return None;
        }
        let mut words = base.to_words();
        let mut by = self.by.iter();
        for (i, word) in words.iter_mut().enumerate() {
            if self.changed >> i & 1 != 0 {
                *word = word.wrapping_add(*by.next()? as u64);
            }
        }
        Some(Registers::from_words(words))
    }
}

/// Bytes without their longer runs of zeroes.
#[derive(Serialize, Deserialize)]
struct Sparse {
    len: u32,
    /// Zero bytes to skip, then bytes that follow.
    runs: Vec<(u32, Vec<u8>)>,
}

impl Sparse {
    fn pack(bytes: &[u8]) -> Self {
        let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut skip = 0;
        for word in bytes.chunks(8) {
            if word.iter().all(|&b| b == 0) {
                skip += word.len() as u32;
            } else if skip == 0 && !runs.is_empty() {
                runs.last_mut().expect("checked above").1.extend_from_slice(word);
            } else {
                runs.push((skip, word.to_vec()));
                skip = 0;
            }
        }
        Self { len: bytes.len() as u32, runs }
    }

    fn unpack(&self) -> Option<Vec<u8>> {
        let len = self.len as usize;
        if len > MAX_XSTATE {
            return None;
        }
        let mut out = Vec::with_capacity(len);
        for (skip, bytes) in &self.runs {
            let at = out.len().checked_add(*skip as usize)?;
            if at.checked_add(bytes.len())? > len {
                return None;
            }
            out.resize(at, 0);
            out.extend_from_slice(bytes);
        }
        out.resize(len, 0);
        Some(out)
    }
}

/// A stop as it is stored. The first ones are those of [`Stop`].
#[derive(Serialize, Deserialize)]
enum WireStop {
    None,
    Syscall,
    Instruction(Trapped),
    Fault,
    Point,
    Buffered,
    /// A point so many branches after the task's previous event. Since version 1.4.
    PointAfter(u64),
    /// Since version 1.5.
    Narrow,
    /// Since version 1.7.
    BufferedInstruction(Trapped),
}

impl WireStop {
    fn of(event: &Event) -> Self {
        match (event.stop, &event.fact) {
            (Stop::None, _) => Self::None,
            (Stop::Syscall, _) => Self::Syscall,
            (Stop::Instruction(trapped), _) => Self::Instruction(trapped),
            (Stop::Fault, _) => Self::Fault,
            (Stop::Point, Fact::Point(info)) => info.branches.map_or(Self::Point, Self::PointAfter),
            (Stop::Point, _) => Self::Point,
            (Stop::Buffered, _) => Self::Buffered,
            (Stop::Narrow, _) => Self::Narrow,
            (Stop::BufferedInstruction(trapped), _) => Self::BufferedInstruction(trapped),
        }
    }

    /// The stop, the count with it going into the fact.
    fn take(self, fact: &mut Fact) -> Option<Stop> {
        Some(match self {
            Self::None => Stop::None,
            Self::Syscall => Stop::Syscall,
            Self::Instruction(trapped) => Stop::Instruction(trapped),
            Self::Fault => Stop::Fault,
            Self::Point => Stop::Point,
            Self::Buffered => Stop::Buffered,
            Self::Narrow => Stop::Narrow,
            Self::BufferedInstruction(trapped) => Stop::BufferedInstruction(trapped),
            Self::PointAfter(branches) => match fact {
                Fact::Point(info) => {
                    info.branches = Some(branches);
                    Stop::Point
                }
                _ => return None,
            },
        })
    }
}

/// An event as it is stored.
#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    task: TaskId,
    space: SpaceId,
    stop: WireStop,
    before: RegsDelta,
    after: RegsDelta,
    xstate: Option<Sparse>,
    maps: Cow<'a, [MapOp]>,
    writes: Cow<'a, [MemWrite]>,
    fact: Cow<'a, Fact>,
}

/// What a frame holds next.
#[derive(Clone)]
pub(crate) enum Item {
    Event(Box<Event>),
    /// Calls that were made without a stop.
    Batch(Batch),
}

/// Calls that a task made without a stop, one after the other: as many events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) task: TaskId,
    pub(crate) space: SpaceId,
    /// How many calls.
    pub(crate) count: u32,
    /// Where in the payload stream they are, as the tracee noted them.
    pub(crate) at: PayloadRef,
}

/// In place of the number of an event's task: a batch follows.
const BATCH: TaskId = TaskId(u32::MAX);

/// Appends `batch` to `out`.
pub(crate) fn encode_batch(batch: &Batch, out: &mut Vec<u8>) -> Result<(), postcard::Error> {
    *out = postcard::to_extend(&(BATCH, batch), std::mem::take(out))?;
    Ok(())
}

/// The last registers of each task in the current frame.
#[derive(Clone, Default)]
pub(crate) struct Context {
    last: BTreeMap<TaskId, Registers>,
}

impl Context {
    /// A task's last registers, or zeroes when the frame has none yet.
    fn base(&self, task: TaskId) -> Registers {
        self.last.get(&task).copied().unwrap_or_default()
    }

    /// Forgets everything: a new frame begins.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }
}

/// Appends `event` to `out`.
pub(crate) fn encode(context: &mut Context, event: &Event, out: &mut Vec<u8>) -> Result<(), postcard::Error> {
    let wire = Wire {
        task: event.task,
        space: event.space,
        stop: WireStop::of(event),
        before: RegsDelta::between(&context.base(event.task), &event.before),
        after: RegsDelta::between(&event.before, &event.after),
        xstate: event.xstate.as_ref().map(|x| Sparse::pack(&x.0)),
        maps: Cow::Borrowed(&event.maps),
        writes: Cow::Borrowed(&event.writes),
        fact: Cow::Borrowed(&event.fact),
    };
    context.last.insert(event.task, event.after);
    *out = postcard::to_extend(&wire, std::mem::take(out))?;
    Ok(())
}

/// Takes one event, or a batch, from the front of `bytes`.
pub(crate) fn decode_item<'a>(context: &mut Context, bytes: &'a [u8]) -> Option<(Item, &'a [u8])> {
    let (task, rest): (TaskId, _) = postcard::take_from_bytes(bytes).ok()?;
    if task == BATCH {
        let (batch, rest) = postcard::take_from_bytes(rest).ok()?;
        return Some((Item::Batch(batch), rest));
    }
    decode(context, bytes).map(|(event, rest)| (Item::Event(Box::new(event)), rest))
}

/// Takes one event from the front of `bytes`. Where there is none the context stays as it is.
fn decode<'a>(context: &mut Context, bytes: &'a [u8]) -> Option<(Event, &'a [u8])> {
    let (wire, rest): (Wire<'_>, _) = postcard::take_from_bytes(bytes).ok()?;
    let before = wire.before.apply(&context.base(wire.task))?;
    let after = wire.after.apply(&before)?;
    let xstate = match wire.xstate {
        Some(sparse) => Some(XState(sparse.unpack()?)),
        None => None,
    };
    let Wire { task, space, stop, maps, writes, fact, .. } = wire;
    let (maps, writes, mut fact) = (maps.into_owned(), writes.into_owned(), fact.into_owned());
    let stop = stop.take(&mut fact)?;
    context.last.insert(task, after);
    Some((Event { task, space, stop, before, after, xstate, maps, writes, fact }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_bytes_round_trip() {
        for bytes in [vec![], vec![0; 13], vec![1; 9], [vec![0; 100], vec![7; 30], vec![0; 3]].concat()] {
            assert_eq!(Sparse::pack(&bytes).unpack().unwrap(), bytes);
        }
        assert!(Sparse { len: 4, runs: vec![(u32::MAX, vec![1])] }.unpack().is_none());
        assert!(Sparse { len: u32::MAX, runs: vec![] }.unpack().is_none());
    }

    #[test]
    fn register_differences_are_checked() {
        let regs = Registers { rax: u64::MAX, rip: 5, ..Registers::default() };
        let delta = RegsDelta::between(&Registers::default(), &regs);
        assert_eq!(delta.apply(&Registers::default()), Some(regs));
        assert!(RegsDelta { changed: 1 << 27, by: vec![1] }.apply(&regs).is_none());
        assert!(RegsDelta { changed: 1, by: vec![] }.apply(&regs).is_none());
    }

    /// An event with something in every part.
    fn full() -> Event {
        use crate::event::{Backing, Data, PayloadRef, PieceRef, SyscallInfo};
        use guest::{FileId, GuestAddr, GuestRange, PieceId, Prot};
        let part = PieceRef { piece: PieceId(0), offset: 5, len: 9 };
        let range = GuestRange::new(GuestAddr(0x1000), 0x1000);
        let (prot, name) = (Prot::from_bits(3), "[heap]".to_owned());
        let backing = Backing::File { file: FileId(0), offset: 0 };
        let flags = (false, true, false);
        let map = MapOp::Map {
            range,
            prot,
            shared: flags.0,
            grows_down: flags.1,
            no_reserve: flags.2,
            backing,
            name,
        };
        let info = SyscallInfo { nr: 1, args: [9; 6], result: Some(-2), output: None, output_crc: 5 };
        let before = Registers { rax: 1, rip: 0x1010, ..Registers::default() };
        Event {
            task: TaskId(0),
            space: SpaceId(0),
            stop: Stop::Syscall,
            before,
            after: Registers { rax: 7, ..before },
            xstate: Some(XState(vec![1; 600])),
            maps: vec![map, MapOp::Remap { from: range, to: range, keep: false }],
            writes: vec![
                MemWrite { addr: GuestAddr(0x1800), data: Data::Inline(vec![1, 2, 3]) },
                MemWrite { addr: GuestAddr(0x1800), data: Data::Payload(PayloadRef { offset: 3, len: 4 }) },
                MemWrite { addr: GuestAddr(0x1800), data: Data::Pieces(vec![part, part]) },
            ],
            fact: Fact::Syscall(info),
        }
    }

    #[test]
    fn a_point_keeps_its_count_and_nothing_else_has_one() {
        use crate::event::PointInfo;
        for branches in [None, Some(0), Some(u64::MAX)] {
            let fact = Fact::Point(Box::new(PointInfo { branches, ..PointInfo::default() }));
            let regs = Registers::default();
            let point = Event { stop: Stop::Point, ..Event::in_place(TaskId(0), SpaceId(0), regs, fact) };
            let mut bytes = Vec::new();
            encode(&mut Context::default(), &point, &mut bytes).unwrap();
            assert_eq!(decode(&mut Context::default(), &bytes), Some((point.clone(), &[][..])));
            let other = Event { fact: Fact::Instruction, ..point };
            let mut wire = Vec::new();
            encode(&mut Context::default(), &other, &mut wire).unwrap();
            // The stop comes after the task and the space, a byte each.
            assert_eq!(wire[2], 4);
            wire.splice(2..3, [6, 0]);
            assert_eq!(decode(&mut Context::default(), &wire), None);
        }
    }

    #[test]
    fn hostile_bytes_never_panic() {
        use crate::validate::{Bounds, Sequence, check_alone};
        let mut good = Vec::new();
        encode(&mut Context::default(), &full(), &mut good).unwrap();
        assert_eq!(decode(&mut Context::default(), &good), Some((full(), &[][..])));
        let mut accepted = 0;
        for at in 0..good.len() {
            assert!(decode(&mut Context::default(), &good[..at]).is_none(), "cut to {at}");
            for value in (0..=255).step_by(5) {
                let mut bad = good.clone();
                bad[at] = value;
                let Some((event, _)) = decode(&mut Context::default(), &bad) else { continue };
                let checked = check_alone(&event, Bounds { files: 1, payload: 7, pieces: &[14] });
                accepted += u32::from(checked.is_ok() && Sequence::default().follow(&event).is_ok());
            }
        }
        // None of them begins a recording.
        assert_eq!(accepted, 0);
    }
}
