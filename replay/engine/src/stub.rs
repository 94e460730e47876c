//! The program that the replaying process starts as: an ELF file of one page that holds a `syscall` instruction, and
//! the seccomp filter that stops every system call made from anywhere else. Bytes only; makes no system call.

/// Offset in the page of the instruction through which system calls are injected; an `int3` follows it.
pub(crate) const INJECT: u64 = 0x200;

/// Offset in the page of a lone `int3`, the entry point, never run.
const ENTRY: u64 = 0x210;

/// Size of the page, the file and its only segment.
const SIZE: usize = 4096;

/// The ELF file whose one page lies at `base`.
pub(crate) fn elf(base: u64) -> Vec<u8> {
    let mut file = Vec::with_capacity(SIZE);
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for half in [2u16, 62] {
        file.extend_from_slice(&half.to_le_bytes()); // ET_EXEC, EM_X86_64
    }
    file.extend_from_slice(&1u32.to_le_bytes());
    for word in [base + ENTRY, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes()); // entry, program headers, no section headers
    }
    file.extend_from_slice(&0u32.to_le_bytes());
    for half in [64u16, 56, 2, 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    segment(&mut file, 1, 5, base, SIZE as u64); // PT_LOAD, readable and executable
    segment(&mut file, 0x6474_e551, 6, 0, 0); // PT_GNU_STACK, readable and writable
    file.resize(SIZE, 0xcc);
    let inject = INJECT as usize;
    file[inject..inject + 3].copy_from_slice(&[0x0f, 0x05, 0xcc]);
    file
}

fn segment(file: &mut Vec<u8>, kind: u32, flags: u32, at: u64, size: u64) {
    file.extend_from_slice(&kind.to_le_bytes());
    file.extend_from_slice(&flags.to_le_bytes());
    for word in [0, at, at, size, size, 4096] {
        file.extend_from_slice(&word.to_le_bytes());
    }
}

/// A seccomp program (`struct sock_filter`, 8 bytes each, `include/uapi/linux/filter.h`) that allows calls from the page at
/// `base` and gives all others to the tracer. `base` lies below 4 GiB.
pub(crate) fn filter(base: u32) -> Vec<u8> {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JEQ: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const JGE: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RET: u16 = 0x06; // BPF_RET | BPF_K
    let trace = libc::SECCOMP_RET_TRACE;
    let allow = libc::SECCOMP_RET_ALLOW;
    let rows: [(u16, u8, u8, u32); 7] = [
        (LOAD, 0, 0, 12), // high half of the instruction pointer
        (JEQ, 0, 3, 0),
        (LOAD, 0, 0, 8), // low half
        (JGE, 0, 1, base),
        (JGE, 0, 1, base + SIZE as u32),
        (RET, 0, 0, trace),
        (RET, 0, 0, allow),
    ];
    let mut program = Vec::with_capacity(rows.len() * 8);
    for (code, yes, no, k) in rows {
        program.extend_from_slice(&code.to_le_bytes());
        program.extend_from_slice(&[yes, no]);
        program.extend_from_slice(&k.to_le_bytes());
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_one_page_and_has_its_call_where_it_says() {
        let file = elf(0x20000);
        assert_eq!(file.len(), SIZE);
        assert_eq!(file[INJECT as usize..][..3], [0x0f, 0x05, 0xcc]);
        assert_eq!(file[24..32], 0x20210u64.to_le_bytes());
        assert_eq!(file[54..56], 56u16.to_le_bytes());
    }

    #[test]
    fn the_filter_runs_as_meant() {
        // An interpreter for the four instructions used.
        let program = filter(0x20000);
        let run = |ip: u64| {
            let mut at = 0;
            let mut acc = 0u32;
            loop {
                let row = &program[at * 8..][..8];
                let k = u32::from_le_bytes(row[4..8].try_into().unwrap());
                at += 1;
                match row[0] {
                    0x20 => acc = if k == 12 { (ip >> 32) as u32 } else { ip as u32 },
                    0x15 => at += usize::from(if acc == k { row[2] } else { row[3] }),
                    0x35 => at += usize::from(if acc >= k { row[2] } else { row[3] }),
                    _ => return k == libc::SECCOMP_RET_ALLOW,
                }
            }
        };
        for (ip, allowed) in [
            (0x20202, true),
            (0x20000, true),
            (0x1ffff, false),
            (0x21000, false),
            (0x1_0002_0202, false),
            (0, false),
        ] {
            assert_eq!(run(ip), allowed, "{ip:#x}");
        }
    }
}
