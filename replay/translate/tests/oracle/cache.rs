//! The translated side: the smallest engine that can run a program out of the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use guest::{GuestAddr, Registers};
use translate::log::{self, BlockLog};
use translate::{
    BlockId, Branches, CacheAddr, EXIT_SYSCALL, EnginePage, ExitKind, Indirect, Link, Mode, RUNTIME_BLOCK,
    Refusal, Request, Runtime, Signal, Source, Spilled, Translated, build_runtime, lookup_slot, translate,
};

use crate::native::{Outcome, Run};
use crate::program::Program;
use crate::world::{
    CODE_LEN, COLD, DATA, DATA_LEN, HOT, LAYOUT, LOG, LOG_LEN, LOW_COLD, LOW_HOT, Stop, World, XState,
};

/// What is checked of the flags at the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flags {
    Exact,
    Unknown,
}

pub(crate) struct Cache<'a> {
    world: &'a World,
    program: &'a Program,
    pub(crate) mode: Mode,
    runtime: Runtime,
    pub(crate) blocks: Vec<Translated>,
    places: Vec<(CacheAddr, CacheAddr)>,
    by_pc: BTreeMap<u64, usize>,
    heads: BTreeMap<usize, usize>,
    hot: u64,
    cold: u64,
    pub(crate) self_check: bool,
    /// Whether the program is to see transactional memory; the processor's answer at first.
    pub(crate) rtm: bool,
    /// Which conditional branches are counted.
    pub(crate) branches: Branches,
    /// Stops for the supervisor.
    pub(crate) stops: u64,
    /// The whole log.
    pub(crate) log: Vec<u8>,
    /// Where guest code lies.
    pub(crate) code: Vec<u64>,
    /// Where contents of string stores must end.
    pub(crate) bulk_limit: u64,
    /// A new budget whenever one is used up (and the log is then thrown away).
    pub(crate) refill: Option<u64>,
    refilled: i64,
    /// The run ended for a reason that native code does not know.
    pub(crate) gave_up: bool,
}

struct Code<'a> {
    world: &'a World,
    bases: &'a [u64],
}

impl Source for Code<'_> {
    fn bytes(&self, at: GuestAddr) -> &[u8] {
        let ends = self.bases.iter().map(|&base| (base, base + CODE_LEN as u64));
        match ends.into_iter().find(|&(base, end)| (base..end).contains(&at.0)) {
            Some((_, end)) => self.world.bytes(at.0, (end - at.0) as usize),
            None => &[],
        }
    }
}

impl<'a> Cache<'a> {
    pub(crate) fn new(world: &'a World, program: &'a Program, mode: Mode) -> Self {
        let runtime = build_runtime(&LAYOUT).unwrap();
        world.bytes(u64::from(LAYOUT.runtime), runtime.code.len()).copy_from_slice(&runtime.code);
        let table = u64::from(LAYOUT.table);
        let miss = runtime.miss.0.to_le_bytes();
        if world.bytes(table, 8) != miss {
            for slot in world.bytes(table, translate::LOOKUP_TABLE_BYTES).chunks_mut(8) {
                slot.copy_from_slice(&miss);
            }
        }
        *world.page() = EnginePage::new();
        let (hot, cold) = if program.low { (LOW_HOT, LOW_COLD) } else { (HOT, COLD) };
        Self {
            world,
            program,
            mode,
            runtime,
            blocks: Vec::new(),
            places: Vec::new(),
            by_pc: BTreeMap::new(),
            heads: BTreeMap::new(),
            hot,
            cold,
            self_check: false,
            rtm: has_rtm(),
            branches: Branches::Uncounted,
            stops: 0,
            log: Vec::new(),
            gave_up: false,
            code: vec![program.code_base()],
            bulk_limit: LOG + LOG_LEN as u64 / 2,
            refill: None,
            refilled: 0,
        }
    }

