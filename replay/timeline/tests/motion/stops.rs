//! Breakpoints and watchpoints, forwards and backwards.

use guest::{GuestAddr, GuestMemory, GuestRange, Moment};
use timeline::{StopReason, Stops, Timeline, Watch, WatchKind};

use crate::guests::{self, record, symbol, turn};

fn word(timeline: &Timeline, addr: GuestAddr) -> u64 {
    let space = timeline.space_of(timeline.task()).unwrap();
    timeline.memory(space).unwrap().read_u64(addr).unwrap()
}

/// All stops forwards from the start: moment and the counter's value.
fn forwards(timeline: &mut Timeline, stops: &Stops, counter: GuestAddr) -> Vec<(Moment, u64)> {
    let mut found = Vec::new();
    while timeline.cont(stops).unwrap() != StopReason::End {
        found.push((timeline.moment(), word(timeline, counter)));
    }
    found
}

#[test]
fn breakpoints_are_met_both_ways() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), guests::COUNTER);
    let (bump, counter) = (symbol(scratch.path(), &trace, "bump"), symbol(scratch.path(), &trace, "counter"));
    let mut timeline = Timeline::open(&trace).unwrap();
    let stops = Stops { breakpoints: vec![bump], ..Stops::default() };
    let there = forwards(&mut timeline, &stops, counter);
    assert_eq!(there.len(), 40);
    assert_eq!(there[20].1, 190);
    assert_eq!(there[21].1, 0);
    assert_eq!(there[39].1, (21..39).sum::<u64>());

    let mut back = Vec::new();
    while timeline.reverse_cont(&stops).unwrap() != StopReason::Start {
        assert_eq!(timeline.registers(timeline.task()).unwrap().pc(), bump);
        back.push((timeline.moment(), word(&timeline, counter)));
    }
    back.reverse();
    assert_eq!(back, there);
    assert_eq!(timeline.moment(), Moment(0));
}

#[test]
fn watchpoints_are_met_both_ways() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), guests::COUNTER);
    let counter = symbol(scratch.path(), &trace, "counter");
    let mut timeline = Timeline::open(&trace).unwrap();
    let watch = Watch { range: GuestRange::new(counter, 8), kind: WatchKind::Write };
    let stops = Stops { watchpoints: vec![watch], ..Stops::default() };
    let there = forwards(&mut timeline, &stops, counter);
    // The loop's forty stores, and the read into it, which writes zero after the twenty-first.
    assert_eq!(there.len(), 41);
    assert_eq!((there[20].1, there[21].1, there[22].1), (210, 0, 21));

    let mut back = Vec::new();
    while timeline.reverse_cont(&stops).unwrap() != StopReason::Start {
        back.push((timeline.moment(), word(&timeline, counter)));
    }
    back.reverse();
    // Backwards it stands before the instruction, where the value is the one the store before left.
    assert_eq!(back.len(), 41);
    for i in 0..41 {
        assert_eq!(back[i].0.0 + 1, there[i].0.0, "stop {i}");
        assert_eq!(back[i].1, if i == 0 { 0 } else { there[i - 1].1 }, "stop {i}");
    }
}
