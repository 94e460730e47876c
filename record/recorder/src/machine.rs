//! What the header says about this machine: kernel, processor, what `cpuid` answers.
#![expect(unsafe_code, reason = "xgetbv, uname(2)")]

use std::ffi::CStr;
use std::mem::MaybeUninit;

use trace::{CpuidLeaf, Located, Machine};

use crate::cpuid;

/// Describes the machine this thread (already pinned to a processor) runs on.
pub(crate) fn describe(located: Located) -> Machine {
    let trapped = cpuid::can_be_trapped();
    let mut cpuid = cpuid::table();
    let (cpu, xcr0) = (brand(&cpuid), xcr0(&cpuid));
    if trapped {
        cpuid::hide(&mut cpuid);
    }
    Machine {
        kernel: kernel(),
        cpu,
        xcr0,
        cpuid_trapped: trapped,
        tsc_trapped: true,
        cpuid,
        points: located.word().into(),
    }
}

/// The kernel's release.
fn kernel() -> String {
    let mut names = MaybeUninit::<libc::utsname>::uninit();
    // SAFETY: the kernel fills `names` where it does not fail, with strings that end.
    unsafe {
        if libc::uname(names.as_mut_ptr()) != 0 {
            return String::new();
        }
        CStr::from_ptr(names.assume_init_ref().release.as_ptr()).to_string_lossy().into_owned()
    }
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
        let machine = describe(Located::State);
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(machine.kernel, release.trim());
        assert!(machine.xcr0 & 3 == 3, "x87 and SSE state are always enabled");
        assert!(machine.cpuid.iter().any(|row| row.leaf == 7 && row.subleaf == Some(0)));
    }
}
