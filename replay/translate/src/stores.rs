//! What an instruction stores: where, how much, under which condition, and where the contents can be had afterwards.

use iced_x86::{
    CodeSize, EncodingKind, Instruction, InstructionInfo, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::block::{StateImage, StringOp};
use crate::class::Kind;
use crate::emit::{Base, Mem, RSP, gpr};
use crate::plan::is_write;

/// A store of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Store {
    /// Its address in terms of the registers before the instruction.
    pub before: Mem,
    /// The same address in terms of the registers after it, where that is possible.
    pub after: Option<Mem>,
    /// A register that numbers a bit from `before` on (`bts` and the like): the store goes to the element that holds
    /// it.
    pub bit: Option<u8>,
    /// Bytes; of one element for string stores.
    pub size: u32,
    pub value: Value,
    pub condition: When,
}

/// Where the stored bytes can be had after the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// Always the same: the low bytes, at most 8.
    Fixed(u64),
    /// The low bytes of a general register.
    Register(u8),
    /// A vector register, all of it (16 or 32 bytes).
    Vector {
        register: u8,
        /// The instruction's encoding, and so the copy's.
        form: Form,
    },
    /// In memory only.
    Memory,
    /// What the instruction stores at an address without a segment: it is made again.
    Again,
    /// A string store; its block logs it at the end.
    String(StringOp),
    /// A state image; the supervisor logs it.
    State(StateImage),
}

/// Encodings of vector instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Legacy,
    Vex,
    Evex,
}

/// When it stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    Always,
    /// When ZF is set after the instruction.
    ZeroFlag,
    /// Elements whose bit is set in an opmask register.
    Opmask {
        mask: u8,
        element: u8,
    },
    /// As many of the first elements as an opmask register has bits set for elements.
    Packed {
        mask: u8,
        element: u8,
    },
    /// Elements whose bit is set in an opmask register, each at the address that its own index tells.
    Scatter(Scatter),
    /// Elements whose sign bit is set in a vector register.
    Signs {
        mask: u8,
        element: u8,
        wide: bool,
    },
}

/// What scatters have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scatter {
    pub mask: u8,
    /// The vector register of indices, and how long that is.
    pub indices: u8,
    pub indices_size: u32,
    /// Bytes in an index.
    pub index: u8,
    pub scale: u8,
    /// The vector register of elements, and how long that is.
    pub elements: u8,
    pub elements_size: u32,
    pub element: u8,
}

impl Store {
    /// Whether its block logs it in its own way and must hold no other store.
    pub(crate) fn is_bulk(&self) -> bool {
        matches!(self.value, Value::String(_) | Value::State(_))
    }

    /// How many bytes its contents take in a record: of a scatter, a whole register.
    pub(crate) fn room(&self) -> u32 {
        match self.condition {
            When::Scatter(scatter) => scatter.elements_size,
            _ => self.size,
        }
    }
}

/// The general registers an instruction reads or writes in any way, one bit each.
pub(crate) fn used_registers(info: &InstructionInfo) -> u16 {
    registers(info, |_| true)
}

/// The general registers an instruction may write.
pub(crate) fn written_registers(info: &InstructionInfo) -> u16 {
    registers(info, is_write)
}

fn registers(info: &InstructionInfo, wanted: impl Fn(OpAccess) -> bool) -> u16 {
    info.used_registers()
        .iter()
        .filter(|used| wanted(used.access()))
        .filter_map(|used| gpr(used.register()))
        .fold(0, |mask, number| mask | 1 << number)
}

