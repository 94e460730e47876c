//! The one table of instruction classes: every `iced_x86::Code` is in exactly one.

use std::sync::LazyLock;

use iced_x86::{Code, Mnemonic};

use crate::block::{Signal, Special, StateImage};

/// What the translator does with an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Copied byte for byte, or, where a memory operand is relative to rip, with its displacement changed
    /// (*relocated*).
    Copy,
    /// A near branch of any kind: replaced.
    Branch,
    /// A string instruction that stores: copied, logged specially.
    String,
    /// Not simply run: the block ends before it with an exit that names it, or it is replaced or completed by other
    /// code.
    Emulate,
    /// Not supported: refused by name.
    Refuse,
}

/// An instruction's class, and what it is within the class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    Copy,
    /// `jcc`
    Conditional,
    /// `loop`, `jrcxz` and the like: a conditional branch with an 8-bit displacement only.
    Loop,
    Jump,
    JumpIndirect,
    Call,
    CallIndirect,
    Return,
    /// `movs`
    Move,
    /// `stos`
    Fill,
    Syscall,
    /// `int n`: of 0x80, a system call.
    Interrupt,
    Special(Special),
    Raises(Signal),
    State(StateImage),
    WriteFsBase,
    WriteGsBase,
    /// Transactional memory: an abort right away where the processor has it.
    Transaction(Transaction),
    Refuse,
}

/// The instructions of restricted transactional memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Transaction {
    Begin,
    End,
    Abort,
    Test,
}

/// The class of an instruction.
pub fn classify(code: Code) -> Class {
    match kind(code) {
        Kind::Copy => Class::Copy,
        Kind::Conditional
        | Kind::Loop
        | Kind::Jump
        | Kind::JumpIndirect
        | Kind::Call
        | Kind::CallIndirect
        | Kind::Return => Class::Branch,
        Kind::Move | Kind::Fill => Class::String,
        Kind::Syscall
        | Kind::Interrupt
        | Kind::Special(_)
        | Kind::Raises(_)
        | Kind::State(_)
        | Kind::WriteFsBase
        | Kind::WriteGsBase
        | Kind::Transaction(_) => Class::Emulate,
        Kind::Refuse => Class::Refuse,
    }
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| Code::values().map(kind_of).collect());

/// The kind of an instruction.
pub(crate) fn kind(code: Code) -> Kind {
    KINDS.get(code as usize).copied().unwrap_or(Kind::Refuse)
}

fn kind_of(code: Code) -> Kind {
    if code == Code::INVALID {
        return Kind::Raises(Signal::Illegal);
    }
    if !code.op_code().mode64() {
        return Kind::Refuse;
    }
    branch_of(code).or_else(|| special_of(code)).unwrap_or_else(|| {
        // A privileged instruction is copied: it raises at the guest's own place.
        if !code.is_privileged() && is_refused(code.mnemonic()) { Kind::Refuse } else { Kind::Copy }
    })
}

fn branch_of(code: Code) -> Option<Kind> {
    Some(match code {
        Code::Call_rel32_64 => Kind::Call,
        Code::Call_rm64 => Kind::CallIndirect,
        Code::Jmp_rm64 => Kind::JumpIndirect,
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Kind::Jump,
        Code::Retnq | Code::Retnq_imm16 => Kind::Return,
        _ if code.is_jcc_short_or_near() => match code.op_code().operand_size() {
            64 => Kind::Conditional,
            _ => Kind::Refuse,
        },
        _ if code.is_loop() || code.is_loopcc() || code.is_jcx_short() => match code {
            Code::Loop_rel8_64_RCX
            | Code::Loop_rel8_64_ECX
            | Code::Loope_rel8_64_RCX
            | Code::Loope_rel8_64_ECX
            | Code::Loopne_rel8_64_RCX
            | Code::Loopne_rel8_64_ECX
            | Code::Jrcxz_rel8_64
            | Code::Jecxz_rel8_64 => Kind::Loop,
            _ => Kind::Refuse,
        },
        // Far branches, and near ones with 16-bit operands.
        _ => match code.mnemonic() {
            Mnemonic::Call | Mnemonic::Jmp | Mnemonic::Ret | Mnemonic::Retf => Kind::Refuse,
            Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Uiret | Mnemonic::Jmpe => {
                Kind::Refuse
            }
            Mnemonic::Jknzd | Mnemonic::Jkzd => Kind::Refuse,
            _ => return None,
        },
    })
}

