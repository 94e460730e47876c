//! Places in code, as people read them: function, file and line, source text, the instruction. Knows nothing of writes.

use std::path::Path;

use guest::{GuestAddr, GuestRange, Moment, SpaceId};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, Instruction, IntelFormatter, Mnemonic, OpKind, Register,
};
use store::QueryError;
use symbols::Frame;
use tables::Database;

use crate::answer::Place;
use crate::history;

/// The longest x86-64 instruction, in bytes.
const LONGEST: u64 = 15;

/// Where in code: a pc, in a space, at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) space: SpaceId,
    pub(crate) moment: Moment,
    pub(crate) pc: GuestAddr,
}

/// One frame at a spot as a place.
pub(crate) fn place(database: &Database, spot: Spot, frame: &Frame) -> Place {
    let file = frame.file.as_deref();
    let source = file.zip(frame.line).and_then(|(file, line)| source(database, file, line));
    let changed = file.filter(|_| source.is_some()).and_then(|file| database.symbols().source_changed(file));
    Place {
        pc: spot.pc.to_string(),
        function: frame.function.clone(),
        module: frame.module.as_ref().map(|module| {
            let name =
                module.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            format!("{name}+{:#x}", module.offset)
        }),
        file: file.map(|file| file.display().to_string()),
        line: frame.line,
        source,
        source_changed: changed.is_some_and(|at| at > database.trace().header().started),
    }
}

fn source(database: &Database, file: &Path, line: u32) -> Option<String> {
    database.symbols().source_line(file, line).map(|text| text.trim_start().to_owned())
}

/// The innermost frame at a spot as a place.
pub(crate) fn innermost(database: &Database, spot: Spot) -> Place {
    let frames = database.symbols().quick_frames(spot.space, spot.moment, spot.pc);
    frames.first().map(|frame| place(database, spot, frame)).unwrap_or_default()
}

/// The instruction at a spot: from the mapped file, else (generated code) from what was written there.
pub(crate) fn instruction(database: &Database, spot: Spot) -> Result<Option<Instruction>, QueryError> {
    let range = GuestRange::new(spot.pc, LONGEST);
    let symbols = database.symbols();
    let executable = |at| symbols.layout().at(spot.space, spot.moment, at).is_some_and(|m| m.file.is_some());
    let file = (1..=LONGEST as usize).rev().find_map(|len| {
        executable(spot.pc).then(|| symbols.file_bytes(spot.space, spot.moment, spot.pc, len)).flatten()
    });
    let bytes: Vec<u8> = match file {
        Some(bytes) => bytes,
        None => {
            let known = history::contents(database, spot.space, range, spot.moment)?;
            known.into_iter().map_while(|byte| byte).collect()
        }
    };
    let mut decoder = Decoder::with_ip(64, &bytes, spot.pc.0, DecoderOptions::NONE);
    let instruction = decoder.decode();
    Ok((!instruction.is_invalid()).then_some(instruction))
}

/// An instruction in Intel syntax.
pub(crate) fn disassembled(instruction: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    options.set_branch_leading_zeros(false);
    options.set_memory_size_options(iced_x86::MemorySizeOptions::Always);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

/// Whether an instruction gives the stack pointer a value from elsewhere: not from itself, nor from the frame pointer.
pub(crate) fn loads_stack_pointer(instruction: &Instruction) -> bool {
    let frame = [Register::RSP, Register::RBP];
    let into = instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP;
    let from = match instruction.op1_kind() {
        OpKind::Memory => !frame.contains(&instruction.memory_base()),
        OpKind::Register => !frame.contains(&instruction.op1_register()),
        _ => false,
    };
    into && from && matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Xchg | Mnemonic::Lea)
}

/// The target of a direct call or jump.
pub(crate) fn direct_target(instruction: &Instruction) -> Option<GuestAddr> {
    let direct = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::UnconditionalBranch);
    (direct && instruction.op0_kind() == OpKind::NearBranch64)
        .then(|| GuestAddr(instruction.near_branch_target()))
}
