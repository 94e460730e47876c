//! Which file lies where, in which space, when. Knows nothing of what the files hold.

use std::path::PathBuf;

use guest::{FileId, GuestAddr, GuestRange, Moment, Prot, SpaceId};

/// A file whose contents the trace keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptFile {
    /// Where its contents lie now, in the trace.
    pub stored: PathBuf,
    /// The path under which the recorded program had it.
    pub original: PathBuf,
}

/// A mapping, from the moment it appeared to the moment it went or was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The space it is in.
    pub space: SpaceId,
    /// Where.
    pub range: GuestRange,
    /// Protection.
    pub prot: Prot,
    /// The kept file it shows; `None` for zeroes.
    pub file: Option<MappedFile>,
    /// The name `/proc/PID/maps` showed.
    pub name: String,
    /// The first moment at which it is there.
    pub from: Moment,
    /// The first moment at which it is no longer there; `Moment(u64::MAX)` when it stays.
    pub until: Moment,
}

/// Part of a kept file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedFile {
    /// The file.
    pub file: FileId,
    /// Offset in it of the mapping's first byte, in bytes.
    pub offset: u64,
}

/// All mappings of a recording, found by space, address and moment.
#[derive(Debug, Default)]
pub struct Layout {
    spaces: Vec<SpaceLayout>,
}

/// Mappings of one space by start address; `reach[i]` is the largest end among the first `i + 1`.
#[derive(Debug, Default)]
struct SpaceLayout {
    mappings: Vec<Mapping>,
    reach: Vec<GuestAddr>,
}

impl Layout {
    /// From mappings in any order.
    pub fn new(mappings: Vec<Mapping>) -> Self {
        let mut spaces: Vec<SpaceLayout> = Vec::new();
        for mapping in mappings {
            let index = mapping.space.index();
            if spaces.len() <= index {
                spaces.resize_with(index + 1, SpaceLayout::default);
            }
            spaces[index].mappings.push(mapping);
        }
        for space in &mut spaces {
            space.mappings.sort_by_key(|m| (m.range.start, m.from, m.until));
            let mut reach = GuestAddr(0);
            space.reach = space
                .mappings
                .iter()
                .map(|m| {
                    reach = reach.max(m.range.end);
                    reach
                })
                .collect();
        }
        Self { spaces }
    }

    /// The mapping that covers `addr` at `moment`. Where an event replaced one mapping by another at that very moment, the
    /// one that appeared last.
    pub fn at(&self, space: SpaceId, moment: Moment, addr: GuestAddr) -> Option<&Mapping> {
        self.covering(space, addr).filter(|m| m.from <= moment && moment < m.until).max_by_key(|m| m.from)
    }

    /// Every mapping that ever covered `addr` in `space`, whatever the moment.
    pub fn covering(&self, space: SpaceId, addr: GuestAddr) -> impl Iterator<Item = &Mapping> {
        let (mappings, reach) = match self.spaces.get(space.index()) {
            Some(space) => (&space.mappings[..], &space.reach[..]),
            None => (&[][..], &[][..]),
        };
        let end = mappings.partition_point(|m| m.range.start <= addr);
        let alive = (0..end).rev().take_while(move |&i| reach[i] > addr);
        alive.map(move |i| &mappings[i]).filter(move |m| m.range.contains(addr))
    }

    /// A mapping of a file that covered `addr` in some space at some moment, for questions that name neither: an executable
    /// one before others, then the first space.
    pub fn anywhere(&self, addr: GuestAddr) -> Option<&Mapping> {
        let spaces = (0..self.spaces.len() as u32).map(SpaceId);
        let all = spaces.flat_map(|space| self.covering(space, addr));
        all.filter(|m| m.file.is_some()).min_by_key(|m| (!m.prot.exec, m.space, m.from))
    }

    /// Every mapping of the recording.
    pub fn all(&self) -> impl Iterator<Item = &Mapping> {
        self.spaces.iter().flat_map(|space| &space.mappings)
    }

    /// The mappings of `space` that are there at `moment`, by address.
    pub fn in_space(&self, space: SpaceId, moment: Moment) -> impl Iterator<Item = &Mapping> {
        let mappings = self.spaces.get(space.index()).map_or(&[][..], |space| &space.mappings[..]);
        mappings.iter().filter(move |m| m.from <= moment && moment < m.until)
    }

    /// The last moment at which `space` still had a mapping, `None` when it never had one.
    pub fn last_moment(&self, space: SpaceId) -> Option<Moment> {
        let mappings = &self.spaces.get(space.index())?.mappings;
        mappings.iter().map(|m| m.until).max().map(|until| Moment(until.0.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, len: u64, from: u64, until: u64) -> Mapping {
        Mapping {
            space: SpaceId(1),
            range: GuestRange::new(GuestAddr(start), len),
            prot: Prot::default(),
            file: None,
            name: String::new(),
            from: Moment(from),
            until: Moment(until),
        }
    }

    #[test]
    fn a_mapping_is_found_by_address_and_moment() {
        let layout = Layout::new(vec![
            mapping(0x1000, 0x9000, 0, 100),
            mapping(0x3000, 0x1000, 100, 200),
            mapping(0x1000, 0x1000, 100, u64::MAX),
        ]);
        let start =
            |moment, addr| layout.at(SpaceId(1), Moment(moment), GuestAddr(addr)).map(|m| m.range.start.0);
        assert_eq!(start(99, 0x9fff), Some(0x1000));
        assert_eq!(start(100, 0x9fff), None);
        assert_eq!(start(150, 0x3001), Some(0x3000));
        assert_eq!(start(200, 0x3001), None);
        assert_eq!(start(200, 0x1fff), Some(0x1000));
        assert_eq!(start(200, 0x2000), None);
        assert_eq!(layout.at(SpaceId(7), Moment(0), GuestAddr(0x1000)), None);
        assert_eq!(layout.in_space(SpaceId(1), Moment(150)).count(), 2);
    }
}
