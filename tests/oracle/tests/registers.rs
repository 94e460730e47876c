//! Oracle: general registers, flags, vector registers and memory at random moments equal single-stepping.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::collections::BTreeMap;
use std::path::Path;

use backstory_oracle::command::recorder;
use backstory_oracle::stepper::{Visitor, hash, walk};
use backstory_oracle::stub::Stub;
use backstory_oracle::{programs, stub};
use guest::{GuestAddr, GuestMemory, GuestRange, Moment, PAGE_SIZE, Registers, XState};
use iced_x86::Instruction;
use timeline::{Bias, Timeline};
use trace::Trace;

/// Everything that is compared at a moment.
#[derive(Debug, PartialEq, Eq)]
struct State {
    registers: Registers,
    vectors: Vec<u8>,
    /// Hash of each page that is not all zero, by address.
    pages: BTreeMap<u64, u64>,
}

fn visible(registers: &Registers) -> Registers {
    // orig_rax is the kernel's; RF and TF belong to stepping.
    Registers { orig_rax: 0, eflags: registers.eflags & !0x1_0100, ..*registers }
}

/// MXCSR, the x87 stack, the SSE registers and, where they are in use, the upper halves of the AVX registers. The x87
/// instruction pointers are left out: the engine's own test is about them.
fn vectors(state: &XState) -> Vec<u8> {
    let mut bytes = state.0[24..28].to_vec();
    bytes.extend_from_slice(&state.0[32..416]);
    if state.0[512] & 4 != 0 {
        bytes.extend_from_slice(&state.0[576..832]);
    } else {
        bytes.extend_from_slice(&[0; 256]);
    }
    bytes
}

fn pages(memory: &dyn GuestMemory, ranges: &[GuestRange]) -> BTreeMap<u64, u64> {
    let mut pages = BTreeMap::new();
    for range in ranges {
        for page in (range.start.0..range.end.0).step_by(PAGE_SIZE as usize) {
            let Ok(bytes) = memory.read_vec(GuestAddr(page), PAGE_SIZE as usize) else { continue };
            if bytes.iter().any(|&b| b != 0) {
                pages.insert(page, hash(&bytes));
            }
        }
    }
    pages
}

fn writable(stub: &Stub) -> Vec<GuestRange> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", stub.tid())).unwrap();
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let ours = start < stub::END;
        (words.next()?.starts_with("rw") && !ours)
            .then_some(GuestRange { start: GuestAddr(start), end: GuestAddr(end) })
    };
    maps.lines().filter_map(parse).collect()
}

struct Sampler {
    /// Distance between samples, varied so that they fall on all kinds of instructions.
    next: u64,
    seed: u64,
    spacing: u64,
    states: Vec<(u64, State)>,
}

impl Visitor for Sampler {
    fn before(&mut self, count: u64, regs: &Registers, _: &Instruction, stub: &mut Stub) {
        let again = self.states.last().is_some_and(|(last, _)| *last == count);
        if count < self.next || again {
            return;
        }
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.next = count + 1 + (self.seed >> 33) % self.spacing;
        let vectors = vectors(&stub.tracee().xstate().unwrap());
        let pages = pages(stub.memory(), &writable(stub));
        self.states.push((count, State { registers: visible(regs), vectors, pages }));
    }
}

#[track_caller]
fn check(command: &[&str], spacing: u64) -> usize {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    // No lazy binding: what its `xsavec` takes for in use is up to the processor, and so is what it leaves in memory.
    let recorded = recorder(&dir, command).env("LD_BIND_NOW", "1").output().unwrap();
    assert!(dir.exists(), "{command:?}: {}", String::from_utf8_lossy(&recorded.stderr));
    let trace = Trace::open(&dir).unwrap();
    let mut sampler = Sampler { next: 0, seed: spacing, spacing, states: Vec::new() };
    walk(&trace, scratch.path(), &mut sampler).unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut timeline = Timeline::open(&trace).unwrap();
    // Forwards and backwards in turn: going back must give the same as going forward.
    let count = sampler.states.len();
    let order = (0..count).map(|i| if i % 7 == 6 { count - 1 - i / 7 } else { i });
    for i in order {
        let (moment, expected) = &sampler.states[i];
        timeline
            .seek(Moment(*moment), Bias::NextInstruction)
            .unwrap_or_else(|e| panic!("{command:?} @{moment}: {e}"));
        same(&mut timeline, *moment, expected, command);
    }
    count
}

#[track_caller]
fn same(timeline: &mut Timeline, moment: u64, expected: &State, command: &[&str]) {
    let task = timeline.task();
    let registers = visible(&timeline.registers(task).unwrap());
    for (i, (got, want)) in registers.to_words().iter().zip(expected.registers.to_words()).enumerate() {
        let name = Registers::NAMES[i];
        assert_eq!(
            *got, want,
            "{command:?} @{moment} rip {:#x}: {name} {got:#x}, stepped {want:#x}",
            registers.rip
        );
    }
    let got = vectors(&timeline.xstate(task).unwrap());
    assert_eq!(got, expected.vectors, "{command:?} @{moment}: vector registers");
    let space = timeline.space_of(task).unwrap();
    let ranges: Vec<GuestRange> =
        timeline.mappings(space).iter().filter(|m| m.prot.write && m.prot.read).map(|m| m.range).collect();
    let got = pages(timeline.memory(space).unwrap(), &ranges);
    let differ: Vec<String> = got
        .keys()
        .chain(expected.pages.keys())
        .filter(|page| got.get(page) != expected.pages.get(page))
        .map(|page| format!("{page:#x}"))
        .collect();
    assert!(differ.is_empty(), "{command:?} @{moment}: pages differ: {differ:?}");
}

fn guest_program(name: &str, out: &Path) -> String {
    programs::build(name, out).to_string_lossy().into_owned()
}

#[test]
fn a_thousand_moments() {
    let scratch = tempfile::tempdir().unwrap();
    let mut total = 0;
    for (name, spacing) in [
        ("arithmetic", 60),
        ("strings", 3),
        ("recursion", 600),
        ("signals", 2500),
        ("files", 2500),
        ("generated", 2500),
    ] {
        total += check(&[&guest_program(name, scratch.path())], spacing);
    }
    total += check(&[&guest_program("floating", scratch.path())], 2500);
    total += check(&["/bin/true"], 2000);
    total += check(&["/bin/echo", "x"], 2000);
    total += check(&["/bin/cat", "/proc/sys/kernel/ostype"], 2000);
    assert!(total >= 1000, "{total} moments");
}
