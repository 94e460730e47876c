//! The methods: where the jump to the stub goes, and what has to move for it.

use std::ops::Range;

use abi::SiteDescriptor;
use iced_x86::{Code, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};

use crate::addr::{CodeAddr, LowAddr};
use crate::decode::{Surroundings, Sweep, surroundings};
use crate::entries::first_entry;
use crate::map::PcMap;
use crate::padding;
use crate::refusal::{Obstacle, Refusal};
use crate::relocate::{Class, Moved};
use crate::stub::{Builder, Stub};
use crate::text::{Mapped, Text};

/// The length of a jump through memory.
pub(crate) const JUMP: u64 = 7;
/// How far back the number of the call is looked for, in instructions.
const NUMBER_REACH: usize = 12;
/// What the signal restorer of every C library, and Go's, looks like: the bytes that unwinders compare (libgcc,
/// `config/i386/linux-unwind.h`), and the shorter form.
const RESTORERS: [&[u8]; 2] =
    [&[0x48, 0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05], &[0xB8, 15, 0, 0, 0, 0x0F, 0x05]];

/// An instruction that can be rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// `syscall`
    Syscall,
    /// `rdtsc`
    Rdtsc,
    /// `rdtscp`
    Rdtscp,
}

impl Target {
    /// Its bytes.
    pub const fn bytes(self) -> &'static [u8] {
        match self {
            Self::Syscall => &[0x0F, 0x05],
            Self::Rdtsc => &[0x0F, 0x31],
            Self::Rdtscp => &[0x0F, 0x01, 0xF9],
        }
    }

    /// Which one lies in a text that is mapped at `base`, if one does.
    pub fn at(text: &Text, base: CodeAddr, at: CodeAddr) -> Option<Self> {
        Self::in_code(Mapped::new(text, base), at.0)
    }

    fn in_code(code: Mapped<'_>, at: u64) -> Option<Self> {
        let lies_there =
            |target: &Self| code.bytes(at..at + target.bytes().len() as u64) == Some(target.bytes());
        [Self::Syscall, Self::Rdtsc, Self::Rdtscp].into_iter().find(lies_there)
    }
}

/// An instruction that was executed, and where things are to lie for it.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Where the text's first byte is mapped.
    pub base: CodeAddr,
    /// The instruction.
    pub at: CodeAddr,
    /// Eight bytes that will hold [`Stub::entry`].
    pub slot: LowAddr,
    /// [`crate::MAX_STUB`] bytes for the stub; aligned to 8.
    pub stub: LowAddr,
    /// What stubs jump to, with the address of their [`SiteDescriptor`] in r11.
    pub common: LowAddr,
    /// Of an instruction that overwrites no r11: eight bytes that hold that address instead.
    pub noted: LowAddr,
}

/// What the caller knows besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// Addresses that are instructions and may be entered: symbols, relocations, unwind entries, tables. Ascending.
    pub entries: &'a [CodeAddr],
    /// What other patches of the same text occupy ([`Plan::occupied`]).
    pub taken: &'a [Range<CodeAddr>],
    /// Numbers of system calls that are not to be patched, where the code shows the number.
    pub refused: &'a [u32],
}

/// How a site is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Method {
    /// The instruction becomes a short jump to padding that holds the jump, or one to it. Nothing moves.
    Island,
    /// The jump lies over the instruction and what follows it.
    Forward,
    /// The jump lies over what precedes the instruction, and the instruction.
    Backward,
}

impl Method {
    /// All, the best first.
    pub const ALL: [Self; 3] = [Self::Island, Self::Forward, Self::Backward];
}

/// Bytes to put into the code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where.
    pub at: CodeAddr,
    /// What is there now: to be compared first.
    pub old: Vec<u8>,
    /// What is to be there; as long.
    pub new: Vec<u8>,
}

impl Write {
    /// The bytes.
    pub fn range(&self) -> Range<CodeAddr> {
        self.at..CodeAddr(self.at.0 + self.new.len() as u64)
    }
}

/// A site's patch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How.
    pub method: Method,
    /// The rewritten code. No task may run meanwhile; [`PcMap::redirect`] says where those go on that stand inside.
    pub writes: Vec<Write>,
    /// To be in place, with the slot, before the code is.
    pub stub: Stub,
    /// What belongs to this patch, moved instructions included. Nothing else may be patched there.
    pub occupied: Vec<Range<CodeAddr>>,
    /// Which pcs stand for which.
    pub map: PcMap,
    /// Where the plain code goes on once the instruction and what was moved from behind it are done; `None` where that may be in several
    /// places, or where something on the way touches memory or may raise a signal.
    pub exit: Option<CodeAddr>,
}

/// A jump to where the eight bytes in a slot say.
pub fn jump_through(slot: LowAddr) -> Vec<u8> {
    [&[0xFF, 0x24, 0x25][..], &slot.displacement()].concat()
}

