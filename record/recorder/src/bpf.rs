//! Classic BPF as `seccomp(2)` takes it: which programs the kernel accepts, and what one says about a call.
//!
//! Pure: knows nothing of tasks, and not what the returned words mean. Facts are those of `net/core/filter.c` and
//! `kernel/seccomp.c`.

use seccompiler::sock_filter;

/// Most instructions a program may have.
const LONGEST: usize = 4096;
/// Words of scratch memory.
const SCRATCH: usize = 16;

// The parts of an opcode (`linux/bpf_common.h`).
const CLASS: u16 = 0x07;
const LOAD: u16 = 0x00;
const LOAD_X: u16 = 0x01;
const STORE: u16 = 0x02;
const STORE_X: u16 = 0x03;
const ALU: u16 = 0x04;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;
const FROM_X: u16 = 0x08;
const RETURN_A: u16 = 0x16;
const LOAD_DATA: u16 = 0x20;
const LOAD_SCRATCH: u16 = 0x60;
const LOAD_X_SCRATCH: u16 = 0x61;
const JUMP_ALWAYS: u16 = 0x05;
const X_TO_A: u16 = 0x87;

/// Opcodes that a filter may hold.
const ACCEPTED: [u16; 41] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0c, 0x14, 0x15, 0x16, 0x1c, 0x1d, 0x20, 0x24, 0x25,
    0x2c, 0x2d, 0x34, 0x35, 0x3c, 0x3d, 0x44, 0x45, 0x4c, 0x4d, 0x54, 0x5c, 0x60, 0x61, 0x64, 0x6c, 0x74,
    0x7c, 0x80, 0x81, 0x84, 0x87, 0xa4, 0xac,
];

/// What a program sees of a call: `struct seccomp_data` in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallData([u32; Self::LEN as usize / 4]);

impl CallData {
    const LEN: u32 = 64;

    /// `pointer` lies past the instruction that makes the call.
    pub(crate) fn new(nr: u32, arch: u32, pointer: u64, args: &[u64; 6]) -> Self {
        let mut words = [0; Self::LEN as usize / 4];
        (words[0], words[1]) = (nr, arch);
        for (pair, value) in words[2..].chunks_exact_mut(2).zip([pointer].iter().chain(args)) {
            (pair[0], pair[1]) = (*value as u32, (value >> 32) as u32);
        }
        Self(words)
    }

    fn word(&self, offset: u32) -> u32 {
        self.0.get(offset as usize / 4).copied().unwrap_or(0)
    }
}

/// A program that the kernel accepts.
#[derive(Debug)]
pub(crate) struct Program(Vec<sock_filter>);

impl Program {
    /// `None` where the kernel says `EINVAL`.
    pub(crate) fn checked(steps: Vec<sock_filter>) -> Option<Self> {
        let ends = steps.last().is_some_and(|step| step.code & CLASS == RETURN);
        let fits = ends && steps.len() <= LONGEST;
        let sound = fits && steps.iter().enumerate().all(|(at, step)| accepts(step, steps.len() - at - 1));
        (sound && reads_what_was_stored(&steps)).then_some(Self(steps))
    }

    /// What it returns about a call.
    pub(crate) fn run(&self, data: &CallData) -> u32 {
        let (mut a, mut x, mut scratch, mut at) = (0u32, 0u32, [0u32; SCRATCH], 0);
        while let Some(step) = self.0.get(at) {
            at += 1;
            let operand = if step.code & FROM_X != 0 { x } else { step.k };
            let slot = step.k as usize % SCRATCH;
            match step.code & CLASS {
                LOAD => a = loaded(step, data, scratch[slot]),
                LOAD_X => x = loaded(step, data, scratch[slot]),
                STORE => scratch[slot] = a,
                STORE_X => scratch[slot] = x,
                ALU => match computed(step.code, a, operand) {
                    Some(result) => a = result,
                    // A division by zero ends the program.
                    None => return 0,
                },
                JUMP => at += jump(step, a, operand),
                RETURN => return if step.code == RETURN_A { a } else { step.k },
                _ if step.code == X_TO_A => a = x,
                _ => x = a,
            }
        }
        0
    }
}

fn loaded(step: &sock_filter, data: &CallData, scratch: u32) -> u32 {
    match step.code {
        LOAD_DATA => data.word(step.k),
        LOAD_SCRATCH | LOAD_X_SCRATCH => scratch,
        0x80 | 0x81 => CallData::LEN,
        _ => step.k,
    }
}

fn computed(code: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match code & 0xf0 {
        0x00 => a.wrapping_add(operand),
        0x10 => a.wrapping_sub(operand),
        0x20 => a.wrapping_mul(operand),
        0x30 => return a.checked_div(operand),
        0x40 => a | operand,
        0x50 => a & operand,
        0x60 => a.wrapping_shl(operand),
        0x70 => a.wrapping_shr(operand),
        0x80 => a.wrapping_neg(),
        _ => a ^ operand,
    })
}

/// How many instructions a jump skips.
fn jump(step: &sock_filter, a: u32, operand: u32) -> usize {
    let taken = match step.code & 0xf0 {
        0x00 => return step.k as usize,
        0x10 => a == operand,
        0x20 => a > operand,
        0x30 => a >= operand,
        _ => a & operand != 0,
    };
    usize::from(if taken { step.jt } else { step.jf })
}

