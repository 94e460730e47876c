//! The seccomp filter of every tracee: each system call stops, except those made from the page of ours.
//!
//! Only builds the program; knows nothing of installing it.

use seccompiler::{BpfProgram, SeccompAction, sock_filter};

/// `seccomp_data.arch` of a 64-bit call.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// Data of the SIGSYS that a 32-bit call (`int 0x80`) raises, to tell it from the guest's own filters.
pub(crate) const FOREIGN_CALL: u16 = 0xb5;

// Offsets in `struct seccomp_data` and opcodes of classic BPF (`linux/seccomp.h`, `linux/filter.h`).
const ARCH: u32 = 4;
const POINTER_LOW: u32 = 8;
const POINTER_HIGH: u32 = 12;
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

const fn step(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The filter. `free` is the instruction pointer (past the `syscall` instruction) of the calls that do not stop.
pub(crate) fn program(free: u64) -> BpfProgram {
    vec![
        step(LOAD_WORD, ARCH, 0, 0),
        step(JUMP_EQUAL, AUDIT_ARCH_X86_64, 1, 0),
        step(RETURN, u32::from(SeccompAction::Trap) | FOREIGN_CALL as u32, 0, 0),
        step(LOAD_WORD, POINTER_LOW, 0, 0),
        step(JUMP_EQUAL, free as u32, 0, 3),
        step(LOAD_WORD, POINTER_HIGH, 0, 0),
        step(JUMP_EQUAL, (free >> 32) as u32, 0, 1),
        step(RETURN, u32::from(SeccompAction::Allow), 0, 0),
        step(RETURN, u32::from(SeccompAction::Trace(0)), 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn decide(program: &[sock_filter], arch: u32, pointer: u64) -> u32 {
        let (mut pc, mut acc) = (0, 0);
        loop {
            let at = &program[pc];
            pc += 1;
            match at.code {
                LOAD_WORD => {
                    acc = match at.k {
                        ARCH => arch,
                        POINTER_LOW => pointer as u32,
                        POINTER_HIGH => (pointer >> 32) as u32,
                        other => panic!("load of {other}"),
                    }
                }
                JUMP_EQUAL => pc += usize::from(if acc == at.k { at.jt } else { at.jf }),
                RETURN => return at.k,
                other => panic!("opcode {other:#x}"),
            }
        }
    }

    #[test]
    fn only_our_page_passes() {
        let free = 0x1_0002;
        let program = program(free);
        let trace = u32::from(SeccompAction::Trace(0));
        assert_eq!(decide(&program, AUDIT_ARCH_X86_64, free), u32::from(SeccompAction::Allow));
        assert_eq!(decide(&program, AUDIT_ARCH_X86_64, free + 1), trace);
        assert_eq!(decide(&program, AUDIT_ARCH_X86_64, free | 1 << 32), trace);
        assert_eq!(decide(&program, 0x4000_0003, free), u32::from(SeccompAction::Trap) | 0xb5);
    }
}
