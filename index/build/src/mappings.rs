//! Which ranges of which spaces were mapped how, and when.

use std::collections::{BTreeMap, HashMap};

use guest::{EventId, FileId, GuestAddr, GuestRange, Moment, Prot, SpaceId};
use store::{MappingRow, MappingSource};
use trace::{Backing, MapOp};

/// The mappings of all spaces, and the rows of those that ended.
#[derive(Default)]
pub(crate) struct Mappings {
    spaces: BTreeMap<SpaceId, BTreeMap<GuestAddr, MappingRow>>,
    rows: Vec<MappingRow>,
    /// What shared mappings show: how many objects there were, and those with a kept file, which stands for one object.
    objects: u32,
    of_files: HashMap<FileId, u32>,
}

impl Mappings {
    /// A space that is a copy of another.
    pub(crate) fn copy(&mut self, from: SpaceId, to: SpaceId, moment: Moment) {
        let copies = self.spaces.get(&from).cloned().unwrap_or_default();
        let copies = copies.into_iter().map(|(start, row)| {
            (start, MappingRow { space: to, source: MappingSource::Copied, from: moment, ..row })
        });
        self.spaces.insert(to, copies.collect());
    }

    /// A file that mappings show got another length or contents, and from now on another kept file stands for it: what they show stays
    /// the same object. To be told before the change is performed.
    pub(crate) fn renew(&mut self, space: SpaceId, op: &MapOp) {
        let MapOp::Map { range, shared: true, backing: Backing::File { file, .. }, .. } = op else { return };
        let rows = self.spaces.entry(space).or_default();
        let shown = rows.values().find(|row| row.range.contains(range.start)).and_then(|row| row.object);
        if let Some((object, _)) = shown {
            self.of_files.entry(*file).or_insert(object);
        }
    }

    /// Performs a change.
    pub(crate) fn apply(&mut self, space: SpaceId, op: &MapOp, event: EventId, moment: Moment) {
        match op {
            MapOp::UnmapAll => {
                self.take(space, GuestRange::new(GuestAddr(0), u64::MAX), moment);
            }
            MapOp::Unmap { range } => {
                self.take(space, *range, moment);
            }
            MapOp::Map { range, prot, shared, backing, name, .. } => {
                self.take(space, *range, moment);
                let object = shared.then(|| self.object(*backing));
                self.put(MappingRow {
                    space,
                    range: *range,
                    prot: *prot,
                    shared: *shared,
                    file: match backing {
                        Backing::File { file, offset } => Some((file.0, *offset)),
                        Backing::Zero => None,
                    },
                    object,
                    name: name.clone(),
                    source: MappingSource::Mapped,
                    mapped_by: event,
                    mapped_at: moment,
                    from: moment,
                    until: None,
                });
            }
            MapOp::Protect { range, prot } => self.protect(space, *range, *prot, moment),
            MapOp::Remap { from, to, keep } => self.remap(space, (*from, *to, *keep), event, moment),
            MapOp::Discard { range } => {
                // What was there is gone, as if it were mapped anew; not so what is shared.
                for row in self.take(space, *range, moment) {
                    match row.object {
                        Some(_) => self.put(row),
                        None => self.put(MappingRow { mapped_by: event, mapped_at: moment, ..row }),
                    }
                }
            }
            MapOp::Rewrite { .. } => {}
        }
    }

    /// The object that a new shared mapping shows, and from where on: a kept file stands for one object, anonymous memory is one.
    fn object(&mut self, backing: Backing) -> (u32, u64) {
        let new = self.objects;
        let (object, offset) = match backing {
            Backing::File { file, offset } => (*self.of_files.entry(file).or_insert(new), offset),
            Backing::Zero => (new, 0),
        };
        self.objects += u32::from(object == new);
        (object, offset)
    }

    /// The part of a mapping at `from`, shown a second time at `to`.
    fn again(&mut self, space: SpaceId, from: GuestAddr, to: GuestRange, event: EventId, moment: Moment) {
        let rows = self.spaces.entry(space).or_default();
        let Some(row) = rows.values().find(|row| row.range.contains(from)) else { return };
        let row = cut(row, GuestRange { start: from, end: row.range.end });
        self.take(space, to, moment);
        self.put(MappingRow {
            range: to,
            source: MappingSource::Mapped,
            mapped_by: event,
            mapped_at: moment,
            from: moment,
            until: None,
            ..row
        });
    }