/// The stores of an instruction in order, or what about them cannot be logged.
pub(crate) fn stores(
    instr: &Instruction,
    kind: Kind,
    info: &InstructionInfo,
    xsave_size: u32,
) -> Result<Vec<Store>, &'static str> {
    let mut found = Vec::new();
    // Before anything else: the decoder does not know all of these to store.
    refuse_unknown_extents(instr)?;
    if !info.used_memory().iter().any(|memory| is_write(memory.access())) {
        return Ok(found);
    }
    let written = registers(info, is_write);
    for memory in info.used_memory().iter().filter(|memory| is_write(memory.access())) {
        if memory.vsib_size() != 0 {
            found.push(scatter(instr, memory)?);
            continue;
        }
        let before = operand(instr, memory)?;
        let bit = bit_register(instr);
        if bit.is_some() && before.segment.is_some() {
            return Err("a bit number in a register, in a segment");
        }
        let mut store = Store {
            before,
            after: if bit.is_some() { None } else { after(instr, before, written) },
            bit,
            size: memory.memory_size().size() as u32,
            value: Value::Memory,
            condition: When::Always,
        };
        match kind {
            Kind::State(image) => {
                store.value = Value::State(image);
                store.size = image_size(instr, image, xsave_size);
            }
            Kind::Move | Kind::Fill if instr.has_rep_prefix() || instr.has_repne_prefix() => {
                if before.addr32 {
                    return Err("32-bit addresses");
                }
                store.size = instr.memory_size().size() as u32;
                store.value = Value::String(if kind == Kind::Move { StringOp::Move } else { StringOp::Fill });
            }
            Kind::Move | Kind::Fill => {}
            Kind::Call | Kind::CallIndirect => store.value = Value::Fixed(instr.next_ip()),
            _ => {
                store.condition = condition(instr, memory.access())?;
                store.value = value(instr, store.condition);
            }
        }
        if store.size == 0 {
            return Err("a store of unknown size");
        }
        found.push(store);
    }
    Ok(found)
}

fn refuse_unknown_extents(instr: &Instruction) -> Result<(), &'static str> {
    match instr.mnemonic() {
        Mnemonic::Enter if instr.immediate8_2nd() & 31 != 0 => Err("nested frames"),
        Mnemonic::Clzero => Err("a whole cache line"),
        Mnemonic::Tilestored | Mnemonic::Sttilecfg => Err("tiles"),
        _ => Ok(()),
    }
}

fn bit_register(instr: &Instruction) -> Option<u8> {
    match instr.mnemonic() {
        Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc if instr.op1_kind() == OpKind::Register => {
            gpr(instr.op1_register())
        }
        _ => None,
    }
}

fn scatter(instr: &Instruction, memory: &UsedMemory) -> Result<Store, &'static str> {
    let displacement = memory.displacement();
    let mut before = match gpr(memory.base()) {
        Some(base) => {
            let disp = i32::try_from(displacement as i64).map_err(|_| "a large displacement")?;
            Mem::at(base, disp)
        }
        None => Mem::rip(displacement),
    };
    before.segment = segment(memory);
    if memory.address_size() == CodeSize::Code32 {
        return Err("32-bit addresses");
    }
    let (indices, elements) = (instr.memory_index(), instr.op1_register());
    let (index, element) = (memory.vsib_size(), memory.memory_size().size() as u32);
    let (indices_size, elements_size) = (indices.size() as u32, elements.size() as u32);
    let count = (indices_size / index).min(elements_size / element.max(1));
    let scatter = Scatter {
        mask: instr.op_mask().number() as u8,
        indices: indices.number() as u8,
        indices_size,
        index: index as u8,
        scale: memory.scale() as u8,
        elements: elements.number() as u8,
        elements_size,
        element: element as u8,
    };
    Ok(Store {
        before,
        after: None,
        bit: None,
        size: count * element,
        value: vector(instr, elements),
        condition: When::Scatter(scatter),
    })
}

fn segment(memory: &UsedMemory) -> Option<u8> {
    match memory.segment() {
        Register::FS => Some(0x64),
        Register::GS => Some(0x65),
        _ => None,
    }
}

