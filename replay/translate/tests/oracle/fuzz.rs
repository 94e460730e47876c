//! Random programs: random bytes, weighted towards what decodes, that run from random states into whatever they run
//! into.

use std::time::{Duration, Instant};

use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};

use crate::check::{check, describe};
use crate::native::Outcome;
use crate::program::{Program, Random};
use crate::world::World;

const DEFAULT_SECONDS: u64 = 10;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn random_programs() {
    let end = Instant::now() + Duration::from_secs(setting("BACKSTORY_FUZZ_SECONDS", DEFAULT_SECONDS));
    let mut seed = setting("BACKSTORY_FUZZ_SEED", 1);
    let world = World::new();
    let (mut programs, mut instructions, mut faults) = (0u64, 0u64, 0u64);
    while Instant::now() < end {
        let mut random = Random::new(seed);
        let low = random.one_in(2);
        let woven = random.one_in(2);
        let code = if woven { woven_code(&mut random) } else { code(&mut random) };
        let program = Program::new(&world, &code, low, &mut random);
        let limit = 1 + random.below(if woven { 150 } else { 40 });
        let guard = Report { seed, program: &program };
        let run = check(&world, &program, limit);
        std::mem::forget(guard);
        programs += 1;
        instructions += run.count;
        faults += u64::from(matches!(run.outcome, Outcome::Fault(_)));
        seed += 1;
    }
    println!("{programs} programs, {instructions} instructions, {faults} ended by faults");
    assert!(programs > 20);
}

/// Says which program failed.
struct Report<'a> {
    seed: u64,
    program: &'a Program,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        eprintln!("seed {}: {}", self.seed, describe(self.program));
    }
}

/// The bytes of a random program.
fn code(random: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    let mut count = 3 + random.below(20);
    while count > 0 {
        let bytes = instruction(random);
        let mut decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
        let instr = decoder.decode();
        if is_wanted(&instr, random) {
            code.extend_from_slice(&bytes[..instr.len()]);
            count -= 1;
        }
    }
    code
}

/// An instruction of a program, or a branch to another one.
enum Item {
    Bytes(Vec<u8>),
    /// An opcode with a displacement of 4 bytes.
    Branch(Vec<u8>, usize),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Branch(opcode, _) => opcode.len() + 4,
        }
    }
}

/// A program whose branches lead to its own instructions: loops, diamonds, calls.
fn woven_code(random: &mut Random) -> Vec<u8> {
    let count = 8 + random.below(24) as usize;
    let items: Vec<Item> = (0..count).map(|_| item(random, count)).collect();
    let starts: Vec<usize> =
        items.iter().scan(0, |at, item| Some(std::mem::replace(at, *at + item.len()))).collect();
    let mut code = Vec::new();
    for item in &items {
        match item {
            Item::Bytes(bytes) => code.extend_from_slice(bytes),
            Item::Branch(opcode, to) => {
                code.extend_from_slice(opcode);
                let distance = starts[*to] as i32 - (code.len() as i32 + 4);
                code.extend_from_slice(&distance.to_le_bytes());
            }
        }
    }
    code
}

fn item(random: &mut Random, count: usize) -> Item {
    let to = random.below(count as u64) as usize;
    match random.below(12) {
        0..=2 => Item::Branch(vec![0x0F, 0x80 | random.below(16) as u8], to),
        3 => Item::Branch(vec![0xE9], to),
        4 if random.one_in(2) => Item::Branch(vec![0xE8], to),
        4 => Item::Bytes(vec![0xC3]),
        _ => loop {
            // Registers only, mostly: these programs are to run long.
            let mut bytes = instruction(random);
            if random.one_in(3) {
                bytes = vec![
                    0x48,
                    random.pick(&[0x01, 0x29, 0x31, 0x39, 0x85, 0x89, 0x11]),
                    0xC0 | random.next() as u8 & 0x3F,
                ];
                if bytes[2] & 7 == 4 {
                    continue;
                }
            } else if random.one_in(3) {
                // A store or a load around the stack pointer.
                bytes = vec![
                    0x48,
                    random.pick(&[0x89, 0x8B, 0x01, 0x03]),
                    0x44 | (random.next() as u8 & 0x18),
                    0x24,
                    random.next() as u8 & 0x78,
                ];
            }
            let mut decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
            let instr = decoder.decode();
            let is_branch = instr.is_jcc_short_or_near() || instr.is_jmp_short_or_near();
            if !is_branch && is_wanted(&instr, random) {
                bytes.truncate(instr.len());
                break Item::Bytes(bytes);
            }
        },
    }
}

