//! Hand-made code around a `syscall`, and what every plan has to be like.

use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::code_asm::{CodeAssembler, CodeLabel};
use iced_x86::{Code, Decoder, DecoderOptions, IcedError};
use patch::{
    CodeAddr, Examined, Facts, LowAddr, MAX_STUB, Method, Obstacle, Plan, Refusal, Registers, Site, Target,
    Text,
};

/// Where shared libraries lie: a jump has 7 bytes.
pub(crate) const HIGH: u64 = 0x6000_0010_0000;
/// Where programs lie that are linked to an address: a jump has 5 bytes.
pub(crate) const LOW: u64 = 0x1000_0000;
/// The low region.
pub(crate) const COMMON: u64 = 0x2_0000;
pub(crate) const SLOT: u64 = 0x2_0100;
pub(crate) const STUB: u64 = 0x2_0200;
/// The common entries for readings of the time stamp counter, alone and with the processor.
pub(crate) const READS: u64 = COMMON + 0x40;
pub(crate) const READS_BOTH: u64 = COMMON + 0x80;
/// Where stubs tell of themselves that may not use r11.
pub(crate) const NOTED: u64 = COMMON + 0xF00;

pub(crate) fn low(at: u64) -> LowAddr {
    LowAddr::new(at).unwrap()
}

/// A site in a text that is mapped at `base`.
pub(crate) fn site(base: u64, at: u64) -> Site {
    Site {
        base: CodeAddr(base),
        at: CodeAddr(at),
        slot: low(SLOT),
        stub: low(STUB),
        common: low(COMMON),
        noted: low(NOTED),
    }
}

/// Code with one site.
pub(crate) struct Scene {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) site: u64,
    /// What the caller knows: the first instruction, to begin with.
    pub(crate) entries: Vec<CodeAddr>,
    pub(crate) taken: Vec<Range<CodeAddr>>,
}

type Assembled = Result<(), IcedError>;

impl Scene {
    /// Assembles at `base`. The label is to be set where the site is.
    pub(crate) fn new(
        base: u64,
        build: impl FnOnce(&mut CodeAssembler, &mut CodeLabel) -> Assembled,
    ) -> Self {
        let mut asm = CodeAssembler::new(64).unwrap();
        let mut site = asm.create_label();
        build(&mut asm, &mut site).unwrap();
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = asm.assemble_options(base, options).unwrap();
        let at = assembled.label_ip(&site).unwrap();
        let bytes = assembled.inner.code_buffer;
        Self { base, bytes, site: at, entries: vec![CodeAddr(base)], taken: Vec::new() }
    }

    /// An address relative to the site.
    pub(crate) fn at(&self, offset: i64) -> CodeAddr {
        CodeAddr(self.site.wrapping_add_signed(offset))
    }

    pub(crate) fn knows(mut self, offset: i64) -> Self {
        self.entries.push(self.at(offset));
        self.entries.sort();
        self
    }

    pub(crate) fn knows_nothing(mut self) -> Self {
        self.entries.clear();
        self
    }

    pub(crate) fn takes(mut self, range: Range<i64>) -> Self {
        self.taken.push(self.at(range.start)..self.at(range.end));
        self
    }

    pub(crate) fn by(&self, method: Method) -> Result<Plan, Obstacle> {
        let text = Text::new(self.bytes.clone());
        let plan = self.examine(&text, &[]).unwrap().by(method)?;
        check_plan(&plan, self.whole_site(&text), self.base, &self.bytes, &self.taken);
        Ok(plan)
    }

    fn whole_site(&self, text: &Text) -> Site {
        let common = match Target::at(text, CodeAddr(self.base), CodeAddr(self.site)) {
            Some(Target::Rdtsc) => READS,
            Some(Target::Rdtscp) => READS_BOTH,
            Some(Target::Syscall) | None => COMMON,
        };
        Site { common: low(common), ..site(self.base, self.site) }
    }

    pub(crate) fn examine<'a>(&'a self, text: &'a Text, refused: &'a [u32]) -> Result<Examined<'a>, Refusal> {
        let facts = Facts { entries: &self.entries, taken: &self.taken, refused };
        Examined::new(text, self.whole_site(text), facts)
    }
}

