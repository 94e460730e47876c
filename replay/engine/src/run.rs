//! Running: entering the cache, and what to do when it is left.

use std::num::NonZeroU32;
use std::rc::Rc;

use guest::{GuestAddr, Registers};
use translate::{BlockId, ExitKind, MAX_BUDGET, Mode, RUNTIME_BLOCK, Refusal, Signal, Special};

use crate::ahead::Missing;
use crate::host::Stop;
use crate::space::Space;
use crate::{Block, Exit, Fault, RunError, Trapped};

/// Before a point at which the flags must be exact, so many instructions run in an exact mode: within them, some
/// instruction defines all flags.
const EXACT_TAIL: u64 = 2_000;

/// A budget for which exact mode is used from the start.
const ALL_EXACT: u64 = 2 * EXACT_TAIL;

/// No block has more instructions.
const LONGEST: u64 = 1_000;

/// `si_code` of signals that the kernel raises by itself (`include/uapi/asm-generic/siginfo.h`).
pub(crate) const SI_KERNEL: i32 = 0x80;
/// `si_code` of an undefined opcode.
const ILL_ILLOPN: i32 = 2;
/// `si_code` where nothing is mapped.
const SEGV_MAPERR: i32 = 1;
/// `si_code` where the mapping forbids it.
const SEGV_ACCERR: i32 = 2;

/// Where to go on in the cache.
#[derive(Debug)]
pub(crate) enum Next {
    /// At the guest's rip; with `true`, an indirect branch goes there.
    At(bool),
    /// The allotment is used up, or must be computed anew.
    Replan,
    /// Exactly one instruction at the guest's rip by itself, then anew.
    Single,
    /// The state may be the searched one; if not, as `Single`.
    Candidate,
    /// Nowhere: tell the caller.
    Return(Exit),
}

/// How often the cache was left, for diagnostics.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Times it was left, whatever the reason.
    pub stops: u64,
    /// By an indirect branch to a place that the lookup table does not know.
    pub misses: u64,
    /// Of those: to a block that was there already.
    pub unlisted: u64,
    /// By a direct branch that is not linked.
    pub unlinked: u64,
}

/// What the cache is entered for.
#[derive(Clone, Copy, Debug)]
struct Allotment {
    mode: Mode,
    instructions: u64,
}

impl Space {
    /// Runs until something stops it, or `budget` instructions have been retired by this call.
    ///
    /// # Errors
    ///
    /// The engine or the host failed. What the guest does is an [`Exit`].
    pub fn run(&mut self, budget: Option<u64>) -> Result<Exit, RunError> {
        let end = budget.map(|budget| self.retired.saturating_add(budget));
        self.arm_watchpoints()?;
        let mut single = self.breakpoints.contains(&self.regs.pc()) || self.is_at_search();
        self.begin_search();
        loop {
            let left = end.map_or(u64::MAX, |end| end.saturating_sub(self.retired));
            if left == 0 {
                return Ok(Exit::Budget);
            }
            if self.log_is_full() {
                return Ok(Exit::LogFull);
            }
            if let Some(exit) = self.vsyscall() {
                return Ok(exit);
            }
            let next = if std::mem::take(&mut single) {
                self.run_once(1)?
            } else {
                let allotment = self.allot(left);
                let next = self.run_blocks(allotment)?;
                let left = end.map_or(u64::MAX, |end| end.saturating_sub(self.retired));
                // Less is left than the next block has, and nothing is to be told where that begins.
                let told = self.breakpoints.contains(&self.regs.pc()) || self.is_uncompared();
                if matches!(next, Next::Replan) && (1..64).contains(&left) && !told {
                    self.run_once(left)?
                } else {
                    next
                }
            };
            match next {
                Next::At(_) | Next::Replan => {}
                Next::Single | Next::Candidate => single = true,
                Next::Return(exit) => {
                    let hides = !matches!(exit, Exit::Watchpoint { .. }) && self.is_new_candidate();
                    return Ok(if hides { Exit::Candidate } else { exit });
                }
            }
            if end == Some(self.retired) {
                continue;
            }
            if self.is_new_candidate() {
                return Ok(Exit::Candidate);
            }
            if !single && self.breakpoints.contains(&self.regs.pc()) {
                return Ok(Exit::Breakpoint);
            }
        }
    }

    /// In which mode to go on, and for how many instructions.
    fn allot(&self, left: u64) -> Allotment {
        let debugged = !self.breakpoints.is_empty() || !self.watchpoints.is_empty();
        let exact = debugged || self.mode.exact() || left <= ALL_EXACT;
        let mode = match self.mode {
            _ if !self.watchpoints.is_empty() => Mode::Exact,
            mode if exact => exact_form(mode),
            mode => mode,
        };
        let wanted = if exact || left == u64::MAX { left } else { left - EXACT_TAIL };
        let instructions = wanted.min(MAX_BUDGET as u64).min(self.log_allows());
        Allotment { mode, instructions }
    }

