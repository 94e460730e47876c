//! Which ranges of which spaces were mapped how, and when.

use std::collections::BTreeMap;

use guest::{EventId, GuestAddr, GuestRange, Moment, Prot, SpaceId};
use store::{MappingRow, MappingSource};
use trace::{Backing, MapOp};

/// The mappings of all spaces, and the rows of those that ended.
#[derive(Default)]
pub(crate) struct Mappings {
    spaces: BTreeMap<SpaceId, BTreeMap<GuestAddr, MappingRow>>,
    rows: Vec<MappingRow>,
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
                self.put(MappingRow {
                    space,
                    range: *range,
                    prot: *prot,
                    shared: *shared,
                    file: match backing {
                        Backing::File { file, offset } => Some((file.0, *offset)),
                        Backing::Zero => None,
                    },
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
                // What was there is gone: as if it were mapped anew.
                for row in self.take(space, *range, moment) {
                    self.put(MappingRow { mapped_by: event, mapped_at: moment, ..row });
                }
            }
            MapOp::Rewrite { .. } => {}
        }
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
}
