//! Random code around a site: no plan breaks a rule, and what is moved does the same.

use iced_x86::{Decoder, DecoderOptions, OpAccess};
use patch::{CodeAddr, Examined, Facts, Method, Plan, Text};

use crate::equal::{Outcome, Random, Window};
use crate::native::{CODE_LEN, World};
use crate::scene::{HIGH, LOW, Scene, check_plan, site};

/// What compilers write next to calls, branches with displacements to be filled in last.
const PIECES: [&[u8]; 30] = [
    &[0x48, 0x3D, 0x01, 0xF0, 0xFF, 0xFF],
    &[0x85, 0xC0],
    &[0xB8, 0x27, 0x00, 0x00, 0x00],
    &[0x31, 0xFF],
    &[0x48, 0x89, 0xC2],
    &[0x4C, 0x89, 0xE7],
    &[0x50],
    &[0x5B],
    &[0x41, 0x54],
    &[0x9C],
    &[0xF9],
    &[0x48, 0x11, 0xD8],
    &[0x0F, 0x92, 0xC1],
    &[0x48, 0x0F, 0x42, 0xD9],
    &[0x48, 0x8B, 0x46, 0x08],
    &[0x89, 0x45, 0xFC],
    &[0x64, 0x89, 0x04, 0x25, 0x10, 0x00, 0x00, 0x00],
    &[0xF0, 0x0F, 0xB1, 0x0E],
    &[0x48, 0xA5],
    &[0x66, 0x0F, 0xEF, 0xC0],
    &[0x90],
    &[0xC3],
    &[0x4C, 0x8D, 0x0D, 0x20, 0x00, 0x00, 0x00],
    &[0xC2, 0x08, 0x00],
    &[0xE8, 0x20, 0x00, 0x00, 0x00],
    &[0x77, 0x10],
    &[0x0F, 0x84, 0x20, 0x00, 0x00, 0x00],
    &[0xE2, 0x09],
    &[0xEB, 0x0B],
    &[0xE9, 0x30, 0x00, 0x00, 0x00],
];

/// About `len` bytes.
fn code(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        match random.below(12) {
            0 => bytes.push(random.next() as u8),
            1 => bytes
                .extend([[0x74, 0x75, 0xEB, 0xE3][random.below(4) as usize], random.below(48) as u8 + 232]),
            _ => bytes.extend(PIECES[random.below(PIECES.len() as u64) as usize]),
        }
    }
    bytes
}

fn scene(random: &mut Random, base: u64) -> Scene {
    let before = random.below(40) as usize;
    let mut bytes = code(random, before);
    let at = base + bytes.len() as u64;
    bytes.extend([0x0F, 0x05]);
    bytes.extend(code(random, 40));
    Scene { base, bytes, site: at, entries: vec![CodeAddr(base)], taken: Vec::new() }
}

/// Whether a moved instruction may write to the code itself.
fn writes_code(plan: &Plan, scene: &Scene) -> bool {
    let range = plan.occupied.last().unwrap();
    let from = (range.start.0 - scene.base) as usize;
    let mut decoder = Decoder::with_ip(64, &scene.bytes[from..], range.start.0, DecoderOptions::NONE);
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let mut writes = false;
    while decoder.ip() < range.end.0 {
        let step = decoder.decode();
        let accesses = factory.info(&step).used_memory();
        let is_write =
            accesses.iter().any(|memory| !matches!(memory.access(), OpAccess::Read | OpAccess::NoMemAccess));
        writes |= is_write && step.is_ip_rel_memory_operand();
    }
    writes
}

#[test]
fn random_windows_do_the_same() {
    let world = World::new();
    let mut counts = [0; 3];
    let mut left = 0;
    for seed in 1..=1200 {
        let mut random = Random::new(seed);
        let scene = scene(&mut random, if seed % 2 == 0 { HIGH } else { LOW });
        for method in Method::ALL {
            let Ok(plan) = scene.by(method) else { continue };
            if writes_code(&plan, &scene) {
                continue;
            }
            counts[method as usize] += 1;
            let mut code = scene.bytes.clone();
            code.resize(CODE_LEN, 0xCC);
            let window = Window { world: &world, base: scene.base, code, plan };
            left += window.check(2).into_iter().filter(|&outcome| outcome == Outcome::Left).count();
        }
    }
    println!("{counts:?} windows, {left} runs left them");
    assert!(counts[1] > 100 && counts[2] > 100 && left > 300, "{counts:?}, {left}");
}

#[test]
fn any_bytes_are_planned_or_refused() {
    let mut random = Random::new(7);
    let mut planned = 0;
    for _ in 0..3000 {
        let mut bytes: Vec<u8> = if random.below(2) == 0 {
            let len = random.below(300) as usize;
            (0..len).map(|_| random.next() as u8).collect()
        } else {
            code(&mut random, 200)
        };
        let at = random.below(bytes.len() as u64 + 1) as usize;
        bytes.splice(at..at, [0x0F, 0x05]);
        let base = [HIGH, LOW, 0, u64::MAX << 20][random.below(4) as usize];
        let place = |random: &mut Random| CodeAddr(base + random.below(bytes.len() as u64));
        let mut entries: Vec<CodeAddr> = (0..random.below(3)).map(|_| place(&mut random)).collect();
        entries.sort();
        let taken: Vec<_> =
            (0..random.below(2)).map(|_| place(&mut random)).map(|at| at..CodeAddr(at.0 + 4)).collect();
        let text = Text::new(bytes.clone());
        let site = site(base, base + at as u64);
        let facts = Facts { entries: &entries, taken: &taken, refused: &[] };
        let Ok(examined) = Examined::new(&text, site, facts) else { continue };
        for plan in Method::ALL.into_iter().filter_map(|method| examined.by(method).ok()) {
            check_plan(&plan, site, base, &bytes, &taken);
            planned += 1;
        }
    }
    assert!(planned > 300, "{planned}");
}
