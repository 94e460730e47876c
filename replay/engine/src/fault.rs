//! Signals raised inside the cache, seen as the guest would see them.

use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, Registers};
use translate::log::HEADER_BYTES;
use translate::{BlockId, CacheAddr, Indirect, Mark, RUNTIME_PAGE_SIZE};

use crate::host::Stop;
use crate::run::{Next, SI_KERNEL};
use crate::space::Space;
use crate::{Block, Exit, Fault, RunError, Watch};

/// `si_code` of a debug register's trap.
const TRAP_HWBKPT: i32 = 4;
/// `si_code` of an alignment check.
const BUS_ADRALN: i32 = 1;
/// The flag by which a program has alignment checked.
const AC: u64 = 1 << 18;

/// The parts of a `siginfo_t` that faults fill in (`include/uapi/asm-generic/siginfo.h`).
struct Info {
    code: i32,
    addr: u64,
}

impl Info {
    fn of(bytes: &[u8; 128]) -> Self {
        let code = i32::from_ne_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        let mut addr = [0; 8];
        addr.copy_from_slice(&bytes[16..24]);
        Self { code, addr: u64::from_ne_bytes(addr) }
    }
}

impl Space {
    /// A signal stopped the process inside the cache.
    pub(crate) fn interrupted(&mut self, signo: i32, regs: &Registers) -> Result<Next, RunError> {
        let info = Info::of(&self.host.siginfo()?);
        if signo == libc::SIGTRAP && info.code == TRAP_HWBKPT {
            return self.watch_trap(regs);
        }
        let at = CacheAddr(regs.rip);
        if let Some(place) = self.may_fault.iter().find(|place| (place.start..place.end).contains(&at)) {
            // A searched word that cannot be read now: if all else is equal, it is looked at from here. Or what a prepared call wrote
            // cannot be written there: it is performed from outside.
            return self.go_on(&Registers { rip: place.fault.0, ..*regs });
        }
        let found = self.code.block_at(at).map(Rc::clone);
        let found = found.and_then(|block| block.mark_at(at).map(|mark| (block, mark)));
        let Some((block, mark)) = found else {
            return Err(RunError::Unexplained { signo, cache: regs.rip });
        };
        self.restore(regs, &mark);
        self.log_partial(&block, &mark);
        self.was_compared();
        if signo == libc::SIGSEGV && self.written(GuestAddr(info.addr))? {
            return Ok(Next::Single);
        }
        // The address of an instruction, where that is what the kernel reports, is the guest's.
        let instruction = matches!(signo, libc::SIGFPE | libc::SIGILL);
        let addr = if instruction { mark.pc } else { GuestAddr(info.addr) };
        let defined = !block.mode.exact() || self.slot.page().flags_defined != 0;
        let flags_exact = mark.flags_exact && defined;
        Ok(Next::Return(Exit::Fault(Fault { signo, code: info.code, addr, flags_exact })))
    }

    /// The guest has alignment checked, and the log's own code failed the check: performs that instruction without.
    /// Where to go on, if that is what stopped the process.
    pub(crate) fn pass_alignment_check(
        &mut self,
        signo: i32,
        regs: &Registers,
    ) -> Result<Option<Registers>, RunError> {
        if signo != libc::SIGBUS || regs.eflags & AC == 0 || !self.is_logging_code(CacheAddr(regs.rip)) {
            return Ok(None);
        }
        if Info::of(&self.host.siginfo()?).code != BUS_ADRALN {
            return Ok(None);
        }
        self.host.set_registers(&Registers { eflags: regs.eflags & !AC, ..*regs })?;
        if self.host.step()? != Stop::Signal(libc::SIGTRAP) {
            return Err(RunError::Unexplained { signo, cache: regs.rip });
        }
        let regs = self.host.registers()?;
        Ok(Some(Registers { eflags: regs.eflags | AC, ..regs }))
    }

    /// Whether the code at `at` accesses the log for the guest.
    fn is_logging_code(&self, at: CacheAddr) -> bool {
        let runtime = u64::from(self.low.runtime());
        if (runtime..runtime + RUNTIME_PAGE_SIZE as u64).contains(&at.0) {
            // What is searched for is not.
            return !self.may_fault.iter().any(|place| (place.start..place.end).contains(&at));
        }
        self.code.block_at(at).and_then(|block| block.mark_at(at)).is_some_and(|mark| mark.logging)
    }

    /// The lookup missed because no processor branches to such an address: takes the branch back.
    pub(crate) fn refused_branch(&mut self) -> Option<Fault> {
        if !Indirect::refuses(self.regs.pc()) {
            return None;
        }
        let page = self.slot.page();
        let block = self.code.block(BlockId(page.indirect_block)).map(Rc::clone)?;
        let indirect = block.translated.indirect?;
        self.regs.rip = indirect.pc.0;
        self.regs.rsp = self.regs.rsp.wrapping_add_signed(i64::from(indirect.stack));
        if indirect.stack > 0 {
            // It was written a moment ago, so it is there.
            let _ = self.host.write(self.regs.rsp.wrapping_sub(8), &page.below_stack.to_le_bytes());
        }
        self.count(page.counter + 1);
        if block.mode.logs() {
            let record = block.translated.paths.first().map_or(0, |path| path.log_bytes + HEADER_BYTES);
            self.slot.page_mut().log_next -= u64::from(record);
            self.log_partial(&block, &indirect.mark);
        }
        let defined = !block.mode.exact() || page.flags_defined != 0;
        let flags_exact = indirect.mark.flags_exact && defined;
        Some(Fault { signo: libc::SIGSEGV, code: SI_KERNEL, addr: GuestAddr(0), flags_exact })
    }

