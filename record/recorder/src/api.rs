//! What a caller sees: options in, outcome or error out.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use counter::Unavailable;
use guest::GuestAddr;
use trace::WriteError;

use crate::{command, session};

/// What to record, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command and its arguments, as typed.
    pub command: Vec<OsString>,
    /// The trace directory: made if it is not there, and must be empty.
    pub output: PathBuf,
    /// Compares all writable memory before and after every system call with what the table says it writes. Slow.
    pub paranoid: bool,
    /// How long what the command leaves behind may go on once its first process has ended; it is killed then. `None`: until it ends.
    pub linger: Option<Duration>,
    /// Draws who runs, how long, and who starves, from this seed, instead of being fair.
    pub chaos: Option<u64>,
    /// Which calls programs make without a stop: none where chance decides at each of them, nor where branches are counted because that
    /// was asked for.
    pub buffer: Buffer,
    /// Whether a hardware counter helps to locate execution points.
    pub counter: CounterChoice,
}

impl Options {
    /// Whether calls are made without a stop.
    pub(crate) fn buffers(&self) -> bool {
        let counts = matches!(self.counter, CounterChoice::Pmu | CounterChoice::Executions(_));
        self.buffer != Buffer::Never && self.chaos.is_none() && !counts
    }
}

/// When programs begin to make calls without a stop where that can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Buffer {
    /// Never.
    #[default]
    Never,
    /// Once the preparations are worth it.
    Worthwhile,
    /// As soon as an instruction made a few, for tests with small programs.
    #[doc(hidden)]
    Soon,
}

/// What counts how far tasks have come, besides the state that decides where an execution point is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CounterChoice {
    /// The processor's counter of retired conditional branches, where there is one that can be relied on; else nothing.
    #[default]
    Auto,
    /// That counter, or no recording.
    Pmu,
    /// Nothing.
    State,
    /// Executions of the instruction at this address, by a debug register: for tests of all this on machines without counters, with a
    /// program whose only conditional branch that is.
    #[doc(hidden)]
    Executions(GuestAddr),
}

/// How a recording ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Exit status of the command as a shell shows it: 128 + signal number when it was killed.
    pub exit_code: i32,
    /// The trace directory.
    pub trace: PathBuf,
    /// Why the recording was ended before the command was, if it was: what the guest did that is not supported. What was
    /// recorded until then is a valid trace.
    pub refused: Option<String>,
    /// What [`Options::paranoid`] found: memory that changed outside the table's ranges, a line each.
    pub unexplained: Vec<String>,
}

/// Why nothing, or not everything, could be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No command was given.
    #[error("no command to record")]
    NoCommand,
    /// There is no such command.
    #[error("{name}: command not found")]
    NotFound {
        /// As typed.
        name: String,
    },
    /// The command is there but cannot be executed.
    #[error("{path}: cannot be executed")]
    NotExecutable {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A program for something else than 64-bit x86 Linux.
    #[error("{path}: {what}; only x86-64 Linux programs can be recorded")]
    Foreign {
        /// Which file.
        path: String,
        /// What it is.
        what: String,
    },
    /// This user or container may not trace.
    #[error("not permitted to trace: {setting}")]
    NoPermission {
        /// The setting that forbids it, as far as can be told.
        setting: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A hardware counter was asked for, and there is none that can be relied on.
    #[error("no hardware counter can be used")]
    NoCounter(#[source] Unavailable),
    /// The trace could not be written. What was written before stays readable.
    #[error("cannot write the trace")]
    Trace(#[from] WriteError),
    /// A request to the kernel failed that should not.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something that the recorder takes for impossible.
    #[error("{what}")]
    Bug {
        /// What.
        what: String,
    },
}

/// Whose matter an error is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorClass {
    /// The command cannot be found (shells exit with 127).
    NotFound,
    /// The command cannot be executed (shells exit with 126).
    NotExecutable,
    /// Another mistake in what the user asked for, or a setting of the machine.
    Input,
    /// The disk is full, or the trace cannot be written there.
    Disk,
    /// Ours.
    Bug,
}

impl RecordError {
    /// Whose matter this is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound { .. } => ErrorClass::NotFound,
            Self::NotExecutable { .. } | Self::Foreign { .. } => ErrorClass::NotExecutable,
            Self::NoCommand
            | Self::NoPermission { .. }
            | Self::NoCounter(_)
            | Self::Trace(WriteError::Exists { .. }) => ErrorClass::Input,
            Self::Trace(WriteError::Io { .. } | WriteError::Keep(_)) => ErrorClass::Disk,
            Self::Trace(_) | Self::System { .. } | Self::Bug { .. } => ErrorClass::Bug,
        }
    }
}

/// Records a command and everything it starts, until the last of its processes has ended.
///
/// The command has this process's standard streams, terminal, working directory and environment. SIGINT and SIGQUIT
/// from the terminal are ignored meanwhile: it sends them to the command as well. Other requests to end go to the command's first
/// process; a second one kills all. Must be called on a thread that has no other
/// children to wait for.
pub fn record(options: &Options) -> Result<Outcome, RecordError> {
    let prepared = command::prepare(&options.command)?;
    session::run(&prepared, options)
}