    /// Translates a block and places it; its index.
    fn place(&mut self, pc: u64, mode: Mode, limit: Option<NonZeroU32>) -> Result<usize, Refusal> {
        let request = Request {
            pc: GuestAddr(pc),
            code: &Code { world: self.world, bases: &self.code },
            hot: CacheAddr(self.hot),
            cold: CacheAddr(self.cold),
            mode,
            id: BlockId(self.blocks.len() as u32),
            limit,
            breakpoints: &BTreeSet::new(),
            search: None,
            self_check: self.self_check,
            layout: &LAYOUT,
            branches: self.branches,
            rtm: self.rtm,
            xsave_size: self.world.xstate().len() as u32,
        };
        let block = translate(&request)?;
        assert_eq!(translate(&request).as_ref(), Ok(&block), "not deterministic");
        self.world.bytes(self.hot, block.code.len()).copy_from_slice(&block.code);
        self.world.bytes(self.cold, block.cold.len()).copy_from_slice(&block.cold);
        self.places.push((request.hot, request.cold));
        self.hot += block.code.len().next_multiple_of(16) as u64;
        self.cold += block.cold.len().next_multiple_of(16) as u64;
        self.blocks.push(block);
        Ok(self.blocks.len() - 1)
    }

    /// The block at `pc`, translated when new, and entered in the table.
    pub(crate) fn block_at(&mut self, pc: u64) -> Result<usize, Refusal> {
        if let Some(&index) = self.by_pc.get(&pc) {
            return Ok(index);
        }
        let index = self.place(pc, self.mode, None)?;
        self.by_pc.insert(pc, index);
        let slot = lookup_slot(GuestAddr(pc));
        if let Some(&next) = self.heads.get(&slot) {
            let (chain, to) = (self.blocks[index].chain, self.blocks[next].lookup);
            self.patch(chain, to);
        }
        self.heads.insert(slot, index);
        let entry = self.blocks[index].lookup.0.to_le_bytes();
        self.world.bytes(u64::from(LAYOUT.table) + 8 * slot as u64, 8).copy_from_slice(&entry);
        Ok(index)
    }

    fn patch(&self, link: Link, to: CacheAddr) {
        self.world.bytes(link.site.0, 4).copy_from_slice(&link.displacement(to).unwrap());
    }

    /// Forgets a block (its source has changed). Links to it stay: tests of stale blocks have none.
    fn forget(&mut self, pc: u64) {
        self.by_pc.remove(&pc);
    }

    /// Runs the program for at most `budget` instructions.
    pub(crate) fn run(&mut self, budget: u64) -> (Run, Flags) {
        self.program.load(self.world);
        self.world.set_xstate(&self.program.xstate);
        let mut regs = self.program.regs;
        self.world.page().counter = budget as i64;
        self.world.page().fs_base = regs.fs_base;
        self.world.page().gs_base = regs.gs_base;
        self.reset_log();
        let mut once = None;
        let (outcome, flags) = loop {
            let exact = if self.mode.exact() { Flags::Exact } else { Flags::Unknown };
            if self.world.page().counter == 0 && once.is_none() {
                break (Outcome::Budget, exact);
            }
            let index = match once.take() {
                Some(index) => index,
                None => match self.block_at(regs.rip) {
                    Ok(index) => index,
                    Err(Refusal::Unreadable { .. }) => break (Outcome::Fault(libc::SIGSEGV), Flags::Unknown),
                    Err(Refusal::Unsupported { name, .. }) => {
                        self.gave_up |= name.contains("while logging");
                        break (Outcome::Stopped, exact);
                    }
                    Err(Refusal::OutOfReach { .. }) => {
                        self.gave_up = true;
                        break (Outcome::Stopped, exact);
                    }
                    Err(refusal) => panic!("{refusal}"),
                },
            };
            if let Some(end) = self.enter(&mut regs, index, &mut once) {
                break end;
            }
        };
        self.drain();
        regs.orig_rax = 0;
        let world = self.world;
        let run = Run {
            outcome,
            regs,
            xstate: world.xstate(),
            memory: world.bytes(DATA, DATA_LEN).to_vec(),
            count: (budget as i64 + self.refilled - world.page().counter) as u64,
        };
        (run, flags)
    }

    /// Enters block `index` and deals with the exit: new registers, or how the run ends.
    fn enter(
        &mut self,
        regs: &mut Registers,
        index: usize,
        once: &mut Option<usize>,
    ) -> Option<(Outcome, Flags)> {
        let mut entered = *regs;
        entered.rip = self.blocks[index].entry.0;
        self.world.set_registers(&entered);
        let stop = self.world.run();
        self.stops += 1;
        *regs = self.world.registers();
        match stop {
            Stop::Signal(signal) => Some(self.fault(regs, signal)),
            Stop::Syscall => self.exit(regs, once),
        }
    }