fn special_of(code: Code) -> Option<Kind> {
    Some(match code.mnemonic() {
        Mnemonic::Syscall => Kind::Syscall,
        Mnemonic::Int => Kind::Interrupt,
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsq => Kind::Move,
        Mnemonic::Movsd if code == Code::Movsd_m32_m32 => Kind::Move,
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => Kind::Fill,
        Mnemonic::Rdtsc => Kind::Special(Special::Rdtsc),
        Mnemonic::Rdtscp => Kind::Special(Special::Rdtscp),
        Mnemonic::Cpuid => Kind::Special(Special::Cpuid),
        Mnemonic::Rdrand => Kind::Special(Special::Rdrand),
        Mnemonic::Rdseed => Kind::Special(Special::Rdseed),
        Mnemonic::Rdpid => Kind::Special(Special::Rdpid),
        Mnemonic::Rdpmc | Mnemonic::Rdpru => Kind::Special(Special::Counter),
        Mnemonic::Umwait | Mnemonic::Tpause => Kind::Special(Special::TimedWait),
        Mnemonic::Int3 | Mnemonic::Int1 => Kind::Raises(Signal::Trap),
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => Kind::Raises(Signal::Illegal),
        Mnemonic::Wrfsbase => Kind::WriteFsBase,
        Mnemonic::Wrgsbase => Kind::WriteGsBase,
        Mnemonic::Fnstenv | Mnemonic::Fnsave => Kind::State(StateImage::Whole),
        Mnemonic::Fxsave | Mnemonic::Fxsave64 => Kind::State(StateImage::FxSave),
        Mnemonic::Xsave | Mnemonic::Xsave64 | Mnemonic::Xsaveopt | Mnemonic::Xsaveopt64 => {
            Kind::State(StateImage::XSave)
        }
        Mnemonic::Xsavec | Mnemonic::Xsavec64 => Kind::State(StateImage::XSaveCompact),
        Mnemonic::Xbegin => Kind::Transaction(Transaction::Begin),
        Mnemonic::Xend => Kind::Transaction(Transaction::End),
        Mnemonic::Xabort => Kind::Transaction(Transaction::Abort),
        Mnemonic::Xtest => Kind::Transaction(Transaction::Test),
        Mnemonic::Mov
            if matches!(code, Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16) =>
        {
            Kind::Refuse
        }
        Mnemonic::Pop if matches!(code, Code::Popw_FS | Code::Popw_GS | Code::Popq_FS | Code::Popq_GS) => {
            Kind::Refuse
        }
        _ => return None,
    })
}

/// What no user program needs, or whose result depends on the machine or the moment.
fn is_refused(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        // Interrupts, other system calls, hypervisors, enclaves.
        M::Into | M::Bound | M::Sysenter | M::Sysexit | M::Sysret | M::Sysexitq | M::Sysretq | M::Getsec | M::Getsecq
            | M::Encls | M::Enclu | M::Enclv | M::Tdcall | M::Seamret | M::Seamops | M::Seamcall | M::Pconfig | M::Smint | M::Dmint
            | M::Rsm | M::Loadall | M::Storeall | M::Altinst | M::Undoc | M::Skinit
            // Segment loads, and what the processor at hand answers: limits of segments (of one, its number), where tables lie.
            | M::Lfs | M::Lgs | M::Lss | M::Lds | M::Les | M::Lsl | M::Sgdt | M::Sidt | M::Arpl | M::Lkgs | M::Eretu | M::Erets
            // User interrupts, queues, load tracking, shadow stack writes, key lockers.
            | M::Testui | M::Clui | M::Stui | M::Senduipi | M::Enqcmd | M::Enqcmds | M::Xsusldtrk | M::Xresldtrk | M::Hreset
            | M::Wrssd | M::Wrssq | M::Wrussd | M::Wrussq | M::Setssbsy | M::Clrssbsy | M::Rstorssp | M::Saveprevssp
            | M::Aesencwide128kl | M::Aesdecwide128kl | M::Aesencwide256kl | M::Aesdecwide256kl | M::Loadiwkey
            | M::Aesenc128kl | M::Aesdec128kl | M::Aesenc256kl | M::Aesdec256kl | M::Encodekey128 | M::Encodekey256
            // Lightweight profiling, VIA's and other makers' own.
            | M::Llwpcb | M::Slwpcb | M::Lwpins | M::Lwpval | M::Xstore | M::Xstore_alt | M::Xcryptcbc | M::Xcryptcfb
            | M::Xcryptctr | M::Xcryptecb | M::Xcryptofb | M::Montmul | M::Xsha1 | M::Xsha256 | M::Xsha512
            | M::Xsha512_alt | M::Ccs_hash | M::Ccs_encrypt | M::Rdudbg | M::Wrudbg | M::Mcommit
            // iced's own data directives.
            | M::Db | M::Dd | M::Dq | M::Dw | M::Zero_bytes
            // Compound waits: two instructions under one name.
            | M::Fstenv | M::Fsave | M::Fstcw | M::Fstsw | M::Fclex | M::Finit | M::Fstdw | M::Fstsg
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_class() {
        let mut counts = std::collections::BTreeMap::new();
        for code in Code::values() {
            *counts.entry(format!("{:?}", classify(code))).or_insert(0usize) += 1;
        }
        assert_eq!(counts.values().sum::<usize>(), Code::values().count());
        assert_eq!(counts.len(), 5, "{counts:?}");
        assert!(counts["Copy"] > 3000, "{counts:?}");
    }

    #[test]
    fn classes_of_well_known_instructions() {
        for (code, class) in [
            (Code::Mov_r64_rm64, Class::Copy),
            (Code::Endbr64, Class::Copy),
            (Code::Ja_rel8_64, Class::Branch),
            (Code::Jrcxz_rel8_64, Class::Branch),
            (Code::Retnq_imm16, Class::Branch),
            (Code::Retfq, Class::Refuse),
            (Code::Int_imm8, Class::Emulate),
            (Code::Movsd_m32_m32, Class::String),
            (Code::Movsd_xmm_xmmm64, Class::Copy),
            (Code::Syscall, Class::Emulate),
            (Code::Cpuid, Class::Emulate),
            (Code::Hlt, Class::Copy),
            (Code::INVALID, Class::Emulate),
            (Code::Fxsave_m512byte, Class::Emulate),
            (Code::Pushad, Class::Refuse),
            (Code::Lar_r32_r32m16, Class::Copy),
            (Code::Verw_rm16, Class::Copy),
            (Code::Smsw_r64m16, Class::Copy),
            (Code::Lsl_r32_r32m16, Class::Refuse),
            (Code::Sgdt_m1664, Class::Refuse),
        ] {
            assert_eq!(classify(code), class, "{code:?}");
        }
    }
}
