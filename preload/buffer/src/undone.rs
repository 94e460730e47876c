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
    let mut used = now;
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