    fn fault(&mut self, regs: &mut Registers, signal: i32) -> (Outcome, Flags) {
        // A `popf` reached by chance has set the trap flag, which is not supported.
        const TF: u64 = 0x100;
        if signal == libc::SIGTRAP && regs.eflags & TF != 0 {
            self.gave_up = true;
            return (Outcome::Stopped, Flags::Unknown);
        }
        let at = CacheAddr(regs.rip);
        let found = self
            .blocks
            .iter()
            .zip(&self.places)
            .find_map(|(block, &(hot, _))| block.mark_at(hot, at).map(|mark| (block, *mark)));
        let (block, mark) = found.unwrap_or_else(|| panic!("signal {signal} outside the cache: {regs:x?}"));
        let page = self.world.page();
        for number in mark.spilled.registers() {
            *regs.general_mut(number) = page.spill[number as usize];
        }
        if self.mode.logs() && block.instructions() > 0 {
            let len = block.paths.iter().map(|path| path.log_bytes).max().unwrap_or(0) + log::HEADER_BYTES;
            let written = self.world.bytes(page.log_next, len as usize);
            let opmasks = opmasks(&self.world.xstate());
            let mut opmask = |number| opmasks[usize::from(number)];
            let mut contents =
                |at: GuestAddr, into: &mut [u8]| into.copy_from_slice(self.world.bytes(at.0, into.len()));
            let string = (page.bulk_start, regs.rdi);
            let record = log::partial_record(block, &mark, written, string, &mut contents, &mut opmask);
            self.drain();
            self.log.extend_from_slice(&record);
        }
        let page = self.world.page();
        page.counter += i64::from(mark.unretired);
        regs.rip = mark.pc.0;
        (Outcome::Fault(signal), if mark.flags_exact { Flags::Exact } else { Flags::Unknown })
    }

    fn exit(&mut self, regs: &mut Registers, once: &mut Option<usize>) -> Option<(Outcome, Flags)> {
        assert_eq!(regs.orig_rax, u64::from(EXIT_SYSCALL), "{regs:x?}");
        let syscall = CacheAddr(regs.rip - 2);
        assert!(self.runtime.syscalls.contains(&syscall), "{regs:x?}");
        let page = self.world.page();
        for number in Spilled(1 | 2 | 1 << 11).registers() {
            *regs.general_mut(number) = page.spill[number as usize];
        }
        regs.orig_rax = u64::MAX;
        if page.exit_block == RUNTIME_BLOCK {
            return self.missed(regs);
        }
        let block = &self.blocks[page.exit_block as usize];
        let exit = block.exits[page.exit_index as usize];
        let left = page.counter;
        regs.rip = exit.pc.0;
        match exit.kind {
            ExitKind::Link { link } => {
                let link = block.links[link as usize];
                if let Ok(target) = self.block_at(exit.pc.0) {
                    self.patch(link, self.blocks[target].entry);
                }
                None
            }
            ExitKind::Budget if self.refill.is_some() => {
                let refill = self.refill.unwrap_or(0);
                self.refilled += refill as i64 - left;
                page.counter = refill as i64;
                self.reset_log();
                None
            }
            ExitKind::Budget => {
                assert!(left >= 0);
                if let Some(limit) = NonZeroU32::new(left as u32) {
                    let mode = if self.mode.logs() { Mode::IndexedExact } else { Mode::Exact };
                    *once = Some(self.place(exit.pc.0, mode, Some(limit)).expect("it was translated before"));
                }
                None
            }
            // The end of the budget comes before whatever is next.
            ExitKind::Syscall | ExitKind::Special(_) | ExitKind::Raises(_) if left == 0 => None,
            ExitKind::Breakpoint | ExitKind::Syscall | ExitKind::Special(_) => {
                Some((Outcome::Stopped, Flags::Exact))
            }
            ExitKind::Raises(Signal::Trap) => Some((Outcome::Stopped, Flags::Exact)),
            ExitKind::Raises(Signal::Protection) => Some((Outcome::Fault(libc::SIGSEGV), Flags::Exact)),
            ExitKind::Raises(Signal::Illegal) => Some((Outcome::Fault(libc::SIGILL), Flags::Exact)),
            ExitKind::Candidate { .. } => unreachable!("nothing is searched"),
            ExitKind::Stale => {
                self.forget(exit.pc.0);
                None
            }
            ExitKind::LogBulk => {
                self.append_bulk(regs.rdi);
                None
            }
            ExitKind::X87Pointer { offset, width } => {
                self.fix_x87(page.bulk_start + u64::from(offset), width as usize);
                if self.mode.logs() {
                    self.append_bulk(regs.rdi);
                }
                None
            }
        }
    }