/// Whether an instruction with so many after it is one that the kernel accepts.
fn accepts(step: &sock_filter, behind: usize) -> bool {
    const DIVIDE: u16 = 0x34;
    const SHIFTS: [u16; 2] = [0x64, 0x74];
    ACCEPTED.contains(&step.code)
        && match step.code {
            LOAD_DATA => step.k < CallData::LEN && step.k.is_multiple_of(4),
            LOAD_SCRATCH | LOAD_X_SCRATCH | STORE | STORE_X => (step.k as usize) < SCRATCH,
            DIVIDE => step.k != 0,
            code if SHIFTS.contains(&code) => step.k < 32,
            JUMP_ALWAYS => (step.k as usize) < behind,
            code if code & CLASS == JUMP => usize::from(step.jt.max(step.jf)) < behind,
            _ => true,
        }
}

/// Whether, on every way through, scratch memory is written before it is read.
fn reads_what_was_stored(steps: &[sock_filter]) -> bool {
    let mut on_arrival = vec![u16::MAX; steps.len() + 1];
    let mut stored = 0u16;
    for (at, step) in steps.iter().enumerate() {
        stored &= on_arrival[at];
        let slot = 1u16 << (step.k as usize % SCRATCH);
        match step.code {
            STORE | STORE_X => stored |= slot,
            LOAD_SCRATCH | LOAD_X_SCRATCH if stored & slot == 0 => return false,
            JUMP_ALWAYS => {
                on_arrival[at + 1 + step.k as usize] &= stored;
                stored = u16::MAX;
            }
            code if code & CLASS == JUMP => {
                on_arrival[at + 1 + usize::from(step.jt)] &= stored;
                on_arrival[at + 1 + usize::from(step.jf)] &= stored;
                stored = u16::MAX;
            }
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(words: &[(u16, u8, u8, u32)]) -> Vec<sock_filter> {
        words.iter().map(|&(code, jt, jf, k)| sock_filter { code, jt, jf, k }).collect()
    }

    /// Runs a program on call 39 with arguments 0x1_0000_0002, 0, 0, 0, 0, 7; `None` where it is not accepted.
    #[track_caller]
    fn check(words: &[(u16, u8, u8, u32)], expected: Option<u32>) {
        let data = CallData::new(39, 0xc000_003e, 0x7_0000_1000, &[0x1_0000_0002, 0, 0, 0, 0, 7]);
        let got = Program::checked(steps(words)).map(|program| program.run(&data));
        assert_eq!(got, expected, "{words:x?}");
    }

    const GIVE_A: (u16, u8, u8, u32) = (0x16, 0, 0, 0);

    #[test]
    fn programs_read_the_call() {
        let word = |offset| [(0x20, 0, 0, offset), GIVE_A];
        for (offset, value) in
            [(0, 39), (4, 0xc000_003e), (8, 0x1000), (12, 7), (16, 2), (20, 1), (56, 7), (60, 0)]
        {
            check(&word(offset), Some(value));
        }
        check(&word(2), None);
        check(&word(64), None);
        check(&[(0x80, 0, 0, 0), GIVE_A], Some(64));
    }

    #[test]
    fn programs_compute() {
        let binary = |code, a, k| [(0x00, 0, 0, a), (code, 0, 0, k), GIVE_A];
        for (code, a, k, result) in [
            (0x04, u32::MAX, 2, 1),
            (0x14, 1, 2, u32::MAX),
            (0x24, 1 << 31, 3, 1 << 31),
            (0x34, 7, 2, 3),
            (0x44, 5, 2, 7),
            (0x54, 6, 3, 2),
            (0x64, 3, 31, 1 << 31),
            (0x74, 1 << 31, 31, 1),
            (0x84, 1, 0, u32::MAX),
            (0xa4, 6, 3, 5),
        ] {
            check(&binary(code, a, k), Some(result));
            if code != 0x84 {
                let by_x = [(0x01, 0, 0, k), (0x00, 0, 0, a), (code | FROM_X, 0, 0, 0), GIVE_A];
                check(&by_x, Some(result));
            }
        }
        check(&binary(0x34, 1, 0), None);
        check(&binary(0x64, 1, 32), None);
        check(&binary(0x94, 7, 4), None);
        check(&[(0x00, 0, 0, 9), (0x3c, 0, 0, 0), GIVE_A], Some(0));
        check(&[(0x00, 0, 0, 9), (0x07, 0, 0, 0), (0x00, 0, 0, 1), (0x87, 0, 0, 0), GIVE_A], Some(9));
    }

    #[test]
    fn programs_branch() {
        for (code, k, taken) in [
            (0x15, 39, true),
            (0x15, 38, false),
            (0x25, 38, true),
            (0x25, 39, false),
            (0x35, 39, true),
            (0x35, 40, false),
            (0x45, 1, true),
            (0x45, 8, false),
        ] {
            let program = [(0x20, 0, 0, 0), (code, 1, 0, k), (0x06, 0, 0, 0), (0x06, 0, 0, 1)];
            check(&program, Some(u32::from(taken)));
        }
        check(&[(0x05, 0, 0, 1), (0x06, 0, 0, 5), (0x06, 0, 0, 6)], Some(6));
        check(&[(0x05, 0, 0, 1), (0x06, 0, 0, 5)], None);
        check(&[(0x15, 0, 1, 0), (0x06, 0, 0, 5)], None);
        check(&[(0x00, 0, 0, 5)], None);
        check(&[], None);
    }

    #[test]
    fn scratch_memory_is_read_after_it_was_written() {
        check(&[(0x00, 0, 0, 3), (0x02, 0, 0, 15), (0x61, 0, 0, 15), (0x87, 0, 0, 0), GIVE_A], Some(3));
        check(&[(0x60, 0, 0, 0), GIVE_A], None);
        check(&[(0x02, 0, 0, 16), GIVE_A], None);
        // Only one way stores.
        check(&[(0x15, 0, 1, 0), (0x02, 0, 0, 0), (0x60, 0, 0, 0), GIVE_A], None);
    }
}
