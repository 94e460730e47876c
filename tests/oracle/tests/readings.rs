//! Oracle: readings of the time stamp counter that are answered without a stop, with signals and deaths from outside arriving wherever
//! they are made.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::collections::BTreeMap;

use backstory_oracle::command::{buffers_calls, recorder_with};
use backstory_oracle::{programs, signalled};
use trace::{Stop, Trace, Trapped};

/// How many readings there are, and how many of them were stopped at. None of a task goes back, or stands still.
fn readings(trace: &Trace) -> (u64, u64) {
    let (mut all, mut stopped_at) = (0, 0);
    let mut last = BTreeMap::new();
    for item in trace.events() {
        let event = item.unwrap().1;
        let (Stop::Instruction(kind) | Stop::BufferedInstruction(kind)) = event.stop else { continue };
        if !matches!(kind, Trapped::Rdtsc | Trapped::Rdtscp) {
            continue;
        }
        all += 1;
        stopped_at += u64::from(event.stop == Stop::Instruction(kind));
        let told = event.after.rdx << 32 | event.after.rax;
        let before = last.insert(event.task, told).unwrap_or(0);
        assert!(told > before, "{told} after {before}: {event:?}");
    }
    (all, stopped_at)
}

/// Records the program that reads so often, with these options, and replays it. What its recording has.
fn recorded(options: &[&str], times: &str) -> (u64, u64) {
    let scratch = tempfile::tempdir().unwrap();
    let guest = programs::build("counter_readings", scratch.path());
    let dir = scratch.path().join("trace");
    let output = recorder_with(options, &dir).arg(&guest).arg(times).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && printed.ends_with("\nok\n"), "{printed}{output:?}");
    let trace = Trace::open(&dir).unwrap();
    assert_eq!(trace::check(&trace), []);
    signalled::replays(trace.dir(), &printed);
    readings(&trace)
}

#[test]
fn a_million_readings_are_answered_without_a_stop() {
    let (all, stopped_at) = recorded(&[], "1000000");
    assert!(all > 2_500_000, "{all}");
    assert!(stopped_at * 50 < all || !buffers_calls(), "{stopped_at} of {all} were stopped at");
}

#[test]
fn readings_are_stopped_at_where_that_is_wanted() {
    let (all, stopped_at) = recorded(&["--no-buffer"], "2000");
    assert!(all > 4000 && stopped_at == all, "{stopped_at} of {all} were stopped at");
}

#[test]
fn memory_is_as_expected_wherever_readings_are_interrupted() {
    let (all, stopped_at) = recorded(&["--paranoid"], "20000");
    assert!(all > stopped_at * 2 || !buffers_calls(), "{stopped_at} of {all} were stopped at");
}

#[test]
fn signals_arrive_wherever_the_counter_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let (printed, trace) = signalled::record("endless_readings", scratch.path(), 60);
    let (all, stopped_at) = readings(&trace);
    assert!(all > 1000 && (stopped_at * 2 < all || !buffers_calls()), "{stopped_at} of {all}");
    signalled::replays(trace.dir(), &printed);
}