    /// The guest's registers at a mark, and the count.
    fn restore(&mut self, regs: &Registers, mark: &Mark) {
        let page = self.slot.page();
        let orig_rax = self.regs.orig_rax;
        self.regs = Registers { rip: mark.pc.0, orig_rax, ..*regs };
        for number in mark.spilled.registers() {
            *self.regs.general_mut(number) = page.spill[usize::from(number)];
        }
        self.count(page.counter + i64::from(mark.unretired));
    }

    /// A debug register trapped after a store or a load.
    fn watch_trap(&mut self, regs: &Registers) -> Result<Next, RunError> {
        let Some(watch) = self.watch_hit()? else { return Err(self.unexplained(regs)) };
        let before = CacheAddr(regs.rip.wrapping_sub(1));
        let block = self.code.block_at(before).map(Rc::clone).ok_or_else(|| self.unexplained(regs))?;
        let toucher = block.mark_at(before).ok_or_else(|| self.unexplained(regs))?;
        let now = block.mark_at(CacheAddr(regs.rip));
        match now {
            // Between two iterations of a string instruction.
            Some(mark) if mark.pc != toucher.pc && self.repeats(mark.pc, watch, regs)? => {
                self.restore(regs, &mark);
                self.finish_string(mark.pc)
                    .map(|()| Next::Return(Exit::Watchpoint { addr: watch.range.start, pc: mark.pc }))
            }
            Some(mark) if mark.pc != toucher.pc => {
                self.restore(regs, &mark);
                Ok(Next::Return(Exit::Watchpoint { addr: watch.range.start, pc: toucher.pc }))
            }
            _ => self.finish_instruction(regs, watch, &block, toucher.pc),
        }
    }

    fn unexplained(&self, regs: &Registers) -> RunError {
        RunError::Unexplained { signo: libc::SIGTRAP, cache: regs.rip }
    }

    /// Whether the instruction at `pc` is a repeated string instruction that has just touched the watched bytes.
    fn repeats(&self, pc: GuestAddr, watch: Watch, regs: &Registers) -> Result<bool, RunError> {
        let mut bytes = [0; 15];
        let mut len = bytes.len();
        while len > 0 && self.read(pc, &mut bytes[..len]).is_err() {
            len -= 1;
        }
        let prefixes = bytes.iter().take_while(|&&byte| is_prefix(byte)).count();
        let repeated = bytes[..prefixes].iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
        let string = bytes.get(prefixes).is_some_and(|op| matches!(op, 0xa4..=0xa7 | 0xaa..=0xaf));
        // One element either way, whatever the direction.
        let near = |at: u64| GuestRange::new(GuestAddr(at.wrapping_sub(8)), 16).overlaps(watch.range);
        Ok(repeated && string && (near(regs.rdi) || near(regs.rsi)))
    }

    /// Runs the rest of a string instruction without watching.
    fn finish_string(&mut self, pc: GuestAddr) -> Result<(), RunError> {
        self.disarm_watchpoints()?;
        debug_assert_eq!(self.regs.pc(), pc);
        self.single_exact()
    }

    /// The instruction that touched watched bytes has not come to its end in the cache: goes on to where it has.
    fn finish_instruction(
        &mut self,
        regs: &Registers,
        watch: Watch,
        block: &Block,
        pc: GuestAddr,
    ) -> Result<Next, RunError> {
        self.disarm_watchpoints()?;
        let hit = Next::Return(Exit::Watchpoint { addr: watch.range.start, pc });
        let mut regs = *regs;
        let code = block.hot.0..block.hot.0 + u64::from(block.hot_len);
        while code.contains(&regs.rip) {
            if let Some(mark) = block.mark_at(CacheAddr(regs.rip)).filter(|mark| mark.pc != pc) {
                self.restore(&regs, &mark);
                return Ok(hit);
            }
            self.host.set_registers(&regs)?;
            if self.host.step()? != Stop::Signal(libc::SIGTRAP) {
                return Err(self.unexplained(&regs));
            }
            regs = self.host.registers()?;
        }
        // The block was its last: has the cache left at the next one, which an empty budget does not cover.
        self.count(self.slot.page().counter);
        self.granted = 0;
        self.slot.page_mut().counter = 0;
        Ok(match self.go_on(&regs)? {
            Next::At(_) | Next::Replan => hit,
            other => other,
        })
    }

    /// Runs one instruction by itself.
    fn single_exact(&mut self) -> Result<(), RunError> {
        self.run_once(1).map(drop)
    }
}

/// Legacy and REX prefixes.
fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f)
}
