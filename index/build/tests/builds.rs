//! One recording of a small process tree, indexed in several ways: all must say the same.

#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use backstory_index_build::{Options, Progress, build, build_in_steps};
use guest::{GuestAddr, Moment};
use store::{CallQuery, CallRow, INDEX_FILE, Store, WriteQuery, WriteRow};
use trace::Trace;

/// Calls of many kinds, from the same instructions.
const CALLS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int zero;
static void *run(void *number) {
    volatile long sum = 0;
    struct stat stat;
    char bytes[200];
    for (int i = 0; i < 2000; i++) {
        sum += read(zero, bytes + i % 7, 1 + i % 150) + syscall(SYS_getppid);
        if (i % 10 == 0) sum += fstatat(AT_FDCWD, i % 20 ? "/dev/null" : "/nowhere", &stat, 0);
        if (i % 50 == 0) sum += syscall(SYS_getppid) + syscall(SYS_getppid);
    }
    return 0;
}
int main(void) {
    zero = open("/dev/zero", O_RDONLY);
    pthread_t other;
    for (int i = 0; i < 3; i++) pthread_create(&other, 0, run, 0), run(0), pthread_join(other, 0);
    return 0;
}
"#;

const COMMAND: &str = "i=0; while [ $i -lt 150 ]; do i=$((i+1)); x=$x$i; done; echo $x | tr 1 2 | wc -c > /dev/null; ls / > /dev/null";

/// Instructions between commits: few, so that a small recording has many.
const STEP: u64 = 100_000;

static TURN: Mutex<()> = Mutex::new(());

/// One test at a time: the recorder waits for any child of the process.
fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record(folder: &Path, command: &[&str]) -> Trace {
    let output = folder.join("trace");
    let command = command.iter().map(Into::into).collect();
    let outcome = recorder::record(&recorder::Options {
        command,
        output: output.clone(),
        paranoid: false,
        linger: None,
        chaos: None,
        buffer: recorder::Buffer::Soon,
        counter: recorder::CounterChoice::default(),
    });
    assert_eq!(outcome.unwrap().exit_code, 0);
    Trace::open(&output).unwrap()
}

/// Everything that an index says of writes and calls, in order.
fn contents(trace: &Trace) -> (Vec<WriteFacts>, Vec<CallRow>) {
    let store = Store::open(trace.dir(), &trace.uuid()).unwrap();
    assert!(store.complete().unwrap());
    let facts = |row: WriteRow| {
        let value = store.value(&row).unwrap();
        (row.moment, row.space.0, row.task.0, row.addr, value, row.author)
    };
    let writes = store.writes(&WriteQuery::default()).unwrap().map(|row| facts(row.unwrap())).collect();
    let calls = store.calls(&CallQuery::default()).unwrap().map(Result::unwrap).collect();
    (writes, calls)
}

type WriteFacts = (Moment, u32, u32, GuestAddr, Vec<u8>, store::Author);

#[track_caller]
fn same(trace: &Trace, expected: &(Vec<WriteFacts>, Vec<CallRow>)) {
    let found = contents(trace);
    assert_eq!(found.0.len(), expected.0.len());
    for (at, (found, expected)) in found.0.iter().zip(&expected.0).enumerate() {
        assert_eq!(found, expected, "write {at}");
    }
    assert_eq!(found.1.len(), expected.1.len());
    for (at, (found, expected)) in found.1.iter().zip(&expected.1).enumerate() {
        assert_eq!(found, expected, "call {at}");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if !entry.file_name().to_string_lossy().starts_with(INDEX_FILE) {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What a build that is killed now leaves on the disk.
fn snapshot(trace: &Path, to: &Path) {
    copy(trace, to);
    let _ = fs::remove_dir_all(to.join("learned"));
    for name in [INDEX_FILE.to_owned(), format!("{INDEX_FILE}-wal")] {
        if trace.join(&name).exists() {
            fs::copy(trace.join(&name), to.join(&name)).unwrap();
        }
    }
}

#[test]
fn whole_resumed_and_parallel_builds_say_the_same() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let trace = record(folder.path(), &["sh", "-c", COMMAND]);
    let killed: RefCell<Vec<PathBuf>> = RefCell::new(Vec::new());
    let keep = |progress: &Progress| {
        let mut killed = killed.borrow_mut();
        if killed.len() < 5 && progress.instructions / 300_000 >= killed.len() as u64 {
            let to = folder.path().join(format!("killed{}", killed.len()));
            snapshot(trace.dir(), &to);
            killed.push(to);
        }
    };
    let report =
        build_in_steps(&trace, &Options { jobs: 1, progress: Some(&keep), ..Options::default() }, STEP)
            .unwrap();
    assert_eq!(report.events, trace.len());
    let expected = contents(&trace);
    assert!(expected.0.len() > 50_000 && expected.1.len() > 1000);

    let mut resumed = 0;
    for dir in killed.take() {
        let trace = Trace::open(&dir).unwrap();
        let again = build_in_steps(&trace, &Options { jobs: 1, ..Options::default() }, STEP).unwrap();
        assert_eq!(again.instructions, report.instructions);
        resumed += u32::from(again.resumed > 0);
        same(&trace, &expected);
    }
    assert!(resumed > 1, "only {resumed} builds were gone on with");

    fs::remove_file(trace.dir().join(INDEX_FILE)).unwrap();
    let parallel = build(&trace, &Options { jobs: 2, ..Options::default() }).unwrap();
    assert_eq!(parallel.instructions, report.instructions);
    same(&trace, &expected);

    // Nothing is left to do.
    let nothing = build(&trace, &Options { jobs: 2, ..Options::default() }).unwrap();
    assert_eq!(nothing.resumed, nothing.instructions);
}

#[test]
fn calls_put_back_many_at_a_time_are_indexed_as_each_by_itself() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let [source, program] = ["calls.c", "calls"].map(|name| folder.path().join(name));
    fs::write(&source, CALLS).unwrap();
    let compiled = Command::new("gcc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).status();
    assert!(compiled.unwrap().success());
    let trace = record(folder.path(), &[program.to_str().unwrap()]);
    let buffered = trace.events().filter(|item| item.as_ref().unwrap().1.stop == trace::Stop::Buffered);
    assert!(buffered.count() > 20_000);
    let mut files = Vec::new();
    let mut expected = None;
    // Moments are found, then known. With one commit the file depends on nothing else.
    for one_by_one in [true, false, true, false] {
        build(&trace, &Options { jobs: 1, one_by_one, ..Options::default() }).unwrap();
        same(&trace, expected.get_or_insert_with(|| contents(&trace)));
        files.push(fs::read(trace.dir().join(INDEX_FILE)).unwrap());
        fs::remove_file(trace.dir().join(INDEX_FILE)).unwrap();
    }
    assert!(files.iter().all(|file| *file == files[0]), "the same bytes");
}
