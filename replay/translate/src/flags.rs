//! Where the arithmetic flags are dead: written before anything reads them, whatever way the code goes.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, RflagsBits};

use guest::{GuestAddr, GuestRange};

use crate::class::{Kind, kind};
use crate::plan::see;
use crate::request::Request;

/// CF, PF, AF, ZF, SF and OF.
pub(crate) const ARITHMETIC: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// What an instruction does with the arithmetic flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Effect {
    /// Those it reads.
    pub reads: u32,
    /// Those whose old value is gone after it, always.
    pub kills: u32,
}

/// The effect of one instruction. Flags that the manuals call undefined are not killed: processors leave some of them
/// alone. The exception is AF after logic and shifts by a constant, which all clear or compute anew.
pub(crate) fn effect(instr: &Instruction) -> Effect {
    let reads = instr.rflags_read() & ARITHMETIC;
    let kills = (instr.rflags_written() | instr.rflags_cleared() | instr.rflags_set()) & ARITHMETIC;
    match instr.mnemonic() {
        Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => {
            Effect { reads, kills: kills | RflagsBits::AF }
        }
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar | Mnemonic::Shld | Mnemonic::Shrd => {
            Effect { reads, kills: if may_shift_by_zero(instr) { 0 } else { kills } }
        }
        Mnemonic::Rol | Mnemonic::Ror | Mnemonic::Rcl | Mnemonic::Rcr => {
            Effect { reads, kills: if may_shift_by_zero(instr) { 0 } else { kills } }
        }
        _ if instr.is_string_instruction() && (instr.has_rep_prefix() || instr.has_repne_prefix()) => {
            Effect { reads, kills: 0 }
        }
        _ => Effect { reads, kills },
    }
}

fn may_shift_by_zero(instr: &Instruction) -> bool {
    let last = instr.op_count().saturating_sub(1);
    match instr.op_kind(last) {
        OpKind::Immediate8 => {
            let wide = instr.op_code().operand_size() == 64;
            instr.immediate8() & if wide { 63 } else { 31 } == 0
        }
        _ => true,
    }
}

/// How many instructions are looked at beyond a block, and how many branches deep.
const LOOK_AHEAD: u32 = 12;

/// Whether all of `flags` are dead on reaching `pc`: looks ahead as far as bytes are at hand; when in doubt, no.
/// What was looked at is added to `seen`.
pub(crate) fn dead_at(request: &Request<'_>, pc: GuestAddr, flags: u32, seen: &mut Vec<GuestRange>) -> bool {
    let mut fuel = LOOK_AHEAD;
    dead_from(request, pc, flags, 2, &mut fuel, seen)
}

fn dead_from(
    request: &Request<'_>,
    mut pc: GuestAddr,
    mut flags: u32,
    depth: u32,
    fuel: &mut u32,
    seen: &mut Vec<GuestRange>,
) -> bool {
    let mut instr = Instruction::default();
    let mut decoder = Decoder::new(64, &[], DecoderOptions::NONE);
    loop {
        if flags == 0 {
            return true;
        }
        if *fuel == 0 || request.breakpoints.contains(&pc) || request.searches(pc) {
            return false;
        }
        *fuel -= 1;
        if decoder.ip() != pc.0 || decoder.max_position() - decoder.position() < 15 {
            decoder = Decoder::with_ip(64, request.code.bytes(pc), pc.0, DecoderOptions::NONE);
        }
        if !decoder.can_decode() {
            return false;
        }
        decoder.decode_out(&mut instr);
        if instr.code() == Code::INVALID {
            return false;
        }
        see(seen, pc, instr.len() as u64);
        let Effect { reads, kills } = effect(&instr);
        if reads & flags != 0 {
            return false;
        }
        match kind(instr.code()) {
            Kind::Copy | Kind::Move | Kind::Fill => {
                flags &= !kills;
                pc = GuestAddr(instr.next_ip());
            }
            Kind::Jump | Kind::Call => pc = GuestAddr(instr.near_branch_target()),
            Kind::Conditional if depth > 0 => {
                let taken = GuestAddr(instr.near_branch_target());
                if !dead_from(request, taken, flags, depth - 1, fuel, seen) {
                    return false;
                }
                pc = GuestAddr(instr.next_ip());
            }
            _ => return false,
        }
    }
}
