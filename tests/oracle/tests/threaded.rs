//! Oracle: programs of threads and signals, recorded and replayed again and again, each time with other interleavings: no replay diverges,
//! and each prints what its recording did. All turns with BACKSTORY_SOAK, a few without.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use backstory_oracle::command::{backstory, record};
use backstory_oracle::programs;

fn turns() -> u32 {
    if std::env::var_os("BACKSTORY_SOAK").is_some() { 200 } else { 5 }
}

/// Records and replays. How many different outputs there were.
#[track_caller]
fn check(program: &str) -> usize {
    let scratch = tempfile::tempdir().unwrap();
    let source = programs::folder().join("threaded").join(format!("{program}.c"));
    let guest = programs::build_file(&source, scratch.path());
    let trace = scratch.path().join("trace");
    let mut printed = std::collections::BTreeSet::new();
    for turn in 0..turns() {
        let recorded = record(&trace, &[&guest]);
        let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
        assert!(recorded.status.success(), "{program}, turn {turn}: {said}");
        let replayed = backstory(["replay"]).arg(&trace).output().unwrap();
        let said = String::from_utf8_lossy(&replayed.stderr).into_owned();
        assert!(replayed.status.success(), "{program}, turn {turn}: {said}");
        assert_eq!(
            String::from_utf8_lossy(&replayed.stdout),
            String::from_utf8_lossy(&recorded.stdout),
            "{program}, turn {turn}"
        );
        printed.insert(recorded.stdout);
        std::fs::remove_dir_all(&trace).unwrap();
    }
    printed.len()
}

#[test]
fn workers_that_share_a_lock_and_a_counter() {
    check("workers");
}

#[test]
fn threads_that_compute() {
    assert_eq!(check("compute"), 1);
}

#[test]
fn threads_that_lose_updates() {
    check("unguarded");
}

#[test]
fn a_thread_that_spins_until_another_is_done() {
    assert_eq!(check("spinning"), 1);
}

#[test]
fn a_timer_that_interrupts_a_computation() {
    assert!(check("ticks") > 1, "it was always interrupted at the same places");
}

/// What the program prints when it is recorded, as two numbers with a word between them. The recording replays.
#[track_caller]
fn scheduled(program: &str) -> (u32, u32) {
    let scratch = tempfile::tempdir().unwrap();
    let source = programs::folder().join("threaded").join(format!("{program}.c"));
    let guest = programs::build_file(&source, scratch.path());
    let trace = scratch.path().join("trace");
    let recorded = record(&trace, &[&guest]);
    let printed = String::from_utf8_lossy(&recorded.stdout).into_owned();
    assert!(recorded.status.success(), "{printed}{}", String::from_utf8_lossy(&recorded.stderr));
    let replayed = backstory(["replay"]).arg(&trace).output().unwrap();
    assert_eq!((replayed.status.success(), replayed.stdout), (true, recorded.stdout));
    let mut numbers = printed.split_whitespace().filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// A slice of each of the three others would be 60 ms.
#[test]
fn who_wakes_up_need_not_wait_for_all_others() {
    const LONGEST: u32 = 25_000;
    let (computing, calling) = scheduled("wakes_beside_busy");
    assert!(computing < LONGEST && calling < LONGEST, "{computing} and {calling} us a time");
}

#[test]
fn who_yields_lets_the_other_go_on() {
    let (changes, most) = scheduled("yields");
    assert!(changes * 10 > most * 8, "{changes} of {most}");
}

#[test]
fn who_calls_what_fails_at_once_keeps_the_turn() {
    let (found, calls) = scheduled("fails_at_once");
    assert!(found < calls / 4, "{found} of {calls}");
}

#[test]
fn who_is_polite_comes_later_and_does_not_starve() {
    let (then, all) = scheduled("polite");
    assert_eq!(all, 1000);
    assert!((1..400).contains(&then), "it was at {then} of {all} when the other was done");
}

#[test]
fn who_forks_politely_beside_busy_ones_gets_on() {
    assert_eq!(scheduled("slow_forks"), (3, 3));
}
