//! Which instructions a block has, and how it ends.

use std::cell::Cell;

use guest::{GuestAddr, GuestRange};
use iced_x86::{
    Decoder, DecoderError, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register,
};

use crate::block::{ExitKind, Signal};
use crate::class::{Class, Kind, Transaction, classify, kind};
use crate::emit::{RAX, RCX, RSP, gpr};
use crate::refusal::Refusal;
use crate::request::{Mode, Request};
use crate::stores::{self, Store};

/// Most instructions in a block.
const MAX_STEPS: usize = 64;
/// Most conditional branches that a block runs through.
const MAX_SIDES: usize = 4;
/// A block does not run through a conditional branch when it is longer than this.
const MAX_MERGED: usize = 24;
/// A loop is unrolled while it stays shorter than this.
const MAX_UNROLLED: usize = 32;
/// Scratch registers that a logging block needs: this many must be unused by all of its instructions.
const MIN_FREE_REGISTERS: u32 = 3;

/// One guest instruction of a block.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub instr: Instruction,
    pub kind: Kind,
    pub pc: GuestAddr,
    bytes: [u8; 15],
    /// Offset of the displacement in `bytes`, where it is relative to rip.
    pub relative: Option<usize>,
    /// General registers it may write (logging modes).
    pub writes: u16,
    /// What it stores (logging modes).
    pub stores: Vec<Store>,
    /// For a branch that does not end the block.
    pub through: Through,
}

/// How a block goes on after one of its branches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Through {
    /// It does not, or the step is no branch.
    End,
    /// At the target of a jump or a call.
    Followed,
    /// After a conditional branch; taken, it leaves.
    SideIf,
    /// At the target of a conditional branch; not taken, it leaves.
    SideIfNot,
}

impl Through {
    pub(crate) fn is_side(self) -> bool {
        matches!(self, Self::SideIf | Self::SideIfNot)
    }
}

impl Step {
    /// The guest's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.instr.len().min(15)]
    }

    /// The address of the instruction that follows it in memory.
    pub(crate) fn next(&self) -> GuestAddr {
        GuestAddr(self.instr.next_ip())
    }

    /// Whether it branches to an address that it finds.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(self.kind, Kind::Return | Kind::JumpIndirect | Kind::CallIndirect)
    }

    /// The target of a direct branch.
    pub(crate) fn target(&self) -> GuestAddr {
        GuestAddr(self.instr.near_branch_target())
    }
}

/// How a block ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// With its last step, a branch.
    Branch,
    /// It goes on at an address that is to be linked.
    Fall(GuestAddr),
    /// The supervisor is told, after the last step; the guest goes on at the address.
    Exit(ExitKind, GuestAddr),
    /// The last step is a string store whose contents must be logged; then as `Fall`.
    Bulk(GuestAddr),
}

/// A block to be.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    pub end: End,
    pub sources: Vec<GuestRange>,
    /// General registers that some step reads or writes, by number (logging modes).
    pub used: u16,
}

impl Plan {
    /// A register that no step names, not among `taken`; else any not among them. Never rsp, nor rcx, which branches
    /// want.
    pub(crate) fn idle(&self, taken: u16) -> u8 {
        let named = |step: &Step| {
            let instr = &step.instr;
            let operands = (0..instr.op_count()).map(|i| instr.op_register(i));
            operands
                .chain([instr.memory_base(), instr.memory_index()])
                .filter_map(gpr)
                .fold(0, |mask, r| mask | 1 << r)
        };
        let mine: u16 = self.steps.iter().map(named).fold(0, |mask: u16, more: u16| mask | more);
        let candidates = |mask: u16| (0..16u8).rev().find(|&r| r != RSP && r != RCX && mask >> r & 1 == 0);
        candidates(taken | mine).or_else(|| candidates(taken)).unwrap_or(RAX)
    }

    /// Whether the block ends with an indirect branch and none of its steps uses rcx.
    pub(crate) fn leaves_rcx_alone(&self) -> bool {
        self.end == End::Branch && self.steps.last().is_some_and(Step::is_indirect) && !self.uses_rcx()
    }

    /// Whether a step uses rcx.
    pub(crate) fn uses_rcx(&self) -> bool {
        let mut factory = InstructionInfoFactory::new();
        let mut uses = |step: &Step| stores::used_registers(factory.info(&step.instr)) >> RCX & 1 != 0;
        self.steps.iter().any(&mut uses)
    }
}

