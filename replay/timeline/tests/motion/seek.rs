//! Seeking and stepping, against a straight run.

use guest::Moment;
use timeline::{Bias, StopReason, Timeline};
use trace::Trace;

use crate::guests::{self, record, record_command, turn};
use crate::truth::{hash, random, straight};

/// Goes to moments in random order, and steps back and forth there.
#[track_caller]
fn check(trace: &Trace, count: usize) {
    let mut timeline = Timeline::open(trace).unwrap();
    let end = timeline.landmarks().end;
    let mut next = random(0x9e37_79b9);
    let mut moments: Vec<Moment> = (0..count).map(|_| Moment(next() % (end.0 + 1))).collect();
    // Around events the state changes without an instruction.
    for event in (0..trace.len()).step_by(1 + trace.len() as usize / 12) {
        moments.push(timeline.moments().end(guest::EventId(event)));
    }
    let states = straight(trace, &moments);
    for &moment in &moments {
        timeline.seek(moment, Bias::NextInstruction).unwrap();
        assert_eq!(timeline.moment(), moment);
        assert_eq!(hash(&timeline), states[&moment], "state at {moment}");
        let by = (1 + next() % 50).min(moment.0);
        if by == 0 {
            continue;
        }
        assert_eq!(timeline.reverse_step(by).unwrap(), StopReason::Step);
        assert_eq!(timeline.moment().0, moment.0 - by);
        timeline.step(by).unwrap();
        assert_eq!(hash(&timeline), states[&moment], "state at {moment} after {by} steps back and forth");
    }
}

#[test]
fn anywhere_in_a_loop() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    check(&record(scratch.path(), guests::COUNTER), 20);
}

#[test]
fn anywhere_in_a_tree_of_processes() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    check(&record(scratch.path(), guests::TREE), 30);
}

#[test]
fn anywhere_in_shared_memory() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    check(&record(scratch.path(), guests::SHARED), 20);
}

#[test]
fn anywhere_in_a_shell_pipeline() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    check(&record_command(scratch.path(), &["sh", "-c", "echo $(ls / | wc -l) | cat > /dev/null"]), 12);
}

#[test]
fn ends_and_names() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), guests::TREE);
    let mut timeline = Timeline::open(&trace).unwrap();
    assert_eq!(timeline.moment(), Moment(0));
    assert_eq!(timeline.reverse_step(1).unwrap(), StopReason::Start);
    let end = timeline.resolve("@end").unwrap();
    assert_eq!(timeline.step(u64::MAX).unwrap(), StopReason::End);
    assert_eq!(timeline.moment(), end);
    assert_eq!(timeline.resolve("100%").unwrap(), end);
    assert!(timeline.resolve("@signal").unwrap() <= end);
    assert!(timeline.seek(Moment(end.0 + 1), Bias::Earliest).is_err());
    // Before the end the fault is not delivered yet: the culprit instruction is the pc.
    timeline.seek(end, Bias::Earliest).unwrap();
    let before = timeline.registers(timeline.task()).unwrap();
    assert_eq!(timeline.moment(), end);
    assert_ne!(before.rip, 0);
    timeline.seek(Moment(0), Bias::NextInstruction).unwrap();
    assert_eq!(timeline.moment(), Moment(0));
}
