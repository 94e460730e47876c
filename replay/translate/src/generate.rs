//! From a plan to code: the frame of a block, and its instructions one by one.

use std::mem::offset_of;

use guest::{GuestAddr, GuestRange};
use iced_x86::Register;

use crate::block::{
    BlockId, Exit, ExitKind, Indirect, Link, Mark, Path, Slot, Spilled, StateImage, Terminator, Translated,
};
use crate::class::{Kind, Transaction};
use crate::count::Counting;
use crate::emit::{Asm, Mem, RAX, RCX};
use crate::flags;
use crate::layout::{CacheAddr, EnginePage, Layout};
use crate::observe::Observer;
use crate::plan::{End, Plan, Step, Through, plan};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::runtime::{self, Stub};
use crate::search;

/// Translates the block at `request.pc`.
///
/// # Errors
///
/// See [`Refusal`].
pub fn translate(request: &Request<'_>) -> Result<Translated, Refusal> {
    check(request)?;
    let plan = plan(request)?;
    let mut gen_ = Generator::new(request, &plan);
    gen_.lookup_entry();
    let entry = gen_.hot.here();
    if request.self_check {
        gen_.check_sources(&plan);
    }
    gen_.compare(&plan, 0);
    gen_.count(&plan);
    for (position, step) in plan.steps.iter().enumerate() {
        gen_.step(&plan, position, step);
    }
    gen_.finish(&plan);
    gen_.side_exits();
    gen_.into_block(&plan, entry)
}

fn check(request: &Request<'_>) -> Result<(), Refusal> {
    let bad = |what| Err(Refusal::BadRequest { what });
    if request.id.0 >= BlockId::LIMIT {
        return bad("block id of more than 28 bits");
    }
    if !crate::plan::reaches(request.hot.0, request.cold.0) {
        return bad("cold code out of reach of hot code");
    }
    if request.pc.0 >> 47 != 0 {
        return Err(Refusal::Unreadable { pc: request.pc, addr: request.pc });
    }
    Ok(())
}

/// A field of the engine page as an operand.
pub(crate) fn field(layout: &Layout, offset: usize) -> Mem {
    Mem::abs(layout.page + offset as u32)
}

/// The state of generating one block.
pub(crate) struct Generator<'a> {
    pub request: &'a Request<'a>,
    pub hot: Asm,
    pub cold: Asm,
    exits: Vec<Exit>,
    links: Vec<Link>,
    pub return_sites: Vec<GuestAddr>,
    marks: Vec<Mark>,
    chain: Option<Link>,
    /// Instructions on the longest path.
    pub longest: u32,
    /// Instructions subtracted from the counter so far on the longest path.
    pub subtracted: u32,
    pub counting: Counting,
    sides: Vec<Side>,
    paths: Vec<Path>,
    /// Instructions of the block that have retired where code is now emitted.
    pub retired: u32,
    /// Guest registers now in the engine page.
    pub spilled: Spilled,
    /// Arithmetic flags that are the guest's where code is now emitted.
    pub true_flags: u32,
    /// Arithmetic flags that the block's instructions so far have defined.
    defined_flags: u32,
    pub observer: Option<Observer>,
    /// Whether the code now emitted is the log's.
    pub logging: bool,
    /// A register that the block's instructions do not name, if there is one (with [`Counting::Exits`]).
    pub idle: u8,
    pub slots: Vec<Slot>,
    pub indirect: Option<Indirect>,
    /// Whether the guest's rcx, which no step uses, stays in the engine page from the block's start to its end.
    pub keeps_rcx_away: bool,
    /// Guest code beyond the block that its form depends on.
    pub looked_at: Vec<GuestRange>,
}

