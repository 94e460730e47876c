//! The question, and how it can fail.

use guest::{GuestAddr, GuestRange, Moment, SpaceId};
use store::{Author, MappingRow, WriteRow};
use symbols::{Expression, ResolveError, Resolved, Value};
use tables::Database;

use crate::answer::{Answer, Bytes, Coverage, Field, Hop, Origin, Target, Verdict, Writer};
use crate::code::{self, Spot};
use crate::history::{self, Found};
use crate::{kernel, stack};

/// Who last wrote `target`?
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// An address, a symbol, or a part of a variable.
    pub target: Expression,
    /// How many bytes; by default the size of the symbol or part, and for an address as many as the last write of its first byte wrote
    /// from there on (at most 8).
    pub size: Option<u64>,
    /// Before which moment; by default the end.
    pub at: Option<Moment>,
    /// In which space; by default the one that has the latest write.
    pub space: Option<SpaceId>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// A name that is no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// No memory there.
    #[error("{addr} is not mapped at {moment}")]
    Unmapped {
        /// The address.
        addr: GuestAddr,
        /// The moment.
        moment: Moment,
    },
    /// No such space.
    #[error("there is no space {space} (the recording has {count})")]
    NoSpace {
        /// What was asked.
        space: SpaceId,
        /// How many there are.
        count: usize,
    },
    /// A moment that the index does not reach.
    #[error("{moment} is out of range: the index ends at {end}")]
    OutOfRange {
        /// What was asked.
        moment: Moment,
        /// The end.
        end: Moment,
    },
    /// Nothing or too much asked for.
    #[error("a size of {size} bytes cannot be asked about (1 to {MAX_SIZE})")]
    Size {
        /// What was asked.
        size: u64,
    },
    /// Nothing is indexed before the moment.
    #[error("the index holds nothing before that moment")]
    Empty,
    /// The index failed.
    #[error("reading the index")]
    Query(#[from] store::QueryError),
}

/// The largest target, in bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// How many writes that leave a bit-field as it is are skipped in search of one that does not.
const MAX_UNCHANGED: usize = 1000;

/// Bytes before and after a write.
type Values = (Vec<Option<u8>>, Vec<Option<u8>>);

/// The most bytes of a value that are shown.
const MAX_SHOWN: u64 = 16;

/// A target being looked at: in one space, before one moment.
struct Candidate {
    space: SpaceId,
    range: GuestRange,
    /// The part of a variable that was asked for, as people write it.
    part: Option<String>,
    /// What its bytes say, where its type is known.
    value: Option<Value>,
    /// Whether it is a bit-field, which the write found changed.
    changed: bool,
    /// Before which moment: the question's, or the end of the space.
    before: Moment,
    found: Found,
}

/// Finds the last write before the moment and what surrounds it.
pub fn why(database: &Database, question: &Question) -> Result<Answer, WhyError> {
    if let Some(size) = question.size.filter(|size| !(1..=MAX_SIZE).contains(size)) {
        return Err(WhyError::Size { size });
    }
    let before = moment(database, question)?;
    if let Some(found) = running_then(database, question, before)? {
        return answer(database, before, found);
    }
    let mut best: Option<Candidate> = None;
    let mut failure: Option<WhyError> = None;
    for (end, space) in spaces(database, question, before)? {
        if best.as_ref().and_then(|best| best.rank().0).is_some_and(|written| written > end) {
            break;
        }
        match candidate(database, question, space, before) {
            Ok(found) if best.as_ref().is_none_or(|best| found.rank() > best.rank()) => best = Some(found),
            Ok(_) => {}
            Err(error @ (WhyError::Resolve(_) | WhyError::Unmapped { .. })) => {
                failure = failure.or(Some(error));
            }
            Err(error) => return Err(error),
        }
    }
    match best {
        Some(best) => answer(database, before, best),
        None => Err(match failure {
            // Spaces that are gone were looked at in their last moment: name the one asked for.
            Some(WhyError::Unmapped { addr, .. }) => {
                WhyError::Unmapped { addr, moment: before.min(database.store().end()?) }
            }
            other => other.unwrap_or(WhyError::Empty),
        }),
    }
}

