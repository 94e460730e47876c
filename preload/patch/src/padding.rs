//! Bytes that nothing runs: what fills the space between a function's end and the next function, or before a loop's head.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, Mnemonic};

use crate::decode::{Surroundings, Sweep};
use crate::text::Mapped;

/// Encodings of `nop` that compilers, assemblers and linkers fill space with, without the prefixes that lengthen them.
const NOPS: [&[u8]; 7] = [
    &[0x90],
    &[0x0F, 0x1F, 0x00],
    &[0x0F, 0x1F, 0x40, 0x00],
    &[0x0F, 0x1F, 0x44, 0x00, 0x00],
    &[0x0F, 0x1F, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0F, 0x1F, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0xCC],
];

/// Whether padding probably ends at an address: a long `nop`, or a short one after what looks like a return.
pub(crate) fn ends_at(code: Mapped<'_>, at: u64) -> bool {
    NOPS.iter().any(|nop| {
        let start = at.wrapping_sub(nop.len() as u64);
        if code.bytes(start..at) != Some(nop) {
            return false;
        }
        let before = start.checked_sub(1).and_then(|before| code.byte(before));
        nop.len() >= 3 || matches!(before, Some(0xC3 | 0x90 | 0x66 | 0xCC))
    })
}

/// Whether what follows an instruction is not reached from it. (After `int3` a debugger or a handler may go on, so it is
/// padding, but does not begin any.)
pub(crate) fn is_end(step: &Instruction) -> bool {
    match step.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return => true,
        FlowControl::Exception => step.mnemonic() == Mnemonic::Ud2,
        _ => step.code() == Code::Hlt,
    }
}

/// The length of the piece of padding at an address: `nop` of any length, or `int3`.
pub(crate) fn piece(sweep: &mut Sweep<'_>, at: u64) -> Option<u64> {
    let step = sweep.decode(at)?;
    matches!(step.mnemonic(), Mnemonic::Nop | Mnemonic::Int3).then_some(step.len() as u64)
}

/// The padding that follows ends of control flow among the believed instructions, in order.
pub(crate) fn runs(sweep: &mut Sweep<'_>, around: &Surroundings) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    for step in around.all().iter().filter(|step| is_end(step)) {
        let start = step.next_ip();
        let end = run_end(sweep, start);
        if end > start {
            runs.push(start..end);
        }
    }
    runs
}

/// The end of the padding that begins at an address; that address if none does.
pub(crate) fn run_end(sweep: &mut Sweep<'_>, start: u64) -> u64 {
    let mut at = start;
    while let Some(len) = piece(sweep, at) {
        at += len;
    }
    at
}