    /// Runs blocks until the allotment is used up or the caller must be told something.
    fn run_blocks(&mut self, allotment: Allotment) -> Result<Next, RunError> {
        self.begin(allotment);
        let mut indirect = false;
        loop {
            let block = match self.block_for(allotment.mode, self.regs.pc(), indirect) {
                Ok(block) => block,
                Err(missing) => return self.refused(missing).map(Next::Return),
            };
            match self.enter(&block)? {
                Next::At(by_indirect) => {
                    let debugged = allotment.mode.exact() && self.breakpoints.contains(&self.regs.pc());
                    if debugged || self.regs.pc().is_vsyscall_entry() {
                        return Ok(Next::Replan);
                    }
                    indirect = by_indirect;
                }
                other => return Ok(other),
            }
        }
    }

    /// Runs at most `limit` instructions as a block of their own.
    pub(crate) fn run_once(&mut self, limit: u64) -> Result<Next, RunError> {
        let mode = if self.watchpoints.is_empty() { exact_form(self.mode) } else { Mode::Exact };
        let limit = u32::try_from(limit).unwrap_or(u32::MAX).min(LONGEST as u32);
        self.begin(Allotment { mode, instructions: u64::from(limit) });
        let limit = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
        match self.translate_once(mode, self.regs.pc(), limit) {
            Ok(block) => match self.enter(&block)? {
                Next::At(_) => Ok(Next::Replan),
                other => Ok(other),
            },
            Err(missing) => self.refused(missing).map(Next::Return),
        }
    }

    fn begin(&mut self, allotment: Allotment) {
        self.granted = allotment.instructions as i64;
        let flags_defined = u64::from(self.flags_known);
        let (counter, log_next) = (self.granted, self.log_next);
        let bulk_limit = self.log_bulk_limit(allotment.instructions);
        let (fs_base, gs_base) = (self.regs.fs_base, self.regs.gs_base);
        let page = self.slot.page_mut();
        page.counter = counter;
        page.flags_defined = flags_defined;
        page.log_next = log_next;
        page.log_bulk_limit = bulk_limit;
        page.fs_base = fs_base;
        page.gs_base = gs_base;
    }

    /// Enters a block with the guest's registers, and finds out why the cache was left.
    fn enter(&mut self, block: &Block) -> Result<Next, RunError> {
        self.flush()?;
        let entry = block.translated.entry;
        let next = self.go_on(&Registers { rip: entry.0, ..self.regs })?;
        let exact = block.mode.exact();
        let page = self.slot.page();
        self.log_next = if self.log_at == 0 { 0 } else { page.log_next.max(self.log_next) };
        let flags_read = matches!(next, Next::Return(Exit::Syscall) | Next::Candidate);
        self.flags_known = flags_read || (exact && page.flags_defined != 0);
        Ok(next)
    }

    /// Lets the process run from host registers until the cache is left.
    pub(crate) fn go_on(&mut self, regs: &Registers) -> Result<Next, RunError> {
        let mut regs = *regs;
        loop {
            self.host.set_registers(&regs)?;
            let stop = self.host.resume()?;
            regs = self.host.registers()?;
            self.counters.stops += 1;
            let signo = match stop {
                Stop::Seccomp => return self.left(&regs),
                Stop::Signal(signo) => signo,
            };
            match self.pass_alignment_check(signo, &regs)? {
                Some(after) => regs = after,
                None => return self.interrupted(signo, &regs),
            }
        }
    }

    /// The cache was left by an exit of a block or of the common stubs.
    fn left(&mut self, regs: &Registers) -> Result<Next, RunError> {
        let page = self.slot.page();
        let orig_rax = self.regs.orig_rax;
        let [rax, rcx] = [page.spill[0], page.spill[1]];
        self.regs = Registers { rax, rcx, r11: page.spill[11], orig_rax, ..*regs };
        self.count(page.counter);
        if page.exit_block == RUNTIME_BLOCK {
            self.regs.rip = page.indirect_target;
            return Ok(match self.refused_branch() {
                Some(fault) => Next::Return(Exit::Fault(fault)),
                None => {
                    self.counters.misses += 1;
                    Next::At(true)
                }
            });
        }
        let block = self.code.block(BlockId(page.exit_block)).map(Rc::clone);
        let exit = block.and_then(|block| {
            let exit = block.translated.exits.get(page.exit_index as usize).copied();
            exit.map(|exit| (exit, block))
        });
        let Some((exit, block)) = exit else {
            return Err(RunError::Unexplained { signo: 0, cache: regs.rip });
        };
        self.regs.rip = exit.pc.0;
        self.act(exit.kind, &block)
    }

