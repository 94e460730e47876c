//! Where a space has mappings that are more than memory of the program's own: files, what is shared, its first stack, memory of ours. Calls
//! that change others are made without a stop, for nothing else need be known of them. An area stays one where its mapping goes: it costs
//! stops, no more.

use abi::buffer::{AREAS, END, MOST_AREAS, NO_AREA};
use guest::{GuestAddr, GuestRange};
use kernel::{Call, Form, MapCall};
use ptrace::Memory;

use crate::follow;
use crate::procfs::{self, Mapping};
use crate::task::Task;

/// The areas of a space, in ascending order, none touching another.
#[derive(Clone, Debug, Default)]
pub(super) struct Areas(Vec<GuestRange>);

impl Areas {
    /// Of a space with such mappings.
    pub(super) fn of(mappings: &[Mapping]) -> Self {
        let ours = GuestRange { start: GuestAddr(0), end: GuestAddr(END) };
        let mut areas = Self(vec![ours]);
        for mapping in mappings.iter().filter(|mapping| !is_own(mapping)) {
            areas.add(mapping.range);
        }
        areas
    }

    fn add(&mut self, range: GuestRange) {
        let first = self.0.partition_point(|area| area.end < range.start);
        let behind = self.0.partition_point(|area| area.start <= range.end);
        let touched = &self.0[first..behind];
        let start = touched.first().map_or(range.start, |area| area.start.min(range.start));
        let end = touched.last().map_or(range.end, |area| area.end.max(range.end));
        self.0.splice(first..behind, [GuestRange { start, end }]);
        if self.0.len() > MOST_AREAS {
            self.join_two();
        }
    }

    /// The two that are nearest to each other become one.
    fn join_two(&mut self) {
        let gap = |at: &usize| self.0[at + 1].start.0 - self.0[*at].end.0;
        if let Some(at) = (0..self.0.len() - 1).min_by_key(gap) {
            let end = self.0.remove(at + 1).end;
            self.0[at].end = end;
        }
    }

    fn overlap(&self, range: GuestRange) -> bool {
        self.0.iter().any(|area| area.overlaps(range))
    }

    /// Tells the code in a space.
    pub(super) fn tell(&self, memory: &Memory) -> Result<(), guest::Unmapped> {
        let words = self.0.iter().flat_map(|area| [area.start.0, area.end.0]).chain([NO_AREA]);
        memory.write(GuestAddr(AREAS), &words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    /// A call that was stopped at has changed mappings. Whether there are other areas now.
    fn changed(&mut self, task: &Task, kind: MapCall, call: &Call) -> bool {
        let [addr, len, third, flags, ..] = call.args;
        let made = |len| GuestRange::new(GuestAddr(call.result as u64), len).pages();
        match kind {
            MapCall::Mmap if !is_fresh(flags) => self.add(made(len)),
            MapCall::Mremap if self.overlap(GuestRange::new(GuestAddr(addr), len.max(1)).pages()) => {
                self.add(made(third));
            }
            MapCall::Shmat => match procfs::maps(task.host) {
                Ok(mappings) => *self = Self::of(&mappings),
                Err(_) => self.add(GuestRange { start: GuestAddr(0), end: GuestAddr(i64::MAX as u64) }),
            },
            _ => return false,
        }
        true
    }
}

/// Whether a mapping is nothing but memory of the program's own.
fn is_own(mapping: &Mapping) -> bool {
    let name = mapping.name.as_str();
    !mapping.shared && mapping.inode == 0 && (matches!(name, "" | "[heap]") || name.starts_with("[anon:"))
}

/// The same of what is mapped with these flags.
fn is_fresh(flags: u64) -> bool {
    const TYPE: i32 = 0xf;
    const ANONYMOUS: i32 = libc::MAP_ANONYMOUS;
    let more = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
    flags as i32 & (TYPE | ANONYMOUS | more) == libc::MAP_PRIVATE | ANONYMOUS
}

/// Whether a call, which changes mappings if its form says so, is one that had to be stopped at.
pub(super) fn concerns_others(task: &Task, form: Form, args: &[u64; 6]) -> bool {
    let range = GuestRange::new(GuestAddr(args[0]), args[1]).pages();
    match form {
        Form::Fresh => !is_fresh(args[3]),
        Form::Range => match &task.space.buffer.borrow().inside {
            Some(inside) => inside.areas.overlap(range),
            None => follow::shows_file(&task.space, range),
        },
        _ => false,
    }
}

/// A call that was stopped at has changed mappings.
pub(crate) fn changed(task: &Task, kind: MapCall, call: &Call) {
    if let Some(inside) = &mut task.space.buffer.borrow_mut().inside
        && inside.areas.changed(task, kind, call)
        && let Err(unmapped) = inside.areas.tell(&task.space.memory)
    {
        tracing::debug!(%unmapped, "a space is not told of mappings");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> GuestRange {
        GuestRange { start: GuestAddr(start), end: GuestAddr(end) }
    }

    #[track_caller]
    fn check(added: &[(u64, u64)], expected: &[(u64, u64)]) {
        let mut areas = Areas::default();
        added.iter().for_each(|&(start, end)| areas.add(range(start, end)));
        let expected: Vec<GuestRange> = expected.iter().map(|&(start, end)| range(start, end)).collect();
        assert_eq!(areas.0, expected);
    }

    #[test]
    fn areas_that_touch_are_one() {
        check(&[(5, 6), (1, 2), (3, 4)], &[(1, 2), (3, 4), (5, 6)]);
        check(&[(1, 3), (5, 7), (3, 5)], &[(1, 7)]);
        check(&[(1, 2), (4, 5), (0, 9)], &[(0, 9)]);
        check(&[(1, 9), (3, 4)], &[(1, 9)]);
    }

    #[test]
    fn the_nearest_are_joined_where_there_is_no_room() {
        let many: Vec<(u64, u64)> = (0..MOST_AREAS as u64).map(|i| (i * 100, i * 100 + 10)).collect();
        let mut areas = Areas::default();
        many.iter().for_each(|&(start, end)| areas.add(range(start, end)));
        areas.add(range(350, 395));
        assert_eq!(areas.0.len(), MOST_AREAS);
        assert!(areas.0.contains(&range(350, 410)), "{:?}", &areas.0[..8]);
    }

    #[test]
    fn only_private_memory_without_a_file_is_a_programs_own() {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let fresh = |flags: i32| is_fresh(flags as u64);
        assert!(fresh(anonymous) && fresh(anonymous | libc::MAP_NORESERVE | libc::MAP_FIXED));
        assert!(!fresh(libc::MAP_PRIVATE) && !fresh(libc::MAP_SHARED | libc::MAP_ANONYMOUS));
        assert!(!fresh(libc::MAP_SHARED_VALIDATE | libc::MAP_ANONYMOUS));
        assert!(!fresh(anonymous | libc::MAP_GROWSDOWN) && !fresh(anonymous | libc::MAP_HUGETLB));
    }
}