impl<'a> Generator<'a> {
    fn new(request: &'a Request<'a>, plan: &Plan) -> Self {
        let observer = request.mode.logs().then(|| Observer::new(plan));
        Self {
            request,
            hot: Asm::new(request.hot),
            cold: Asm::new(request.cold),
            exits: Vec::with_capacity(8),
            links: Vec::with_capacity(8),
            return_sites: Vec::new(),
            marks: Vec::with_capacity(plan.steps.len() + 8),
            chain: None,
            longest: plan.steps.len() as u32,
            subtracted: 0,
            counting: Counting::Entry,
            sides: Vec::new(),
            paths: Vec::new(),
            retired: 0,
            spilled: Spilled::default(),
            // Blocks before this one may have destroyed flags that only looked dead to a debugger.
            true_flags: if request.mode.exact() { flags::ARITHMETIC } else { 0 },
            defined_flags: 0,
            observer,
            logging: false,
            idle: RAX,
            slots: Vec::new(),
            indirect: None,
            keeps_rcx_away: search::keeps_rcx_away(request, plan),
            looked_at: Vec::new(),
        }
    }

    /// The counter, a spill slot, and so on, as operands.
    pub(crate) fn page(&self, offset: usize) -> Mem {
        field(self.request.layout, offset)
    }

    pub(crate) fn spill_slot(&self, register: u8) -> Mem {
        self.page(offset_of!(EnginePage, spill) + 8 * register as usize)
    }

    pub(crate) fn spill(&mut self, register: u8) {
        let slot = self.spill_slot(register);
        self.hot.store(slot, register);
        self.spilled.0 |= 1 << register;
    }

    pub(crate) fn unspill(&mut self, register: u8) {
        let slot = self.spill_slot(register);
        self.hot.load(register, slot);
        self.spilled.0 &= !(1 << register);
    }

    /// Records what holds from here on, at guest address `pc`.
    pub(crate) fn mark(&mut self, pc: GuestAddr) {
        let mark = Mark {
            offset: self.hot.offset(),
            pc,
            retired: self.retired,
            unretired: self.subtracted as i32 - self.retired as i32,
            spilled: self.spilled,
            flags_exact: self.true_flags == flags::ARITHMETIC,
            logging: self.logging,
        };
        match self.marks.last_mut() {
            Some(last) if last.offset == mark.offset => *last = mark,
            _ => self.marks.push(mark),
        }
    }

    /// The part by which indirect branches enter: is the target this block? Leaves rcx as the guest has it when it
    /// is.
    fn lookup_entry(&mut self) {
        let target = offset_of!(EnginePage, indirect_target);
        let miss = self.cold.here();
        runtime::jump(&mut self.cold, self.request.layout, Stub::Miss);
        // Aligned halves: the guest may have alignment checked.
        self.hot.load32(RCX, self.page(target));
        self.subtract_from_ecx(self.request.pc.0 as u32);
        self.hot.raw(&[0xE3, 5]); // jrcxz over the jump
        let no = self.hot.offset();
        let site = self.hot.jump(miss);
        self.hot.load32(RCX, self.page(target + 4));
        self.subtract_from_ecx((self.request.pc.0 >> 32) as u32);
        self.hot.raw(&[0xE3, 2]); // jrcxz over the jump
        let back = no as i64 - (i64::from(self.hot.offset()) + 2);
        self.hot.raw(&[0xEB, back as u8]);
        self.spilled = Spilled(1 << RCX);
        self.unspill(RCX);
        self.chain = Some(Link { site, unlinked: miss, target: self.request.pc });
    }

    /// Leaves flags alone.
    fn subtract_from_ecx(&mut self, value: u32) {
        if value != 0 {
            self.hot.raw(&[0x8D, 0x89]); // lea ecx, [rcx - value]
            self.hot.u32(value.wrapping_neg());
        }
    }

    /// Adds an exit and its stub; the stub's address.
    pub(crate) fn exit(&mut self, kind: ExitKind, pc: GuestAddr) -> CacheAddr {
        let at = self.cold.here();
        self.exit_here(kind, pc);
        at
    }

    /// Adds an exit whose stub begins where cold code is now emitted.
    pub(crate) fn exit_here(&mut self, kind: ExitKind, pc: GuestAddr) {
        self.name_exit(kind, pc);
        runtime::jump(&mut self.cold, self.request.layout, Stub::Exit);
    }

