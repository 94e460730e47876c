//! The `backstory` binary and what running it gave.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Path of the release or debug binary beside the running test.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its path");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let path = profile.join("backstory");
    assert!(path.exists(), "{} is not built: cargo build --workspace first", path.display());
    path
}

/// `backstory ARGS...`, not yet run.
pub fn backstory<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(args: I) -> Command {
    let mut command = Command::new(binary());
    command.args(args).stdin(std::process::Stdio::null());
    command
}

/// Records `command` into `dir`; its output and status.
pub fn record<S: AsRef<std::ffi::OsStr>>(dir: &Path, command: &[S]) -> Output {
    let mut recorder = backstory(["record", "-o"]);
    recorder.arg(dir).arg("--").args(command).output().expect("backstory runs")
}

/// The exit code as a shell shows it.
pub fn shell_code(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0))
}

/// The lines of standard error that are not Backstory's own.
pub fn guest_stderr(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| !line.starts_with("backstory:")).map(|line| format!("{line}\n")).collect()
}
