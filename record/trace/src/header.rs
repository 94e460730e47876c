//! What a recording says about itself, first and last.

use serde::{Deserialize, Serialize};

/// Format version. The major number must match; a newer minor number adds and is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Version {
    /// Incompatible changes.
    pub major: u16,
    /// Additions.
    pub minor: u16,
}

impl Version {
    /// The version this build writes.
    pub const CURRENT: Self = Self { major: 1, minor: 1 };
}

/// Written before the first event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Format version of the whole directory.
    pub version: Version,
    /// Random identity of the recording; an index names it.
    pub uuid: [u8; 16],
    /// Wall-clock start, seconds since 1970.
    pub started: u64,
    /// The recorded command.
    pub argv: Vec<Vec<u8>>,
    /// Its environment.
    pub envp: Vec<Vec<u8>>,
    /// Its working directory.
    pub cwd: String,
    /// The machine.
    pub machine: Machine,
    /// Descriptors it inherited.
    pub fds: Vec<InheritedFd>,
}

/// The machine a recording was made on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// CPU brand string.
    pub cpu: String,
    /// XCR0: the extended-state components enabled.
    pub xcr0: u64,
    /// Whether `cpuid` was trapped. Where it was not, the program saw `cpuid` below and a replay answers from it.
    pub cpuid_trapped: bool,
    /// Whether `rdtsc` was trapped.
    pub tsc_trapped: bool,
    /// What `cpuid` answers on the CPU the recording was pinned to.
    pub cpuid: Vec<CpuidLeaf>,
    /// How execution points are located: `state` (registers, a memory key, page checksums), or `none` in recordings of version 1.0.
    pub points: String,
}

/// One row of the CPUID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuidLeaf {
    /// eax on entry.
    pub leaf: u32,
    /// ecx on entry; `None` where the leaf ignores it.
    pub subleaf: Option<u32>,
    /// eax, ebx, ecx, edx on return.
    pub result: [u32; 4],
}

/// A descriptor open at the start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InheritedFd {
    /// Number.
    pub fd: i32,
    /// What `/proc/PID/fd/N` names.
    pub path: String,
    /// File offset.
    pub offset: u64,
}

/// Written after the last event of a complete recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Exit status of the command as a shell shows it (128 + signal number when killed).
    pub exit_code: i32,
    /// Wall-clock length in nanoseconds.
    pub nanos: u64,
    /// Number of events.
    pub events: u64,
    /// Number of tasks.
    pub tasks: u32,
    /// Number of spaces.
    pub spaces: u32,
    /// Set when the recording was stopped for a reason of ours: the refused feature, in one line.
    pub refused: Option<String>,
}

/// What the last frame of a complete recording holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Trailer {
    /// For people and the checker.
    pub(crate) summary: Summary,
    /// Every range ever mapped, merged, in order.
    pub(crate) footprint: Vec<guest::GuestRange>,
}