    fn act(&mut self, kind: ExitKind, block: &Rc<Block>) -> Result<Next, RunError> {
        Ok(match kind {
            ExitKind::Link { .. } => {
                self.counters.unlinked += 1;
                Next::At(false)
            }
            ExitKind::Budget => {
                // In an exact mode the flags are still what they were, and comparing once more does no harm.
                if !block.mode.exact() {
                    self.was_compared();
                }
                Next::Replan
            }
            ExitKind::Candidate { unretired } => {
                self.count(self.slot.page().counter + i64::from(unretired));
                Next::Candidate
            }
            ExitKind::Breakpoint => Next::Return(Exit::Breakpoint),
            ExitKind::Syscall => Next::Return(Exit::Syscall),
            ExitKind::Special(special) => Next::Return(special_exit(special, self.regs.pc())),
            ExitKind::Raises(signal) => {
                let flags_exact = block.mode.exact() && self.slot.page().flags_defined != 0;
                Next::Return(Exit::Fault(Fault { flags_exact, ..raised(signal, self.regs.pc()) }))
            }
            ExitKind::Stale => {
                let code = Rc::make_mut(&mut self.code);
                code.remove(block, &self.tables, &mut self.patches);
                Next::At(false)
            }
            ExitKind::LogBulk => {
                self.log_bulk(block);
                Next::Replan
            }
            ExitKind::X87Pointer { offset, width } => {
                self.restore_x87_pointer(offset, width)?;
                if block.mode.logs() {
                    self.log_bulk(block);
                }
                Next::Replan
            }
        })
    }

    /// Brings `retired` up to date with the engine page's counter.
    pub(crate) fn count(&mut self, counter: i64) {
        self.note_made_calls();
        self.retired = self.retired.wrapping_add_signed(self.granted - counter);
        self.granted = counter;
    }

    /// A call of the vsyscall page: natively the kernel performs it as a system call would be.
    fn vsyscall(&self) -> Option<Exit> {
        self.regs.pc().is_vsyscall_entry().then_some(Exit::Syscall)
    }

    /// An instruction stored the x87 instruction pointer: a cache address there becomes the guest's.
    fn restore_x87_pointer(&mut self, offset: u8, width: u8) -> Result<(), RunError> {
        let field = self.slot.page().bulk_start.wrapping_add(u64::from(offset));
        let mut bytes = [0; 8];
        let width = usize::from(width.min(8));
        if self.host.read(field, &mut bytes[..width]).is_err() {
            return Ok(());
        }
        let stored = u64::from_le_bytes(bytes);
        let mask = u64::MAX >> (64 - 8 * width as u32);
        let found = self.code.block_with_low_bits(stored, mask).and_then(|at| self.guest_pc(at));
        if let Some(pc) = found {
            let fixed = pc.0.to_le_bytes();
            let _ = self.host.write(field, &fixed[..width]);
        }
        Ok(())
    }
}

impl Space {
    /// What the guest meets where there is no block.
    fn refused(&self, missing: Missing) -> Result<Exit, RunError> {
        let refusal = match missing {
            Missing::Failed(error) => return Err(error),
            Missing::Refused(refusal) => refusal,
        };
        Ok(match refusal {
            Refusal::Unreadable { addr, .. } => {
                let code = if self.areas.at(addr).is_some() { SEGV_ACCERR } else { SEGV_MAPERR };
                Exit::Fault(Fault { signo: libc::SIGSEGV, code, addr, flags_exact: self.flags_known })
            }
            Refusal::Unsupported { pc, name } => Exit::Unsupported { pc, name },
            other => return Err(RunError::Translation(other)),
        })
    }
}

fn exact_form(mode: Mode) -> Mode {
    match mode {
        Mode::Plain | Mode::Exact => Mode::Exact,
        Mode::Indexed | Mode::IndexedExact => Mode::IndexedExact,
    }
}

fn special_exit(special: Special, pc: GuestAddr) -> Exit {
    let name = match special {
        Special::Rdtsc => return Exit::Instruction(Trapped::Rdtsc),
        Special::Rdtscp => return Exit::Instruction(Trapped::Rdtscp),
        Special::Cpuid => return Exit::Instruction(Trapped::Cpuid),
        Special::Rdrand => return Exit::Instruction(Trapped::Rdrand),
        Special::Rdseed => return Exit::Instruction(Trapped::Rdseed),
        Special::Rdpid => return Exit::Instruction(Trapped::Rdpid),
        Special::Counter => "rdpmc",
        Special::TimedWait => "tpause",
    };
    Exit::Unsupported { pc, name: name.to_owned() }
}

fn raised(signal: Signal, pc: GuestAddr) -> Fault {
    let (signo, code, addr) = match signal {
        Signal::Trap => (libc::SIGTRAP, SI_KERNEL, GuestAddr(0)),
        Signal::Illegal => (libc::SIGILL, ILL_ILLOPN, pc),
        Signal::Protection => (libc::SIGSEGV, SI_KERNEL, GuestAddr(0)),
    };
    Fault { signo, code, addr, flags_exact: false }
}
