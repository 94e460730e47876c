//! The guest's mappings as a table of disjoint areas. Plain data.

use std::collections::BTreeMap;
use std::rc::Rc;

use guest::{GuestAddr, GuestRange, PAGE_SIZE, Prot};

use crate::family::Object;

/// What is known of a mapped range.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    /// The guest's protection.
    pub(crate) prot: Prot,
    /// For shared mappings: what they show, and from which offset on.
    pub(crate) object: Option<(Rc<Object>, u64)>,
    pub(crate) grows_down: bool,
}

impl Area {
    fn advanced(&self, by: u64) -> Self {
        let object = self.object.as_ref().map(|(object, offset)| (Rc::clone(object), offset + by));
        Self { object, ..*self }
    }
}

/// Disjoint areas, ascending.
#[derive(Clone, Default, Debug)]
pub(crate) struct Areas {
    /// By start: end and area.
    map: BTreeMap<u64, (u64, Area)>,
}

impl Areas {
    /// The area that holds `addr`.
    pub(crate) fn at(&self, addr: GuestAddr) -> Option<(GuestRange, &Area)> {
        let (&start, (end, area)) = self.map.range(..=addr.0).next_back()?;
        (addr.0 < *end).then_some((GuestRange { start: GuestAddr(start), end: GuestAddr(*end) }, area))
    }

    /// The first area that ends after `addr`.
    pub(crate) fn at_or_after(&self, addr: GuestAddr) -> Option<(GuestRange, &Area)> {
        self.at(addr).or_else(|| {
            let (&start, (end, area)) = self.map.range(addr.0..).next()?;
            Some((GuestRange { start: GuestAddr(start), end: GuestAddr(*end) }, area))
        })
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GuestRange, &Area)> {
        self.map
            .iter()
            .map(|(&start, (end, area))| (GuestRange { start: GuestAddr(start), end: GuestAddr(*end) }, area))
    }

    /// The pieces that lie in `range`, cut at its ends.
    pub(crate) fn within(&self, range: GuestRange) -> Vec<(GuestRange, Area)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        while let Some((found, area)) = self.at_or_after(at).filter(|(found, _)| found.start < range.end) {
            let piece = found.intersect(range);
            pieces.push((piece, area.advanced(piece.start.0 - found.start.0)));
            if found.end >= range.end {
                break;
            }
            at = found.end;
        }
        pieces
    }

    /// Cuts `range` out.
    pub(crate) fn remove(&mut self, range: GuestRange) {
        self.split(range.start);
        self.split(range.end);
        let doomed: Vec<u64> = self.map.range(range.start.0..range.end.0).map(|(&start, _)| start).collect();
        for start in doomed {
            self.map.remove(&start);
        }
    }

    fn split(&mut self, at: GuestAddr) {
        let Some((found, area)) = self.at(at).filter(|(found, _)| found.start < at) else { return };
        let rest = area.advanced(at.0 - found.start.0);
        self.map.insert(at.0, (found.end.0, rest));
        if let Some((end, _)) = self.map.get_mut(&found.start.0) {
            *end = at.0;
        }
    }

    /// Puts an area in place of whatever was in `range`; joins it to equal private neighbours, as the kernel does.
    pub(crate) fn insert(&mut self, range: GuestRange, area: Area) {
        if range.is_empty() {
            return;
        }
        self.remove(range);
        let mut range = range;
        let joins = |other: &Area| {
            area.object.is_none()
                && other.object.is_none()
                && area.prot == other.prot
                && area.grows_down == other.grows_down
        };
        if let Some((below, other)) = range.start.0.checked_sub(1).and_then(|addr| self.at(GuestAddr(addr)))
            && joins(other)
        {
            range.start = below.start;
        }
        if let Some((above, other)) = self.at(range.end)
            && joins(other)
        {
            range.end = above.end;
            self.map.remove(&above.start.0);
        }
        self.map.insert(range.start.0, (range.end.0, area));
    }

    /// Changes the protection of what is mapped in `range`.
    pub(crate) fn protect(&mut self, range: GuestRange, prot: Prot) {
        for (piece, area) in self.within(range) {
            self.insert(piece, Area { prot, ..area });
        }
    }

    /// Every address at which the page of `object` at `offset` is mapped.
    pub(crate) fn aliases(&self, object: &Rc<Object>, offset: u64) -> Vec<GuestAddr> {
        let mut found = Vec::new();
        for (range, area) in self.iter() {
            if let Some((other, start)) = &area.object
                && Rc::ptr_eq(other, object)
                && (*start..*start + range.len()).contains(&offset)
            {
                found.push(range.start.wrapping_add(offset / PAGE_SIZE * PAGE_SIZE - start));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> GuestRange {
        GuestRange { start: GuestAddr(start), end: GuestAddr(end) }
    }

    fn private(bits: u64) -> Area {
        Area { prot: Prot::from_bits(bits), object: None, grows_down: false }
    }

    #[track_caller]
    fn check(areas: &Areas, expected: &[(u64, u64, u64)]) {
        let got: Vec<_> = areas.iter().map(|(r, a)| (r.start.0, r.end.0, a.prot.bits())).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn areas_split_join_and_vanish() {
        let mut areas = Areas::default();
        areas.insert(range(0x1000, 0x9000), private(3));
        areas.protect(range(0x3000, 0x4000), Prot::from_bits(1));
        check(&areas, &[(0x1000, 0x3000, 3), (0x3000, 0x4000, 1), (0x4000, 0x9000, 3)]);
        areas.protect(range(0, 0x10000), Prot::from_bits(3));
        check(&areas, &[(0x1000, 0x9000, 3)]);
        areas.remove(range(0x2000, 0x8000));
        check(&areas, &[(0x1000, 0x2000, 3), (0x8000, 0x9000, 3)]);
        assert!(areas.at(GuestAddr(0x2000)).is_none());
        assert_eq!(areas.at_or_after(GuestAddr(0x2000)).unwrap().0, range(0x8000, 0x9000));
        assert_eq!(areas.within(range(0x1800, 0x8800)).len(), 2);
    }

    #[test]
    fn shared_pages_are_found_wherever_they_are_mapped() {
        let object = Object::zero(0x4000).unwrap();
        let shared = |offset| Area { object: Some((Rc::clone(&object), offset)), ..private(3) };
        let mut areas = Areas::default();
        areas.insert(range(0x1000, 0x5000), shared(0));
        areas.insert(range(0x8000, 0xa000), shared(0x2000));
        areas.remove(range(0x1000, 0x2000));
        assert_eq!(areas.aliases(&object, 0x2010), [GuestAddr(0x3000), GuestAddr(0x8000)]);
        assert!(areas.aliases(&object, 0).is_empty());
    }
}