/// Finds a way to patch a site: the first of [`Method::ALL`] that works.
pub fn plan(text: &Text, site: Site, facts: Facts<'_>) -> Result<Plan, Refusal> {
    let examined = Examined::new(text, site, facts)?;
    let mut obstacles = [Obstacle::NoPadding; 3];
    for (method, obstacle) in Method::ALL.into_iter().zip(&mut obstacles) {
        match examined.by(method) {
            Ok(plan) => return Ok(plan),
            Err(found) => *obstacle = found,
        }
    }
    let [island, forward, backward] = obstacles;
    Err(Refusal::NoMethod { at: site.at, island, forward, backward })
}

/// A site with the instructions around it.
#[derive(Debug)]
pub struct Examined<'a> {
    pub(crate) code: Mapped<'a>,
    pub(crate) site: Site,
    target: Target,
    pub(crate) facts: Facts<'a>,
    pub(crate) around: Surroundings,
}

impl<'a> Examined<'a> {
    /// Decodes around a site; refuses those that are to stay as they are.
    pub fn new(text: &'a Text, site: Site, facts: Facts<'a>) -> Result<Self, Refusal> {
        let code = Mapped::new(text, site.base);
        let at = site.at;
        let target = Target::in_code(code, at.0).ok_or(Refusal::NoTarget { at })?;
        let is_restorer = |bytes: &&[u8]| {
            let end = at.0 + target.bytes().len() as u64;
            code.bytes(end.wrapping_sub(bytes.len() as u64)..end) == Some(*bytes)
        };
        if RESTORERS.iter().any(is_restorer) {
            return Err(Refusal::Restorer { at });
        }
        let around = surroundings(code, at.0, facts.entries).ok_or(Refusal::NoTarget { at })?;
        if target == Target::Syscall
            && let Some(number) = number(around.before())
            && facts.refused.contains(&number)
        {
            return Err(Refusal::Number { at, number });
        }
        Ok(Self { code, site, target, facts, around })
    }

    /// The patch by one method.
    pub fn by(&self, method: Method) -> Result<Plan, Obstacle> {
        match method {
            Method::Island => self.island(),
            Method::Forward => self.forward(),
            Method::Backward => self.backward(),
        }
    }

    /// The address after the instruction.
    pub(crate) fn after(&self) -> u64 {
        self.site.at.0 + self.target.bytes().len() as u64
    }

    /// What a stub does in the instruction's place.
    pub(crate) fn put_call(&self, builder: &mut Builder) {
        let Site { at, common, noted, .. } = self.site;
        match self.target {
            Target::Syscall => builder.call(at, common),
            Target::Rdtsc | Target::Rdtscp => builder.reading(at, common, noted),
        }
    }

    /// The jump to the stub: through the slot, so that copies of it lead there, too.
    pub(crate) fn jump(&self) -> Vec<u8> {
        jump_through(self.site.slot)
    }

    fn forward(&self) -> Result<Plan, Obstacle> {
        let start = self.site.at.0;
        let jump = self.jump();
        let end = start + jump.len() as u64;
        let mut builder = Builder::new(self.site.stub);
        self.put_call(&mut builder);
        let tail = builder.here();
        let (moved_end, straight) = self.tail(&mut builder, end)?;
        self.check_window(start, end, moved_end.max(end))?;
        let writes = vec![self.write(start, jump)];
        let mut plan = self.finish(Method::Forward, writes, builder, tail, start..moved_end.max(end))?;
        plan.exit = straight.then_some(CodeAddr(moved_end));
        Ok(plan)
    }

    /// Moves instructions from behind the site, up to `end` or beyond. Returns where the last of them ends, and whether all do nothing but
    /// change registers. (A call, of five
    /// bytes at least, ends at `end` or beyond, so that it does not return into the jump.)
    fn tail(&self, builder: &mut Builder, end: u64) -> Result<(u64, bool), Obstacle> {
        let mut at = self.after();
        let mut straight = true;
        for step in &self.around.onward()[1..] {
            if at >= end {
                break;
            }
            at = step.next_ip();
            straight &= is_plain(step);
            let moved = self.moved(step);
            if !builder.moved(moved)? {
                let room = padding::run_end(&mut Sweep::new(self.code), at);
                return if room < end {
                    Err(Obstacle::NoRoom { at: CodeAddr(room) })
                } else {
                    Ok((at, false))
                };
            }
        }
        if at < end {
            return Err(Obstacle::Undecodable { at: CodeAddr(at) });
        }
        builder.go_on(CodeAddr(at));
        Ok((at, straight))
    }

