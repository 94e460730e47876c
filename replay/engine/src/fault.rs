//! Signals raised inside the cache, seen as the guest would see them.

use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, Registers};
use translate::{CacheAddr, Mark};

use crate::run::Next;
use crate::space::Space;
use crate::{Exit, Fault, RunError, Watch};

/// `si_code` of a debug register's trap.
const TRAP_HWBKPT: i32 = 4;

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
        let found = self.code.block_at(at).map(Rc::clone);
        let found = found.and_then(|block| block.mark_at(at).copied().map(|mark| (block, mark)));
        let Some((block, mark)) = found else {
            return Err(RunError::Unexplained { signo, cache: regs.rip });
        };
        self.restore(regs, &mark);
        self.log_partial(&block, &mark);
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

    /// The guest's registers at a mark, and the count.
    fn restore(&mut self, regs: &Registers, mark: &Mark) {
        let page = self.slot.page();
        let orig_rax = self.regs.orig_rax;
        self.regs = Registers { rip: mark.pc.0, orig_rax, ..*regs };
        for number in mark.spilled.registers() {
            *general(&mut self.regs, number) = page.spill[usize::from(number)];
        }
        self.count(page.counter + i64::from(mark.unretired));
    }

    /// A debug register trapped after a store or a load.
    fn watch_trap(&mut self, regs: &Registers) -> Result<Next, RunError> {
        let Some(watch) = self.watch_hit()? else { return Err(self.unexplained(regs)) };
        let before = CacheAddr(regs.rip.wrapping_sub(1));
        let block = self.code.block_at(before).map(Rc::clone).ok_or_else(|| self.unexplained(regs))?;
        let toucher = *block.mark_at(before).ok_or_else(|| self.unexplained(regs))?;
        let now = block.mark_at(CacheAddr(regs.rip)).copied();
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
            _ => self.finish_block(regs, watch, toucher.pc),
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

    /// The rest of the instruction lies before the next block: has the cache left there.
    fn finish_block(&mut self, regs: &Registers, watch: Watch, pc: GuestAddr) -> Result<Next, RunError> {
        self.disarm_watchpoints()?;
        let counter = self.slot.page().counter;
        self.count(counter);
        self.granted = 0;
        self.slot.page_mut().counter = 0;
        match self.go_on(regs)? {
            Next::At(_) | Next::Replan => Ok(Next::Return(Exit::Watchpoint { addr: watch.range.start, pc })),
            other => Ok(other),
        }
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

/// A general register by its number in x86 encoding.
fn general(regs: &mut Registers, number: u8) -> &mut u64 {
    match number & 15 {
        0 => &mut regs.rax,
        1 => &mut regs.rcx,
        2 => &mut regs.rdx,
        3 => &mut regs.rbx,
        4 => &mut regs.rsp,
        5 => &mut regs.rbp,
        6 => &mut regs.rsi,
        7 => &mut regs.rdi,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        12 => &mut regs.r12,
        13 => &mut regs.r13,
        14 => &mut regs.r14,
        _ => &mut regs.r15,
    }
}
