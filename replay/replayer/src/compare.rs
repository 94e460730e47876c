//! Registers against registers. Pure.

use guest::{RegisterName, Registers};
use trace::Stop;

use crate::error::RegisterDifference;

/// Flags that the hardware and tracers set for themselves: TF and RF.
const NOT_THE_GUESTS: u64 = 1 << 8 | 1 << 16;
/// The arithmetic flags: CF, PF, AF, ZF, SF, OF.
const ARITHMETIC: u64 = 0x8d5;

/// The registers that differ, among those that can be compared at `stop`. `exact_flags`: whether arithmetic flags at a
/// fault are the guest's (they may be wrong where they are dead).
pub(crate) fn differences(
    expected: &Registers,
    actual: &Registers,
    stop: Stop,
    exact_flags: bool,
) -> Vec<RegisterDifference> {
    let (want, have) = (normal(expected, stop, exact_flags), normal(actual, stop, exact_flags));
    if want == have {
        return Vec::new();
    }
    let pairs = want.to_words().into_iter().zip(have.to_words()).enumerate();
    pairs
        .filter(|(_, (want, have))| want != have)
        .map(|(i, (expected, actual))| RegisterDifference { register: RegisterName(i), expected, actual })
        .collect()
}

/// The registers at a call that was made without a stop: what was noted of them, `count` arguments among that; else those there are.
pub(crate) fn noted_at_call(noted: &Registers, actual: &Registers, count: u8) -> Registers {
    let mut args = actual.syscall_args();
    for (arg, noted) in args.iter_mut().zip(noted.syscall_args()).take(usize::from(count)) {
        *arg = noted;
    }
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    Registers { rip: noted.rip, rax: noted.rax, rdi, rsi, rdx, r10, r8, r9, ..*actual }
}

/// The registers without what cannot be compared.
fn normal(regs: &Registers, stop: Stop, exact_flags: bool) -> Registers {
    let mut out = Registers { orig_rax: 0, eflags: regs.eflags & !NOT_THE_GUESTS, ..*regs };
    if regs.pc().is_vsyscall_entry() {
        // The kernel puts its own numbers there before a tracer sees the call.
        out.rax = 0;
    }
    match stop {
        // The kernel looks at the low half of the number only, and that is what is recorded.
        Stop::Syscall | Stop::Buffered => (out.rcx, out.r11, out.rax) = (0, 0, out.rax & 0xffff_ffff),
        Stop::Narrow => out.rax &= 0xffff_ffff,
        Stop::Fault if !exact_flags => out.eflags &= !ARITHMETIC,
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_call_made_without_a_stop_the_arguments_it_has_are_compared() {
        let noted = Registers { rip: 7, rax: 1, rdi: 3, ..Registers::default() };
        let actual = Registers { rbx: 9, rsi: 8, rcx: 5, rax: 1 << 32 | 1, ..noted };
        let compared = |actual: &Registers, count| {
            differences(&noted_at_call(&noted, actual, count), actual, Stop::Buffered, true).len()
        };
        assert_eq!(compared(&actual, 1), 0);
        assert_eq!(compared(&actual, 2), 1);
        assert_eq!(compared(&Registers { rdi: 4, rip: 6, ..actual }, 1), 2);
    }

    #[test]
    fn only_what_can_be_compared_is() {
        let a = Registers { rcx: 1, r11: 2, orig_rax: 3, eflags: 0x246, rax: 9, ..Registers::default() };
        let b = Registers { eflags: 0x10346, rax: 9, ..Registers::default() };
        assert!(differences(&a, &b, Stop::Syscall, true).is_empty());
        assert_eq!(differences(&a, &b, Stop::None, true).len(), 2);
        let c = Registers { eflags: 0x202, rax: 8, ..b };
        assert_eq!(differences(&b, &c, Stop::Fault, false).len(), 1);
        assert_eq!(differences(&b, &c, Stop::Fault, true).len(), 2);
        let [call, other] =
            [a, c].map(|regs| Registers { rip: 0xffff_ffff_ff60_0400, eflags: 0x246, ..regs });
        assert!(differences(&call, &other, Stop::Syscall, true).is_empty());
    }
}
