//! Exit codes, and the error that carries one to `main`.

use std::fmt;
use std::process::ExitCode;

/// The table of exit codes, as `--help` shows it.
pub(crate) const TABLE: &str = "\
Exit codes:
  0        done
  1        the answer is no: `check` found damage or a violated invariant
  2        bad input: an option, a moment, SQL, an address or a trace that does not exist
  3        the recording or its index cannot be read: not one, damaged where it is needed, or of another version
  4        the program did something that is not supported; the message names it
  5        a bug of Backstory: the replay diverged from the recording
  6        the system failed: disk full, input/output error, missing permission
  126      the command to record cannot be executed
  127      the command to record was not found, or gdb was not
  other    record: the exit status of the command; gdb: the exit status of gdb";

/// The classes of failure, each with its exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// The answer is no.
    No,
    /// Something the user gave must change.
    Input,
    /// The trace or the index cannot be read.
    Trace,
    /// The recorded program did what is not supported.
    Unsupported,
    /// A bug of ours.
    Bug,
    /// The system failed us.
    System,
    /// Not executable, as shells have it.
    NotExecutable,
    /// Not found, as shells have it.
    NotFound,
}

impl Class {
    /// The exit code.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::No => 1,
            Self::Input => 2,
            Self::Trace => 3,
            Self::Unsupported => 4,
            Self::Bug => 5,
            Self::System => 6,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
        }
    }
}

/// Marks an error with its class. Attach it as the context of an error: `.context(..)` adds prose, this adds the code.
#[derive(Debug)]
pub(crate) struct Failure {
    class: Class,
    message: String,
}

impl Failure {
    /// A failure with a message, of one line if it can be.
    pub(crate) fn new(class: Class, message: impl fmt::Display) -> Self {
        Self { class, message: message.to_string() }
    }

    /// The class of an error nobody classified: the system's if an I/O error is behind it, else a bug.
    pub(crate) fn class_of(error: &anyhow::Error) -> Class {
        match error.downcast_ref::<Self>() {
            Some(failure) => failure.class,
            None if error.chain().any(|cause| cause.is::<std::io::Error>()) => Class::System,
            None => Class::Bug,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Gives any error a class, keeping its message and sources.
pub(crate) trait Classify<T> {
    /// Fails with `class` where `self` fails.
    fn class(self, class: Class) -> anyhow::Result<T>;
    /// Fails with the class that `classify` finds for the error.
    fn class_by(self, classify: impl FnOnce(&anyhow::Error) -> Class) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> Classify<T> for Result<T, E> {
    fn class(self, class: Class) -> anyhow::Result<T> {
        self.class_by(|_| class)
    }

    fn class_by(self, classify: impl FnOnce(&anyhow::Error) -> Class) -> anyhow::Result<T> {
        self.map_err(|error| {
            let error = error.into();
            let class = classify(&error);
            Failure::new(class, one_line(&error)).into()
        })
    }
}

/// The error and its sources in one line, each said once.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    let mut last = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if line.is_empty() {
            line.clone_from(&cause);
        } else if !line.ends_with(&cause) && !cause.ends_with(&last) {
            line = format!("{line}: {cause}");
        }
        last = cause;
    }
    line.replace('\n', " ")
}

/// Whether the error comes from writing to a pipe whose reader has gone.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Reports `error` on standard error and returns its exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let class = Failure::class_of(error);
    match error.downcast_ref::<Failure>() {
        Some(failure) => eprintln!("backstory: {failure}"),
        // Every other operation says what it was about.
        None if error.is::<std::io::Error>() => eprintln!("backstory: cannot write the output: {error}"),
        None => eprintln!("backstory: {}", one_line(error)),
    }
    if class == Class::Bug {
        eprintln!(
            "backstory: this is a bug of Backstory {}; please report it with the line above and, if you can, the trace",
            env!("CARGO_PKG_VERSION")
        );
    }
    ExitCode::from(class.code())
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn every_code_is_in_the_table() {
        use Class::{Bug, Input, No, NotExecutable, NotFound, System, Trace, Unsupported};
        for class in [No, Input, Trace, Unsupported, Bug, System, NotExecutable, NotFound] {
            let row = format!("\n  {:<9}", class.code());
            assert!(TABLE.contains(&row), "{class:?}");
        }
    }

    #[test]
    fn messages_are_one_line_without_repetition() {
        let io = std::io::Error::other("no space left");
        let error = Err::<(), _>(io).context("cannot write x").class(Class::System).expect_err("fails");
        assert_eq!(one_line(&error), "cannot write x: no space left");
        assert_eq!(Failure::class_of(&error), Class::System);
        let code = anyhow::anyhow!("Error code 13: disk is full").context("disk is full").context("index x");
        assert_eq!(one_line(&code), "index x: disk is full");
    }

    #[test]
    fn unclassified_errors_are_the_systems_or_ours() {
        assert_eq!(Failure::class_of(&anyhow::Error::from(std::io::Error::other("x"))), Class::System);
        assert_eq!(Failure::class_of(&anyhow::anyhow!("x")), Class::Bug);
    }
}
