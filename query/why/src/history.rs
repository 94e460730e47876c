//! The history of some bytes: their last write, and what they held before it. Follows moves (`mremap`) and forks back to
//! where the contents were, and looks at all mappings of what is shared. Knows nothing of code.

use guest::{GuestAddr, GuestRange, Moment, SpaceId};
use store::{MappingRow, MappingSource, QueryError, SharedWrite, WriteRow};
use tables::Database;

/// What the index knows of some bytes before a moment.
pub(crate) enum Found {
    /// Their last write, and where the bytes were then.
    Written {
        /// The write.
        row: WriteRow,
        /// The bytes as the writer addressed them.
        range: GuestRange,
        /// Those that it wrote.
        part: GuestRange,
        /// Whether the memory is shared, so that others may write it.
        shared: bool,
    },
    /// Nothing wrote them since they were mapped.
    Never {
        /// The mapping they came with.
        mapping: Box<MappingRow>,
        /// The bytes in that mapping's space.
        range: GuestRange,
    },
    /// They are not mapped.
    Unmapped,
}

/// How many moves and forks are followed: more than any program makes of one page.
const MAX_MOVES: usize = 64;

/// The last write before `before` that touches `range` in `space`, through whichever mapping of that memory.
pub(crate) fn last_write(
    database: &Database,
    space: SpaceId,
    range: GuestRange,
    before: Moment,
) -> Result<Found, QueryError> {
    let shared = database.store().shared_within(space, range, before)?;
    if shared.is_empty() {
        return last_private_write(database, space, range, before);
    }
    let mut best: Option<Found> = None;
    let mut at = range.start;
    for mapping in shared {
        let piece = mapping.range.intersect(range);
        if at < piece.start {
            let below = GuestRange { start: at, end: piece.start };
            let found = last_private_write(database, space, below, before)?;
            best = Some(later(best, found.of(below, range)));
        }
        at = piece.end;
        best = Some(later(best, last_shared_write(database, mapping, piece, before)?.of(piece, range)));
    }
    if at < range.end {
        let above = GuestRange { start: at, end: range.end };
        best = Some(later(best, last_private_write(database, space, above, before)?.of(above, range)));
    }
    Ok(best.unwrap_or(Found::Unmapped))
}

impl Found {
    /// What was found of `piece`, as an answer for the whole of `range`.
    fn of(self, piece: GuestRange, range: GuestRange) -> Self {
        let whole = |then: GuestRange| {
            GuestRange::new(then.start.wrapping_sub(piece.start.0 - range.start.0), range.len())
        };
        match self {
            Self::Written { row, range: then, part, shared } => {
                Self::Written { row, range: whole(then), part, shared }
            }
            other => other,
        }
    }
}

/// The later write of two; the first of two pieces that nobody wrote.
fn later(a: Option<Found>, b: Found) -> Found {
    let written = |found: &Found| match found {
        Found::Written { row, .. } => Some(row.moment),
        Found::Never { .. } | Found::Unmapped => None,
    };
    match (a, b) {
        // One write that goes over the seam of two mappings.
        (
            Some(Found::Written { row, range, part, shared }),
            Found::Written { row: other, range: there, part: rest, .. },
        ) if row == other && range == there && part.end == rest.start => {
            let part = GuestRange { start: part.start, end: rest.end };
            Found::Written { row, range, part, shared }
        }
        (Some(a), b) if written(&a) >= written(&b) => a,
        (_, b) => b,
    }
}

/// The last write of `range`, which lies in a mapping of what is shared.
fn last_shared_write(
    database: &Database,
    mapping: MappingRow,
    range: GuestRange,
    before: Moment,
) -> Result<Found, QueryError> {
    let object = mapping.object.map(|(object, at)| (object, at + (range.start.0 - mapping.range.start.0)));
    let found = match object {
        Some(object) => database.store().last_shared_write(object, range.len(), before)?,
        None => None,
    };
    Ok(match found {
        Some(SharedWrite { row, shown, skipped }) => {
            let part = row.range().intersect(shown);
            let then = GuestRange::new(shown.start.wrapping_sub(skipped), range.len());
            let here = GuestRange::new(moved(part.start, then, range), part.len());
            if is_outdated(database, &mapping, &row, (part, here))? {
                return Ok(Found::Never { mapping: Box::new(mapping), range });
            }
            let range = then;
            Found::Written { row, range, part, shared: true }
        }
        None => Found::Never { mapping: Box::new(mapping), range },
    })
}

/// Whether what a write left in `part`, which is `here` in the mapping asked about, was changed since by a call on the file that is
/// mapped. Another kept file stands for it since then.
fn is_outdated(
    database: &Database,
    mapping: &MappingRow,
    row: &WriteRow,
    (part, here): (GuestRange, GuestRange),
) -> Result<bool, QueryError> {
    let (Some((object, _)), Some((file, _))) = (mapping.object, mapping.file) else { return Ok(false) };
    let store = database.store();
    if store.kept_since(object, file)?.is_none_or(|since| since <= row.moment) {
        return Ok(false);
    }
    let skipped = (part.start.0 - row.addr.0) as usize;
    let value = store.value(row)?;
    let left = value.get(skipped..skipped + part.len() as usize);
    Ok(left != initial(database, mapping, here).as_deref())
}

