//! What the header says about this machine: kernel, processor, what `cpuid` answers.
#![expect(unsafe_code, reason = "xgetbv")]

use std::arch::x86_64::__cpuid_count;

use trace::{CpuidLeaf, Machine};

/// Describes the machine this thread (already pinned to a processor) runs on.
pub(crate) fn describe() -> Machine {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuid = table();
    Machine {
        kernel: kernel.trim().to_owned(),
        cpu: brand(&cpuid),
        xcr0: xcr0(&cpuid),
        cpuid_trapped: false,
        tsc_trapped: true,
        cpuid,
        points: "state".into(),
    }
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

fn table() -> Vec<CpuidLeaf> {
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

fn find(rows: &[CpuidLeaf], leaf: u32) -> Option<&CpuidLeaf> {
    rows.iter().find(|row| row.leaf == leaf)
}

fn brand(rows: &[CpuidLeaf]) -> String {
    let words = (0x8000_0002..=0x8000_0004).filter_map(|leaf| find(rows, leaf)).flat_map(|row| row.result);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']).to_owned()
}

fn xcr0(rows: &[CpuidLeaf]) -> u64 {
    const OSXSAVE: u32 = 1 << 27;
    if find(rows, 1).is_none_or(|row| row.result[2] & OSXSAVE == 0) {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE says that xgetbv may be executed; it touches only the named registers.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let machine = describe();
        assert!(!machine.kernel.is_empty());
        assert!(machine.xcr0 & 3 == 3, "x87 and SSE state are always enabled");
        assert!(machine.cpuid.iter().any(|row| row.leaf == 7 && row.subleaf == Some(0)));
    }
}