    fn protect(&mut self, space: SpaceId, range: GuestRange, prot: Prot, moment: Moment) {
        for row in self.take(space, range, moment) {
            self.put(MappingRow { prot, ..row });
        }
    }

    fn remap(
        &mut self,
        space: SpaceId,
        (from, to, keep): (GuestRange, GuestRange, bool),
        event: EventId,
        moment: Moment,
    ) {
        if from.is_empty() {
            self.again(space, from.start, to, event, moment);
            return;
        }
        let moved = self.take(space, from, moment);
        self.take(space, to, moment);
        for row in &moved {
            let offset = row.range.start.0 - from.start.0;
            let start = to.start.wrapping_add(offset);
            let last = row.range.end == from.end;
            let end = if last { to.end } else { start.wrapping_add(row.range.len()) };
            if start >= to.end {
                continue;
            }
            self.put(MappingRow {
                range: GuestRange { start, end: end.min(to.end) },
                source: MappingSource::Moved { from: row.range.start },
                mapped_by: event,
                mapped_at: moment,
                ..row.clone()
            });
        }
        if keep {
            for row in moved {
                self.put(MappingRow { mapped_by: event, mapped_at: moment, ..row });
            }
        }
    }

    /// A space is gone.
    pub(crate) fn end(&mut self, space: SpaceId, moment: Moment) {
        self.take(space, GuestRange::new(GuestAddr(0), u64::MAX), moment);
        self.spaces.remove(&space);
    }

    /// All rows; what is still mapped has no end.
    pub(crate) fn finish(mut self) -> Vec<MappingRow> {
        for rows in std::mem::take(&mut self.spaces).into_values() {
            self.rows.extend(rows.into_values());
        }
        self.rows.sort_by_key(|row| (row.space, row.from, row.range.start));
        self.rows
    }

    fn put(&mut self, row: MappingRow) {
        self.spaces.entry(row.space).or_default().insert(row.range.start, row);
    }

    /// Ends what is mapped in `range`; returns it, cut to the range, as it would go on from `moment`.
    fn take(&mut self, space: SpaceId, range: GuestRange, moment: Moment) -> Vec<MappingRow> {
        let rows = self.spaces.entry(space).or_default();
        let touched: Vec<GuestAddr> = rows
            .range(..range.end)
            .filter(|(_, row)| row.range.overlaps(range))
            .map(|(&start, _)| start)
            .collect();
        let mut taken = Vec::new();
        for start in touched {
            let Some(row) = rows.remove(&start) else { continue };
            for part in [
                GuestRange { start: row.range.start, end: range.start },
                GuestRange { start: range.end, end: row.range.end },
            ] {
                if !part.is_empty() && part.len() < row.range.len() {
                    rows.insert(part.start, cut(&row, part));
                }
            }
            let inside = cut(&row, row.range.intersect(range));
            taken.push(MappingRow { from: moment, until: None, ..inside.clone() });
            if inside.from < moment {
                self.rows.push(MappingRow { until: Some(moment), ..inside });
            }
        }
        taken
    }
}

