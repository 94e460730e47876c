//! Calls that change mappings: made where only the program's own memory is concerned, and what is mapped then.

use std::fs;

use abi::buffer::NO_AREA;

use super::{GUEST, MADVISE, STUBS, Scene, Tracee, at_every_instruction, check, left, plain, scene};

pub(super) const MMAP: u64 = 9;
pub(super) const MPROTECT: u64 = 10;
pub(super) const MUNMAP: u64 = 11;

const PAGE: u64 = 4096;
/// Memory of the guest's own, of which one page is nothing of the kind, nor what lies behind it.
pub(super) const OWN: u64 = 0x3000_0000;
pub(super) const OWN_LEN: usize = 0x8000;
const AREA: u64 = OWN + 4 * PAGE;
/// Behind all of that.
const FREE: u64 = OWN + 0x10_0000;
const ANONYMOUS: u64 = 0x22;
const FIXED: u64 = 0x10;
const ALL: u64 = 7;

/// What the code is told of mappings.
pub(super) fn areas() -> Vec<u8> {
    let areas = [0, GUEST + 0x3000, AREA, AREA + PAGE, OWN + OWN_LEN as u64, OWN + 0x10_000, NO_AREA];
    areas.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// What is mapped in and near that memory, and whether it holds anything.
fn mapped(tracee: &Tracee) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", tracee.0)).unwrap();
    let near = |line: &&str| {
        let start = u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16).unwrap();
        (OWN..FREE + 0x10_0000).contains(&start)
    };
    let mut found: Vec<String> = maps.lines().filter(near).map(str::to_owned).collect();
    let mut at = OWN;
    while at < OWN + OWN_LEN as u64 {
        found.push(format!("{:?}", tracee.peek(at)));
        at += PAGE;
    }
    found
}

/// Checks a mapped-to-be scene, wherever its task was stopped on the way.
#[track_caller]
pub(super) fn as_expected(what: &str, scene: &Scene, tracee: &Tracee) {
    if let Some(expected) = scene.mapped.as_ref().filter(|_| scene.made) {
        assert_eq!(mapped(tracee), *expected, "{what}");
    }
}

#[track_caller]
fn changes(what: &str, nr: u64, args: &[u64]) {
    let scene = scene(nr, args);
    let tracee = Tracee::at(&scene, GUEST);
    assert!(tracee.run_to(GUEST + 2));
    check(what, &Scene { mapped: Some(mapped(&tracee)), ..scene });
}

#[test]
fn mappings_of_the_programs_own_are_changed() {
    changes("protected", MPROTECT, &[OWN, 2 * PAGE, 1]);
    changes("protected up to an area", MPROTECT, &[OWN + PAGE, 3 * PAGE, 0]);
    changes("made executable, behind an area", MPROTECT, &[AREA + PAGE, 1, ALL]);
    changes("none protected", MPROTECT, &[OWN, 0, 1]);
    changes("unmapped", MUNMAP, &[OWN + PAGE, PAGE]);
    changes("unmapped between areas", MUNMAP, &[AREA + PAGE, 3 * PAGE]);
    changes("unmapped where nothing is", MUNMAP, &[FREE, PAGE]);
    changes("dropped", MADVISE, &[OWN, 2 * PAGE, 4]);
    changes("mapped", MMAP, &[FREE, 2 * PAGE, 3, ANONYMOUS, u64::MAX, 0]);
    changes("mapped as it is wanted", MMAP, &[FREE, PAGE + 1, ALL, ANONYMOUS | 0x2_4000, 7, 0]);
    changes("mapped over others", MMAP, &[OWN + PAGE, 3 * PAGE, 1, ANONYMOUS | FIXED, u64::MAX, 0]);
}

#[test]
fn what_might_be_dropped_later_is_dropped() {
    let dropped = Tracee::at(&scene(MADVISE, &[OWN, PAGE, 4]), GUEST);
    assert!(dropped.run_to(GUEST + 2));
    let later = scene(MADVISE, &[OWN, PAGE, 8]);
    check("dropped at once", &Scene { mapped: Some(mapped(&dropped)), ..later });
}

#[test]
fn advice_for_children_is_not_known() {
    let scene = scene(MADVISE, &[AREA, PAGE, 10]);
    let (mut words, memory) = plain(&scene);
    assert_eq!(words[1], 0);
    words[1] = -i64::from(libc::EINVAL) as u64;
    at_every_instruction("other memory for a child", &scene, (words, memory));
}

#[test]
fn other_mappings_are_left() {
    left("an area", scene(MPROTECT, &[AREA, PAGE, 1]));
    left("before and into an area", scene(MUNMAP, &[OWN, 4 * PAGE + 1]));
    left("out of an area", scene(MADVISE, &[AREA + PAGE - 1, PAGE, 4]));
    left("all of an area", scene(MUNMAP, &[OWN, OWN_LEN as u64]));
    left("the last area", scene(MPROTECT, &[OWN + OWN_LEN as u64, PAGE, 1]));
    left("over an area", scene(MMAP, &[AREA, PAGE, 3, ANONYMOUS | FIXED, u64::MAX, 0]));
    left("beyond the end", scene(MUNMAP, &[OWN, u64::MAX - PAGE]));
    left("a protection of another kind", scene(MPROTECT, &[OWN, PAGE, 1 << 24 | 1]));
    left("a mapping protected in another way", scene(MMAP, &[FREE, PAGE, 8, ANONYMOUS, u64::MAX, 0]));
    left("a file", scene(MMAP, &[FREE, PAGE, 1, 2, 108, 0]));
    left("shared", scene(MMAP, &[FREE, PAGE, 3, 0x21, u64::MAX, 0]));
    left("where nothing may be", scene(MMAP, &[FREE, PAGE, 3, ANONYMOUS | 0x10_0000, u64::MAX, 0]));
    left("flags that are far away", scene(MMAP, &[FREE, PAGE, 3, ANONYMOUS | 1 << 40, u64::MAX, 0]));
}

/// What a call does that it then fails of is the same when it is made once more.
#[test]
fn what_fails_is_left() {
    left("over a hole", scene(MPROTECT, &[OWN + OWN_LEN as u64 - PAGE, 0x20_000, 1]));
    left("nothing there", scene(MPROTECT, &[FREE, PAGE, 1]));
    left("no whole page", scene(MUNMAP, &[OWN + 1, PAGE]));
    left("nothing", scene(MMAP, &[FREE, 0, 3, ANONYMOUS, u64::MAX, 0]));
    left("nothing to drop", scene(MADVISE, &[FREE, PAGE, 4]));
    let tracee = Tracee::at(&scene(MADVISE, &[FREE, PAGE, 8]), STUBS + 16);
    assert!(!tracee.run_to(GUEST + 2));
    assert_eq!(tracee.registers().rdx, 8);
}
