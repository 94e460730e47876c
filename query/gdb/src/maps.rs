//! The names and files of mappings, from the events up to a place. Knows nothing of gdb.

use std::collections::BTreeMap;

use guest::{EventId, GuestAddr, GuestRange, SpaceId};
use timeline::Mapping;
use trace::{Backing, Fact, MapOp, ReadError, Trace};

/// What a range shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    end: GuestAddr,
    /// Path, `[heap]`, `[stack]` or nothing.
    name: String,
    /// Offset of its first byte in its file.
    offset: u64,
}

/// By start address; they do not overlap.
pub(crate) type Names = BTreeMap<GuestAddr, Named>;

/// What the mappings of `space` show before the event `until`.
pub(crate) fn names(trace: &Trace, space: SpaceId, until: EventId) -> Result<Names, ReadError> {
    let mut spaces: BTreeMap<SpaceId, Names> = BTreeMap::new();
    for item in trace.events() {
        let (id, event) = item?;
        if id >= until {
            break;
        }
        let names = spaces.entry(event.space).or_default();
        event.maps.iter().for_each(|op| apply(names, op));
        if let Fact::Spawn(info) = &event.fact
            && !info.shares
        {
            let copy = names.clone();
            spaces.insert(info.space, copy);
        }
    }
    Ok(spaces.remove(&space).unwrap_or_default())
}

fn apply(names: &mut Names, op: &MapOp) {
    match op {
        MapOp::UnmapAll => names.clear(),
        MapOp::Map { range, backing, name, .. } => {
            take(names, *range);
            let offset = match backing {
                Backing::File { offset, .. } => *offset,
                Backing::Zero => 0,
            };
            names.insert(range.start, Named { end: range.end, name: name.clone(), offset });
        }
        MapOp::Unmap { range } => drop(take(names, *range)),
        MapOp::Remap { from, to, keep } => {
            let moved = take(names, *from);
            if *keep {
                names.extend(moved.iter().map(|(start, named)| (*start, named.clone())));
            }
            take(names, *to);
            for (start, mut named) in moved {
                let place = |addr: GuestAddr| to.start.wrapping_add(addr.0 - from.start.0);
                // What is longer than before shows more of the same.
                named.end = if named.end == from.end { to.end } else { place(named.end).min(to.end) };
                if place(start) < named.end {
                    names.insert(place(start), named);
                }
            }
        }
        MapOp::Protect { .. } | MapOp::Discard { .. } | MapOp::Rewrite { .. } => {}
    }
}

/// Takes out what lies in `range`; what sticks out of it stays.
fn take(names: &mut Names, range: GuestRange) -> Names {
    split(names, range.start);
    split(names, range.end);
    let mut rest = names.split_off(&range.start);
    names.append(&mut rest.split_off(&range.end));
    rest
}

/// Makes two of the one that `at` lies in.
fn split(names: &mut Names, at: GuestAddr) {
    let Some((&start, named)) = names.range_mut(..at).next_back().filter(|(_, named)| named.end > at) else {
        return;
    };
    let offset = named.offset.wrapping_add(at.0 - start.0);
    let upper = Named { end: named.end, name: named.name.clone(), offset };
    named.end = at;
    names.insert(at, upper);
}

/// A line for each part of a mapping that shows one thing.
pub(crate) fn lines(mappings: &[Mapping], names: &Names) -> String {
    let mut text = String::new();
    for mapping in mappings {
        let mut at = mapping.range.start;
        while at < mapping.range.end {
            let here = names.range(..=at).next_back().filter(|(_, named)| named.end > at);
            let next = names.range(at..).map(|(start, _)| *start).find(|start| *start > at);
            let end = here.map_or(next, |(_, named)| Some(named.end));
            let end = end.map_or(mapping.range.end, |end| end.min(mapping.range.end));
            let (name, offset) = here.map_or(("", 0), |(start, named)| {
                (
                    &named.name,
                    named.offset.wrapping_add(if named.name.starts_with('/') { at.0 - start.0 } else { 0 }),
                )
            });
            text.push_str(&line(mapping, GuestRange { start: at, end }, offset, name));
            at = end;
        }
    }
    text
}

