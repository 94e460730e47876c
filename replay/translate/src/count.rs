//! The instruction counter at a block's entry, and the check of a block's own source bytes.

use std::mem::offset_of;

use guest::GuestRange;

use crate::block::{ExitKind, Spilled};
use crate::class::Kind;
use crate::emit::{Mem, RCX, RDX};
use crate::flags;
use crate::generate::Generator;
use crate::layout::EnginePage;
use crate::plan::{End, Plan};
use crate::request::Request;

impl Generator<'_> {
    /// Subtracts the block's instructions from the budget, or leaves when there are fewer.
    pub(crate) fn count(&mut self, plan: &Plan) {
        if self.counted == 0 {
            return;
        }
        if !self.request.mode.exact() && flags_are_dead(self.request, plan, &mut self.looked_at) {
            self.count_with_flags();
        } else {
            self.count_without_flags();
        }
    }

    /// `sub [counter], n; js out`
    fn count_with_flags(&mut self) {
        let counter = self.page(offset_of!(EnginePage, counter));
        let n = self.counted;
        self.arithmetic(false, 5, counter, n);
        let out = self.cold.here();
        self.hot.jump_if(8, out);
        self.arithmetic(true, 0, counter, n);
        self.exit_here(ExitKind::Budget, self.request.pc);
        self.true_flags = 0;
    }

    /// `op qword [mem], n`
    fn arithmetic(&mut self, cold: bool, op: u8, mem: Mem, n: u32) {
        let asm = if cold { &mut self.cold } else { &mut self.hot };
        if n < 128 {
            asm.mem(&[], true, false, &[0x83], op, mem, 1);
            asm.raw(&[n as u8]);
        } else {
            asm.mem(&[], true, false, &[0x81], op, mem, 4);
            asm.u32(n);
        }
    }

    /// The same by `lea`; the counter's high half tells its sign, as budgets have 32 bits.
    fn count_without_flags(&mut self) {
        let counter = self.page(offset_of!(EnginePage, counter));
        let high = self.page(offset_of!(EnginePage, counter) + 4);
        let slot = self.spill_slot(RCX);
        let n = self.counted as i32;
        self.spill(RCX);
        self.hot.load(RCX, counter);
        self.hot.lea(RCX, Mem::at(RCX, -n));
        self.hot.store(counter, RCX);
        self.hot.load32(RCX, high);
        self.hot.raw(&[0xE3, 5]); // jrcxz over the jump
        let out = self.cold.here();
        self.hot.jump(out);
        self.unspill(RCX);
        self.cold.load(RCX, counter);
        self.cold.lea(RCX, Mem::at(RCX, n));
        self.cold.store(counter, RCX);
        self.cold.load(RCX, slot);
        self.exit_here(ExitKind::Budget, self.request.pc);
    }

    /// Compares the block's source bytes with what was translated, without touching flags.
    pub(crate) fn check_sources(&mut self, plan: &Plan) {
        let Some(range) = plan.sources.first().filter(|range| !range.is_empty()) else { return };
        let bytes = self.request.code.bytes(range.start);
        let bytes = &bytes[..bytes.len().min(range.len() as usize)];
        let (rcx, rdx) = (self.spill_slot(RCX), self.spill_slot(RDX));
        let out = self.cold.here();
        self.cold.load(RCX, rcx);
        self.cold.load(RDX, rdx);
        self.exit_here(ExitKind::Stale, self.request.pc);
        self.spill(RCX);
        self.spill(RDX);
        let mut at = range.start.0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let here = Mem::rip(at);
            let (size, value) = match rest {
                [a, b, c, d, e, f, g, h, ..] => (8, u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])),
                [a, b, c, d, ..] => (4, u64::from(u32::from_le_bytes([*a, *b, *c, *d]))),
                [a, b, ..] => (2, u64::from(u16::from_le_bytes([*a, *b]))),
                _ => (1, u64::from(rest[0])),
            };
            match size {
                8 => self.hot.load(RCX, here),
                4 => self.hot.load32(RCX, here),
                2 => self.hot.load16(RCX, here),
                _ => self.hot.load8(RCX, here),
            }
            self.hot.set(RDX, value.wrapping_neg());
            self.hot.raw(&[0x48, 0x8D, 0x0C, 0x11]); // lea rcx, [rcx + rdx]
            self.hot.raw(&[0xE3, 5]); // jrcxz over the jump
            self.hot.jump(out);
            at = at.wrapping_add(size as u64);
            rest = &rest[size..];
        }
        self.unspill(RDX);
        self.unspill(RCX);
        debug_assert_eq!(self.spilled, Spilled::default());
    }
}

/// Whether the guest cannot see the arithmetic flags that the block is entered with.
fn flags_are_dead(request: &Request<'_>, plan: &Plan, seen: &mut Vec<GuestRange>) -> bool {
    let mut live = flags::ARITHMETIC;
    for step in &plan.steps {
        let effect = flags::effect(&step.instr);
        if effect.reads & live != 0 {
            return false;
        }
        live &= !effect.kills;
        if live == 0 {
            return true;
        }
    }
    let limited = request.limit.is_some_and(|limit| limit.get() as usize == plan.steps.len());
    // A block that checks its own source does not check what follows.
    if limited || request.self_check {
        return false;
    }
    match (plan.end, plan.steps.last()) {
        (End::Fall(to) | End::Bulk(to), _) => flags::dead_at(request, to, live, seen),
        (End::Branch, Some(last)) => match last.kind {
            Kind::Jump | Kind::Call => flags::dead_at(request, last.target(), live, seen),
            Kind::Conditional | Kind::Loop => {
                flags::dead_at(request, last.target(), live, seen)
                    && flags::dead_at(request, last.next(), live, seen)
            }
            _ => false,
        },
        _ => false,
    }
}