fn operand(instr: &Instruction, memory: &UsedMemory) -> Result<Mem, &'static str> {
    let segment = segment(memory);
    if instr.is_ip_rel_memory_operand() && matches!(memory.base(), Register::RIP | Register::None) {
        return Ok(Mem { segment, ..Mem::rip(instr.ip_rel_memory_address()) });
    }
    let addr32 = memory.address_size() == CodeSize::Code32;
    let displacement = memory.displacement();
    if memory.base() == Register::None && memory.index() == Register::None {
        // An absolute address, of 64 bits in the `mov` forms that have them.
        return Ok(Mem { segment, addr32, ..Mem::rip(displacement) });
    }
    let number = |reg: Register| match reg {
        Register::None => Ok(None),
        reg => gpr(reg).map(Some).ok_or("an unusual operand"),
    };
    let disp = if addr32 {
        displacement as i32
    } else {
        i32::try_from(displacement as i64).map_err(|_| "a large displacement")?
    };
    Ok(Mem {
        segment,
        addr32,
        base: number(memory.base())?.map_or(Base::None, Base::Reg),
        index: number(memory.index())?,
        scale: memory.scale() as u8,
        disp,
    })
}

/// The operand in terms of the registers after the instruction.
fn after(instr: &Instruction, before: Mem, written: u16) -> Option<Mem> {
    let is_written = |number: u8| written >> number & 1 != 0;
    if before.index.is_some_and(is_written) {
        return None;
    }
    match before.base {
        Base::Reg(RSP) if is_written(RSP) => {
            let moved = instr.stack_pointer_increment();
            let simple = moved != 0 && !matches!(instr.mnemonic(), Mnemonic::Enter | Mnemonic::Leave);
            if simple { before.plus(-moved) } else { None }
        }
        Base::Reg(base) if is_written(base) => None,
        // Absolute addresses of 64 bits cannot be encoded as operands.
        Base::Rip(_) if !instr.is_ip_rel_memory_operand() => None,
        _ => Some(before),
    }
}

fn condition(instr: &Instruction, access: OpAccess) -> Result<When, &'static str> {
    let signs =
        |mask: Register, element: u8| When::Signs { mask: mask.number() as u8, element, wide: mask.is_ymm() };
    if instr.op_mask() != Register::None {
        return masked(instr).ok_or("a store under an opmask");
    }
    match instr.mnemonic() {
        Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => Ok(When::ZeroFlag),
        Mnemonic::Vmaskmovps | Mnemonic::Vpmaskmovd => Ok(signs(instr.op1_register(), 4)),
        Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovq => Ok(signs(instr.op1_register(), 8)),
        Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => Ok(signs(instr.op2_register(), 1)),
        _ if matches!(access, OpAccess::CondWrite | OpAccess::ReadCondWrite) => Err("a conditional store"),
        _ => Ok(When::Always),
    }
}

fn masked(instr: &Instruction) -> Option<When> {
    use Mnemonic as M;
    let mask = instr.op_mask().number() as u8;
    let packed = match instr.mnemonic() {
        M::Vpcompressb => Some(1),
        M::Vpcompressw => Some(2),
        M::Vpcompressd | M::Vcompressps => Some(4),
        M::Vpcompressq | M::Vcompresspd => Some(8),
        _ => None,
    };
    if let Some(element) = packed {
        return Some(When::Packed { mask, element });
    }
    let element = match instr.mnemonic() {
        M::Vmovdqu8 => 1,
        M::Vmovdqu16 | M::Vmovsh | M::Vcvtps2ph => 2,
        M::Vmovdqu32 | M::Vmovdqa32 | M::Vmovups | M::Vmovaps | M::Vmovss => 4,
        M::Vmovdqu64 | M::Vmovdqa64 | M::Vmovupd | M::Vmovapd | M::Vmovsd => 8,
        M::Vpmovwb | M::Vpmovswb | M::Vpmovuswb | M::Vpmovdb | M::Vpmovsdb | M::Vpmovusdb => 1,
        M::Vpmovqb | M::Vpmovsqb | M::Vpmovusqb => 1,
        M::Vpmovdw | M::Vpmovsdw | M::Vpmovusdw | M::Vpmovqw | M::Vpmovsqw | M::Vpmovusqw => 2,
        M::Vpmovqd | M::Vpmovsqd | M::Vpmovusqd => 4,
        M::Vextractf32x4 | M::Vextracti32x4 | M::Vextractf32x8 | M::Vextracti32x8 => 4,
        M::Vextractf64x2 | M::Vextracti64x2 | M::Vextractf64x4 | M::Vextracti64x4 => 8,
        _ => return None,
    };
    Some(When::Opmask { mask, element })
}

