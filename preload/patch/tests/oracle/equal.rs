//! Plain and patched code, from equal states, by single steps: equal states at every instruction of the plain code.

use std::ops::Range;

use patch::{CodeAddr, Plan, Registers, Write};

use crate::native::{CODE_LEN, DATA, DATA_LEN, R11, State, World};
use crate::scene::{COMMON, SLOT};

/// Most instructions of the plain code, and of the patched one.
const PLAIN_LIMIT: usize = 40;
const PATCHED_LIMIT: usize = 400;

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Left,
    Signal(i32),
    Limit,
}

/// The states between instructions, each different from the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    states: Vec<State>,
    outcome: Outcome,
}

impl Run {
    fn push(&mut self, state: State) {
        if self.states.last() != Some(&state) {
            self.states.push(state);
        }
    }
}

/// One window of the plain code.
pub(crate) struct Window<'a> {
    pub(crate) world: &'a World,
    pub(crate) base: u64,
    /// What is mapped there: [`CODE_LEN`] bytes.
    pub(crate) code: Vec<u8>,
    pub(crate) plan: Plan,
}

impl Window<'_> {
    /// The instructions that run in place of what was rewritten.
    fn range(&self) -> Range<u64> {
        let last = self.plan.occupied.last().unwrap();
        last.start.0..last.end.0
    }

    fn plain(&self, from: &State) -> Run {
        self.world.bytes(self.base, CODE_LEN).copy_from_slice(&self.code);
        self.world.set_state(from);
        let mut run = Run { states: vec![from.clone()], outcome: Outcome::Limit };
        for _ in 0..PLAIN_LIMIT {
            if let Err(signal) = self.world.step() {
                run.outcome = Outcome::Signal(signal);
                break;
            }
            let state = self.world.state();
            let pc = state.pc;
            run.push(state);
            if !self.range().contains(&pc) {
                run.outcome = Outcome::Left;
                break;
            }
        }
        run
    }

    /// The same, patched, from a pc of the patched code: translated to what the plain code would show.
    fn patched(&self, from: &State, pc: u64) -> Run {
        let world = self.world;
        world.bytes(self.base, CODE_LEN).copy_from_slice(&self.code);
        let stub = &self.plan.stub;
        world.bytes(stub.at.get(), stub.bytes.len()).copy_from_slice(&stub.bytes);
        world.bytes(SLOT, 8).copy_from_slice(&stub.entry.get().to_le_bytes());
        for write in &self.plan.writes {
            let bytes = world.bytes(write.at.0, write.new.len());
            assert_eq!(bytes, write.old, "old bytes");
            bytes.copy_from_slice(&write.new);
        }
        world.set_state(&State { pc, ..from.clone() });
        let mut run = Run { states: Vec::new(), outcome: Outcome::Limit };
        for _ in 0..PATCHED_LIMIT {
            self.look(&mut run);
            if run.outcome == Outcome::Left || run.states.len() > PLAIN_LIMIT + 1 {
                break;
            }
            if let Err(signal) = world.step() {
                run.outcome = Outcome::Signal(signal);
                break;
            }
        }
        run.states.truncate(PLAIN_LIMIT + 1);
        run
    }

    /// Adds the child's state to a run, in terms of the plain code.
    fn look(&self, run: &mut Run) {
        let state = self.world.state();
        let common = COMMON..SLOT;
        match self.plan.map.plain(state.pc) {
            Some(place) if place.registers == Registers::All => run.push(State { pc: place.pc.0, ..state }),
            Some(place) => {
                // Only r11 is not what it was.
                let mut last = run.states.last().unwrap().clone();
                last.registers[R11] = state.registers[R11];
                assert_eq!(last, State { pc: place.pc.0, ..state });
            }
            None if common.contains(&state.pc) => {}
            None => {
                let is_inside =
                    |write: &Write| write.at.0 < state.pc && state.pc < write.at.0 + write.new.len() as u64;
                assert!(!self.plan.writes.iter().any(is_inside), "{:#x}: {:02x?}", state.pc, self.plan);
                if !self.range().contains(&state.pc) {
                    run.outcome = Outcome::Left;
                }
                run.push(state);
            }
        }
    }

    /// Compares runs from `tries` random states; how they ended.
    #[track_caller]
    pub(crate) fn check(&self, tries: u64) -> Vec<Outcome> {
        let like = self.world.state();
        (1..=tries).map(|seed| self.check_from(&Random::new(seed).state(&like, self.range().start))).collect()
    }

    /// Compares runs from `from`, then those from every pc that is redirected.
    #[track_caller]
    fn check_from(&self, from: &State) -> Outcome {
        let plain = self.plain(from);
        self.compare(&plain, &self.patched(from, from.pc));
        for (pc, to) in self.plan.map.redirects() {
            let Some(index) = plain.states.iter().position(|state| CodeAddr(state.pc) == pc) else {
                continue;
            };
            let rest = Run { states: plain.states[index..].to_vec(), outcome: plain.outcome };
            let mut patched = self.patched(&rest.states[0], to);
            if plain.outcome == Outcome::Limit {
                patched.states.truncate(rest.states.len());
            }
            self.compare(&rest, &patched);
        }
        plain.outcome
    }

    #[track_caller]
    fn compare(&self, plain: &Run, patched: &Run) {
        let about = || format!("{:02x?}", self.plan);
        for (index, (plain, patched)) in plain.states.iter().zip(&patched.states).enumerate() {
            assert_eq!(plain.pc, patched.pc, "pc of state {index}, {}", about());
            assert_eq!(
                plain.registers,
                patched.registers,
                "registers of state {index} at {:#x}, {}",
                plain.pc,
                about()
            );
            assert!(plain == patched, "memory or vectors of state {index} at {:#x}, {}", plain.pc, about());
        }
        assert_eq!(plain.states.len(), patched.states.len(), "{}", about());
        if plain.outcome != Outcome::Limit {
            assert_eq!(plain.outcome, patched.outcome, "{}", about());
        }
    }
}

/// A small generator of random numbers (xorshift64*), so that seeds mean the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    /// Mostly a pointer, else a small or a special number.
    fn value(&mut self) -> u64 {
        match self.below(8) {
            0..=4 => DATA + 64 + self.below(DATA_LEN as u64 - 128),
            5 => self.below(4),
            6 => self.next(),
            _ => [0, 1, u64::MAX, 1 << 63, 0x7FFF_FFFF, DATA][self.below(6) as usize],
        }
    }

    /// Random general and vector registers, arithmetic flags and memory, from a valid state.
    fn state(&mut self, like: &State, pc: u64) -> State {
        // The kernel's order: 15 general registers, orig_rax, cs, eflags, rsp, ss, fs_base, gs_base, ...
        let mut state = State { pc, ..like.clone() };
        for register in &mut state.registers[..15] {
            *register = self.value();
        }
        state.registers[17] = 0x202 | self.next() & 0xCD5;
        state.registers[18] = DATA + 0x1000 + 8 * self.below(64);
        state.registers[20] = DATA + 0x800;
        state.registers[21] = DATA + 0xC00;
        // xmm registers (FXSAVE image, Intel SDM volume 1, section 10.5.1).
        state.vectors[160..416].fill_with(|| self.next() as u8);
        state.memory.fill_with(|| self.next() as u8);
        state
    }
}
