//! Running a command and reading what it cost, from the kernel's own accounting.
#![expect(
    unsafe_code,
    reason = "wait4(2) tells what a finished process used; where a new one runs is set before it is executed"
)]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What a finished command and its children used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// User and system seconds.
    pub(crate) cpu: f64,
    /// Elapsed seconds.
    pub(crate) wall: f64,
    /// Largest resident set of any single process, KiB.
    pub(crate) peak_rss_kib: u64,
    /// Largest resident set of the command itself without what it started, KiB, as far as it was looked at in time.
    pub(crate) own_rss_kib: u64,
}

/// The processor that native runs and recordings are held on where they are compared on one.
const CPU: usize = 0;

/// How often the size of a command is looked at. The kernel keeps the peak, so only the last moments can be missed.
const LOOK: Duration = Duration::from_millis(10);

/// The peak of a process's own resident set, KiB, looked at until it is over.
fn own_peak(pid: u32, over: &Receiver<()>) -> u64 {
    let mut peak = 0;
    while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        peak = peak.max(kib.unwrap_or(0));
    }
    peak
}

/// Runs a command in `dir` with its output thrown away. A non-zero exit is an error.
pub(crate) fn run(command: &[String], dir: &Path, input: Option<&Path>) -> io::Result<Usage> {
    finish(Command::new(&command[0]).stdin(opened(input)?), command, dir).map(|(usage, _)| usage)
}

/// The same on one processor.
pub(crate) fn run_on_one(command: &[String], dir: &Path, input: Option<&Path>) -> io::Result<Usage> {
    finish(on_one(Command::new(&command[0]).stdin(opened(input)?)), command, dir).map(|(usage, _)| usage)
}

fn opened(input: Option<&Path>) -> io::Result<Stdio> {
    input.map_or(Ok(Stdio::null()), |path| File::open(path).map(Stdio::from))
}

/// Holds what is about to be started on one processor.
fn on_one(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only a system call is made, on a set of its own.
    unsafe {
        command.pre_exec(|| {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(CPU, &mut set);
            match libc::sched_setaffinity(0, size_of_val(&set), &set) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    }
}

/// The same on one processor with a log, by Backstory's filter for it. What was written to standard error is returned.
pub(crate) fn run_logged(command: &[String], dir: &Path, filter: &str) -> io::Result<(Usage, String)> {
    finish(on_one(Command::new(&command[0]).stdin(Stdio::null()).env("BACKSTORY_LOG", filter)), command, dir)
}

fn finish(prepared: &mut Command, command: &[String], dir: &Path) -> io::Result<(Usage, String)> {
    let start = Instant::now();
    let child =
        prepared.args(&command[1..]).current_dir(dir).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let (mut status, pid) = (0, child.id() as i32);
    let (ended, over) = channel();
    let looking = std::thread::spawn(move || own_peak(pid as u32, &over));
    let mut errors = child.stderr;
    let mut text = String::new();
    if let Some(pipe) = errors.as_mut() {
        io::Read::read_to_string(pipe, &mut text)?;
    }
    // SAFETY: an all-zero rusage is valid; both out-pointers outlive the call. The child was not waited for before.
    let (got, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &mut status, 0, &mut usage), usage)
    };
    drop(ended);
    let own_rss_kib = looking.join().unwrap_or(0);
    if got != pid {
        return Err(io::Error::last_os_error());
    }
    if status != 0 {
        return Err(io::Error::other(format!(
            "{} ended with status {status:#x}: {}",
            command.join(" "),
            text.trim()
        )));
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    let usage = Usage {
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        wall: start.elapsed().as_secs_f64(),
        peak_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
        own_rss_kib,
    };
    Ok((usage, text))
}

/// The smallest CPU time in seconds.
pub(crate) fn least(usages: &[Usage]) -> f64 {
    usages.iter().map(|usage| usage.cpu).fold(f64::INFINITY, f64::min)
}

/// The median elapsed time in seconds.
pub(crate) fn median_of(usages: &[Usage]) -> f64 {
    let mut walls: Vec<f64> = usages.iter().map(|u| u.wall).collect();
    walls.sort_by(f64::total_cmp);
    walls[walls.len() / 2]
}

/// The first value that a query answers, as text.
pub(crate) fn text(binary: &str, trace: &Path, sql: &str) -> io::Result<String> {
    let output = Command::new(binary).args(["query", "--csv", "-t"]).arg(trace).arg(sql).output()?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let value = lines.lines().nth(1).unwrap_or_default().trim_matches('"').to_owned();
    if value.is_empty() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(format!("no answer to {sql}: {words}")));
    }
    Ok(value)
}

/// The first value that a query answers, as a number.
pub(crate) fn number(binary: &str, trace: &Path, sql: &str) -> io::Result<u64> {
    text(binary, trace, sql)?.parse().map_err(io::Error::other)
}
