//! A small assembler for what the translator adds. Registers are numbers in x86 encoding. Nothing it emits touches
//! the arithmetic flags, except where a name says so.

use iced_x86::{Instruction, Register};

use crate::layout::CacheAddr;

pub(crate) const RAX: u8 = 0;
pub(crate) const RCX: u8 = 1;
pub(crate) const RDX: u8 = 2;
pub(crate) const RSP: u8 = 4;
pub(crate) const RSI: u8 = 6;
pub(crate) const RDI: u8 = 7;
pub(crate) const R8: u8 = 8;
pub(crate) const R9: u8 = 9;
pub(crate) const R10: u8 = 10;
pub(crate) const R11: u8 = 11;

/// The base of a memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Base {
    /// No register: the displacement alone, and the index.
    None,
    /// A general register.
    Reg(u8),
    /// A fixed address encoded relative to rip.
    Rip(u64),
}

/// A memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mem {
    /// Segment override: the fs or gs prefix byte.
    pub segment: Option<u8>,
    /// 32-bit address arithmetic.
    pub addr32: bool,
    pub base: Base,
    pub index: Option<u8>,
    /// 1, 2, 4 or 8.
    pub scale: u8,
    pub disp: i32,
}

impl Mem {
    /// A fixed address below 2 GiB.
    pub(crate) const fn abs(addr: u32) -> Self {
        Self { segment: None, addr32: false, base: Base::None, index: None, scale: 1, disp: addr as i32 }
    }

    /// `[reg + disp]`
    pub(crate) const fn at(reg: u8, disp: i32) -> Self {
        Self { segment: None, addr32: false, base: Base::Reg(reg), index: None, scale: 1, disp }
    }

    /// `[rip -> addr]`
    pub(crate) const fn rip(addr: u64) -> Self {
        Self { segment: None, addr32: false, base: Base::Rip(addr), index: None, scale: 1, disp: 0 }
    }

    /// The explicit memory operand of an instruction, or `None` where its form is beyond us (a vector index).
    pub(crate) fn of(instr: &Instruction) -> Option<Self> {
        let segment = match instr.segment_prefix() {
            Register::FS => Some(0x64),
            Register::GS => Some(0x65),
            _ => None,
        };
        if instr.is_ip_rel_memory_operand() {
            return match instr.memory_base() {
                Register::RIP => Some(Self { segment, ..Self::rip(instr.ip_rel_memory_address()) }),
                _ => None,
            };
        }
        let (base, wide) = match instr.memory_base() {
            Register::None => (Base::None, None),
            reg => (Base::Reg(gpr(reg)?), Some(reg.is_gpr64())),
        };
        let (index, index_wide) = match instr.memory_index() {
            Register::None => (None, None),
            reg => (Some(gpr(reg)?), Some(reg.is_gpr64())),
        };
        let addr32 = match wide.or(index_wide) {
            Some(wide) => !wide,
            None => instr.memory_displ_size() == 4,
        };
        let disp = instr.memory_displacement64() as i64;
        // Without registers a displacement is sign-extended in 64-bit and zero-extended in 32-bit address size.
        let disp = if addr32 { disp as i32 } else { i32::try_from(disp).ok()? };
        Some(Self { segment, addr32, base, index, scale: instr.memory_index_scale() as u8, disp })
    }

    /// The same operand `by` bytes further on, or `None` if the displacement overflows.
    pub(crate) fn plus(self, by: i32) -> Option<Self> {
        Some(match self.base {
            Base::Rip(addr) => Self { base: Base::Rip(addr.wrapping_add(by as u64)), ..self },
            _ => Self { disp: self.disp.checked_add(by)?, ..self },
        })
    }
}

/// The number of a general register of any width but the high bytes'.
pub(crate) fn gpr(reg: Register) -> Option<u8> {
    let full = reg.full_register();
    full.is_gpr64().then(|| full.number() as u8)
}

/// The bytes of one instruction, or some of them.
#[derive(Default)]
struct Short {
    bytes: [u8; 16],
    len: usize,
}

impl Short {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn push4(&mut self, bytes: [u8; 4]) {
        self.bytes[self.len..self.len + 4].copy_from_slice(&bytes);
        self.len += 4;
    }
}

/// A buffer of code that will lie at a known address.
#[derive(Debug)]
pub(crate) struct Asm {
    pub base: CacheAddr,
    pub bytes: Vec<u8>,
    /// A displacement did not fit.
    pub overflow: bool,
}

impl Asm {
    pub(crate) fn new(base: CacheAddr) -> Self {
        Self { base, bytes: Vec::with_capacity(256), overflow: false }
    }

    /// The address of the next byte.
    pub(crate) fn here(&self) -> CacheAddr {
        self.base.offset(self.bytes.len() as u64)
    }