fn value(instr: &Instruction, condition: When) -> Value {
    use Mnemonic as M;
    match (instr.mnemonic(), condition) {
        (M::Maskmovdqu | M::Vmaskmovdqu, _) => return vector(instr, instr.op1_register()),
        // An aligned form would fault in a record.
        (
            M::Vmovdqu8 | M::Vmovdqu16 | M::Vmovdqu32 | M::Vmovdqu64 | M::Vmovdqa32 | M::Vmovdqa64,
            When::Opmask { .. },
        )
        | (M::Vmovups | M::Vmovupd | M::Vmovaps | M::Vmovapd, When::Opmask { .. }) => {
            return vector(instr, instr.op1_register());
        }
        (_, When::Opmask { .. } | When::Packed { .. }) => return Value::Again,
        (_, When::Signs { .. }) => return vector(instr, instr.op2_register()),
        _ => {}
    }
    let source = match instr.mnemonic() {
        Mnemonic::Push => 0,
        Mnemonic::Mov => 1,
        Mnemonic::Movaps
        | Mnemonic::Movups
        | Mnemonic::Movapd
        | Mnemonic::Movupd
        | Mnemonic::Movdqa
        | Mnemonic::Movdqu
        | Mnemonic::Movntps
        | Mnemonic::Movntpd
        | Mnemonic::Movntdq
        | Mnemonic::Vmovaps
        | Mnemonic::Vmovups
        | Mnemonic::Vmovapd
        | Mnemonic::Vmovupd
        | Mnemonic::Vmovdqa
        | Mnemonic::Vmovdqu => {
            let reg = instr.op1_register();
            let low = reg.number() < 16 && (reg.is_xmm() || reg.is_ymm());
            return if low { vector(instr, reg) } else { Value::Memory };
        }
        _ => return Value::Memory,
    };
    match instr.op_kind(source) {
        OpKind::Register => {
            let reg = instr.op_register(source);
            match gpr(reg) {
                Some(number) if number != RSP && !is_high_byte(reg) => Value::Register(number),
                _ => Value::Memory,
            }
        }
        OpKind::Memory => Value::Memory,
        _ => Value::Fixed(instr.immediate(source)),
    }
}

fn vector(instr: &Instruction, reg: Register) -> Value {
    let form = match instr.code().encoding() {
        EncodingKind::Legacy => Form::Legacy,
        EncodingKind::EVEX => Form::Evex,
        _ => Form::Vex,
    };
    Value::Vector { register: reg.number() as u8, form }
}

fn is_high_byte(reg: Register) -> bool {
    matches!(reg, Register::AH | Register::BH | Register::CH | Register::DH)
}

fn image_size(instr: &Instruction, image: StateImage, xsave_size: u32) -> u32 {
    let narrow = instr.op_code().operand_size() == 16;
    match (instr.mnemonic(), image) {
        (Mnemonic::Fnstenv, _) => {
            if narrow {
                14
            } else {
                28
            }
        }
        (Mnemonic::Fnsave, _) => {
            if narrow {
                94
            } else {
                108
            }
        }
        (_, StateImage::FxSave) => 512,
        _ => xsave_size.max(576),
    }
}

/// Offset and width in bytes of the x87 instruction pointer in a state image.
pub(crate) fn instruction_pointer(instr: &Instruction, image: StateImage) -> (u8, u8) {
    match image {
        StateImage::Whole if instr.op_code().operand_size() == 16 => (6, 2),
        StateImage::Whole => (12, 4),
        // The forms with REX.W hold 64 bits, the others 32 and a selector.
        _ => match instr.mnemonic() {
            Mnemonic::Fxsave64 | Mnemonic::Xsave64 | Mnemonic::Xsaveopt64 | Mnemonic::Xsavec64 => (8, 8),
            _ => (8, 4),
        },
    }
}