    /// Adds an exit; cold code notes which.
    pub(crate) fn name_exit(&mut self, kind: ExitKind, pc: GuestAddr) {
        let index = self.exits.len() as u8;
        self.exits.push(Exit { pc, kind });
        let (block, number) =
            (self.page(offset_of!(EnginePage, exit_block)), self.page(offset_of!(EnginePage, exit_index)));
        self.cold.store_imm32(block, self.request.id.0);
        self.cold.store_imm8(number, index);
    }

    /// Whether direct branches out of this block report the budget's end in place of being linked.
    fn at_limit(&self) -> bool {
        self.request.limit.is_some_and(|limit| limit.get() == self.retired)
    }

    /// A way on to `to`: the stub that a branch goes to, and how to note the branch's displacement site.
    pub(crate) fn way_to(&mut self, to: GuestAddr) -> Way {
        if self.at_limit() {
            Way { stub: self.exit(ExitKind::Budget, to), target: None }
        } else if self.request.breakpoints.contains(&to) {
            Way { stub: self.exit(ExitKind::Breakpoint, to), target: None }
        } else {
            let link = self.links.len() as u16;
            let stub = self.exit(ExitKind::Link { link }, to);
            // Filled in by `note`.
            self.links.push(Link { site: CacheAddr(0), unlinked: stub, target: to });
            Way { stub, target: Some(link) }
        }
    }

    /// Notes where the displacement of the branch along `way` lies.
    pub(crate) fn note(&mut self, way: Way, site: CacheAddr) {
        if let Some(link) = way.target {
            self.links[link as usize].site = site;
        }
    }

    /// `jmp` along a new way to `to`.
    pub(crate) fn jump_to(&mut self, to: GuestAddr) {
        let way = self.way_to(to);
        let site = self.hot.jump(way.stub);
        self.note(way, site);
    }

    fn step(&mut self, plan: &Plan, position: usize, step: &Step) {
        self.mark(step.pc);
        if position > 0 {
            self.compare(plan, position);
        }
        self.count_before(position);
        self.mark(step.pc);
        let last = position + 1 == plan.steps.len();
        match step.through {
            Through::End if last && plan.end == End::Branch => return self.branch(step),
            Through::End => {}
            Through::Followed if step.kind == Kind::Call => return self.push_return(step),
            Through::Followed => return self.retire(step),
            Through::SideIf | Through::SideIfNot => return self.side(step),
        }
        self.before_stores(step);
        match step.kind {
            Kind::State(_) => {
                let mem = Mem::of(&step.instr);
                self.state_start(mem);
                self.mark(step.pc);
                self.copy(step);
            }
            Kind::Move | Kind::Fill if step.stores.iter().any(crate::stores::Store::is_bulk) => {
                self.bulk_start();
                self.copy(step);
            }
            Kind::WriteFsBase | Kind::WriteGsBase => {
                self.copy(step);
                self.note_base(step);
            }
            Kind::Transaction(which) => self.outside_transaction(which),
            _ => self.copy(step),
        }
        self.retire(step);
        self.mark(step.next());
        self.after_stores(step);
    }

    /// The instruction just emitted has retired: what is known of the flags.
    pub(crate) fn retire(&mut self, step: &Step) {
        self.retired += 1;
        let kills = flags::effect(&step.instr).kills;
        self.true_flags |= kills;
        let defined = self.defined_flags | kills;
        if self.request.mode.exact() && defined == flags::ARITHMETIC && self.defined_flags != defined {
            let flag = self.page(offset_of!(EnginePage, flags_defined));
            self.hot.store_imm8(flag, 1);
        }
        self.defined_flags = defined;
    }

    /// The guest's bytes, relocated where they address relative to rip.
    fn copy(&mut self, step: &Step) {
        let at = self.hot.bytes.len();
        let end = self.hot.here().0.wrapping_add(step.instr.len() as u64);
        self.hot.raw(step.bytes());
        if let Some(offset) = step.relative {
            let distance = step.instr.ip_rel_memory_address().wrapping_sub(end) as i64;
            // Relative to eip, addresses wrap at 4 GiB and everything is in reach.
            let narrow = step.instr.memory_base() == Register::EIP;
            let Some(disp) = i32::try_from(distance).ok().or(narrow.then_some(distance as i32)) else {
                self.hot.overflow = true;
                return;
            };
            self.hot.bytes[at + offset..at + offset + 4].copy_from_slice(&disp.to_le_bytes());
        }
    }