    /// The offset of the next byte.
    pub(crate) fn offset(&self) -> u32 {
        self.bytes.len() as u32
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// The displacement to `to` from `after` bytes further on.
    fn distance(&mut self, to: u64, after: u64) -> [u8; 4] {
        let distance = to.wrapping_sub(self.here().0.wrapping_add(after)) as i64;
        let disp = i32::try_from(distance).unwrap_or_else(|_| {
            self.overflow = true;
            0
        });
        disp.to_le_bytes()
    }

    /// An instruction with a memory operand: `opcode`, ModRM with `reg`. `wide` sets REX.W; `byte` says that `reg` is
    /// an 8-bit register, which needs a REX prefix from spl on. `tail` immediate bytes follow, which the caller adds.
    pub(crate) fn mem(&mut self, wide: bool, byte: bool, opcode: &[u8], reg: u8, mem: Mem, tail: u64) {
        let mut code = Short::default();
        if let Some(segment) = mem.segment {
            code.push(segment);
        }
        if mem.addr32 {
            code.push(0x67);
        }
        let base = if let Base::Reg(base) = mem.base { base } else { 0 };
        let rex = u8::from(wide) << 3 | reg >> 3 << 2 | mem.index.unwrap_or(0) >> 3 << 1 | base >> 3;
        if rex != 0 || (byte && reg >= 4) {
            code.push(0x40 | rex);
        }
        for &byte in opcode {
            code.push(byte);
        }
        self.operand(code, reg & 7, mem, tail);
    }

    /// ModRM, SIB and displacement alone.
    pub(crate) fn modrm(&mut self, reg: u8, mem: Mem) {
        self.operand(Short::default(), reg, mem, 0);
    }

    fn operand(&mut self, mut code: Short, reg: u8, mem: Mem, tail: u64) {
        let reg = reg << 3;
        let scale = (mem.scale.max(1).trailing_zeros() as u8) << 6;
        let index = mem.index.unwrap_or(RSP);
        match mem.base {
            Base::Rip(to) => {
                code.push(reg | 5);
                code.push4(self.distance(to, code.len as u64 + 4 + tail));
            }
            Base::None => {
                code.push(reg | 4);
                code.push(scale | (index & 7) << 3 | 5);
                code.push4(mem.disp.to_le_bytes());
            }
            Base::Reg(base) => {
                let mode = match mem.disp {
                    0 if base & 7 != 5 => 0x00,
                    -128..=127 => 0x40,
                    _ => 0x80,
                };
                if mem.index.is_some() || base & 7 == RSP {
                    code.push(mode | reg | 4);
                    code.push(scale | (index & 7) << 3 | base & 7);
                } else {
                    code.push(mode | reg | base & 7);
                }
                match mode {
                    0x40 => code.push(mem.disp as u8),
                    0x80 => code.push4(mem.disp.to_le_bytes()),
                    _ => {}
                }
            }
        }
        self.raw(&code.bytes[..code.len]);
    }

    /// `mov reg, [mem]`
    pub(crate) fn load(&mut self, reg: u8, mem: Mem) {
        self.mem(true, false, &[0x8B], reg, mem, 0);
    }

    /// `mov reg32, [mem]`
    pub(crate) fn load32(&mut self, reg: u8, mem: Mem) {
        self.mem(false, false, &[0x8B], reg, mem, 0);
    }

    /// `movzx reg32, word [mem]`
    pub(crate) fn load16(&mut self, reg: u8, mem: Mem) {
        self.mem(false, false, &[0x0F, 0xB7], reg, mem, 0);
    }

    /// `movzx reg32, byte [mem]`
    pub(crate) fn load8(&mut self, reg: u8, mem: Mem) {
        self.mem(false, false, &[0x0F, 0xB6], reg, mem, 0);
    }

    /// `mov [mem], reg`
    pub(crate) fn store(&mut self, mem: Mem, reg: u8) {
        self.mem(true, false, &[0x89], reg, mem, 0);
    }

    /// `mov [mem], reg` of 2, 4 or 8 bytes.
    pub(crate) fn store_sized(&mut self, mem: Mem, reg: u8, size: u32) {
        match size {
            8 => self.store(mem, reg),
            _ => self.mem(false, false, &[0x89], reg, mem, 0),
        }
    }

    /// `mov dword [mem], value`
    pub(crate) fn store_imm32(&mut self, mem: Mem, value: u32) {
        self.mem(false, false, &[0xC7], 0, mem, 4);
        self.u32(value);
    }

    /// `mov byte [mem], value`
    pub(crate) fn store_imm8(&mut self, mem: Mem, value: u8) {
        self.mem(false, false, &[0xC6], 0, mem, 1);
        self.raw(&[value]);
    }

    /// `lea reg, [mem]` (the segment is dropped: an effective address)
    pub(crate) fn lea(&mut self, reg: u8, mem: Mem) {
        self.mem(true, false, &[0x8D], reg, Mem { segment: None, ..mem }, 0);
    }

    /// `mov to, from`
    pub(crate) fn copy(&mut self, to: u8, from: u8) {
        self.raw(&[0x48 | from >> 3 << 2 | to >> 3, 0x89, 0xC0 | (from & 7) << 3 | to & 7]);
    }

    /// `mov reg, value`, the short form where there is one.
    pub(crate) fn set(&mut self, reg: u8, value: u64) {
        if let Ok(low) = u32::try_from(value) {
            if reg >= 8 {
                self.raw(&[0x41]);
            }
            self.raw(&[0xB8 | reg & 7]);
            self.u32(low);
        } else {
            self.raw(&[0x48 | reg >> 3, 0xB8 | reg & 7]);
            self.raw(&value.to_le_bytes());
        }
    }

    /// `jmp to`; the address of its displacement.
    pub(crate) fn jump(&mut self, to: CacheAddr) -> CacheAddr {
        self.raw(&[0xE9]);
        let site = self.here();
        let disp = self.distance(to.0, 4);
        self.raw(&disp);
        site
    }

    /// `jcc to` with the condition's number in x86 encoding; the address of its displacement.
    pub(crate) fn jump_if(&mut self, condition: u8, to: CacheAddr) -> CacheAddr {
        self.raw(&[0x0F, 0x80 | condition]);
        let site = self.here();
        let disp = self.distance(to.0, 4);
        self.raw(&disp);
        site
    }

    /// Makes the buffer a multiple of 8 long and adds a constant; its address.
    pub(crate) fn constant(&mut self, value: u64) -> CacheAddr {
        while !self.here().0.is_multiple_of(8) {
            self.raw(&[0xCC]);
        }
        let at = self.here();
        self.raw(&value.to_le_bytes());
        at
    }
}
