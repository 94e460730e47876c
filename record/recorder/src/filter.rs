//! The seccomp filter of every tracee: each system call stops, by `int 0x80` too, except those made from the page of ours, and by the buffer.
//!
//! A stopped call whose number becomes one of [`Ends`], as if made from that page, ends as a filter of the guest's would have
//! it: the kernel asks the filter again after the stop. Only builds the program; knows nothing of installing it.

use seccompiler::{BpfProgram, SeccompAction, sock_filter};

/// `seccomp_data.arch` of a 64-bit call.
pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// That of a 32-bit one.
pub(crate) const AUDIT_ARCH_I386: u32 = 0x4000_0003;

/// What the stop at a 32-bit call (`int 0x80`) tells, to tell it from others.
pub(crate) const FOREIGN_CALL: u32 = 0xb5;

/// How a call may be made to end. The values are numbers of no call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Ends {
    /// With a SIGSYS.
    Trap = 0x3fff_ff01,
    /// With the end of its thread.
    Thread = 0x3fff_ff02,
    /// With the end of its process.
    Process = 0x3fff_ff03,
}

// Offsets in `struct seccomp_data` and opcodes of classic BPF (`linux/seccomp.h`, `linux/filter.h`).
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const POINTER_LOW: u32 = 8;
const POINTER_HIGH: u32 = 12;
const SECOND_ARGUMENT: u32 = 24;
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_EQUAL_X: u16 = 0x1d;
const TO_X: u16 = 0x07;
const RETURN: u16 = 0x06;

const fn step(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The filter. `free` and `buffered` are the instruction pointers (past the `syscall` instruction) of the calls that do not stop; those at
/// `free` may be made to end.
pub(crate) fn program(free: u32, buffered: u32) -> BpfProgram {
    let gives = |action: SeccompAction| step(RETURN, u32::from(action), 0, 0);
    vec![
        step(LOAD_WORD, ARCH, 0, 0),
        step(JUMP_EQUAL, AUDIT_ARCH_X86_64, 6, 0),
        // Were ecx what `syscall` leaves in rcx, the stop would not show which it was.
        step(LOAD_WORD, SECOND_ARGUMENT, 0, 0),
        step(TO_X, 0, 0, 0),
        step(LOAD_WORD, POINTER_LOW, 0, 0),
        step(JUMP_EQUAL_X, 0, 0, 1),
        step(RETURN, u32::from(SeccompAction::Trap) | FOREIGN_CALL, 0, 0),
        gives(SeccompAction::Trace(FOREIGN_CALL)),
        step(LOAD_WORD, POINTER_HIGH, 0, 0),
        step(JUMP_EQUAL, 0, 0, 3),
        step(LOAD_WORD, POINTER_LOW, 0, 0),
        step(JUMP_EQUAL, buffered, 6, 0),
        step(JUMP_EQUAL, free, 1, 0),
        gives(SeccompAction::Trace(0)),
        step(LOAD_WORD, NUMBER, 0, 0),
        step(JUMP_EQUAL, Ends::Trap as u32, 3, 0),
        step(JUMP_EQUAL, Ends::Thread as u32, 3, 0),
        step(JUMP_EQUAL, Ends::Process as u32, 3, 0),
        gives(SeccompAction::Allow),
        gives(SeccompAction::Trap),
        gives(SeccompAction::KillThread),
        gives(SeccompAction::KillProcess),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{CallData, Program};

    #[track_caller]
    fn check(call: (u32, u32, u64), expected: u32) {
        check_with(0, call, expected);
    }

    #[track_caller]
    fn check_with(second: u64, (nr, arch, pointer): (u32, u32, u64), expected: u32) {
        let data = CallData::new(nr, arch, pointer, &[0, second, 0, 0, 0, 0]);
        let program = Program::checked(program(FREE as u32, BUFFERED as u32))
            .expect("a program that the kernel accepts");
        assert_eq!(program.run(&data), expected, "{nr:#x} {arch:#x} {pointer:#x}");
    }

    const FREE: u64 = 0x1_0002;
    const BUFFERED: u64 = 0x1_1080;

    #[test]
    fn only_our_page_passes() {
        let trace = u32::from(SeccompAction::Trace(0));
        check((39, AUDIT_ARCH_X86_64, FREE), u32::from(SeccompAction::Allow));
        check((39, AUDIT_ARCH_X86_64, BUFFERED), u32::from(SeccompAction::Allow));
        check((39, AUDIT_ARCH_X86_64, BUFFERED | 1 << 32), trace);
        check((39, AUDIT_ARCH_X86_64, FREE + 1), trace);
        check((39, AUDIT_ARCH_X86_64, FREE | 1 << 32), trace);
    }

    #[test]
    fn narrow_calls_stop_in_their_own_way() {
        let stop = u32::from(SeccompAction::Trace(FOREIGN_CALL));
        let trap = u32::from(SeccompAction::Trap) | FOREIGN_CALL;
        check((39, AUDIT_ARCH_I386, FREE), stop);
        check_with(7, (39, AUDIT_ARCH_I386, FREE), stop);
        check_with(FREE, (39, AUDIT_ARCH_I386, FREE), trap);
        check_with(FREE, (39, AUDIT_ARCH_I386, FREE | 1 << 32), trap);
    }

    #[test]
    fn calls_end_as_asked_from_our_page_alone() {
        for (ends, action) in [
            (Ends::Trap, SeccompAction::Trap),
            (Ends::Thread, SeccompAction::KillThread),
            (Ends::Process, SeccompAction::KillProcess),
        ] {
            check((ends as u32, AUDIT_ARCH_X86_64, FREE), u32::from(action));
            check((ends as u32, AUDIT_ARCH_X86_64, BUFFERED), u32::from(SeccompAction::Allow));
            check((ends as u32, AUDIT_ARCH_X86_64, 0x40_0000), u32::from(SeccompAction::Trace(0)));
        }
    }
}
