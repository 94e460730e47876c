//! Whole replays: what they print, that they are alike, that units replay alone, that a cut-off recording replays to its end.

use std::fs;
use std::process::Command;

use guest::{Moment, TaskId};
use replayer::{
    Bias, Moments, Observer, Options, Position, Replay, ReplayError, Silent, Stopped, Until, Watched, learn,
    units,
};
use trace::{OutputStream, Trace};

use crate::recorded::{record, turn};

/// Gathers what is printed.
#[derive(Default)]
struct Gather(Vec<u8>);

impl Observer for Gather {
    fn output(&mut self, stream: OutputStream, bytes: &[u8], _at: Position) -> Watched {
        assert_eq!(stream, OutputStream::Stdout);
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

const SCRIPT: &str =
    "echo one; for i in a b; do echo $(echo $i | tr ab xy); done; kill -USR1 $$ 2>/dev/null; echo never";

#[test]
fn output_is_that_of_the_recording_and_replays_are_alike() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), &["sh", "-c", SCRIPT]);
    let mut counts = Vec::new();
    for _ in 0..2 {
        let _ = fs::remove_dir_all(trace.dir().join("learned"));
        let mut gather = Gather::default();
        let mut replay = Replay::open(&trace, &Options::default()).unwrap();
        let moments = replay.finish(&mut gather).unwrap();
        assert_eq!(gather.0, b"one\nx\ny\n");
        assert_eq!(Moments::load(&trace).unwrap(), Some(moments));
        counts.push(replay.counts().to_vec());
    }
    assert_eq!(counts[0], counts[1]);
    assert_eq!(counts[0].len() as u64, trace.len());
    // With the counts known, each event's is held against them.
    assert_eq!(
        Replay::open(&trace, &Options::default()).unwrap().run(Until::End, &mut Silent).unwrap(),
        Stopped::End
    );
    assert_eq!(trace::check(&trace), []);
}

#[test]
fn a_number_drawn_where_it_is_not_recorded_is_named() {
    let _turn = turn();
    if !fs::read_to_string("/proc/cpuinfo").unwrap().contains(" rdrand ") {
        eprintln!("skipped: this processor has no rdrand");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (source, program) = (scratch.path().join("draws.c"), scratch.path().join("draws"));
    let code = "#include <string.h>
        #include <sys/mman.h>
        int main(void) {
            char *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memcpy(page, \"\\x0f\\xc7\\xf0\\xc3\", 4);
            ((void (*)(void))page)();
            return 0;
        }";
    fs::write(&source, code).unwrap();
    assert!(Command::new("gcc").arg("-o").arg(&program).arg(&source).status().unwrap().success());
    let trace = record(scratch.path(), &[&program.display().to_string()]);
    let error = learn(&trace, &Options::default()).unwrap_err();
    assert!(matches!(error, ReplayError::Unrecorded { name: "rdrand", .. }), "{error}");
}

#[test]
fn units_replay_alone() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), &["sh", "-c", SCRIPT]);
    let moments = learn(&trace, &Options::default()).unwrap();
    let units = units(&trace).unwrap();
    assert!(units.len() >= 3, "sh and two tr");
    assert_eq!(units.iter().map(|unit| unit.events).sum::<u64>(), trace.len());
    for unit in units.iter().rev() {
        let mut replay = Replay::open_unit(&trace, unit, &moments, &Options::default()).unwrap();
        assert_eq!(replay.run(Until::End, &mut Silent).unwrap(), Stopped::End, "{}", unit.exe);
        assert!(replay.tasks().is_empty(), "{}", unit.exe);
    }
}

#[test]
fn a_cut_off_recording_replays_to_its_end() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let whole = record(scratch.path(), &["sh", "-c", SCRIPT]);
    let events = whole.dir().join("events");
    let good = fs::read(&events).unwrap();
    fs::write(&events, &good[..good.len() - 10]).unwrap();
    let cut = Trace::open(whole.dir()).unwrap();
    assert!(!cut.is_complete());
    let mut replay = Replay::open(&cut, &Options::default()).unwrap();
    assert_eq!(replay.run(Until::End, &mut Silent).unwrap(), Stopped::End);
    assert_eq!(replay.position().event.0, cut.len());
}

#[test]
fn a_replay_stops_where_it_is_told() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), &["/bin/true"]);
    let mut replay = Replay::open(&trace, &Options::default()).unwrap();
    for goal in [0, 1, 2, 1000, 1001, 50_000] {
        let until = Until::Moment(Moment(goal), Bias::NextInstruction);
        assert_eq!(replay.run(until, &mut Silent).unwrap(), Stopped::Reached);
        assert_eq!(replay.position().moment, Moment(goal));
    }
    let mut kept = replay.snapshot().unwrap();
    let there = replay.registers(TaskId(0)).unwrap();
    assert_eq!(replay.run(Until::End, &mut Silent).unwrap(), Stopped::End);
    assert_eq!(replay.registers(TaskId(0)), None);
    for _ in 0..2 {
        replay.restore(&mut kept).unwrap();
        assert_eq!(replay.registers(TaskId(0)), Some(there));
        assert_eq!(replay.run(Until::End, &mut Silent).unwrap(), Stopped::End);
    }
}