    /// `xtest` tells that there is no transaction; `xabort` then does nothing.
    fn outside_transaction(&mut self, which: Transaction) {
        if which == Transaction::Test {
            let saved = self.page(offset_of!(EnginePage, scratch));
            self.hot.store(saved, RAX);
            self.hot.raw(&[0x31, 0xC0, 0xB4, 0x42, 0x9E]); // xor eax, eax; mov ah, ZF; sahf
            self.hot.load(RAX, saved);
        }
    }

    /// Keeps the engine page's copy of a segment base current.
    fn note_base(&mut self, step: &Step) {
        let offset = match step.kind {
            Kind::WriteFsBase => offset_of!(EnginePage, fs_base),
            _ => offset_of!(EnginePage, gs_base),
        };
        let Some(register) = crate::emit::gpr(step.instr.op0_register()) else { return };
        let base = self.page(offset);
        if step.instr.op0_register().is_gpr64() {
            self.hot.store(base, register);
        } else {
            self.hot.store_sized(base, register, 4);
            let high = self.page(offset + 4);
            self.hot.store_imm32(high, 0);
        }
    }

    /// A conditional branch that the block runs through: the jump out of it, to be landed later.
    fn side(&mut self, step: &Step) {
        self.count_branch(step);
        self.retire(step);
        let condition = step.instr.condition_code() as u8 - 1;
        let (condition, to) = match step.through {
            Through::SideIf => (condition, step.target()),
            _ => (condition ^ 1, step.next()),
        };
        let here = self.hot.here();
        self.hot.jump_if(condition, here);
        self.sides.push(Side {
            jump: self.hot.bytes.len(),
            to,
            taken: step.through == Through::SideIf,
            retired: self.retired,
            slots: self.slots.len() as u32,
            spilled: self.spilled,
            record: self.observer.as_ref().map(Observer::place),
        });
    }

    /// The ways out on the side, after everything else.
    fn side_exits(&mut self) {
        for side in std::mem::take(&mut self.sides) {
            let distance = (self.hot.bytes.len() - side.jump) as u32;
            self.hot.bytes[side.jump - 4..side.jump].copy_from_slice(&distance.to_le_bytes());
            self.retired = side.retired;
            self.spilled = side.spilled;
            let log_bytes = side.record.map_or(0, |(_, bytes)| bytes);
            if let (Some(observer), Some(place)) = (&mut self.observer, side.record) {
                observer.set_place(place);
            }
            self.end_record(self.paths.len() as u32);
            self.count_on_side(side.to);
            self.give_rcx_back();
            self.jump_to(side.to);
            let end =
                if side.taken { Terminator::Jump { to: side.to } } else { Terminator::Fall { to: side.to } };
            self.paths.push(Path { instructions: side.retired, slots: side.slots, log_bytes, end });
        }
    }

    /// Where the block is left, but for an indirect branch, the guest's rcx is in its place.
    pub(crate) fn give_rcx_back(&mut self) {
        if self.keeps_rcx_away && self.spilled.contains(RCX) {
            self.unspill(RCX);
        }
    }

