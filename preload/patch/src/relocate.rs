//! The one table of instruction classes, and an instruction at another address.

use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

use crate::addr::CodeAddr;
use crate::refusal::Obstacle;

/// What becomes of an instruction that is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Copied; an operand relative to rip gets another displacement.
    Copy,
    /// Copied, and nothing after it is reached: near returns, near indirect jumps.
    Leave,
    /// `jmp`
    Jump,
    /// `jcc`
    Conditional,
    /// `loop`, `jrcxz` and the like: conditional, with an 8-bit displacement only.
    Loop,
    /// A direct `call`.
    Call,
    /// Not moved: its address shows, or somebody answers for it at its address.
    Refuse,
}

/// The class of an instruction of 64-bit code. (What `Code::op_code` tells is not asked for: the first time that takes milliseconds.)
pub(crate) fn classify(code: Code) -> Class {
    match code {
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Class::Jump,
        Code::Call_rel32_64 => Class::Call,
        Code::Jmp_rm64 | Code::Retnq | Code::Retnq_imm16 => Class::Leave,
        Code::Loop_rel8_64_RCX
        | Code::Loop_rel8_64_ECX
        | Code::Loope_rel8_64_RCX
        | Code::Loope_rel8_64_ECX
        | Code::Loopne_rel8_64_RCX
        | Code::Loopne_rel8_64_ECX
        | Code::Jrcxz_rel8_64
        | Code::Jecxz_rel8_64 => Class::Loop,
        _ if is_conditional(code) => Class::Conditional,
        _ if code.flow_control() == FlowControl::Next && !is_refused(code) => Class::Copy,
        _ => Class::Refuse,
    }
}

/// A `jcc` without an operand size of its own: of each there is one for 16, 32 and 64 bits, in this order.
fn is_conditional(code: Code) -> bool {
    let firsts = [(Code::Jo_rel8_16, code.is_jcc_short()), (Code::Jo_rel16, code.is_jcc_near())];
    firsts.into_iter().any(|(first, is_one)| is_one && (code as u32 - first as u32) % 3 == 2)
}

fn is_refused(code: Code) -> bool {
    use Mnemonic as M;
    is_x87(code)
        || matches!(
            code.mnemonic(),
            // What a recorder may trap, and answer at the instruction's address.
            M::Cpuid | M::Rdtsc | M::Rdtscp | M::Rdpid | M::Rdrand | M::Rdseed | M::Rdpmc | M::Rdpru | M::Umwait | M::Tpause
            // Sets the trap flag: the next instruction traps.
            | M::Popf | M::Popfd | M::Popfq
            // Directives of the decoder's own.
            | M::Db | M::Dw | M::Dd | M::Dq | M::Zero_bytes
        )
}

/// x87 instructions leave their address in the state that `fnstenv` shows (Intel SDM, volume 1, section 8.1.8).
fn is_x87(code: Code) -> bool {
    use CpuidFeature as F;
    let of_fpu =
        |feature: &F| matches!(feature, F::FPU | F::FPU287 | F::FPU287XL_ONLY | F::FPU387 | F::FPU387SL_ONLY);
    code == Code::Wait || code.cpuid_features().iter().any(of_fpu)
}

/// An instruction with its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Moved<'a> {
    pub(crate) step: &'a Instruction,
    pub(crate) bytes: &'a [u8],
}