    fn backward(&self) -> Result<Plan, Obstacle> {
        let before = self.around.before();
        let is_enough = |step: &&Instruction| self.after() - step.ip() >= JUMP;
        let first = before
            .iter()
            .rev()
            .find(is_enough)
            .ok_or(Obstacle::Unknown { at: CodeAddr(self.around.start()) })?;
        let start = first.ip();
        let jump = self.jump();
        let end = start + jump.len() as u64;
        self.check_window(start, end, self.after())?;
        let mut builder = Builder::new(self.site.stub);
        for step in before.iter().filter(|step| step.ip() >= start) {
            if !builder.moved(self.moved(step))? {
                // The site is not reached from here.
                return Err(Obstacle::NoRoom { at: CodeAddr(step.next_ip()) });
            }
        }
        self.put_call(&mut builder);
        let writes = vec![self.write(start, jump)];
        self.finish(Method::Backward, writes, builder, self.after(), start..self.after())
    }

    /// Whether a window may be rewritten: the jump from `start` to `end`, moved instructions up to `moved_end`.
    pub(crate) fn check_window(&self, start: u64, end: u64, moved_end: u64) -> Result<(), Obstacle> {
        if let Some(at) = self.first_entry(&self.around, start + 1..end) {
            return Err(Obstacle::Entered { at });
        }
        match self.taken(&(start..moved_end)) {
            Some(taken) => Err(Obstacle::Taken { at: taken.start }),
            None => Ok(()),
        }
    }

    /// The first address in `range` to which something may jump, what is around being known.
    pub(crate) fn first_entry(&self, around: &Surroundings, range: Range<u64>) -> Option<CodeAddr> {
        first_entry(self.code, around, self.facts.entries, range)
    }

    /// Another patch in `range`.
    pub(crate) fn taken(&self, range: &Range<u64>) -> Option<&'a Range<CodeAddr>> {
        self.facts.taken.iter().find(|taken| taken.start.0 < range.end && range.start < taken.end.0)
    }

    fn moved<'s>(&self, step: &'s Instruction) -> Moved<'s>
    where
        'a: 's,
    {
        let bytes = self.code.bytes(step.ip()..step.next_ip()).expect("decoded from there");
        Moved { step, bytes }
    }

    /// What to write over the text's bytes.
    pub(crate) fn write(&self, at: u64, new: Vec<u8>) -> Write {
        let old = self.code.bytes(at..at + new.len() as u64).expect("a window lies in the text").to_vec();
        Write { at: CodeAddr(at), old, new }
    }

    /// The plan. The last of the writes lies in `window`, which ends with the last instruction that was moved.
    pub(crate) fn finish(
        &self,
        method: Method,
        writes: Vec<Write>,
        builder: Builder,
        resume: u64,
        window: Range<u64>,
    ) -> Result<Plan, Obstacle> {
        let (stub, map) = builder.finish(SiteDescriptor { after: self.after(), resume })?;
        let others = writes[..writes.len() - 1].iter().map(Write::range);
        let occupied = others.chain([CodeAddr(window.start)..CodeAddr(window.end)]).collect();
        Ok(Plan { method, writes, stub, occupied, map, exit: Some(CodeAddr(self.after())) })
    }
}

/// Whether an instruction changes general registers and flags, and nothing can come between.
fn is_plain(step: &Instruction) -> bool {
    use iced_x86::Mnemonic as M;
    let in_memory = (0..step.op_count()).any(|at| step.op_kind(at) == OpKind::Memory);
    let plain = matches!(
        step.mnemonic(),
        M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::Lea
            | M::Nop
            | M::Cdqe
            | M::Cmp
            | M::Test
            | M::Lfence
            | M::Add
            | M::Adc
            | M::Sub
            | M::Sbb
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Not
            | M::Imul
            | M::Bswap
            | M::And
            | M::Or
            | M::Xor
            | M::Shl
            | M::Shr
            | M::Sar
            | M::Shld
            | M::Shrd
            | M::Rol
            | M::Ror
    );
    let of_general =
        (0..step.op_count()).all(|at| step.op_kind(at) != OpKind::Register || step.op_register(at).is_gpr());
    plain && of_general && (!in_memory || matches!(step.mnemonic(), M::Lea | M::Nop))
}

/// The number of the call that follows `before`, if the code sets it to a constant.
fn number(before: &[Instruction]) -> Option<u32> {
    let mut factory = InstructionInfoFactory::new();
    for step in before.iter().rev().take(NUMBER_REACH) {
        let to_rax = step.op0_register().full_register() == Register::RAX;
        match step.code() {
            Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 | Code::Mov_rm64_imm32 if to_rax => {
                return Some(step.immediate32());
            }
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32
                if to_rax && step.op0_register() == step.op1_register() =>
            {
                return Some(0);
            }
            _ => {}
        }
        let writes_rax = factory.info(step).used_registers().iter().any(|used| {
            let is_write = !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
            );
            is_write && used.register().full_register() == Register::RAX
        });
        let is_call = matches!(crate::relocate::classify(step.code()), Class::Call | Class::Refuse);
        if writes_rax || is_call || padding::is_end(step) {
            return None;
        }
    }
    None
}
