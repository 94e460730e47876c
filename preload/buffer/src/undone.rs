//! What a task was about to do, or has done, that stands in the code and will not go on: it was killed there.

use abi::buffer::{CODE, HEAD, RING, STACK_POINTER, STACK_TOP};
use abi::calls;

/// Registers that the code uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// The number of the call.
    pub rax: u64,
    /// Its arguments.
    pub args: [u64; 6],
    /// And the others.
    pub rbx: u64,
    /// As above.
    pub rbp: u64,
    /// As above.
    pub r12: u64,
    /// As above. Where a call is made, of no account.
    pub rcx: u64,
    /// Likewise.
    pub r11: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The flags.
    pub eflags: u64,
}

/// Where a task stands, as far as its program is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// At the call, with these registers: whatever it did already is not noted.
    AtCall(Used),
    /// At an instruction that reads the time stamp counter, likewise.
    AtReading(Used),
    /// Behind it: it is noted.
    Behind,
}

/// Where a task stands whose pc is in the code. `now` are its registers, `word` reads memory of its space. `None` if the pc is not there, or
/// memory cannot be read.
pub fn standing(pc: u64, now: Used, word: impl Fn(u64) -> Option<u64>) -> Option<Standing> {
    let steps = crate::steps();
    let at = pc.checked_sub(CODE).filter(|at| *at < steps.end)?;
    if (steps.noted..steps.forms).contains(&at) {
        return Some(Standing::Behind);
    }
    // What lies in the code for calls belongs to a reading where a clock is asked for.
    let asks_clock = (steps.headed..steps.made).contains(&at) || (steps.forms..steps.left).contains(&at);
    if at >= steps.reads || asks_clock && now.rbp == crate::CLOCK_READ {
        return standing_at_reading(at, &steps, now, word);
    }
    let mut used = Used { rcx: 0, r11: 0, ..now };
    // The code's own stack holds, from its end on, the flags and what it uses; also the first two arguments, for a while.
    let on_it = STACK_TOP.checked_sub(now.rsp).filter(|depth| *depth <= 6 * 8);
    if let Some(depth) = on_it {
        used.rsp = word(STACK_POINTER)?;
        let [rdi, rsi, ..] = &mut used.args;
        let saved = [&mut used.eflags, &mut used.rbx, &mut used.rbp, &mut used.r12, rdi, rsi];
        for (place, to) in (1..=depth / 8).zip(saved) {
            *to = word(STACK_TOP - place * 8)?;
        }
    }
    if (steps.stored..steps.left).contains(&at) {
        let noted = RING + (word(HEAD)? & 0xffff_ffff);
        if !(steps.made..steps.noted).contains(&at) {
            for (at, arg) in (noted + calls::HEAD as u64..).step_by(8).zip(&mut used.args) {
                *arg = word(at)?;
            }
        }
        if at >= steps.headed {
            used.rax = word(noted)? & 0xffff;
        }
    }
    Some(Standing::AtCall(used))
}

/// The same where the time stamp counter is read. The code's own stack holds the flags, which instruction it is, and what it uses.
fn standing_at_reading(
    at: u64,
    steps: &crate::Steps,
    now: Used,
    word: impl Fn(u64) -> Option<u64>,
) -> Option<Standing> {
    if (steps.told..steps.cannot_tell).contains(&at) {
        return Some(Standing::Behind);
    }
    let mut used = now;
    if let Some(depth) = STACK_TOP.checked_sub(now.rsp).filter(|depth| *depth <= 9 * 8) {
        used.rsp = word(STACK_POINTER)?;
        let Used { eflags, rcx, rax, args: [rdi, rsi, rdx, ..], r11, rbp, .. } = &mut used;
        let mut which = 0;
        let saved = [eflags, &mut which, rcx, rax, rdx, rsi, rdi, r11, rbp];
        for (place, to) in (1..=depth / 8).zip(saved) {
            *to = word(STACK_TOP - place * 8)?;
        }
    }
    Some(Standing::AtReading(used))
}
