//! `cpuid`: what it answers, what of that a guest is told, and having it trapped where the processor can.
//!
//! The kernel switches trapping by a register of the processor at each change between threads that trap and threads that do
//! not, which costs more than a system call in a virtual machine. So this thread traps, too, while it records: it tabulates
//! first, and afterwards executes no `cpuid` (nor does a library on its behalf; those look at the processor once).
#![expect(unsafe_code, reason = "arch_prctl(2)")]

use std::arch::x86_64::__cpuid_count;

use trace::CpuidLeaf;

/// `ARCH_SET_CPUID` (`asm/prctl.h`): with 0, `cpuid` raises SIGSEGV in the calling thread.
pub(crate) const SET_CPUID: u64 = 0x1012;

/// Takes out of a table what a replay could not do: instructions whose results nothing tells, and transactions.
pub(crate) fn hide(table: &mut [CpuidLeaf]) {
    const RDRAND: u32 = 1 << 30;
    const HLE_RTM_RDSEED: u32 = 1 << 4 | 1 << 11 | 1 << 18;
    const WAITPKG_RDPID: u32 = 1 << 5 | 1 << 22;
    for row in table {
        match (row.leaf, row.subleaf) {
            (1, _) => row.result[2] &= !RDRAND,
            (7, Some(0)) => {
                row.result[1] &= !HLE_RTM_RDSEED;
                row.result[2] &= !WAITPKG_RDPID;
            }
            _ => {}
        }
    }
}

/// Whether the processor and the kernel can trap `cpuid`.
pub(crate) fn can_be_trapped() -> bool {
    set_trapping(true) && set_trapping(false)
}

fn set_trapping(trapping: bool) -> bool {
    // SAFETY: takes numbers only. While it traps this thread executes no `cpuid`: see above.
    unsafe { libc::syscall(libc::SYS_arch_prctl, SET_CPUID, u64::from(!trapping)) == 0 }
}

/// This thread traps `cpuid` until this is dropped.
#[derive(Debug)]
pub(crate) struct Trapping(());

impl Trapping {
    /// Begins to trap where that is wanted.
    pub(crate) fn begin(wanted: bool) -> Option<Self> {
        if !wanted {
            return None;
        }
        look_at_the_processor();
        set_trapping(true).then_some(Self(()))
    }
}

impl Drop for Trapping {
    fn drop(&mut self) {
        set_trapping(false);
    }
}

/// Has what chooses code by the processor look at it now; a trace writer has done so for its own libraries when it was made.
fn look_at_the_processor() {
    let features = std::arch::is_x86_feature_detected!("avx2");
    let sum = crc32fast::hash(&[0; 256]);
    tracing::trace!(features, sum, "the processor was looked at");
}

fn query(leaf: u32, subleaf: u32) -> [u32; 4] {
    let result = __cpuid_count(leaf, subleaf);
    [result.eax, result.ebx, result.ecx, result.edx]
}

/// Leaves whose answer depends on ecx, and how many subleaves to keep (more are listed than there are: those answer
/// zeroes).
fn subleaves(leaf: u32) -> u32 {
    match leaf {
        4 | 0x8000_001d => 8,
        0xb | 0x1f => 6,
        0xd => 64,
        7 | 0xf | 0x10 | 0x14 | 0x17 | 0x18 | 0x1b | 0x1d | 0x1e | 0x20 | 0x23 | 0x24 => 4,
        0x12 => 8,
        _ => 0,
    }
}

/// What `cpuid` answers on the processor this thread runs on.
pub(crate) fn table() -> Vec<CpuidLeaf> {
    let mut rows = Vec::new();
    for base in [0, 0x4000_0000, 0x8000_0000u32] {
        let last = query(base, 0)[0];
        let last = if (base..base + 0x100).contains(&last) { last } else { base };
        for leaf in base..=last {
            match subleaves(leaf) {
                0 => rows.push(CpuidLeaf { leaf, subleaf: None, result: query(leaf, 0) }),
                count => rows.extend((0..count).map(|subleaf| CpuidLeaf {
                    leaf,
                    subleaf: Some(subleaf),
                    result: query(leaf, subleaf),
                })),
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use trace::Machine;

    use super::*;

    fn row(leaf: u32, subleaf: Option<u32>, result: [u32; 4]) -> CpuidLeaf {
        CpuidLeaf { leaf, subleaf, result }
    }

    #[test]
    fn what_cannot_be_replayed_is_hidden() {
        let mut table = vec![row(1, None, [!0; 4]), row(7, Some(0), [!0; 4]), row(7, Some(1), [!0; 4])];
        hide(&mut table);
        assert_eq!(table[0].result, [!0, !0, !(1 << 30), !0]);
        assert_eq!(table[1].result, [!0, !0x4_0810, !0x40_0020, !0]);
        assert_eq!(table[2].result, [!0; 4]);
    }

    #[test]
    fn the_table_is_what_the_processor_answers() {
        let machine = Machine { cpuid: table(), ..Machine::default() };
        for (leaf, subleaf) in [(0, 0), (4, 11), (7, 0), (7, 9), (0xb, 7), (0x8000_0002, 0), (0x8000_0004, 5)]
        {
            assert_eq!(machine.cpuid(leaf, subleaf), Some(query(leaf, subleaf)), "{leaf:#x}/{subleaf}");
        }
    }
}
