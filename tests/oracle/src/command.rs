//! The `backstory` binary and what running it gave.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// How Backstory's own lines on standard error begin.
const OURS: &str = "backstory:";

/// Path of the release or debug binary beside the running program: `target/PROFILE/deps/TEST` or `target/PROFILE/PROGRAM`.
pub fn binary() -> PathBuf {
    let program = std::env::current_exe().expect("the program knows its path");
    let mut folder = program.parent().expect("a program lies in a folder");
    if folder.ends_with("deps") {
        folder = folder.parent().expect("target/PROFILE");
    }
    let path = folder.join("backstory");
    assert!(path.exists(), "{} is not built: cargo build --workspace first", path.display());
    path
}

/// `backstory ARGS...`, not yet run.
pub fn backstory<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(args: I) -> Command {
    let mut command = Command::new(binary());
    command.args(args).stdin(std::process::Stdio::null());
    command
}

/// The variable that holds further options of `backstory record`, so that all tests can be run with them.
const OPTIONS: &str = "BACKSTORY_ORACLE_OPTIONS";

/// Whether what is recorded makes calls without a stop.
pub fn buffers_calls() -> bool {
    std::env::var(OPTIONS).map_or(true, |options| !options.contains("--no-buffer"))
}

/// `backstory record -o DIR`, with these options, not yet run: what follows is the command.
pub fn recorder_with(options: &[&str], dir: &Path) -> Command {
    let more = std::env::var(OPTIONS).unwrap_or_default();
    let mut recorder = backstory(["record"]);
    // Small programs make too few calls for it to be worth it.
    let soon = buffers_calls() && !options.contains(&"--no-buffer");
    recorder.args(soon.then_some("--buffer-soon"));
    recorder.args(more.split_whitespace()).args(options).arg("-o").arg(dir).arg("--");
    recorder
}

/// What records `command` into `dir`, not yet run.
pub fn recorder<S: AsRef<std::ffi::OsStr>>(dir: &Path, command: &[S]) -> Command {
    let mut recorder = recorder_with(&[], dir);
    recorder.args(command);
    recorder
}

/// Records `command` into `dir`; its output and status.
pub fn record<S: AsRef<std::ffi::OsStr>>(dir: &Path, command: &[S]) -> Output {
    recorder(dir, command).output().expect("backstory runs")
}

/// The exit code as a shell shows it.
pub fn shell_code(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0))
}

/// The lines of standard error that are not Backstory's own.
pub fn guest_stderr(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| !line.starts_with(OURS)).map(|line| format!("{line}\n")).collect()
}

/// The first line of standard error that is Backstory's own and says what failed, without its head.
pub fn complaint(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut own = text.lines().filter_map(|line| line.strip_prefix(OURS));
    own.find(|line| !line.starts_with(" recorded ")).map(|line| line.trim().to_owned())
}
