//! Points found by what recordings usually have, against points found by all writable memory: at random preemptions of programs of many
//! kinds, both are the same instruction, so that all memory there is what it was.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use backstory_oracle::programs;
use guest::{EventId, SpaceId};
use recorder::{CounterChoice, Options};
use replayer::{Moments, Replay, Silent};
use trace::{Event, Fact, PageSum, Trace};

use crate::recorded::{altered, turn};

/// Records under chaos, with checksums of all writable memory at every point.
fn record(scratch: &Path, command: &[String], seed: u64) -> Trace {
    let options = Options {
        command: command.iter().map(Into::into).collect(),
        output: scratch.join("trace"),
        paranoid: true,
        linger: None,
        chaos: Some(seed),
        buffer: recorder::Buffer::Soon,
        counter: CounterChoice::State,
    };
    let outcome = recorder::record(&options).unwrap();
    assert_eq!((outcome.refused, outcome.exit_code), (None, 0), "{command:?}, seed {seed}");
    assert_eq!(outcome.unexplained, [""; 0], "{command:?}, seed {seed}");
    let trace = Trace::open(&outcome.trace).unwrap();
    assert_eq!(trace::check(&trace), []);
    trace
}

#[track_caller]
fn learned(trace: &Trace, what: &str) -> Moments {
    let mut replay = Replay::open(trace, &replayer::Options::default()).unwrap();
    replay.finish(&mut Silent).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// What has changed in each space since its last point, of which a usual recording has no less.
#[derive(Default)]
struct Changes(HashMap<SpaceId, HashMap<u64, u32>>);

impl Changes {
    fn keep(&mut self, event: &mut Event) {
        match &mut event.fact {
            Fact::Point(info) => {
                let known = self.0.entry(event.space).or_default();
                let is_new = |sum: &PageSum| known.insert(sum.page, sum.crc) != Some(sum.crc);
                info.pages.retain(is_new);
            }
            Fact::Exec(_) => drop(self.0.remove(&event.space)),
            _ => {}
        }
    }
}

/// Records, replays by all memory and by what has changed. How many points there were.
#[track_caller]
fn check(command: &[String], seed: u64) -> usize {
    let scratch = tempfile::tempdir().unwrap();
    let what = format!("{command:?}, seed {seed}");
    let trace = record(scratch.path(), command, seed);
    let by_all = learned(&trace, &what);
    let mut changes = Changes::default();
    let (mut points, mut dropped) = (Vec::new(), 0);
    let usual = altered(&trace, &scratch.path().join("usual"), |id, event| {
        let pages = |event: &Event| match &event.fact {
            Fact::Point(info) => info.pages.len(),
            _ => 0,
        };
        let before = pages(event);
        changes.keep(event);
        dropped += before - pages(event);
        if matches!(event.fact, Fact::Point(_)) {
            points.push(EventId(id));
        }
    });
    assert!(points.len() < 2 || dropped > 0, "{what}: nothing was left out");
    let by_changes = learned(&usual, &what);
    for point in &points {
        assert_eq!(by_changes.end(*point), by_all.end(*point), "{what}: event {point}");
    }
    points.len()
}

/// The programs, each with its arguments.
fn commands(scratch: &Path) -> Vec<Vec<String>> {
    let folder = programs::folder().join("preempted");
    let mut sources: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.sort();
    let command = |source: PathBuf| {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        if source.extension().is_some_and(|extension| extension == "py") {
            return vec!["python3".to_owned(), "-S".to_owned(), path(&source)];
        }
        vec![path(&programs::build_file(&source, scratch))]
    };
    let has_python = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !has_python {
        eprintln!("skipped: python3 is not installed");
    }
    let all = sources.into_iter().map(command);
    all.filter(|command| has_python || command[0] != "python3").collect()
}

#[test]
fn points_are_where_all_memory_is_what_it_was() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let commands = commands(scratch.path());
    let wanted = if std::env::var_os("BACKSTORY_SOAK").is_some() { 1000 } else { 60 };
    let mut found = 0;
    for seed in 1.. {
        for command in &commands {
            found += check(command, seed);
        }
        if found >= wanted {
            break;
        }
        assert!(seed < 100, "only {found} points");
    }
    println!("{found} points of {} programs", commands.len());
}
