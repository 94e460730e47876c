//! Recordings to replay, and altered copies of them.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use recorder::{CounterChoice, Options};
use trace::{Data, Event, Fact, Header, MemWrite, Summary, Trace, TraceWriter};

static TURN: Mutex<()> = Mutex::new(());

/// One test at a time: the recorder waits for any child of the process.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a command into `scratch`.
pub(crate) fn record(scratch: &Path, command: &[&str]) -> Trace {
    record_with(scratch, command, CounterChoice::State)
}

/// The same, with this counter.
pub(crate) fn record_with(scratch: &Path, command: &[&str], counter: CounterChoice) -> Trace {
    let output = scratch.join("trace");
    let command = command.iter().map(Into::into).collect();
    let options = Options {
        command,
        output,
        paranoid: false,
        linger: None,
        chaos: None,
        buffer: recorder::Buffer::Soon,
        counter,
    };
    let outcome = recorder::record(&options).unwrap();
    assert_eq!(outcome.refused, None);
    let trace = Trace::open(&outcome.trace).unwrap();
    assert_eq!(trace::check(&trace), []);
    trace
}

/// A copy of a trace in `dir` with events changed.
pub(crate) fn altered(trace: &Trace, dir: &Path, change: impl FnMut(u64, &mut Event)) -> Trace {
    altered_under(trace, trace.header(), dir, change)
}

/// The same, under another header.
pub(crate) fn altered_under(
    trace: &Trace,
    header: &Header,
    dir: &Path,
    mut change: impl FnMut(u64, &mut Event),
) -> Trace {
    let mut writer = TraceWriter::create_with_store(dir, header, None).unwrap();
    for (i, kept) in trace.files().iter().enumerate() {
        let path = trace.file_path(guest::FileId(i as u32)).unwrap();
        writer.keep_file(&File::open(path).unwrap(), &kept.path).unwrap();
    }
    for item in trace.events() {
        let (id, mut event) = item.unwrap();
        let inline =
            |write: &mut MemWrite| write.data = Data::Inline(trace.data(&write.data).unwrap().into_owned());
        event.writes.iter_mut().for_each(inline);
        if let Fact::Spawn(info) = &mut event.fact {
            info.writes.iter_mut().for_each(inline);
        }
        change(id.0, &mut event);
        writer.event(&event).unwrap();
    }
    let (tasks, spaces) = writer.counts();
    let summary = Summary { tasks, spaces, ..trace.summary().unwrap().clone() };
    writer.finish(&summary).unwrap();
    Trace::open(dir).unwrap()
}

/// The id of the first event for which `wanted` holds.
#[track_caller]
pub(crate) fn find(trace: &Trace, wanted: impl Fn(&Event) -> bool) -> u64 {
    trace.events().map(Result::unwrap).find(|(_, event)| wanted(event)).map(|(id, _)| id.0).unwrap()
}