    /// Appends the record of the block that was left, which the block could not write itself.
    fn append_bulk(&mut self, rdi: u64) {
        let page = self.world.page();
        let block = &self.blocks[page.exit_block as usize];
        let record = log::bulk_record(block, page.bulk_start, rdi, &mut |at, into| {
            into.copy_from_slice(self.world.bytes(at.0, into.len()));
        });
        self.drain();
        self.log.extend_from_slice(&record);
    }

    /// A lookup that missed: goes on at the target, or takes the branch back.
    fn missed(&mut self, regs: &mut Registers) -> Option<(Outcome, Flags)> {
        let page = self.world.page();
        regs.rip = page.indirect_target;
        if !Indirect::refuses(GuestAddr(regs.rip)) {
            return None;
        }
        let block = &self.blocks[page.indirect_block as usize];
        let Indirect { pc, stack, mark } = block.indirect.expect("it ended with one");
        regs.rip = pc.0;
        regs.rsp = regs.rsp.wrapping_add_signed(i64::from(stack));
        page.counter += 1;
        if stack == 8 {
            self.world.bytes(regs.rsp - 8, 8).copy_from_slice(&page.below_stack.to_le_bytes());
        }
        if self.mode.logs() {
            let len = block.paths[0].log_bytes + log::HEADER_BYTES;
            page.log_next -= u64::from(len);
            let written = self.world.bytes(page.log_next, len as usize);
            let record =
                log::partial_record(block, &mark, written, (0, regs.rdi), &mut |_, _| (), &mut |_| 0);
            self.drain();
            self.log.extend_from_slice(&record);
        }
        Some((Outcome::Fault(libc::SIGSEGV), if mark.flags_exact { Flags::Exact } else { Flags::Unknown }))
    }

    /// Replaces a cache address in a state image by the guest's.
    fn fix_x87(&self, at: u64, width: usize) {
        let field = self.world.bytes(at, width);
        let mut value = [0; 8];
        value[..width].copy_from_slice(field);
        let value = u64::from_le_bytes(value);
        let mask = if width == 8 { u64::MAX } else { (1 << (8 * width)) - 1 };
        for (block, &(hot, _)) in self.blocks.iter().zip(&self.places) {
            for (mark, next) in block.marks.iter().zip(block.marks.iter().skip(1).map(Some).chain([None])) {
                let end = next.map_or(block.code.len() as u32, |next| next.offset);
                let found = (mark.offset..end).any(|o| (hot.0 + u64::from(o)) & mask == value);
                if found && value != 0 {
                    field.copy_from_slice(&mark.pc.0.to_le_bytes()[..width]);
                    return;
                }
            }
        }
    }

    fn reset_log(&self) {
        let page = self.world.page();
        page.log_next = LOG;
        page.log_bulk_limit = self.bulk_limit;
    }

    fn drain(&mut self) {
        let len = (self.world.page().log_next - LOG) as usize;
        if self.mode.logs() {
            self.log.extend_from_slice(self.world.bytes(LOG, len));
        }
        self.reset_log();
    }

    /// What a walker needs.
    pub(crate) fn block_logs(&self) -> Vec<BlockLog> {
        self.blocks.iter().map(BlockLog::from).collect()
    }
}

impl Drop for Cache<'_> {
    fn drop(&mut self) {
        for &slot in self.heads.keys() {
            let at = u64::from(LAYOUT.table) + 8 * slot as u64;
            self.world.bytes(at, 8).copy_from_slice(&self.runtime.miss.0.to_le_bytes());
        }
    }
}

/// The parts of the extended state that must be equal (the x87 instruction and data pointers are not compared).
pub(crate) fn comparable(xstate: &XState) -> Vec<u8> {
    let mut image = xstate.clone();
    image[8..24].fill(0);
    image[6..8].fill(0);
    // Whether a component in its initial state is marked as such is up to the processor.
    image[512..576].fill(0);
    image
}

/// The opmask registers in an extended state.
fn opmasks(xstate: &XState) -> [u64; 8] {
    let from = std::arch::x86_64::__cpuid_count(0xd, 5).ebx as usize;
    let bytes = |number: usize| xstate.get(from + 8 * number..)?.first_chunk().copied();
    std::array::from_fn(|number| bytes(number).map_or(0, u64::from_le_bytes))
}

/// Whether this processor has transactional memory.
pub(crate) fn has_rtm() -> bool {
    std::arch::x86_64::__cpuid_count(7, 0).ebx >> 11 & 1 != 0
}