/// What holds for every plan.
#[track_caller]
pub(crate) fn check_plan(plan: &Plan, site: Site, base: u64, bytes: &[u8], taken: &[Range<CodeAddr>]) {
    for write in &plan.writes {
        let from = (write.at.0 - base) as usize;
        assert_eq!(write.old, &bytes[from..from + write.new.len()], "old bytes");
        let end = CodeAddr(write.at.0 + write.new.len() as u64);
        assert!(plan.occupied.iter().any(|range| range.start <= write.at && end <= range.end), "{plan:?}");
    }
    for range in &plan.occupied {
        assert!(taken.iter().all(|taken| taken.end <= range.start || range.end <= taken.start), "{plan:?}");
    }
    check_writes(plan, site);
    let text = Text::new(bytes.to_vec());
    check_stub(plan, site, Target::at(&text, CodeAddr(base), site.at).unwrap());
}

/// The last write begins with a jump to the stub, through the other writes if there are any.
fn check_writes(plan: &Plan, site: Site) {
    let (jump, islands) = plan.writes.split_last().unwrap();
    let mut holder = jump;
    if plan.method == Method::Island {
        assert_eq!((jump.at, jump.new.len()), (site.at, 2));
        assert!((1..=2).contains(&islands.len()), "{plan:?}");
    } else {
        assert!(islands.is_empty(), "{plan:?}");
    }
    for (index, island) in islands.iter().enumerate().rev() {
        let (code, target) = decode(&holder.new, holder.at.0)[0];
        assert_eq!(code, if index + 1 == islands.len() { Code::Jmp_rel8_64 } else { Code::Jmp_rel32_64 });
        assert_eq!(target, island.at.0, "a jump leads to the island");
        holder = island;
    }
    match (holder.new.len(), decode(&holder.new, holder.at.0)[0]) {
        (7, (Code::Jmp_rm64, slot)) => assert_eq!(slot, site.slot.get()),
        other => panic!("{other:?}"),
    }
}

/// Every instruction of a stub stands for one of the plain code, and the way back is the way there.
fn check_stub(plan: &Plan, site: Site, target: Target) {
    let stub = &plan.stub;
    assert_eq!((stub.at, stub.descriptor.after), (site.stub, site.at.0 + target.bytes().len() as u64));
    assert!(stub.bytes.len() <= MAX_STUB);
    assert_eq!(stub.bytes[..16], stub.descriptor.to_bytes());
    let places: BTreeSet<u64> =
        plan.map.places().map(|(at, _)| at).filter(|&at| at >= stub.at.get()).collect();
    let places: BTreeSet<u64> =
        places.into_iter().filter(|&at| at < stub.at.get() + stub.bytes.len() as u64).collect();
    let last = *places.last().unwrap();
    let code = &stub.bytes[(stub.entry.get() - stub.at.get()) as usize..];
    let mut decoder = Decoder::with_ip(64, code, stub.entry.get(), DecoderOptions::NONE);
    let mut decoded = BTreeSet::new();
    while decoder.ip() <= last {
        decoded.insert(decoder.decode().ip());
    }
    assert_eq!(decoded, places, "each instruction has a place");
    for (pc, to) in plan.map.redirects() {
        let place = plan.map.plain(to).unwrap();
        assert_eq!((place.pc, place.registers), (pc, Registers::All));
        assert!(plan.occupied.iter().any(|range| range.contains(&pc)));
    }
    let lost = plan.map.places().filter(|(_, place)| place.registers == Registers::AllButR11);
    let expected: &[CodeAddr] = if target == Target::Syscall { &[site.at] } else { &[] };
    assert_eq!(lost.map(|(_, place)| place.pc).collect::<Vec<_>>(), expected);
}

/// Codes of instructions, and their targets or the addresses of their operands.
fn decode(bytes: &[u8], at: u64) -> Vec<(Code, u64)> {
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    decoder
        .iter()
        .map(|step| (step.code(), step.near_branch_target().max(step.memory_displacement64())))
        .collect()
}