/// The last write of memory that only its space shows, and the spaces it was copied from.
fn last_private_write(
    database: &Database,
    space: SpaceId,
    range: GuestRange,
    before: Moment,
) -> Result<Found, QueryError> {
    let store = database.store();
    let (mut space, mut range, mut before) = (space, range, before);
    let mut origin: Option<(MappingRow, GuestRange)> = None;
    for _ in 0..MAX_MOVES {
        let Some(mapping) = store.mapping_at(space, range.start, before)? else { break };
        let row = store.last_write(space, range, before)?;
        if let Some(row) = row.filter(|row| row.space == space && row.moment >= mapping.mapped_at) {
            let part = row.range().intersect(range);
            return Ok(Found::Written { row, range, part, shared: false });
        }
        let (from, to) = (mapping.range.start, range.start);
        match mapping.source {
            MappingSource::Mapped => return Ok(Found::Never { mapping: Box::new(mapping), range }),
            MappingSource::Moved { from: old } => {
                range = GuestRange::new(old.wrapping_add(to.0.wrapping_sub(from.0)), range.len());
                before = mapping.mapped_at;
            }
            MappingSource::Copied => {
                let spaces = store.spaces()?;
                let child = spaces.iter().find(|s| s.space == space);
                let Some((parent, first)) = child.and_then(|s| Some((s.parent?, s.first))) else {
                    return Ok(Found::Never { mapping: Box::new(mapping), range });
                };
                space = parent;
                before = first;
            }
        }
        origin = Some((mapping, range));
    }
    Ok(match origin {
        Some((mapping, range)) => Found::Never { mapping: Box::new(mapping), range },
        None => Found::Unmapped,
    })
}

/// What `range` holds in `space` just before `before`, byte by byte; `None` for bytes that are not there or not known.
/// At most [`MAX_CONTENTS`] bytes.
pub(crate) fn contents(
    database: &Database,
    space: SpaceId,
    range: GuestRange,
    before: Moment,
) -> Result<Vec<Option<u8>>, QueryError> {
    let len = range.len().min(MAX_CONTENTS);
    let mut bytes = vec![None; len as usize];
    // Pieces not known yet: each answer settles the part of a piece that it covers.
    let mut pieces = vec![GuestRange::new(range.start, len)];
    while let Some(piece) = pieces.pop().filter(|piece| !piece.is_empty()) {
        let mut fill = |part: GuestRange, value: Option<&[u8]>| {
            let at = (part.start.0 - range.start.0) as usize;
            for (index, slot) in bytes[at..at + part.len() as usize].iter_mut().enumerate() {
                *slot = value.and_then(|value| value.get(index).copied());
            }
            if part.start > piece.start {
                pieces.push(GuestRange { start: piece.start, end: part.start });
            }
            if part.end < piece.end {
                pieces.push(GuestRange { start: part.end, end: piece.end });
            }
        };
        match last_write(database, space, piece, before)? {
            Found::Written { row, range: then, part, .. } => {
                let value = database.store().value(&row)?;
                let from = (part.start.0 - row.addr.0) as usize;
                let here = GuestRange::new(moved(part.start, then, piece), part.len());
                fill(here, value.get(from..));
            }
            Found::Never { mapping, range: then } => {
                let inside = then.intersect(mapping.range);
                let value = initial(database, &mapping, inside);
                let here =
                    GuestRange::new(moved(inside.start, then, piece), inside.len().max(1).min(piece.len()));
                fill(here, value.as_deref());
            }
            Found::Unmapped => {
                let first = GuestRange::new(piece.start, 1);
                fill(first, None);
            }
        }
        // `filter` above ends the loop at an empty piece, and none is ever pushed.
    }
    Ok(bytes)
}

/// The most bytes [`contents`] looks up.
pub(crate) const MAX_CONTENTS: u64 = 64;

/// Where `addr`, which lies in `then`, is in `now`.
fn moved(addr: GuestAddr, then: GuestRange, now: GuestRange) -> GuestAddr {
    now.start.wrapping_add(addr.0 - then.start.0)
}

/// What a mapping held in `range` before anything was written: its file's bytes, zero past the file's end and elsewhere.
pub(crate) fn initial(database: &Database, mapping: &MappingRow, range: GuestRange) -> Option<Vec<u8>> {
    let len = range.len() as usize;
    if mapping.file.is_none() {
        return Some(vec![0; len]);
    }
    let symbols = database.symbols();
    // Asked for at the moment the row holds from: the layout knows this very mapping then.
    symbols.file_bytes(mapping.space, mapping.from, range.start, len)
}
