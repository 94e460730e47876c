//! `cpuid`: what it answers, what of that a guest is told, and having it trapped where the processor can.
//!
//! The kernel switches trapping by a register of the processor at each change between threads that trap and threads that do
//! not, which costs more than a system call in a virtual machine. So this thread traps, too, while it records: it tabulates
//! first, and afterwards executes no `cpuid` (nor does a library on its behalf; those look at the processor once).
#![expect(unsafe_code, reason = "arch_prctl(2)")]

use std::arch::x86_64::__cpuid_count;

use trace::CpuidLeaf;

use crate::procfs;

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

/// This thread does not trap `cpuid` any more.
pub(crate) fn do_not_trap() {
    set_trapping(false);
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

/// Has what chooses code by the processor look at it now; what packs the trace did so when that was begun.
fn look_at_the_processor() {
    trace::look_at_the_processor();
    let features = std::arch::is_x86_feature_detected!("avx2");
    let sum = crc32fast::hash(&[0; 256]);
    tracing::trace!(features, sum, "the processor was looked at");
}

fn query(leaf: u32, subleaf: u32) -> [u32; 4] {
    let result = __cpuid_count(leaf, subleaf);
    [result.eax, result.ebx, result.ecx, result.edx]
}

/// The rows of a leaf whose answer depends on ecx, given what subleaf 0 answers. A row takes microseconds to ask for in a virtual machine:
/// those that are left out answer zeroes, or what follows from the first.
fn subleaves(leaf: u32, first: [u32; 4]) -> Option<Vec<CpuidLeaf>> {
    let row = |subleaf| CpuidLeaf { leaf, subleaf: Some(subleaf), result: query(leaf, subleaf) };
    let up_to = |last: u32| (0..=last).map(row).collect();
    let listed = |most, is_none: fn(&CpuidLeaf) -> bool| {
        let mut rows: Vec<_> = (0..most).map(row).take_while(|row| !is_none(row)).collect();
        if rows.is_empty() {
            rows.push(row(0));
        }
        rows
    };
    Some(match leaf {
        // Caches, then none.
        4 | 0x8000_001d => listed(8, |row| row.result[0] & 0x1f == 0),
        // Levels of processors, then none.
        0xb | 0x1f => listed(6, |row| row.result[2] >> 8 & 0xff == 0),
        // Parts of the extended state: those that programs use and those that the kernel does, as the first two tell.
        0xd => {
            let [_, _, low, high] = query(leaf, 1);
            let there = u64::from(first[3] | high) << 32 | u64::from(first[0] | low);
            (0..64).filter(|part| *part < 2 || there >> part & 1 == 1).map(row).collect()
        }
        // The first tells the last.
        7 | 0x14 | 0x17 | 0x18 | 0x1d | 0x20 | 0x24 => up_to(first[0].min(3)),
        0xf | 0x10 | 0x1b | 0x1e | 0x23 => up_to(3),
        0x12 => up_to(7),
        _ => return None,
    })
}

/// What `cpuid` answers on the processor this thread runs on. To ask costs a short recording in a virtual machine more than all of its events,
/// so what was once asked is noted until the machine is started anew, and found again if what tells processors apart is as it was.
pub(crate) fn table() -> Vec<CpuidLeaf> {
    let what = format!("cpuid-{}", ptrace::current_cpu());
    let boot = procfs::text("/proc/sys/kernel/random/boot_id").into_bytes();
    if boot.is_empty() {
        return asked();
    }
    let noted = trace::noted_of_machine(&what).and_then(|note| from_note(&note, &boot));
    noted.filter(|rows| is_this_processor(rows)).unwrap_or_else(|| {
        let rows = asked();
        trace::note_of_machine(&what, &to_note(&rows, &boot));
        rows
    })
}

/// Bytes of a row in a note: leaf, subleaf, result.
const ROW: usize = 24;

/// Rows as bytes: the name of the machine's present run, the rows, a checksum.
fn to_note(rows: &[CpuidLeaf], boot: &[u8]) -> Vec<u8> {
    let mut note = boot.to_vec();
    for CpuidLeaf { leaf, subleaf, result } in rows {
        // No subleaf has that number.
        let words = [*leaf, subleaf.unwrap_or(u32::MAX)].into_iter().chain(*result);
        note.extend(words.flat_map(u32::to_le_bytes));
    }
    note.extend(crc32fast::hash(&note).to_le_bytes());
    note
}

fn from_note(note: &[u8], boot: &[u8]) -> Option<Vec<CpuidLeaf>> {
    let (note, sum) = note.split_last_chunk::<4>()?;
    let rows = note.strip_prefix(boot)?;
    let (rows, rest) = rows.as_chunks::<ROW>();
    if !rest.is_empty() || crc32fast::hash(note) != u32::from_le_bytes(*sum) {
        return None;
    }
    let row = |bytes: &[u8; ROW]| {
        let words = bytes.as_chunks::<4>().0;
        let word = |at: usize| u32::from_le_bytes(words[at]);
        let subleaf = Some(word(1)).filter(|subleaf| *subleaf != u32::MAX);
        CpuidLeaf { leaf: word(0), subleaf, result: [word(2), word(3), word(4), word(5)] }
    };
    Some(rows.iter().map(row).collect())
}

/// Whether rows are of the processor this thread runs on, by what tells one kind from another (kind and features, and the name), and
/// its number.
fn is_this_processor(rows: &[CpuidLeaf]) -> bool {
    let telling = [1, 7, 0x8000_0002, 0x8000_0003, 0x8000_0004];
    telling.into_iter().all(|leaf| {
        let row = rows.iter().find(|row| row.leaf == leaf && row.subleaf.is_none_or(|subleaf| subleaf == 0));
        row.is_none_or(|row| row.result == query(leaf, 0))
    })
}

/// The same, asked of the processor.
fn asked() -> Vec<CpuidLeaf> {
    let mut rows = Vec::new();
    for base in [0, 0x4000_0000, 0x8000_0000u32] {
        let last = query(base, 0)[0];
        let last = if (base..base + 0x100).contains(&last) { last } else { base };
        for leaf in base..=last {
            let result = query(leaf, 0);
            match subleaves(leaf, result) {
                None => rows.push(CpuidLeaf { leaf, subleaf: None, result }),
                Some(subleaves) => rows.extend(subleaves),
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
    fn notes_are_believed_while_the_processor_is_the_same() {
        let _pinned = crate::affinity::pin().expect("this thread may stay where it is");
        let rows = asked();
        let note = to_note(&rows, b"this run");
        assert_eq!(from_note(&note, b"this run").as_ref(), Some(&rows));
        assert_eq!(from_note(&note, b"that run"), None);
        for at in 0..note.len() {
            let mut other = note.clone();
            other[at] ^= 1;
            assert_eq!(from_note(&other, b"this run"), None, "byte {at}");
        }
        assert_eq!(from_note(&note[..note.len() - 1], b"this run"), None);
        assert!(is_this_processor(&rows));
        let mut other = rows;
        other.iter_mut().find(|row| row.leaf == 7).unwrap().result[1] ^= 1;
        assert!(!is_this_processor(&other));
    }

    #[test]
    fn the_table_is_what_the_processor_answers() {
        // Each has a number of its own.
        let _pinned = crate::affinity::pin().expect("this thread may stay where it is");
        // Both times: it is noted by then.
        table();
        let machine = Machine { cpuid: table(), ..Machine::default() };
        let last = query(0, 0)[0];
        let listed =
            (0..=last).chain([0x8000_001d]).flat_map(|leaf| (0..64).map(move |subleaf| (leaf, subleaf)));
        for (leaf, subleaf) in listed.chain([(0x8000_0002, 0), (0x8000_0004, 5)]) {
            assert_eq!(machine.cpuid(leaf, subleaf), Some(query(leaf, subleaf)), "{leaf:#x}/{subleaf}");
        }
    }
}
