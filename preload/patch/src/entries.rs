//! What enters a range of code: branches, and what the caller knows.

use std::ops::Range;

use crate::addr::CodeAddr;
use crate::decode::Surroundings;
use crate::text::Mapped;

/// How far a branch with an 8-bit displacement reaches, its own length included.
const SHORT: u64 = 130;

/// The first address in `range` to which something may jump.
pub(crate) fn first_entry(
    code: Mapped<'_>,
    around: &Surroundings,
    known: &[CodeAddr],
    range: Range<u64>,
) -> Option<CodeAddr> {
    let known = known.get(known.partition_point(|at| at.0 < range.start)).map(|at| at.0);
    let long = range.clone().find(|&at| code.is_entered(at));
    let decoded = around.targets().iter().copied();
    // Where instructions are not known, every place may hold one.
    let undecoded = (range.start.saturating_sub(SHORT)..around.start())
        .chain(around.end()..range.end + SHORT)
        .filter_map(|at| short_target(code, at));
    let all = known.into_iter().chain(long).chain(decoded).chain(undecoded);
    all.filter(|at| range.contains(at)).min().map(CodeAddr)
}

/// Where the short branch leads that begins at `at`, if one does.
fn short_target(code: Mapped<'_>, at: u64) -> Option<u64> {
    let &[opcode, displacement] = code.bytes(at..at + 2)? else { return None };
    matches!(opcode, 0x70..=0x7F | 0xEB | 0xE0..=0xE3)
        .then(|| (at + 2).wrapping_add_signed(i64::from(displacement as i8)))
}