/// The part of a row that lies in `part`.
fn cut(row: &MappingRow, part: GuestRange) -> MappingRow {
    let skipped = part.start.0 - row.range.start.0;
    MappingRow {
        range: part,
        file: row.file.map(|(file, offset)| (file, offset + skipped)),
        object: row.object.map(|(object, offset)| (object, offset + skipped)),
        source: match row.source {
            MappingSource::Moved { from } => MappingSource::Moved { from: from.wrapping_add(skipped) },
            source => source,
        },
        ..row.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> GuestRange {
        GuestRange { start: GuestAddr(start), end: GuestAddr(end) }
    }

    fn map(start: u64, end: u64) -> MapOp {
        MapOp::Map {
            range: range(start, end),
            prot: Prot::from_bits(3),
            shared: false,
            grows_down: false,
            no_reserve: false,
            backing: Backing::File { file: guest::FileId(7), offset: 0x1000 },
            name: "file".into(),
        }
    }

    #[test]
    fn parts_are_cut_protected_moved_and_ended() {
        let mut mappings = Mappings::default();
        let space = SpaceId(0);
        let ops = [
            map(0x1000, 0x9000),
            MapOp::Protect { range: range(0x3000, 0x5000), prot: Prot::from_bits(1) },
            MapOp::Unmap { range: range(0x4000, 0x7000) },
            MapOp::Remap { from: range(0x7000, 0x9000), to: range(0x2_0000, 0x2_4000), keep: false },
        ];
        for (at, op) in (0..).zip(&ops) {
            mappings.apply(space, op, EventId(at), Moment(at * 10));
        }
        mappings.copy(space, SpaceId(1), Moment(50));
        mappings.end(space, Moment(60));
        let rows: Vec<_> = mappings
            .finish()
            .into_iter()
            .map(|row| {
                let until = row.until.map(|moment| moment.0);
                (
                    row.space.0,
                    row.range.start.0,
                    row.range.end.0,
                    row.prot.bits(),
                    row.from.0,
                    until,
                    row.file,
                )
            })
            .collect();
        let file = |offset| Some((7, offset));
        assert_eq!(
            rows,
            [
                (0, 0x1000, 0x3000, 3, 0, Some(60), file(0x1000)),
                (0, 0x3000, 0x5000, 3, 0, Some(10), file(0x3000)),
                (0, 0x5000, 0x7000, 3, 0, Some(20), file(0x5000)),
                (0, 0x7000, 0x9000, 3, 0, Some(30), file(0x7000)),
                (0, 0x3000, 0x4000, 1, 10, Some(60), file(0x3000)),
                (0, 0x4000, 0x5000, 1, 10, Some(20), file(0x4000)),
                (0, 0x2_0000, 0x2_4000, 3, 30, Some(60), file(0x7000)),
                (1, 0x1000, 0x3000, 3, 50, None, file(0x1000)),
                (1, 0x3000, 0x4000, 1, 50, None, file(0x3000)),
                (1, 0x2_0000, 0x2_4000, 3, 50, None, file(0x7000)),
            ]
        );
    }
    #[test]
    fn what_shared_mappings_show_is_known_by_number_and_offset() {
        let shared = |start, end, file: Option<(u32, u64)>| MapOp::Map {
            range: range(start, end),
            prot: Prot::from_bits(3),
            shared: true,
            grows_down: false,
            no_reserve: false,
            backing: match file {
                Some((file, offset)) => Backing::File { file: FileId(file), offset },
                None => Backing::Zero,
            },
            name: String::new(),
        };
        let mut mappings = Mappings::default();
        let ops = [
            map(0x1000, 0x2000),
            shared(0x1_0000, 0x1_4000, Some((7, 0))),
            shared(0x2_0000, 0x2_1000, Some((7, 0x3000))),
            shared(0x3_0000, 0x3_2000, None),
            shared(0x4_0000, 0x4_2000, None),
            MapOp::Unmap { range: range(0x1_1000, 0x1_2000) },
            MapOp::Remap { from: range(0x1_3000, 0x1_4000), to: range(0x5_0000, 0x5_1000), keep: false },
            MapOp::Remap { from: range(0x3_1000, 0x3_1000), to: range(0x6_0000, 0x6_1000), keep: false },
            MapOp::Discard { range: range(0x4_0000, 0x4_2000) },
        ];
        for (at, op) in (0..).zip(&ops) {
            mappings.apply(SpaceId(0), op, EventId(at), Moment(at * 10));
        }
        mappings.copy(SpaceId(0), SpaceId(1), Moment(100));
        let rows = mappings.finish();
        let now = |space| {
            let rows = rows.iter().filter(move |row| row.space == SpaceId(space) && row.until.is_none());
            let mut shown: Vec<_> =
                rows.map(|row| (row.range.start.0, row.range.end.0, row.object)).collect();
            shown.sort_unstable();
            shown
        };
        assert_eq!(
            now(0),
            [
                (0x1000, 0x2000, None),
                (0x1_0000, 0x1_1000, Some((0, 0))),
                (0x1_2000, 0x1_3000, Some((0, 0x2000))),
                (0x2_0000, 0x2_1000, Some((0, 0x3000))),
                (0x3_0000, 0x3_2000, Some((1, 0))),
                (0x4_0000, 0x4_2000, Some((2, 0))),
                (0x5_0000, 0x5_1000, Some((0, 0x3000))),
                (0x6_0000, 0x6_1000, Some((1, 0x1000))),
            ]
        );
        assert_eq!(now(1), now(0));
        let dropped = rows.iter().find(|row| row.object == Some((2, 0)) && row.space == SpaceId(0));
        assert_eq!(dropped.map(|row| row.mapped_at), Some(Moment(40)));
    }
}