/// What was found at an address.
enum Found {
    /// An instruction, put at the end of the steps; and the registers it uses.
    Step(u16),
    /// The block must end before it, by an exit.
    Stop(ExitKind, u64),
    /// The block must end before it; alone, it is refused.
    Refused(Refusal),
}

thread_local! {
    /// The room of the last plan's steps, which is large.
    static SPARE: Cell<Vec<Step>> = const { Cell::new(Vec::new()) };
}

impl Drop for Plan {
    fn drop(&mut self) {
        let mut steps = std::mem::take(&mut self.steps);
        steps.clear();
        SPARE.set(steps);
    }
}

/// Decodes the block at `request.pc`: one way in, one way through, and ways out on the side where a conditional
/// branch that is probably not taken lies on the way.
pub(crate) fn plan(request: &Request<'_>) -> Result<Plan, Refusal> {
    let mut reader = Reader::new(request);
    let mut steps = SPARE.take();
    steps.reserve(MAX_STEPS / 2);
    let mut used = 0u16;
    let mut pc = request.pc;
    let limit = request.limit.map_or(MAX_STEPS, |n| (n.get() as usize).min(MAX_STEPS));
    let mut sources = Vec::new();
    let mut sides = 0;
    let end = loop {
        if steps.len() == limit {
            let all = request.limit.is_some_and(|n| n.get() as usize == limit);
            break if all { End::Exit(ExitKind::Budget, pc) } else { End::Fall(pc) };
        }
        if !steps.is_empty() && request.breakpoints.contains(&pc) {
            break End::Exit(ExitKind::Breakpoint, pc);
        }
        // A log's blocks compare where they begin only.
        if !steps.is_empty() && request.mode.logs() && request.searches(pc) {
            break End::Fall(pc);
        }
        match reader.look(pc, &mut steps) {
            Found::Stop(kind, len) => {
                see(&mut sources, pc, len);
                break End::Exit(kind, pc);
            }
            Found::Refused(refusal) if steps.is_empty() => {
                SPARE.set(steps);
                return Err(refusal);
            }
            Found::Refused(_) => break End::Fall(pc),
            Found::Step(uses) => {
                let count = steps.len();
                let Some(step) = steps.last_mut() else { continue };
                if count > 1 && must_stand_alone(request.mode, step, used | uses) {
                    steps.pop();
                    break End::Fall(pc);
                }
                used |= uses;
                see(&mut sources, pc, step.instr.len() as u64);
                pc = step.next();
                let mut end = end_after(request, step, &mut reader);
                if end == Some(End::Branch)
                    && let Some((through, to)) = go_on(request, step, count, sides)
                {
                    step.through = through;
                    sides += usize::from(through.is_side());
                    pc = to;
                    end = None;
                }
                if let Some(end) = end {
                    break end;
                }
            }
        }
    };
    if sources.is_empty() {
        sources.push(GuestRange { start: request.pc, end: request.pc });
    }
    Ok(Plan { steps, end, sources, used })
}

/// Adds guest bytes to a list of ranges.
pub(crate) fn see(seen: &mut Vec<GuestRange>, pc: GuestAddr, len: u64) {
    match seen.last_mut() {
        Some(last) if last.end == pc => last.end = pc.wrapping_add(len),
        _ => seen.push(GuestRange::new(pc, len)),
    }
}

/// Whether and where the block goes on after a branch, the `count`-th step.
fn go_on(request: &Request<'_>, step: &Step, count: usize, sides: usize) -> Option<(Through, GuestAddr)> {
    if request.limit.is_some() || request.self_check || count >= MAX_STEPS {
        return None;
    }
    let (through, to) = match step.kind {
        Kind::Jump if step.target().0 > step.pc.0 => (Through::Followed, step.target()),
        // A log's reader learns of calls by the ends of blocks.
        Kind::Call if !request.mode.logs() && count <= MAX_MERGED && step.target() != request.pc => {
            (Through::Followed, step.target())
        }
        Kind::Conditional if sides >= MAX_SIDES => return None,
        // A loop of this block alone is unrolled.
        Kind::Conditional if step.target() == request.pc && count <= MAX_UNROLLED / 2 => {
            (Through::SideIfNot, step.target())
        }
        Kind::Conditional if step.target().0 > step.pc.0 && count <= MAX_MERGED => {
            (Through::SideIf, step.next())
        }
        _ => return None,
    };
    let is_known = !request.code.bytes(to).is_empty();
    let ends = request.breakpoints.contains(&to) || (request.mode.logs() && request.searches(to));
    (is_known && !ends).then_some((through, to))
}

