//! A guest program of a few instructions with the state it starts from.

use guest::Registers;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use crate::world::{CODE, CODE_LEN, DATA, DATA_LEN, LOW_CODE, World, XState};

/// A small generator of random numbers (xorshift64*), so that seeds mean the same everywhere.
#[derive(Clone, Debug)]
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

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Code lies below 2 GiB.
    pub(crate) low: bool,
    pub(crate) code: Vec<u8>,
    pub(crate) regs: Registers,
    pub(crate) xstate: XState,
    pub(crate) memory: Vec<u8>,
}

impl Program {
    /// The bytes, with random registers (many of them pointers), flags, vectors and memory.
    pub(crate) fn new(world: &World, code: &[u8], low: bool, random: &mut Random) -> Self {
        let mut regs = world.registers();
        let base = if low { LOW_CODE } else { CODE };
        for register in general(&mut regs) {
            *register = value(random);
        }
        regs.rsp = DATA + 0x2000 + 8 * random.below(16);
        regs.fs_base = DATA + 0x1000;
        regs.gs_base = DATA + 0x1800;
        regs.rip = base;
        regs.orig_rax = u64::MAX;
        regs.eflags = 0x202 | random.next() & 0x8D5;
        if random.one_in(4) {
            regs.eflags |= 0x400;
        }
        let mut xstate = world.xstate();
        randomize(&mut xstate, random);
        let memory = (0..DATA_LEN).map(|_| random.next() as u8).collect();
        Self { low, code: code.to_vec(), regs, xstate, memory }
    }

    pub(crate) fn code_base(&self) -> u64 {
        if self.low { LOW_CODE } else { CODE }
    }

    /// All of the code region.
    pub(crate) fn padded_code(&self) -> Vec<u8> {
        let mut code = self.code.clone();
        code.resize(CODE_LEN, 0xCC);
        code
    }

    /// The instruction at `pc`, of the original code.
    pub(crate) fn mnemonic_at(&self, pc: u64) -> Mnemonic {
        let code = self.padded_code();
        let Some(bytes) = pc.checked_sub(self.code_base()).and_then(|at| code.get(at as usize..)) else {
            return Mnemonic::INVALID;
        };
        Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode().mnemonic()
    }

    /// Puts code and data into the shared memory.
    pub(crate) fn load(&self, world: &World) {
        world.bytes(self.code_base(), CODE_LEN).copy_from_slice(&self.padded_code());
        world.bytes(DATA, DATA_LEN).copy_from_slice(&self.memory);
    }
}

/// The general registers but rsp.
pub(crate) fn general(regs: &mut Registers) -> [&mut u64; 15] {
    let Registers { rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, .. } = regs;
    [rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15]
}

fn value(random: &mut Random) -> u64 {
    match random.below(10) {
        0..=5 => DATA + 64 + random.below(DATA_LEN as u64 - 128),
        6 => DATA + 0x1000 + 64 * random.below(64),
        7 => random.below(80),
        8 => random.next(),
        _ => random.pick(&[
            0,
            1,
            u64::MAX,
            1 << 63,
            0x7FFF_FFFF,
            0xFFFF_FFFF,
            DATA,
            DATA + DATA_LEN as u64 - 4,
        ]),
    }
}

/// Random st, xmm and ymm registers in an XSAVE image; control words stay sound.
fn randomize(image: &mut XState, random: &mut Random) {
    let len = image.len();
    for byte in image[32..416].iter_mut() {
        *byte = random.next() as u8;
    }
    if len >= 832 {
        for byte in image[576..832].iter_mut() {
            *byte = random.next() as u8;
        }
    }
    for register in 0..8 {
        image[32 + 16 * register + 10..32 + 16 * register + 16].fill(0);
    }
    // x87 as after fninit, MXCSR with all exceptions masked.
    image[..24].fill(0);
    image[0..2].copy_from_slice(&0x37Fu16.to_le_bytes());
    image[4] = random.pick(&[0, 0xFF]);
    image[24..28].copy_from_slice(&0x1F80u32.to_le_bytes());
    // The components that are present: x87, SSE and, where the image holds it, AVX.
    image[512] = if len >= 832 { 7 } else { 3 };
}
