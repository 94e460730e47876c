//! Branches at the end of a block. Direct ones are linked; indirect ones jump through the lookup table; calls push
//! the guest's return address by one 8-byte store.

use std::mem::offset_of;

use iced_x86::OpKind;

use crate::block::{Indirect, Mark};
use crate::class::Kind;
use crate::emit::{Mem, RAX, RCX, RSP, gpr};
use crate::flags::ARITHMETIC;
use crate::generate::Generator;
use crate::layout::EnginePage;
use crate::plan::Step;

const MOVZX_ECX_CX: [u8; 3] = [0x0F, 0xB7, 0xC9];

/// Whether the target of an indirect branch is found by rcx.
fn names_rcx(step: &Step) -> bool {
    let instr = &step.instr;
    [instr.op0_register(), instr.memory_base(), instr.memory_index()]
        .into_iter()
        .any(|reg| gpr(reg) == Some(RCX))
}

impl Generator<'_> {
    /// The block's last step, a branch.
    pub(crate) fn branch(&mut self, step: &Step) {
        if step.is_indirect() && !names_rcx(step) {
            self.free_rcx(step);
        }
        self.count_at_end();
        if !step.is_indirect() {
            self.give_rcx_back();
        }
        self.mark(step.pc);
        match step.kind {
            Kind::Jump => {
                self.retire(step);
                self.end_record(0);
                self.jump_to(step.target());
            }
            Kind::Transaction(_) => {
                // An abort with status 0: nothing is known, and no retry is worth while.
                self.hot.set(RAX, 0);
                self.retire(step);
                self.end_record(0);
                self.jump_to(step.target());
            }
            Kind::Conditional => {
                self.count_branch(step);
                self.retire(step);
                self.end_record(0);
                let condition = step.instr.condition_code() as u8 - 1;
                let taken = self.way_to(step.target());
                let site = self.hot.jump_if(condition, taken.stub);
                self.note(taken, site);
                self.jump_to(step.next());
            }
            Kind::Loop => self.loop_branch(step),
            Kind::Call => {
                self.push_return(step);
                self.end_record(0);
                self.jump_to(step.target());
            }
            Kind::CallIndirect => {
                self.load_target(step);
                let target = self.page(offset_of!(EnginePage, indirect_target));
                let below = self.page(offset_of!(EnginePage, below_stack));
                self.hot.store(target, RCX);
                self.hot.load(RCX, Mem::at(RSP, -8));
                self.hot.store(below, RCX);
                self.push_return(step);
                self.hot.load16(RCX, target);
                self.end_record(0);
                self.dispatch(step, 8);
            }
            Kind::JumpIndirect => {
                self.load_target(step);
                let target = self.page(offset_of!(EnginePage, indirect_target));
                self.hot.store(target, RCX);
                self.hot.raw(&MOVZX_ECX_CX);
                self.retire(step);
                self.end_record(0);
                self.dispatch(step, 0);
            }
            _ => self.return_branch(step),
        }
    }

    /// `loop`, `jrcxz` and the like: their own instruction over a jump, as their displacement has 8 bits.
    fn loop_branch(&mut self, step: &Step) {
        self.count_branch(step);
        self.retire(step);
        self.end_record(0);
        let bytes = step.bytes();
        // With all prefixes: processors heed some that manuals do not mention.
        self.hot.raw(&bytes[..bytes.len() - 1]);
        self.hot.raw(&[5]);
        self.jump_to(step.next());
        self.jump_to(step.target());
    }

    /// Pushes the guest's return address. The call has retired then.
    pub(crate) fn push_return(&mut self, step: &Step) {
        let returns_to = step.next();
        self.before_stores(step);
        match i32::try_from(returns_to.0 as i64) {
            Ok(value) => {
                self.hot.raw(&[0x68]);
                self.hot.raw(&value.to_le_bytes());
            }
            Err(_) => {
                let constant = self.cold.constant(returns_to.0);
                self.hot.mem(false, false, &[0xFF], 6, Mem::rip(constant.0), 0);
            }
        }
        self.retire(step);
        self.after_stores(step);
        self.return_sites.push(returns_to);
    }

    /// Brings the target of an indirect branch into rcx, the guest's rcx into the engine page.
    fn load_target(&mut self, step: &Step) {
        self.free_rcx(step);
        match step.instr.op0_kind() {
            OpKind::Register => {
                if let Some(register) = gpr(step.instr.op0_register()).filter(|&r| r != RCX) {
                    self.hot.copy(RCX, register);
                }
            }
            _ => match Mem::of(&step.instr) {
                Some(mem) => self.hot.load(RCX, mem),
                None => self.hot.overflow = true,
            },
        }
    }

    /// Moves the guest's rcx to the engine page, unless it is there.
    fn free_rcx(&mut self, step: &Step) {
        if !self.spilled.contains(RCX) {
            self.spill(RCX);
        }
        self.mark(step.pc);
    }

    fn return_branch(&mut self, step: &Step) {
        self.free_rcx(step);
        self.hot.raw(&[0x59]); // pop rcx
        let extra = if step.instr.op_count() == 1 { i32::from(step.instr.immediate16()) } else { 0 };
        if extra != 0 {
            self.hot.lea(RSP, Mem::at(RSP, extra));
        }
        let target = self.page(offset_of!(EnginePage, indirect_target));
        self.hot.store(target, RCX);
        self.hot.raw(&MOVZX_ECX_CX);
        self.retire(step);
        self.end_record(0);
        self.dispatch(step, -8 - extra);
    }

    /// Jumps through the lookup table to the slot in ecx; the guest's rcx is in the engine page.
    /// `stack` takes back what the branch did to rsp.
    fn dispatch(&mut self, step: &Step, stack: i32) {
        let block = self.page(offset_of!(EnginePage, indirect_block));
        self.hot.store_imm32(block, self.request.id.0);
        let mark = Mark {
            offset: self.hot.offset(),
            pc: step.pc,
            retired: self.retired - 1,
            unretired: self.subtracted as i32 - self.retired as i32 + 1,
            spilled: self.spilled,
            flags_exact: self.true_flags == ARITHMETIC,
            logging: false,
        };
        self.indirect = Some(Indirect { pc: step.pc, stack, mark });
        self.hot.raw(&[0xFF, 0x24, 0xCD]); // jmp [rcx * 8 + table]
        self.hot.u32(self.request.layout.table);
    }
}