/// What the space that runs at the moment asked for says, where it knows the target: the same address means other things
/// in other processes.
fn running_then(
    database: &Database,
    question: &Question,
    before: Moment,
) -> Result<Option<Candidate>, WhyError> {
    let (None, Some(at)) = (question.space, question.at) else { return Ok(None) };
    let Some(space) = database.store().space_at(at)? else { return Ok(None) };
    match candidate(database, question, space, before) {
        Ok(Candidate { found: Found::Unmapped, .. }) => Ok(None),
        Ok(found) => Ok(Some(found)),
        Err(WhyError::Resolve(_) | WhyError::Unmapped { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Candidate {
    /// Later writes before earlier ones, any write before none; earlier spaces before later ones.
    fn rank(&self) -> (Option<Moment>, std::cmp::Reverse<SpaceId>) {
        let written = match &self.found {
            Found::Written { row, .. } => Some(row.moment),
            Found::Never { .. } | Found::Unmapped => None,
        };
        (written, std::cmp::Reverse(self.space))
    }
}

/// The moment before which writes count.
fn moment(database: &Database, question: &Question) -> Result<Moment, WhyError> {
    let end = database.store().end()?;
    match question.at {
        Some(moment) if moment > end => Err(WhyError::OutOfRange { moment, end }),
        Some(moment) => Ok(moment),
        // What the kernel does after the last instruction counts, too.
        None => Ok(Moment(end.0 + 1)),
    }
}

/// The spaces in question, each with the last moment at which it may have been written: the one asked for, or all that there
/// were before the moment, those that lasted longest first.
fn spaces(
    database: &Database,
    question: &Question,
    before: Moment,
) -> Result<Vec<(Moment, SpaceId)>, WhyError> {
    let rows = database.store().spaces()?;
    if let Some(space) = question.space {
        if !rows.iter().any(|row| row.space == space) {
            return Err(WhyError::NoSpace { space, count: rows.len() });
        }
        return Ok(vec![(before, space)]);
    }
    let layout = database.symbols().layout();
    let end = |space| layout.last_moment(space).map_or(before, |last| last.min(before));
    let rows = rows.into_iter().filter(|row| row.first <= before);
    let mut spaces: Vec<_> = rows.map(|row| (end(row.space), row.space)).collect();
    spaces.sort_unstable_by(|a, b| b.cmp(a));
    Ok(spaces)
}

/// Looks the target up in one space.
fn candidate(
    database: &Database,
    question: &Question,
    space: SpaceId,
    before: Moment,
) -> Result<Candidate, WhyError> {
    // A space that is gone by then answers for its last moment.
    let last = database.symbols().layout().last_moment(space).unwrap_or(before);
    let before = before.min(Moment(last.0.saturating_add(1)));
    let now = Moment(before.0.saturating_sub(1));
    let target = resolve(database, &question.target, space, now)?;
    let (whole, part) = match &question.target {
        Expression::Address(_) => (false, None),
        Expression::Symbol { offset, .. } => (*offset == 0, None),
        Expression::Part(part) => (part.offset == 0, (part.offset == 0).then(|| target.name.clone())),
    };
    if let Some(size) = question.size {
        all_mapped(database, space, GuestRange::new(target.addr, size), before)?;
    }
    let known = question.size.or_else(|| (whole && target.size > 0).then_some(target.size.min(MAX_SIZE)));
    let mut range = GuestRange::new(target.addr, known.unwrap_or(1));
    let mut found = history::last_write(database, space, range, before)?;
    if let (None, Found::Written { row, range: then, .. }) = (known, &found) {
        // Without a size, the write of the first byte says how large the thing is.
        let len = row.range().end.0.saturating_sub(then.start.0).clamp(1, 8);
        range = GuestRange::new(target.addr, len);
        found = history::last_write(database, space, range, before)?;
    } else if known.is_none() {
        range = GuestRange::new(target.addr, 8);
        found = history::last_write(database, space, range, before)?;
    }
    if matches!(found, Found::Unmapped) {
        return Err(WhyError::Unmapped { addr: target.addr, moment: before });
    }
    let value = target.value.filter(|_| question.size.is_none_or(|size| size == target.size));
    let changer = match value.filter(|value| value.bits().is_some()) {
        Some(field) => last_change(database, &field, &found)?,
        None => None,
    };
    let (changed, found) = (changer.is_some(), changer.unwrap_or(found));
    Ok(Candidate { space, range, part, value, changed, before, found })
}

/// Fails with the first address of `range` that is not mapped.
fn all_mapped(
    database: &Database,
    space: SpaceId,
    range: GuestRange,
    before: Moment,
) -> Result<(), WhyError> {
    let mut addr = range.start;
    while addr < range.end {
        let mapping = database.store().mapping_at(space, addr, before)?;
        addr = mapping.ok_or(WhyError::Unmapped { addr, moment: before })?.range.end;
    }
    Ok(())
}

/// The last of the writes of a bit-field's bytes, from `found` back, that changed its bits.
fn last_change(database: &Database, field: &Value, found: &Found) -> Result<Option<Found>, WhyError> {
    let Found::Written { row, range, part, shared } = found else { return Ok(None) };
    let (mut row, mut range, mut part, mut shared) = (row.clone(), *range, *part, *shared);
    for _ in 0..MAX_UNCHANGED {
        let (old, new) = values(database, &row, range, part)?;
        let bits = |bytes: Vec<Option<u8>>| field.field(&bytes.into_iter().collect::<Option<Vec<u8>>>()?);
        if bits(old) != bits(new) {
            return Ok(Some(Found::Written { row, range, part, shared }));
        }
        match history::last_write(database, row.space, range, row.moment)? {
            Found::Written { row: earlier, range: then, part: written, shared: by_others } => {
                (row, range, part, shared) = (earlier, then, written, by_others);
            }
            Found::Never { .. } | Found::Unmapped => return Ok(None),
        }
    }
    Ok(None)
}

/// What `range` held before a write and after it, which wrote `part` of it.
fn values(
    database: &Database,
    row: &WriteRow,
    range: GuestRange,
    part: GuestRange,
) -> Result<Values, WhyError> {
    let old = history::contents(database, row.space, range, row.moment)?;
    let mut new = old.clone();
    let written = database.store().value(row)?;
    for (index, byte) in new.iter_mut().enumerate() {
        let addr = range.start.wrapping_add(index as u64);
        if part.contains(addr) {
            *byte = written.get((addr.0 - row.addr.0) as usize).copied();
        }
    }
    Ok((old, new))
}

/// Where the target is. Pointers on the way to it hold what they held then.
fn resolve(
    database: &Database,
    target: &Expression,
    space: SpaceId,
    now: Moment,
) -> Result<Resolved, WhyError> {
    let mut failure = None;
    let mut pointer = |addr| {
        let range = GuestRange::new(addr, 8);
        match history::contents(database, space, range, Moment(now.0.saturating_add(1))) {
            Ok(bytes) => {
                let bytes = bytes.into_iter().collect::<Option<Vec<u8>>>()?;
                bytes.first_chunk().map(|bytes| GuestAddr(u64::from_le_bytes(*bytes)))
            }
            Err(error) => {
                failure = Some(error);
                None
            }
        }
    };
    let resolved = database.symbols().resolve(space, now, target, &mut pointer);
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(resolved?),
    }
}

fn answer(database: &Database, before: Moment, candidate: Candidate) -> Result<Answer, WhyError> {
    let Candidate { space, range, part, value, changed, before: until, found } = candidate;
    let bits = value.and_then(|value| value.bits());
    let value = value.as_ref();
    let now = Moment(until.0.saturating_sub(1));
    let target = Target {
        addr: range.start.to_string(),
        size: range.len(),
        name: part.or_else(|| database.symbols().variable(space, now, range.start)),
        space: space.0,
        field: bits.map(|bits| Field { first: bits.first, count: bits.count, changed }),
        program: program(database, space, until)?,
    };
    let verdict = match found {
        Found::Written { row, range: then, part, shared } => match loaded(database, &row, then)? {
            Some(mapping) => Verdict::NeverWritten(origin(database, &mapping, then, value)?),
            None => {
                let mut hop = hop(database, &row, then, part, value)?;
                if shared {
                    hop.aliased = (row.space, then.start) != (space, range.start);
                    if row.space != space {
                        hop.program = program(database, row.space, Moment(row.moment.0.saturating_add(1)))?;
                    }
                    // Others of its mappings may show, and have changed, bytes that the writer's does not.
                    let shown = shown(then, part);
                    let skipped = shown.start.0.wrapping_sub(then.start.0);
                    let here = GuestRange::new(range.start.wrapping_add(skipped), shown.len());
                    hop.new = Bytes::new(&history::contents(database, space, here, until)?, value);
                }
                Verdict::Written(Box::new(hop))
            }
        },
        Found::Never { mapping, range: then } => {
            Verdict::NeverWritten(origin(database, &mapping, then, value)?)
        }
        Found::Unmapped => return Err(WhyError::Unmapped { addr: range.start, moment: before }),
    };
    Ok(Answer { target, before: before.0, verdict })
}

/// The program that runs in `space` before `until`, where there are several spaces.
fn program(database: &Database, space: SpaceId, until: Moment) -> Result<Option<String>, WhyError> {
    let store = database.store();
    let (spaces, images) = (store.spaces()?, store.images()?);
    if spaces.len() < 2 {
        return Ok(None);
    }
    // A forked space runs what the space it was copied from ran then.
    let (mut space, mut until) = (space, until);
    loop {
        let here = images.iter().rev().find(|image| image.space == space && image.moment < until);
        let facts = spaces.iter().find(|row| row.space == space);
        match (here, facts.and_then(|row| Some((row.parent?, row.first)))) {
            (Some(image), _) => return Ok(Some(image.exe.clone())),
            (None, Some((parent, first))) => (space, until) = (parent, Moment(first.0.saturating_add(1))),
            (None, None) => return Ok(None),
        }
    }
}

/// Whether a write is an exec that put there what the file holds anyway (it writes whole pages): then nobody wrote it. Returns
/// the mapping.
fn loaded(database: &Database, row: &WriteRow, range: GuestRange) -> Result<Option<MappingRow>, WhyError> {
    let Author::Kernel { event } = row.author else { return Ok(None) };
    let (store, inside) = (database.store(), row.range().intersect(range));
    if inside != range || !store.images()?.iter().any(|image| image.event == event) {
        return Ok(None);
    }
    let mapping = store.mapping_at(row.space, range.start, Moment(row.moment.0.saturating_add(1)))?;
    let Some(mapping) = mapping.filter(|mapping| mapping.file.is_some() && mapping.mapped_by == event) else {
        return Ok(None);
    };
    let skipped = (range.start.0 - row.addr.0) as usize;
    let value = store.value(row)?;
    let written = value.get(skipped..skipped + range.len() as usize);
    let file = history::initial(database, &mapping, range);
    Ok((written.is_some() && written == file.as_deref()).then_some(mapping))
}

/// The bytes whose values are shown: of a large target, what was written.
fn shown(range: GuestRange, part: GuestRange) -> GuestRange {
    match range.len() <= MAX_SHOWN {
        true => range,
        false => GuestRange::new(part.start, part.len().min(MAX_SHOWN)),
    }
}

/// Everything about one write, which wrote `part` of `range`.
fn hop(
    database: &Database,
    row: &WriteRow,
    range: GuestRange,
    part: GuestRange,
    value: Option<&Value>,
) -> Result<Hop, WhyError> {
    let store = database.store();
    let spot = |pc| Spot { space: row.space, moment: row.moment, pc };
    let (writer, stack) = match row.author {
        Author::Code { pc } => {
            let instruction = code::instruction(database, spot(pc))?;
            let stack = stack::frames(database, spot(pc))?;
            let place =
                stack.first().map_or_else(|| code::innermost(database, spot(pc)), |f| f.place.clone());
            (Writer::Instruction { place, text: instruction.as_ref().map(code::disassembled) }, stack)
        }
        Author::Kernel { event } => kernel::writer(database, row, event, part.start)?,
    };
    let shown = shown(range, part);
    let (old, new) = values(database, row, shown, part)?;
    let tid = store.tasks()?.into_iter().find(|task| task.task == row.task).map(|task| task.tid);
    Ok(Hop {
        moment: row.moment.0,
        task: row.task.0,
        tid,
        space: row.space.0,
        aliased: false,
        program: None,
        writer,
        coverage: Coverage {
            addr: row.addr.to_string(),
            len: row.len,
            first: part.start.0 - range.start.0,
            count: part.len(),
        },
        values_at: shown.start.to_string(),
        old: Bytes::new(&old, value),
        new: Bytes::new(&new, value),
        stack,
    })
}

/// Where the contents of `range`, which nobody wrote, came from.
fn origin(
    database: &Database,
    mapping: &MappingRow,
    range: GuestRange,
    value: Option<&Value>,
) -> Result<Origin, WhyError> {
    let inside = GuestRange::new(range.start, range.len().min(MAX_SHOWN)).intersect(mapping.range);
    let contents =
        history::initial(database, mapping, inside).map(|v| v.into_iter().map(Some).collect::<Vec<_>>());
    let file = mapping.file.map(|(file, offset)| {
        let path =
            database.symbols().files().get(file as usize).map(|kept| kept.original.display().to_string());
        (path.unwrap_or_default(), offset + (range.start.0 - mapping.range.start.0))
    });
    Ok(Origin {
        mapped_at: mapping.mapped_at.0,
        mapped_by: kernel::describe_event(database, mapping.mapped_by)?,
        name: mapping.name.clone(),
        file,
        value: contents.and_then(|contents| Bytes::new(&contents, value)),
    })
}
