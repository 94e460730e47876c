//! The instruction counter at a block's entry, the count of conditional branches, and the check of a block's own source bytes.

use std::mem::offset_of;

use guest::{GuestAddr, GuestRange};

use crate::block::{ExitKind, Spilled};
use crate::class::Kind;
use crate::emit::{Mem, RCX, RDX};
use crate::flags;
use crate::generate::Generator;
use crate::layout::EnginePage;
use crate::observe::Observer;
use crate::plan::{End, Plan, Step, Through};
use crate::request::{Branches, Request};

/// How a block counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counting {
    /// At entry, by `sub` and a jump on its sign.
    Entry,
    /// At entry, leaving flags alone.
    EntryKeepingFlags,
    /// The budget is compared at entry; each way out subtracts what has run: on the longest path by `sub` before step
    /// `at`, or, where there is none, at its end without touching flags.
    Exits { at: Option<usize> },
}

impl Generator<'_> {
    /// Subtracts the block's instructions from the budget, or leaves when there are fewer; or only the latter.
    pub(crate) fn count(&mut self, plan: &Plan) {
        if plan.steps.is_empty() {
            return;
        }
        let last_side = plan.steps.iter().rposition(|step| step.through.is_side());
        let keeps = self.request.mode.exact();
        let dead = !keeps && flags_are_dead(self.request, plan, 0, &mut self.looked_at);
        let Some(last_side) = last_side else {
            self.counting = if dead { Counting::Entry } else { Counting::EntryKeepingFlags };
            return self.count_at_entry(plan, dead);
        };
        // After the last step only where no branch is to follow.
        let ends = plan.steps.len() + usize::from(plan.end != End::Branch);
        let mut after = last_side + 1..ends;
        let at = if keeps {
            None
        } else {
            after.find(|&p| flags_are_dead(self.request, plan, p, &mut self.looked_at))
        };
        self.counting = Counting::Exits { at };
        self.idle = plan.idle(self.observer.as_ref().map_or(0, Observer::scratch));
        let away = self.spilled.contains(RCX);
        let out = self.cold.here();
        if away && dead {
            let slot = self.spill_slot(RCX);
            self.cold.load(RCX, slot);
        }
        self.exit_here(ExitKind::Budget, self.request.pc);
        let counter = self.counter();
        if dead {
            self.arithmetic(false, 7, counter, self.longest);
            self.hot.jump_if(0xC, out);
            self.true_flags = 0;
        } else {
            if !away {
                self.spill(RCX);
            }
            self.hot.load(RCX, counter);
            self.hot.lea(RCX, Mem::at(RCX, -(self.longest as i32)));
            self.jump_over_if_positive();
            // The stub takes rcx as it is in place.
            let restore = self.cold.here();
            let slot = self.spill_slot(RCX);
            self.cold.load(RCX, slot);
            self.cold.jump(out);
            self.hot.jump(restore);
        }
        self.bring_back_rcx();
    }

    fn counter(&self) -> Mem {
        self.page(offset_of!(EnginePage, counter))
    }

    fn count_at_entry(&mut self, plan: &Plan, dead: bool) {
        if dead {
            self.count_with_flags();
            self.bring_back_rcx();
        } else {
            self.count_without_flags();
            // Once in the engine page, the guest's rcx may stay there for an indirect branch.
            if !plan.leaves_rcx_alone() {
                self.bring_back_rcx();
            }
        }
        self.subtracted = self.longest;
    }

    /// After counting at entry: the guest's rcx into its place, unless it is to stay in the engine page.
    fn bring_back_rcx(&mut self) {
        if !self.keeps_rcx_away && self.spilled.contains(RCX) {
            self.unspill(RCX);
        }
    }

    /// `sub [counter], n; js out`
    fn count_with_flags(&mut self) {
        let counter = self.counter();
        let n = self.longest;
        self.arithmetic(false, 5, counter, n);
        let out = self.cold.here();
        self.hot.jump_if(8, out);
        self.arithmetic(true, 0, counter, n);
        if self.spilled.contains(RCX) {
            let slot = self.spill_slot(RCX);
            self.cold.load(RCX, slot);
        }
        self.exit_here(ExitKind::Budget, self.request.pc);
        self.true_flags = 0;
    }

    /// `op qword [mem], n`
    fn arithmetic(&mut self, cold: bool, op: u8, mem: Mem, n: u32) {
        let asm = if cold { &mut self.cold } else { &mut self.hot };
        if n < 128 {
            asm.mem(true, false, &[0x83], op, mem, 1);
            asm.raw(&[n as u8]);
        } else {
            asm.mem(true, false, &[0x81], op, mem, 4);
            asm.u32(n);
        }
    }

    /// Jumps over a 5-byte jump unless rcx, a budget or a little less than 0, is negative. Destroys rcx.
    fn jump_over_if_positive(&mut self) {
        self.hot.raw(&[0x48, 0x0F, 0xC9]); // bswap rcx: the highest byte comes down
        self.hot.raw(&[0x0F, 0xB6, 0xC9]); // movzx ecx, cl
        self.hot.raw(&[0xE3, 5]); // jrcxz
    }

    /// The same by `lea`.
    fn count_without_flags(&mut self) {
        let counter = self.counter();
        let slot = self.spill_slot(RCX);
        let n = self.longest as i32;
        if !self.spilled.contains(RCX) {
            self.spill(RCX);
        }
        self.hot.load(RCX, counter);
        self.hot.lea(RCX, Mem::at(RCX, -n));
        self.hot.store(counter, RCX);
        self.jump_over_if_positive();
        let out = self.cold.here();
        self.hot.jump(out);
        self.cold.load(RCX, counter);
        self.cold.lea(RCX, Mem::at(RCX, n));
        self.cold.store(counter, RCX);
        self.cold.load(RCX, slot);
        self.exit_here(ExitKind::Budget, self.request.pc);
    }

    /// Before step `position` of the longest path: counts here if this is the place.
    pub(crate) fn count_before(&mut self, position: usize) {
        if self.counting == (Counting::Exits { at: Some(position) }) {
            self.subtract_clobbering(self.longest);
            self.subtracted = self.longest;
        }
    }

    /// At the end of the longest path, or before the branch that ends it: counts if that has not been done.
    pub(crate) fn count_at_end(&mut self) {
        if self.subtracted != 0 {
            return;
        }
        match self.counting {
            Counting::Exits { at: Some(_) } => self.subtract_clobbering(self.longest),
            Counting::Exits { at: None } => self.subtract_keeping_flags(self.longest),
            _ => return,
        }
        self.subtracted = self.longest;
    }

    /// On the way to `to` out of the block's side, `self.retired` instructions having run.
    pub(crate) fn count_on_side(&mut self, to: GuestAddr) {
        let n = self.retired;
        let dead = !self.request.mode.exact()
            && flags::dead_at(self.request, to, flags::ARITHMETIC, &mut self.looked_at);
        if dead {
            self.subtract_clobbering(n);
        } else {
            self.subtract_keeping_flags(n);
        }
    }

    fn subtract_clobbering(&mut self, n: u32) {
        let counter = self.counter();
        self.arithmetic(false, 5, counter, n);
        self.true_flags = 0;
    }

    fn subtract_keeping_flags(&mut self, n: u32) {
        let counter = self.counter();
        // A register that is not in use here: going through memory delays what waits for it. Best is one that is in
        // memory.
        let is_free = self.spilled.contains(RCX);
        let scratch = if is_free { RCX } else { self.idle };
        if !is_free {
            self.spill(scratch);
        }
        self.hot.load(scratch, counter);
        self.hot.lea(scratch, Mem::at(scratch, -(n as i32)));
        self.hot.store(counter, scratch);
        if !is_free {
            self.unspill(scratch);
        }
    }

    /// Just before a conditional branch: counts it, if it is to be, without touching flags. At the branch itself, unlike instructions,
    /// as nothing between here and it can leave the block: so the count needs no correction anywhere.
    pub(crate) fn count_branch(&mut self, step: &Step) {
        let counted = match self.request.branches {
            Branches::Uncounted => false,
            Branches::Jcc => step.kind == Kind::Conditional,
            Branches::All => true,
        };
        if !counted {
            return;
        }
        let count = self.page(offset_of!(EnginePage, branches));
        let is_free = self.spilled.contains(RCX);
        if !is_free {
            self.spill(RCX);
        }
        self.hot.load(RCX, count);
        self.hot.lea(RCX, Mem::at(RCX, 1));
        self.hot.store(count, RCX);
        if !is_free {
            self.unspill(RCX);
        }
    }

    /// Compares the block's source bytes with what was translated, without touching flags.
    pub(crate) fn check_sources(&mut self, plan: &Plan) {
        let Some(range) = plan.sources.first().filter(|range| !range.is_empty()) else { return };
        let bytes = self.request.code.shown(range.start);
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

/// Whether the guest cannot see the arithmetic flags that are there before step `from`.
fn flags_are_dead(request: &Request<'_>, plan: &Plan, from: usize, seen: &mut Vec<GuestRange>) -> bool {
    let mut live = flags::ARITHMETIC;
    for (ahead, step) in plan.steps[from..].iter().enumerate() {
        // A comparison comes before any counting at its instruction.
        if ahead > 0 && request.searches(step.pc) {
            return false;
        }
        let effect = flags::effect(&step.instr);
        if effect.reads & live != 0 {
            return false;
        }
        live &= !effect.kills;
        if live == 0 {
            return true;
        }
        let leaves_for = match step.through {
            Through::SideIf => step.target(),
            Through::SideIfNot => step.next(),
            _ => continue,
        };
        if !flags::dead_at(request, leaves_for, live, seen) {
            return false;
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
