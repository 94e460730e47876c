//! Oracle: the translator's clock equals `PTRACE_SINGLESTEP` on real recordings, instruction by instruction.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::path::Path;

use backstory_oracle::command::{backstory, record};
use backstory_oracle::programs;
use backstory_oracle::stepper::{Visitor, walk};
use trace::{Moments, Trace};

struct Nothing;

impl Visitor for Nothing {}

#[track_caller]
fn check(command: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    let recorded = record(&dir, command);
    assert!(dir.exists(), "{command:?}: {}", String::from_utf8_lossy(&recorded.stderr));
    let replayed = backstory(["replay", "--quiet"]).arg(&dir).output().unwrap();
    assert!(replayed.status.success(), "{command:?}: {}", String::from_utf8_lossy(&replayed.stderr));
    let trace = Trace::open(&dir).unwrap();
    let moments = Moments::load(&trace).unwrap().expect("a complete replay leaves its counts");
    let walked = walk(&trace, scratch.path(), &mut Nothing).unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert_eq!(moments.total().0, walked.count, "{command:?}: instructions");
}

fn guest(name: &str, out: &Path) -> String {
    programs::build(name, out).to_string_lossy().into_owned()
}

#[test]
fn guests_count_as_stepped() {
    let scratch = tempfile::tempdir().unwrap();
    for name in
        ["arithmetic", "strings", "recursion", "signals", "files", "generated", "floating", "vsyscall"]
    {
        check(&[&guest(name, scratch.path())]);
    }
}

#[test]
fn readings_without_a_stop_count_as_stepped() {
    let scratch = tempfile::tempdir().unwrap();
    check(&[&guest("counter_readings", scratch.path()), "300", "alone"]);
}

#[test]
fn dynamic_programs_count_as_stepped() {
    check(&["/bin/true"]);
    check(&["/bin/echo", "hello"]);
    check(&["/bin/cat", "/proc/sys/kernel/ostype"]);
}

#[test]
fn an_interpreter_counts_as_stepped() {
    if std::env::var_os("BACKSTORY_SOAK").is_some() {
        check(&["/usr/bin/perl", "-e", "my $s = 0; $s += $_ for 1..300; print \"$s\\n\""]);
    }
}
