//! Oracle: what a killed recorder and a full disk leave is a beginning of the recording, without a violation, with all its data.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]
#![expect(unsafe_code, reason = "setrlimit(2) between fork and exec")]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use backstory_oracle::command::{backstory, complaint, record, recorder};
use backstory_oracle::programs;
use trace::{Fact, Status, Trace};

/// More bytes and more calls than the writer holds back, of a file `big` among them.
const BUSY: &str = "head -c 6000000 /dev/urandom >/dev/null; dd if=big of=/dev/null bs=100000 count=50; \
    i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo a line >&9; done";

/// Checks that a recording ends early and is whole until there; its number of events.
#[track_caller]
fn expect_beginning(dir: &Path) -> u64 {
    let trace = Trace::open(dir).unwrap();
    assert!(!trace.is_complete());
    assert_eq!(trace::check(&trace), []);
    for item in trace.events() {
        let (id, event) = item.unwrap();
        let born = match &event.fact {
            Fact::Spawn(info) => &info.writes[..],
            _ => &[],
        };
        for write in event.writes.iter().chain(born) {
            assert!(trace.data(&write.data).is_ok(), "the data of event {id} are missing");
        }
    }
    trace.len()
}

#[test]
fn a_killed_recorder_leaves_a_beginning() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("written");
    let script = format!("cd {}; exec 9>{}; {BUSY}", scratch.path().display(), file.display());
    big_file(scratch.path());
    let whole = scratch.path().join("whole");
    assert!(record(&whole, &["sh", "-c", &script]).status.success());
    let all = Trace::open(&whole).unwrap().len();
    let cut = scratch.path().join("cut");
    let killed = record(&cut, &["sh", "-c", &format!("{script}; kill -KILL $PPID; echo not killed")]);
    assert_eq!((killed.status.signal(), killed.stdout.len()), (Some(libc::SIGKILL), 0));
    let left = expect_beginning(&cut);
    assert!(left >= all / 2, "{left} of {all} events are left");
    assert!(Trace::open(&cut).unwrap().pieces().len() >= 4, "what was read of the file is not kept");
}

/// A file that is worth keeping, longer than [`BUSY`] reads.
fn big_file(folder: &Path) {
    let bytes: Vec<u8> =
        (0..1_500_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(folder.join("big"), bytes).unwrap();
}

/// A command that can write no file longer than so many bytes.
fn limited(mut command: Command, room: u64) -> Command {
    let limit = libc::rlimit { rlim_cur: room, rlim_max: room };
    // SAFETY: only system calls on what was made before the fork.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    command
}

#[test]
fn a_full_disk_ends_the_recording_with_its_own_status() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("recordings");
    let recorder = |name: &str, script: &str| {
        let mut command = recorder(&scratch.path().join(name), &["sh", "-c", script]);
        command.env("BACKSTORY_TRACE_DIR", &root).stdout(Stdio::null());
        command
    };
    // Keeps the files that the next recording names, which then need no room.
    let first = recorder("first", "head -c 10 /dev/urandom; exec sleep 0").output().unwrap();
    assert!(first.status.success());
    let full = recorder("full", "head -c 20000000 /dev/urandom; exec sleep 1000");
    let full = limited(full, 3 << 20).output().unwrap();
    assert_eq!(full.status.code(), Some(6), "{}", String::from_utf8_lossy(&full.stderr));
    let said = complaint(&full).unwrap();
    assert!(said.contains("full/payload") && said.contains("File too large"), "{said}");
    let dir = scratch.path().join("full");
    assert!(expect_beginning(&dir) > 100);
    assert!(Trace::open(&dir).unwrap().stopped().unwrap().contains("payload"));
    // No room for a piece of a file.
    big_file(scratch.path());
    let full = recorder("pieces", "head -c 1000 /dev/urandom; cat big; exec sleep 1000");
    let mut full = limited(full, 900_000);
    let full = full.current_dir(scratch.path()).output().unwrap();
    assert_eq!(full.status.code(), Some(6), "{}", String::from_utf8_lossy(&full.stderr));
    let said = complaint(&full).unwrap();
    assert!(said.contains("pieces/files/") && said.contains("File too large"), "{said}");
    expect_beginning(&scratch.path().join("pieces"));
}