/// One line in the form of `/proc/PID/maps`.
fn line(mapping: &Mapping, range: GuestRange, offset: u64, name: &str) -> String {
    let letter = |set: bool, letter: char| if set { letter } else { '-' };
    let prot = mapping.prot;
    let (r, w, x) = (letter(prot.read, 'r'), letter(prot.write, 'w'), letter(prot.exec, 'x'));
    let sharing = if mapping.shared { 's' } else { 'p' };
    let (start, end) = (range.start.0, range.end.0);
    let head = format!("{start:08x}-{end:08x} {r}{w}{x}{sharing} {offset:08x} 00:00 0");
    if name.is_empty() { format!("{head}\n") } else { format!("{head:<72} {name}\n") }
}

#[cfg(test)]
mod tests {
    use guest::{FileId, Prot};

    use super::*;

    fn range(start: u64, end: u64) -> GuestRange {
        GuestRange { start: GuestAddr(start), end: GuestAddr(end) }
    }

    fn map(start: u64, end: u64, name: &str, offset: u64) -> MapOp {
        let backing = match name.starts_with('/') {
            true => Backing::File { file: FileId(0), offset },
            false => Backing::Zero,
        };
        let (range, prot, name) = (range(start, end), Prot::from_bits(1), name.to_owned());
        MapOp::Map { range, prot, shared: false, grows_down: false, no_reserve: false, backing, name }
    }

    #[track_caller]
    fn check(ops: &[MapOp], mapped: &[(u64, u64)], expected: &[(&str, &str)]) {
        let mut names = Names::new();
        ops.iter().for_each(|op| apply(&mut names, op));
        let mapping = |&(start, end): &(u64, u64)| Mapping {
            range: range(start, end),
            prot: Prot::from_bits(1),
            shared: false,
            grows_down: false,
        };
        let mapped: Vec<Mapping> = mapped.iter().map(mapping).collect();
        let text = lines(&mapped, &names);
        let shown: Vec<(&str, &str)> = text
            .lines()
            .map(|line| {
                let (range, rest) = line.split_once(" r--p ").unwrap();
                let (offset, name) = rest.split_once(" 00:00 0").unwrap();
                (
                    range,
                    if name.is_empty() {
                        ""
                    } else {
                        [offset, name.trim()][usize::from(offset == "00000000")]
                    },
                )
            })
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn names_follow_what_is_mapped_over_moved_and_taken_away() {
        let base = [map(0x1000, 0x5000, "/a", 0), map(0x8000, 0xa000, "[heap]", 0)];
        let with = |op: MapOp| [&base[..], &[op]].concat();
        check(
            &base,
            &[(0x1000, 0x3000), (0x8000, 0xb000)],
            &[("00001000-00003000", "/a"), ("00008000-0000a000", "[heap]"), ("0000a000-0000b000", "")],
        );
        check(
            &with(map(0x2000, 0x3000, "/b", 0)),
            &[(0x1000, 0x5000)],
            &[("00001000-00002000", "/a"), ("00002000-00003000", "/b"), ("00003000-00005000", "00002000")],
        );
        check(
            &with(MapOp::Unmap { range: range(0x1000, 0x4000) }),
            &[(0x3000, 0x5000)],
            &[("00003000-00004000", ""), ("00004000-00005000", "00003000")],
        );
        let moved = MapOp::Remap { from: range(0x8000, 0xa000), to: range(0x20000, 0x24000), keep: false };
        check(
            &with(moved),
            &[(0x8000, 0x9000), (0x20000, 0x24000)],
            &[("00008000-00009000", ""), ("00020000-00024000", "[heap]")],
        );
        check(&with(MapOp::UnmapAll), &[(0x1000, 0x2000)], &[("00001000-00002000", "")]);
    }
}