    /// The block's end, unless it is a branch; and its longest path.
    fn finish(&mut self, plan: &Plan) {
        let end = match plan.end {
            End::Branch => plan.steps.last().map_or(Terminator::Stop { at: self.request.pc }, branch_end),
            End::Fall(to) => {
                self.end_record(0);
                self.count_at_end();
                self.give_rcx_back();
                self.jump_to(to);
                Terminator::Fall { to }
            }
            End::Bulk(to) => {
                self.bulk(to);
                self.jump_to(to);
                Terminator::Fall { to }
            }
            End::Exit(kind, pc) => {
                // The supervisor logs a state image when it has corrected it.
                if !matches!(kind, ExitKind::X87Pointer { .. }) {
                    self.end_record(0);
                }
                self.count_at_end();
                self.give_rcx_back();
                self.mark(pc);
                let state = plan.steps.last().map(|step| step.kind);
                if let (Some(Kind::State(StateImage::XSave | StateImage::XSaveCompact)), false) =
                    (state.filter(|_| matches!(kind, ExitKind::X87Pointer { .. })), self.request.mode.logs())
                {
                    self.exit_if_x87_saved(kind, pc);
                    self.jump_to(pc);
                } else {
                    let behind = plan.sources.last().filter(|_| self.request.limit.is_none());
                    if !behind.is_some_and(|seen| self.prepared(kind, pc, seen.end)) {
                        let stub = self.exit(kind, pc);
                        self.hot.jump(stub);
                    }
                }
                match kind {
                    ExitKind::Budget | ExitKind::X87Pointer { .. } => Terminator::Fall { to: pc },
                    _ => Terminator::Stop { at: pc },
                }
            }
        };
        let log_bytes = self.observer.as_ref().map_or(0, Observer::log_bytes);
        let path = Path { instructions: self.retired, slots: self.slots.len() as u32, log_bytes, end };
        self.paths.push(path);
    }

    /// After `xsave`: the supervisor is wanted only if the image holds x87 state, which is rare: the dynamic linker, for
    /// one, saves vectors only.
    fn exit_if_x87_saved(&mut self, kind: ExitKind, pc: GuestAddr) {
        const HEADER: i32 = 512;
        let start = self.page(offset_of!(EnginePage, bulk_start));
        let saved = self.spill_slot(RCX);
        let stub = self.cold.here();
        self.cold.load(RCX, saved);
        self.exit_here(kind, pc);
        self.spill(RCX);
        self.hot.load(RCX, start);
        self.hot.load8(RCX, Mem::at(RCX, HEADER));
        self.hot.load8(RCX, runtime::low_bit(self.request.layout, RCX));
        self.hot.raw(&[0xE3, 5]); // jrcxz over the jump
        self.hot.jump(stub);
        self.unspill(RCX);
    }

    fn into_block(mut self, plan: &Plan, entry: CacheAddr) -> Result<Translated, Refusal> {
        let bad = |what| Err(Refusal::BadRequest { what });
        if self.hot.overflow || self.cold.overflow {
            return bad("a displacement out of reach");
        }
        let Some(chain) = self.chain.take() else { return bad("no chain") };
        Ok(Translated {
            id: self.request.id,
            pc: self.request.pc,
            code: self.hot.bytes,
            cold: self.cold.bytes,
            entry,
            lookup: self.request.hot,
            chain,
            sources: [plan.sources.as_slice(), &self.looked_at].concat(),
            pcs: plan.steps.iter().map(|step| step.pc).collect(),
            exits: self.exits,
            links: self.links,
            return_sites: self.return_sites,
            indirect: self.indirect,
            marks: self.marks,
            slots: self.slots,
            paths: self.paths,
        })
    }
}

/// A way out of the middle of a block.
struct Side {
    /// Offset of the end of the jump that leads there.
    jump: usize,
    to: GuestAddr,
    taken: bool,
    retired: u32,
    slots: u32,
    spilled: Spilled,
    /// The observer's state there.
    record: Option<(bool, u32)>,
}

/// A way out of a block along a direct branch.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub stub: CacheAddr,
    target: Option<u16>,
}

/// How a path that ends with this branch ends.
fn branch_end(step: &Step) -> Terminator {
    let returns_to = step.next();
    match step.kind {
        Kind::Call => Terminator::Call { to: step.target(), returns_to },
        Kind::CallIndirect => Terminator::CallIndirect { returns_to },
        Kind::Return => Terminator::Return,
        Kind::JumpIndirect => Terminator::JumpIndirect,
        Kind::Conditional | Kind::Loop => Terminator::Conditional { taken: step.target(), fall: step.next() },
        _ => Terminator::Jump { to: step.target() },
    }
}