impl Moved<'_> {
    fn immovable(&self) -> Obstacle {
        Obstacle::Immovable { at: CodeAddr(self.step.ip()), mnemonic: self.step.mnemonic() }
    }

    /// Its class, or that it cannot be moved.
    pub(crate) fn class(&self) -> Result<Class, Obstacle> {
        let class = classify(self.step.code());
        let is_prefix = |byte: &&u8| matches!(**byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF0 | 0xF2 | 0xF3);
        // Processors differ in what a branch with an operand size prefix is.
        let is_narrow = self.bytes.iter().take_while(is_prefix).any(|&byte| byte == 0x66);
        match class {
            Class::Refuse => Err(self.immovable()),
            Class::Copy => Ok(class),
            _ if is_narrow => Err(self.immovable()),
            _ => Ok(class),
        }
    }

    /// The bytes that do the same at `to`.
    pub(crate) fn bytes_at(&self, to: u64) -> Result<Vec<u8>, Obstacle> {
        let mut bytes = self.bytes.to_vec();
        if !self.step.is_ip_rel_memory_operand() {
            return Ok(bytes);
        }
        if self.step.memory_base() != Register::RIP {
            return Err(self.immovable());
        }
        let target = self.step.ip_rel_memory_address();
        let distance = target.wrapping_sub(to + bytes.len() as u64) as i64;
        if let Ok(displacement) = i32::try_from(distance) {
            let at = self.displacement_offset();
            bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
            return Ok(bytes);
        }
        self.address_as_constant(target)
            .ok_or(Obstacle::OutOfReach { at: CodeAddr(self.step.ip()), target: CodeAddr(target) })
    }

    fn displacement_offset(&self) -> usize {
        let mut decoder = Decoder::with_ip(64, self.bytes, self.step.ip(), DecoderOptions::NONE);
        let step = decoder.decode();
        decoder.get_constant_offsets(&step).displacement_offset()
    }

    /// A `lea` as a `mov` of a constant, which changes no flags either.
    fn address_as_constant(&self, target: u64) -> Option<Vec<u8>> {
        let number = self.step.op0_register().number() as u8;
        let (is_wide, value) = match self.step.code() {
            Code::Lea_r64_m => (true, target.to_le_bytes().to_vec()),
            Code::Lea_r32_m => (false, (target as u32).to_le_bytes().to_vec()),
            _ => return None,
        };
        let mut bytes = vec![0x40 | u8::from(is_wide) << 3 | number >> 3, 0xB8 | number & 7];
        bytes.extend(value);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{EncodingKind, OpCodeTableKind};

    use super::*;

    #[test]
    fn every_code_has_a_class() {
        let mut counts = std::collections::BTreeMap::new();
        for code in Code::values().filter(|code| code.op_code().mode64()) {
            *counts.entry(format!("{:?}", classify(code))).or_insert(0usize) += 1;
        }
        assert_eq!(counts["Jump"], 2);
        assert_eq!(counts["Conditional"], 32);
        assert_eq!(counts["Loop"], 8);
        assert_eq!(counts["Call"], 1);
        assert_eq!(counts["Leave"], 3);
        assert!(counts["Copy"] > 3000, "{counts:?}");
    }

    /// What the decoder's own description of an instruction says of the two things that it takes long to look up.
    #[test]
    fn codes_are_what_they_are_described_as() {
        for code in Code::values().filter(|code| code.op_code().mode64()) {
            let described = code.op_code();
            let conditional = code.is_jcc_short_or_near() && described.operand_size() == 64;
            assert_eq!(is_conditional(code), conditional, "{code:?}");
            let first = described.op_code() >> (8 * (described.op_code_len().max(1) - 1));
            let legacy =
                code.encoding() == EncodingKind::Legacy && described.table() == OpCodeTableKind::Normal;
            let x87 = legacy && matches!(first, 0x9B | 0xD8..=0xDF);
            assert_eq!(is_x87(code), x87, "{code:?}");
        }
    }

    #[test]
    fn classes_of_well_known_instructions() {
        for (code, class) in [
            (Code::Cmp_rm64_imm32, Class::Copy),
            (Code::Endbr64, Class::Copy),
            (Code::Fld_m64fp, Class::Refuse),
            (Code::Fcmovb_st0_sti, Class::Refuse),
            (Code::Fld1, Class::Refuse),
            (Code::Wait, Class::Refuse),
            (Code::Movups_xmm_xmmm128, Class::Copy),
            (Code::Cmovb_r64_rm64, Class::Copy),
            (Code::Syscall, Class::Refuse),
            (Code::Sysenter, Class::Refuse),
            (Code::Int_imm8, Class::Refuse),
            (Code::Int3, Class::Refuse),
            (Code::Ud2, Class::Refuse),
            (Code::Xbegin_rel32, Class::Refuse),
            (Code::Call_rm64, Class::Refuse),
            (Code::Retfq, Class::Refuse),
            (Code::Retnw, Class::Refuse),
            (Code::Ja_rel8_64, Class::Conditional),
            (Code::Ja_rel32_64, Class::Conditional),
            (Code::Jrcxz_rel8_64, Class::Loop),
            (Code::Jmpe_disp32, Class::Refuse),
            (Code::Rdtsc, Class::Refuse),
            (Code::INVALID, Class::Refuse),
        ] {
            assert_eq!(classify(code), class, "{code:?}");
        }
    }
}