/// Whether a step cannot follow others in a block of this mode.
fn must_stand_alone(mode: Mode, step: &Step, used: u16) -> bool {
    mode.logs() && (step.stores.iter().any(Store::is_bulk) || free(used).count_ones() < MIN_FREE_REGISTERS)
}

/// The registers outside `used` that may serve as scratch.
pub(crate) fn free(used: u16) -> u16 {
    const RSP: u16 = 1 << 4;
    !(used | RSP)
}

/// How the block ends when `step` is its last.
fn end_after(request: &Request<'_>, step: &Step, reader: &mut Reader<'_>) -> Option<End> {
    match step.kind {
        Kind::Conditional
        | Kind::Loop
        | Kind::Jump
        | Kind::JumpIndirect
        | Kind::Call
        | Kind::CallIndirect
        | Kind::Return
        | Kind::Transaction(Transaction::Begin) => Some(End::Branch),
        Kind::State(image) => {
            let (offset, width) = stores::instruction_pointer(&step.instr, image);
            Some(End::Exit(ExitKind::X87Pointer { offset, width }, step.next()))
        }
        _ if step.stores.iter().any(Store::is_bulk) => Some(End::Bulk(step.next())),
        _ if request.self_check && reader.writes_memory(&step.instr) => Some(End::Fall(step.next())),
        _ => None,
    }
}

/// Whether an access may write.
pub(crate) fn is_write(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Guest code, decoded one instruction after the other.
struct Reader<'a> {
    request: &'a Request<'a>,
    /// A run of bytes, where the decoder stands.
    bytes: &'a [u8],
    decoder: Decoder<'a>,
    /// Made when first needed.
    factory: Option<InstructionInfoFactory>,
}

impl<'a> Reader<'a> {
    fn new(request: &'a Request<'a>) -> Self {
        let bytes = request.code.bytes(request.pc);
        let decoder = Decoder::with_ip(64, bytes, request.pc.0, DecoderOptions::NONE);
        Self { request, bytes, decoder, factory: None }
    }

    fn factory(&mut self) -> &mut InstructionInfoFactory {
        self.factory.get_or_insert_with(InstructionInfoFactory::new)
    }

    fn writes_memory(&mut self, instr: &Instruction) -> bool {
        self.factory().info(instr).used_memory().iter().any(|memory| is_write(memory.access()))
    }

