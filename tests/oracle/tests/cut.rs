//! Oracle: what a killed recorder and a full disk leave is a beginning of the recording, without a violation, with all its data.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]
#![expect(unsafe_code, reason = "setrlimit(2) between fork and exec")]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use backstory_oracle::command::{complaint, record, recorder};
use trace::{Fact, Trace};

/// More bytes and more calls than the writer holds back.
const BUSY: &str = "head -c 6000000 /dev/urandom >/dev/null; \
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
    let script = format!("exec 9>{}; {BUSY}", file.display());
    let whole = scratch.path().join("whole");
    assert!(record(&whole, &["sh", "-c", &script]).status.success());
    let all = Trace::open(&whole).unwrap().len();
    let cut = scratch.path().join("cut");
    let killed = record(&cut, &["sh", "-c", &format!("{script}; kill -KILL $PPID; echo not killed")]);
    assert_eq!((killed.status.signal(), killed.stdout.len()), (Some(libc::SIGKILL), 0));
    let left = expect_beginning(&cut);
    assert!(left >= all / 2, "{left} of {all} events are left");
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
}
