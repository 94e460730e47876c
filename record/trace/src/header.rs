//! What a recording says about itself, first and last.

use serde::{Deserialize, Serialize};

/// Format version. The major number must match; a newer minor number adds and is read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Version {
    /// Incompatible changes.
    pub major: u16,
    /// Additions.
    pub minor: u16,
}

impl Version {
    /// The version this build writes.
    pub const CURRENT: Self = Self { major: 1, minor: 8 };
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
    /// What `cpuid` answers on the CPU the recording was pinned to, to a recorded program.
    pub cpuid: Vec<CpuidLeaf>,
    /// How execution points are located: `none` in recordings of version 1.0, else as [`Located`] spells it.
    pub points: String,
}

/// How execution points are located.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Located {
    /// By state alone: registers, a memory key, page checksums.
    #[default]
    State,
    /// By state, and how many `jcc` instructions lead there ([`PointInfo::branches`](crate::PointInfo::branches)).
    Jcc,
    /// The same for all conditional branches: `jcc`, `loop` and its like, `jrcxz` and its like.
    Branches,
}

impl Located {
    const ALL: [(Self, &str); 3] = [(Self::State, "state"), (Self::Jcc, "jcc"), (Self::Branches, "branches")];

    /// As [`Machine::points`] has it.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(located, _)| *located == self).map_or("", |(_, word)| word)
    }
}

impl Machine {
    /// How execution points are located. A way that this build does not know adds to the state, which decides.
    pub fn located(&self) -> Located {
        let known = Located::ALL.iter().find(|(_, word)| *word == self.points);
        known.map_or(Located::State, |(located, _)| *located)
    }

    /// What `cpuid` answered (eax, ebx, ecx, edx). Past the last leaf of a range, processors of AMD and Hygon answer zeroes, others as to
    /// the last basic leaf; subleaves past the last are zeroes, with their number and the processor's own kept in the leaves of the
    /// topology (Intel SDM, volume 2, CPUID). `None` where the table should have a row and has none.
    pub fn cpuid(&self, leaf: u32, subleaf: u32) -> Option<[u32; 4]> {
        let row = |leaf| {
            let fits = |row: &&CpuidLeaf| row.leaf == leaf && row.subleaf.is_none_or(|s| s == subleaf);
            self.cpuid.iter().find(fits).map(|row| row.result)
        };
        if let Some(answer) = row(leaf) {
            return Some(answer);
        }
        let [last, ebx, _, _] = row(0)?;
        let base = leaf & 0xffff_0000;
        let past = row(base).is_none_or(|[last, ..]| leaf > last);
        let zeroes = matches!(&ebx.to_le_bytes(), b"Auth" | b"Hygo");
        match past {
            true if zeroes => Some([0; 4]),
            true => row(last),
            false => {
                let first = self.cpuid.iter().find(|row| row.leaf == leaf)?.result;
                Some(if matches!(leaf, 0xb | 0x1f) { [0, 0, subleaf & 0xff, first[3]] } else { [0; 4] })
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(vendor: &[u8; 4]) -> Machine {
        let row = |leaf, subleaf, eax| CpuidLeaf { leaf, subleaf, result: [eax, 0, 0, 0] };
        let first = CpuidLeaf { result: [0xf, u32::from_le_bytes(*vendor), 0, 0], ..row(0, None, 0) };
        let topology = CpuidLeaf { result: [1, 2, 0x100, 77], ..row(0xb, Some(0), 0) };
        let mut cpuid = vec![first, row(1, None, 11), row(4, Some(1), 41), topology];
        cpuid.extend([row(0xf, Some(0), 70), row(0xf, Some(2), 72)]);
        Machine { cpuid, ..Machine::default() }
    }

    #[test]
    fn leaves_past_the_last_are_answered_by_the_vendors_rule() {
        let (amd, intel) = (machine(b"Auth"), machine(b"Genu"));
        for machine in [&amd, &intel] {
            assert_eq!(machine.cpuid(1, 9), Some([11, 0, 0, 0]));
            assert_eq!(machine.cpuid(4, 1), Some([41, 0, 0, 0]));
            assert_eq!(machine.cpuid(4, 9), Some([0; 4]));
            assert_eq!(machine.cpuid(0xb, 9), Some([0, 0, 9, 77]));
            assert_eq!(machine.cpuid(5, 0), None, "it should be in the table");
        }
        assert_eq!(amd.cpuid(0x1e, 0), Some([0; 4]));
        assert_eq!(intel.cpuid(0x1e, 2), Some([72, 0, 0, 0]));
        assert_eq!(amd.cpuid(0x8000_0000, 0), Some([0; 4]));
    }
}