/// Runs a command on a recording; its output, and the line that says where the recording ends.
fn cut_line(args: &[&str], dir: &Path) -> (String, Option<String>) {
    let mut command = backstory(&args[..1]);
    if args[0] == "query" {
        command.arg("-t");
    }
    let output = command.arg(dir).args(&args[1..]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    let mut lines = said.lines().filter_map(|line| line.strip_prefix("backstory: the recording ends at "));
    let line = lines.next().map(str::to_owned);
    assert_eq!(lines.next(), None, "{args:?} says it twice: {said}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), line)
}

#[test]
fn every_command_says_where_a_recording_was_cut() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    // What is recorded is written whenever nothing else happens for a while.
    let script = "for i in 1 2 3 4 5 6 7 8; do sleep 0.1; echo $i; done";
    assert!(record(&dir, &["sh", "-c", script]).status.success());
    let commands: [&[&str]; 6] = [
        &["info"],
        &["check"],
        &["replay", "-q"],
        &["index", "-q"],
        &["query", "SELECT max(moment) FROM events"],
        &["info"],
    ];
    for args in commands {
        assert_eq!(cut_line(args, &dir).1, None, "{args:?} of a whole recording");
    }
    std::fs::remove_file(dir.join("index.db")).unwrap();
    std::fs::remove_dir_all(dir.join("learned")).unwrap();
    let events = std::fs::File::options().write(true).open(dir.join("events")).unwrap();
    events.set_len(events.metadata().unwrap().len() / 2).unwrap();
    let mut ends = Vec::new();
    for args in commands {
        let line = cut_line(args, &dir).1.unwrap_or_else(|| panic!("{args:?} says nothing"));
        assert!(line.contains("its files were cut short; what ran later is not in it"), "{args:?}: {line}");
        ends.push(line);
    }
    assert!(ends[0].starts_with("event ") && ends[2].starts_with('@'), "{ends:?}");
    assert!(ends[3..].iter().all(|end| *end == ends[2]), "{ends:?}");
    // The last event is a call: the recording ends once it has retired.
    let (answer, _) = cut_line(commands[4], &dir);
    let last: u64 = answer.lines().last().unwrap().trim().parse().unwrap();
    assert!(ends[2].starts_with(&format!("@{},", last + 1)), "{last} {ends:?}");
}

/// A program that is killed while it counts, with nothing else told of it: its count is what its memory holds when it ends.
const COUNTS: &str = "
    #include <signal.h>
    #include <stdio.h>
    #include <sys/mman.h>
    #include <sys/wait.h>
    #include <unistd.h>
    int main(void) {
        volatile unsigned long *n = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t child = fork();
        if (child == 0) for (unsigned long x = 1; ; x = x * 25214903917 + 11) { n[0]++; n[x >> 55] += x; }
        while (n[0] == 0) usleep(1000);
        usleep(30000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        unsigned long sum = 0;
        for (int i = 0; i < 512; i++) sum = sum * 31 + n[i];
        printf(\"%lu %lu %d\\n\", n[0], sum, status);
    }";

#[test]
fn what_a_killed_task_ran_last_is_in_the_recording() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("counts.c");
    std::fs::write(&source, COUNTS).unwrap();
    let guest = programs::build_file(&source, scratch.path());
    let dir = scratch.path().join("trace");
    let recorded = record(&dir, &[&guest]);
    assert!(recorded.status.success());
    let trace = Trace::open(&dir).unwrap();
    assert_eq!(trace::check(&trace), []);
    let killed: Vec<bool> = trace
        .events()
        .filter_map(|item| match item.unwrap().1.fact {
            Fact::Exit(Status::Killed(killed)) => Some(killed.unlocated),
            _ => None,
        })
        .collect();
    assert_eq!(killed, [false]);
    for _ in 0..2 {
        assert_eq!(
            cut_line(&["replay"], &dir),
            (String::from_utf8_lossy(&recorded.stdout).into_owned(), None)
        );
    }
}
