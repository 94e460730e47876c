//! Why a counter cannot be had, or not be relied on.

use std::io;

use ptrace::{Gone, HostTid};

use crate::quality::Quality;

/// Why a counter could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing counts this event. The usual case in virtual machines.
    #[error("this machine has no hardware performance counters (virtual machines often have none)")]
    NoPmu,
    /// Performance events are off limits: `perf_event_paranoid`, a seccomp filter (containers), or another user's thread.
    #[error(
        "performance events of thread {tid} are not permitted (kernel.perf_event_paranoid is {}, \
         which must be at most 2, or CAP_PERFMON be held; a container's seccomp filter may forbid them, too)",
        paranoid.map_or_else(|| "unreadable".to_owned(), |level| level.to_string())
    )]
    Permission {
        /// Whose.
        tid: HostTid,
        /// `/proc/sys/kernel/perf_event_paranoid`.
        paranoid: Option<i32>,
    },
    /// The process or the system has too many files open (EMFILE, ENFILE): a counter is one.
    #[error("too many open files for one more counter")]
    TooManyFiles,
    /// All of the hardware's slots for this event are taken (ENOSPC, EBUSY).
    #[error("no hardware slot is free for one more counter on thread {tid}")]
    NoSlot {
        /// On which thread.
        tid: HostTid,
    },
    /// There is no such thread, or not any more.
    #[error("there is no thread {tid} to count on")]
    NoThread {
        /// Which.
        tid: HostTid,
    },
    /// The kernel was built without performance events.
    #[error("the kernel has no performance events")]
    NoKernelSupport,
    /// Something else.
    #[error(transparent)]
    Failed(#[from] CallFailed),
}

/// A system call on a counter failed.
#[derive(Debug, thiserror::Error)]
#[error("{call} on a counter failed")]
pub struct CallFailed {
    /// Which.
    pub call: &'static str,
    /// Why.
    pub source: io::Error,
}

/// Why a count could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel took the counter out of service, as the hardware had no slot for it: what it counted is lost.
    #[error("the counter of thread {tid} has lost its hardware slot")]
    Lost {
        /// Whose.
        tid: HostTid,
    },
    /// Something else.
    #[error(transparent)]
    Failed(#[from] CallFailed),
}

/// Why a counter could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It could not be driven.
    #[error(transparent)]
    Call(#[from] CallFailed),
    /// The measured process could not be started or waited for.
    #[error("the process to measure failed")]
    Process(#[from] io::Error),
    /// The measured process vanished.
    #[error("the process to measure vanished")]
    Gone(#[from] Gone),
    /// The measured process did something else than to run its loop.
    #[error("the process to measure stopped for another reason: {report}")]
    Astray {
        /// What the wait reported.
        report: String,
    },
    /// No signal told of an overflow, long after it was due.
    #[error("no signal came within {within} events, {due} having been asked for")]
    NoSignal {
        /// When it was due, in events.
        due: u64,
        /// How many events there were.
        within: u64,
    },
}

/// Why no counter is used, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The table of codes does not have it.
    #[error(
        "no code for retired conditional branches is known for this processor ({vendor}, family {family:#x}, model {model:#x})"
    )]
    UnknownProcessor {
        /// As CPUID spells it.
        vendor: String,
        /// With its extension.
        family: u16,
        /// With its extension.
        model: u8,
    },
    /// There is none, or it could not be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// It misses branches.
    #[error("the counter misses branches ({} in {})", .0.missed, .0.of)]
    Misses(Quality),
    /// It counts far too much.
    #[error("the counter counts too much ({} in {})", .0.overcount, .0.of)]
    Overcounts(Quality),
    /// Its signals come far too late.
    #[error("the counter's signals come up to {} branches late", .0.skid)]
    Skids(Quality),
}