    /// The bytes from `pc` on, the decoder standing there.
    fn stand_at(&mut self, pc: GuestAddr) -> &'a [u8] {
        if pc.0 != self.decoder.ip() || self.bytes.len() - self.decoder.position() < 15 {
            self.bytes = self.request.code.bytes(pc);
            self.decoder = Decoder::with_ip(64, self.bytes, pc.0, DecoderOptions::NONE);
        }
        &self.bytes[self.decoder.position()..]
    }

    /// Decodes one instruction.
    fn look(&mut self, pc: GuestAddr, steps: &mut Vec<Step>) -> Found {
        let bytes = self.stand_at(pc);
        let instr = self.decoder.decode();
        if instr.is_invalid() {
            return match self.decoder.last_error() {
                DecoderError::NoMoreBytes if bytes.len() < 15 && may_go_on(bytes) => {
                    Found::Refused(Refusal::Unreadable { pc, addr: pc.wrapping_add(bytes.len() as u64) })
                }
                _ => Found::Stop(ExitKind::Raises(Signal::Illegal), bytes.len().min(15) as u64),
            };
        }
        let kind = kind(instr.code());
        let len = instr.len();
        match kind {
            Kind::Refuse => return unsupported(pc, name_of(&instr)),
            Kind::Interrupt if instr.immediate8() != 0x80 => return unsupported(pc, name_of(&instr)),
            Kind::Syscall | Kind::Interrupt => return Found::Stop(ExitKind::Syscall, len as u64),
            Kind::Special(special) => return Found::Stop(ExitKind::Special(special), len as u64),
            Kind::Raises(signal) => return Found::Stop(ExitKind::Raises(signal), len as u64),
            // Outside a transaction, and there is no inside, `xend` is a general protection fault.
            Kind::Transaction(which) if !self.request.rtm || which == Transaction::End => {
                let signal = if self.request.rtm { Signal::Protection } else { Signal::Illegal };
                return Found::Stop(ExitKind::Raises(signal), len as u64);
            }
            Kind::Copy => {}
            _ if classify(instr.code()) == Class::Branch && is_narrow(&bytes[..len]) => {
                // Intel ignores the prefix, AMD cuts the target to 16 bits.
                return unsupported(pc, format!("{} with an operand size prefix", name_of(&instr)));
            }
            _ => {}
        }
        let mut step = Step {
            instr,
            kind,
            pc,
            bytes: [0; 15],
            relative: None,
            writes: 0,
            stores: Vec::new(),
            through: Through::End,
        };
        step.bytes[..len].copy_from_slice(&bytes[..len]);
        if instr.is_ip_rel_memory_operand() {
            if let Some(refused) = self.refuse_relative(&step) {
                return refused;
            }
            step.relative = Some(self.decoder.get_constant_offsets(&instr).displacement_offset());
        }
        let mut uses = 0;
        if self.request.mode.logs() && !instr.is_privileged() {
            let xsave_size = self.request.xsave_size;
            let info = self.factory().info(&instr);
            uses = stores::used_registers(info);
            step.writes = stores::written_registers(info);
            match stores::stores(&instr, kind, info, xsave_size) {
                Ok(stores) => step.stores = stores,
                Err(what) => return unsupported(pc, format!("{} ({what}, while logging)", name_of(&instr))),
            }
        }
        steps.push(step);
        Found::Step(uses)
    }

    /// Why an operand relative to rip cannot be addressed from the cache, if it cannot.
    fn refuse_relative(&self, step: &Step) -> Option<Found> {
        let target = step.instr.ip_rel_memory_address();
        let logs = self.request.mode.logs();
        if step.instr.memory_base() == Register::EIP {
            let when = if step.kind == Kind::Copy { ", while logging" } else { "" };
            let name = || format!("{} (an eip-relative operand{when})", name_of(&step.instr));
            return (step.kind != Kind::Copy || logs).then(|| unsupported(step.pc, name()));
        }
        let cache = self.request.hot.0;
        let refusal = Refusal::OutOfReach { pc: step.pc, target: GuestAddr(target), cache };
        (!reaches(cache, target)).then_some(Found::Refused(refusal))
    }
}

fn unsupported(pc: GuestAddr, name: String) -> Found {
    Found::Refused(Refusal::Unsupported { pc, name })
}

/// Whether bytes at the end of a mapping are the beginning of an instruction. The decoder wants more bytes even where
/// none could make one.
fn may_go_on(bytes: &[u8]) -> bool {
    // Operand, address and segment prefixes, locks and repetitions, REX.
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF0 | 0xF2 | 0xF3);
    // VEX, EVEX and XOP: what follows is opcode and operands together, of which few go with each other.
    let is_vector = |byte: &u8| matches!(byte, 0x62 | 0x8F | 0xC4 | 0xC5);
    if bytes.iter().find(|byte| !is_prefix(byte)).is_none_or(is_vector) {
        return true;
    }
    let makes_one = |next: u8| {
        [0x00, 0x40, 0xC0, 0xFF].into_iter().any(|filler| {
            let mut whole = bytes.to_vec();
            whole.push(next);
            whole.resize(16, filler);
            !Decoder::with_ip(64, &whole, 0, DecoderOptions::NONE).decode().is_invalid()
        })
    };
    (0..=u8::MAX).any(makes_one)
}

/// Whether an instruction has an operand size prefix that no REX.W overrules.
fn is_narrow(bytes: &[u8]) -> bool {
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF0 | 0xF2 | 0xF3);
    let prefixes = &bytes[..bytes.iter().position(|byte| !is_prefix(byte)).unwrap_or(0)];
    // A REX prefix counts only right before the opcode.
    prefixes.contains(&0x66) && prefixes.last().is_none_or(|byte| byte & 0xF8 != 0x48)
}

/// Whether a displacement from anywhere in a block at `cache` reaches `target`.
pub(crate) fn reaches(cache: u64, target: u64) -> bool {
    const MARGIN: i64 = 1 << 16;
    let distance = target.wrapping_sub(cache) as i64;
    distance.unsigned_abs() < (i64::from(i32::MAX) - MARGIN) as u64
}

fn name_of(instr: &Instruction) -> String {
    format!("{:?}", instr.code()).to_lowercase()
}
