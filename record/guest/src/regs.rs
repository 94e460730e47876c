//! The registers of a task: general registers in the kernel's layout, and the extended state as the kernel's XSAVE
//! image.

use serde::{Deserialize, Serialize};

use crate::addr::GuestAddr;

macro_rules! registers {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// The general registers, in the order and layout of the kernel's `user_regs_struct`
        /// (`arch/x86/include/uapi/asm/ptrace.h`), so that it can be copied to and from `PTRACE_GETREGSET`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
        #[repr(C)]
        pub struct Registers {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Registers {
            /// Number of registers.
            pub const COUNT: usize = [$(stringify!($field)),*].len();

            /// The registers' names, in layout order.
            pub const NAMES: [&'static str; Self::COUNT] = [$(stringify!($field)),*];

            /// The registers' values, in layout order.
            pub const fn to_words(&self) -> [u64; Self::COUNT] {
                [$(self.$field),*]
            }

            /// The registers from values in layout order.
            pub const fn from_words(words: [u64; Self::COUNT]) -> Self {
                let [$($field),*] = words;
                Self { $($field),* }
            }
        }
    };
}

registers! {
    /// r15
    r15,
    /// r14
    r14,
    /// r13
    r13,
    /// r12
    r12,
    /// rbp
    rbp,
    /// rbx
    rbx,
    /// r11
    r11,
    /// r10
    r10,
    /// r9
    r9,
    /// r8
    r8,
    /// rax
    rax,
    /// rcx
    rcx,
    /// rdx
    rdx,
    /// rsi
    rsi,
    /// rdi
    rdi,
    /// The syscall number at a syscall stop, else -1.
    orig_rax,
    /// Instruction pointer.
    rip,
    /// Code segment selector.
    cs,
    /// Flags register.
    eflags,
    /// Stack pointer.
    rsp,
    /// Stack segment selector.
    ss,
    /// Base of the fs segment (thread pointer).
    fs_base,
    /// Base of the gs segment.
    gs_base,
    /// Data segment selector.
    ds,
    /// Extra segment selector.
    es,
    /// fs selector.
    fs,
    /// gs selector.
    gs,
}

/// One of the general registers, by its position in [`Registers::NAMES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterName(pub usize);

impl std::fmt::Display for RegisterName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Registers::NAMES.get(self.0).copied().unwrap_or("?"))
    }
}

impl Registers {
    /// The instruction pointer.
    pub const fn pc(&self) -> GuestAddr {
        GuestAddr(self.rip)
    }

    /// The stack pointer.
    pub const fn sp(&self) -> GuestAddr {
        GuestAddr(self.rsp)
    }

    /// A general register by its number in x86 encoding, of which the low four bits count.
    pub const fn general(&self, number: u8) -> u64 {
        let mut copy = *self;
        *copy.general_mut(number)
    }

    /// The same, to change it.
    pub const fn general_mut(&mut self, number: u8) -> &mut u64 {
        match number & 15 {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            _ => &mut self.r15,
        }
    }

    /// The six syscall arguments in order.
    pub const fn syscall_args(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }
}

/// The extended state (x87, SSE, AVX, ...) as the kernel's non-compacted XSAVE image, `NT_X86_XSTATE`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct XState(pub Vec<u8>);

impl XState {
    /// Whether both hold the same register values: the same contents but for what instructions cannot read back exactly (the last x87
    /// opcode and pointers) and the bookkeeping of XSAVE. The kernel writes the initial values of components that are not in use.
    pub fn same_values(&self, other: &Self) -> bool {
        /// x87 control, status and tag words.
        const CONTROL: std::ops::Range<usize> = 0..6;
        /// MXCSR.
        const MXCSR: std::ops::Range<usize> = 24..28;
        /// x87 and XMM registers.
        const LEGACY: std::ops::Range<usize> = 32..416;
        /// Past the XSAVE header: everything newer.
        const EXTENDED: usize = 576;
        let (a, b) = (&self.0, &other.0);
        a.len() == b.len()
            && [CONTROL, MXCSR, LEGACY].into_iter().all(|part| a.get(part.clone()) == b.get(part))
            && a.get(EXTENDED..) == b.get(EXTENDED..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<Registers>(), 27 * 8);
        assert_eq!(std::mem::offset_of!(Registers, rip), 16 * 8);
        let words: [u64; 27] = std::array::from_fn(|i| i as u64);
        assert_eq!(Registers::from_words(words).to_words(), words);
        assert_eq!(Registers::NAMES[15], "orig_rax");
    }

    #[test]
    fn general_registers_are_numbered_as_instructions_do() {
        let mut regs = Registers::default();
        for number in 0..16 {
            *regs.general_mut(number) = 1 << number;
        }
        assert_eq!([regs.rax, regs.rcx, regs.rdx, regs.rbx], [1, 2, 4, 8]);
        assert_eq!([regs.rsp, regs.rbp, regs.rsi, regs.rdi], [16, 32, 64, 128]);
        assert_eq!([regs.r8, regs.r15], [1 << 8, 1 << 15]);
        assert_eq!((regs.general(12), regs.general(4 | 16)), (1 << 12, 16));
    }

    #[test]
    fn extended_state_is_compared_by_value() {
        let state = |changed: usize| {
            let mut bytes = vec![0; 1024];
            if let Some(byte) = bytes.get_mut(changed) {
                *byte = 1;
            }
            XState(bytes)
        };
        let none = state(usize::MAX);
        for (at, same) in [(0, false), (8, true), (16, true), (24, false), (40, false), (200, false)] {
            assert_eq!(none.same_values(&state(at)), same, "byte {at}");
        }
        assert!(none.same_values(&state(512)));
        assert!(!none.same_values(&state(600)));
        assert!(!none.same_values(&XState(vec![0; 512])));
    }
}
