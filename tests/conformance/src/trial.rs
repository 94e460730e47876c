//! One program natively, recorded, checked and replayed, and what is wrong with that. Knows nothing of known gaps.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use backstory_oracle::command::{backstory, complaint, guest_stderr, shell_code};

use crate::process::{End, run};

/// What became of a program.
pub(crate) enum Verdict {
    /// All as it should be.
    Passed,
    /// It does the same natively neither twice nor in time, so that nothing can be said.
    Unfit(&'static str),
    /// What went wrong first.
    Failed(String),
}

/// How each run of a program ended, in words, and the verdict.
pub(crate) struct Trial {
    pub(crate) native: String,
    pub(crate) recorded: String,
    pub(crate) replayed: String,
    pub(crate) verdict: Verdict,
}

impl Trial {
    fn unrun() -> Self {
        let none = || "-".to_owned();
        Self { native: none(), recorded: none(), replayed: none(), verdict: Verdict::Passed }
    }
}

/// Runs `program` all ways, each within `limit`.
pub(crate) fn try_program(program: &Path, limit: Duration) -> io::Result<Trial> {
    let scratch = tempfile::tempdir()?;
    let mut trial = Trial::unrun();
    trial.verdict = verdict(program, scratch.path(), limit, &mut trial)?;
    Ok(trial)
}

fn verdict(program: &Path, scratch: &Path, limit: Duration, trial: &mut Trial) -> io::Result<Verdict> {
    let native = run(Command::new(program), scratch, limit)?;
    trial.native = word(&native);
    let again = run(Command::new(program), scratch, limit)?;
    let (End::Ended(native), End::Ended(again)) = (native, again) else {
        return Ok(Verdict::Unfit("does not end natively"));
    };
    if shell_code(&native) != shell_code(&again) {
        return Ok(Verdict::Unfit("ends differently natively"));
    }
    let trace = scratch.join("trace");
    let recorded = run(lingering(&trace, program), scratch, limit)?;
    trial.recorded = word(&recorded);
    let End::Ended(recorded) = recorded else {
        return failed("recording", "timed out");
    };
    if shell_code(&recorded) != shell_code(&native) {
        return failed("recording", complaint(&recorded).unwrap_or_else(|| last_line(&recorded)));
    }
    if texts(&native) == texts(&again) && texts(&native) != texts(&recorded) {
        return failed("recording", difference(&native, &recorded));
    }
    match run(with_trace("check", &trace), scratch, limit)? {
        End::TimedOut => return failed("check", "timed out"),
        End::Ended(checked) if !checked.status.success() => {
            let first = String::from_utf8_lossy(&checked.stdout).lines().next().map(str::to_owned);
            return failed("check", first.or_else(|| complaint(&checked)).unwrap_or_default());
        }
        End::Ended(_) => {}
    }
    let replayed = run(with_trace("replay", &trace), scratch, limit)?;
    trial.replayed = word(&replayed);
    let End::Ended(replayed) = replayed else {
        return failed("replay", "timed out");
    };
    if !replayed.status.success() {
        return failed("replay", complaint(&replayed).unwrap_or_else(|| last_line(&replayed)));
    }
    if texts(&recorded) != texts(&replayed) {
        return failed("replay", complaint(&replayed).unwrap_or_else(|| difference(&recorded, &replayed)));
    }
    fs::remove_dir_all(&trace)?;
    Ok(Verdict::Passed)
}

/// Records a program, and kills what it leaves behind, as it is killed natively.
fn lingering(trace: &Path, program: &Path) -> Command {
    let mut command = backstory(["record", "--linger", "2", "-o"]);
    command.arg(trace).arg("--").arg(program);
    command
}

fn failed(stage: &str, cause: impl AsRef<str>) -> io::Result<Verdict> {
    Ok(Verdict::Failed(format!("{stage}: {}", cause.as_ref())))
}

fn with_trace(action: &str, trace: &Path) -> Command {
    let mut command = backstory([action]);
    command.arg(trace);
    command
}

fn texts(output: &Output) -> (&[u8], String) {
    (&output.stdout, guest_stderr(output))
}

/// The first lines in which two outputs differ.
fn difference(expected: &Output, actual: &Output) -> String {
    let text =
        |output: &Output| format!("{}{}", String::from_utf8_lossy(&output.stdout), guest_stderr(output));
    let (expected, actual) = (text(expected), text(actual));
    let (mut expected, mut actual) = (expected.lines(), actual.lines());
    loop {
        match (expected.next(), actual.next()) {
            (None, None) => return "output differs in its line ends".to_owned(),
            (expected, actual) if expected == actual => {}
            (expected, actual) => {
                let shown =
                    |line: Option<&str>| line.map_or("nothing".to_owned(), |line| format!("{line:?}"));
                return format!("output is {} instead of {}", shown(actual), shown(expected));
            }
        }
    }
}

/// The last line that a run printed, where only it can say what went wrong.
fn last_line(output: &Output) -> String {
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), guest_stderr(output));
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
    format!("exit status {}: {last}", shell_code(output))
}

fn word(end: &End) -> String {
    match end {
        End::Ended(output) => shell_code(output).to_string(),
        End::TimedOut => "late".to_owned(),
    }
}
