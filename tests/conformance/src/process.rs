//! One run of one command: its output through files, its end within a limit. Knows nothing of recordings.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How a command ended.
pub(crate) enum End {
    /// By itself.
    Ended(Output),
    /// It was killed at the limit.
    TimedOut,
}

/// Runs `command` in a fresh folder `scratch/work`, which is the same path each time. Output goes to files, so that a process
/// left behind keeps nobody waiting; what is left of the command's process group is killed. Another process leads that group,
/// as a program that is recorded does not lead one either.
pub(crate) fn run(mut command: Command, scratch: &Path, limit: Duration) -> io::Result<End> {
    let work = scratch.join("work");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir(&work)?;
    // It reads from a pipe of which we hold the other end.
    let mut leader =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn()?;
    let group = i32::try_from(leader.id()).expect("a pid fits a pid_t");
    let (stdout, stderr) = (scratch.join("stdout"), scratch.join("stderr"));
    command
        .current_dir(&work)
        .stdin(Stdio::null())
        .stdout(appending(&stdout)?)
        .stderr(appending(&stderr)?)
        .process_group(group);
    let mut child = command.spawn()?;
    let (ended, at_end) = channel::<()>();
    let watchdog = thread::spawn(move || {
        let timed_out = at_end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            // It fails only where the group has just ended.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        timed_out
    });
    let status = child.wait()?;
    drop(ended);
    let timed_out = watchdog.join().expect("the watchdog does not panic");
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    leader.wait()?;
    if timed_out {
        return Ok(End::TimedOut);
    }
    Ok(End::Ended(Output { status, stdout: fs::read(stdout)?, stderr: fs::read(stderr)? }))
}

fn appending(path: &Path) -> io::Result<File> {
    if path.exists() {
        fs::remove_file(path)?;
    }
    OpenOptions::new().append(true).create(true).open(path)
}