fn is_wanted(instr: &iced_x86::Instruction, random: &mut Random) -> bool {
    match instr.code() {
        Code::INVALID => false,
        // These may set the trap flag, sleep, or show where the tracer has been.
        Code::Popfq | Code::Popfw => false,
        _ => match instr.mnemonic() {
            Mnemonic::Mwaitx | Mnemonic::Monitorx | Mnemonic::Umonitor | Mnemonic::Xgetbv => false,
            // The x87 pointers and tags that tracing loses.
            Mnemonic::Fnstenv
            | Mnemonic::Fnsave
            | Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64 => false,
            Mnemonic::Xrstor
            | Mnemonic::Xrstor64
            | Mnemonic::Fxrstor
            | Mnemonic::Fxrstor64
            | Mnemonic::Frstor
            | Mnemonic::Fldenv => false,
            Mnemonic::Wrpkru | Mnemonic::Rdpkru => false,
            // A breakpoint behind them is where nobody may store.
            Mnemonic::Sldt | Mnemonic::Str | Mnemonic::Smsw => false,
            Mnemonic::Xbegin => !crate::cache::has_rtm(),
            _ if instr.is_privileged()
                || instr.is_stack_instruction() && instr.mnemonic() == Mnemonic::Enter =>
            {
                random.one_in(8)
            }
            _ => true,
        },
    }
}

/// Bytes that may be an instruction.
fn instruction(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    if random.one_in(6) {
        bytes.push(random.pick(&[0x66, 0xF2, 0xF3, 0xF0, 0x66]));
    }
    if random.one_in(60) {
        bytes.push(random.pick(&[0x64, 0x65, 0x67]));
    }
    match random.below(16) {
        0..=8 => {
            if random.one_in(2) {
                bytes.push(0x40 | random.below(16) as u8 | if random.one_in(2) { 8 } else { 0 });
            }
            bytes.push(common_opcode(random));
        }
        9..=12 => {
            if random.one_in(2) {
                bytes.push(0x40 | random.below(16) as u8);
            }
            bytes.push(0x0F);
            if random.one_in(5) {
                bytes.push(random.pick(&[0x38, 0x3A]));
            }
            bytes.push(random.next() as u8);
        }
        13 => bytes.extend([0xC5, random.next() as u8, random.next() as u8]),
        _ => bytes.extend([
            0xC4,
            random.next() as u8 & 0xE3,
            random.next() as u8 & 0xFC | random.below(4) as u8,
            random.next() as u8,
        ]),
    }
    // ModRM: memory through a register with a small displacement, mostly.
    let modrm = match random.below(8) {
        0..=2 => 0xC0 | random.next() as u8 & 0x3F,
        3..=5 => 0x40 | random.next() as u8 & 0x3F,
        _ => random.next() as u8,
    };
    bytes.push(modrm);
    if modrm & 7 == 4 && modrm < 0xC0 {
        bytes.push(random.next() as u8);
    }
    bytes.push(random.next() as u8 & if random.one_in(2) { 0x1F } else { 0xFF });
    let wide = random.one_in(12);
    bytes.extend((0..8).map(|_| if wide { random.next() as u8 } else { 0 }));
    bytes
}

/// An opcode of the first map, those that programs are made of more often.
fn common_opcode(random: &mut Random) -> u8 {
    if random.one_in(2) {
        return random.next() as u8;
    }
    let group = random.pick(&[0x00u8, 0x50, 0x70, 0x80, 0x88, 0xA4, 0xC0, 0xD0, 0xF6, 0xE8, 0x01]);
    match group {
        0x00 => {
            random.pick(&[0x01, 0x03, 0x11, 0x13, 0x1B, 0x21, 0x23, 0x29, 0x2B, 0x31, 0x33, 0x39, 0x3B, 0x85])
        }
        0x50 => 0x50 | random.below(16) as u8,
        0x70 => 0x70 | random.below(16) as u8,
        0x80 => random.pick(&[0x80, 0x81, 0x83]),
        0x88 => random.pick(&[0x88, 0x89, 0x8A, 0x8B, 0x8D, 0x87, 0xC6, 0xC7, 0x63]),
        0xA4 => random.pick(&[0xA4, 0xA5, 0xAA, 0xAB, 0xA6, 0xAE, 0xAC]),
        0xC0 => random.pick(&[0xC0, 0xC1, 0xC3, 0xC9, 0xC2]),
        0xD0 => random.pick(&[0xD0, 0xD1, 0xD2, 0xD3]),
        0xF6 => random.pick(&[0xF6, 0xF7, 0xFE, 0xFF]),
        0xE8 => random.pick(&[0xE8, 0xEB, 0xE9, 0xE0, 0xE1, 0xE2, 0xE3]),
        _ => random.pick(&[0x90, 0xF5, 0xF8, 0xF9, 0xFC, 0x9F, 0x9E, 0x9C, 0x98, 0x99]),
    }
}
