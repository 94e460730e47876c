//! Logging modes: what a block adds to the log. Addresses are written before their instruction (a fault then leaves
//! them without effect, as the record is not finished), contents after it; the header comes last. The format is in
//! `log`.

use std::mem::offset_of;

use guest::GuestAddr;
use iced_x86::{Encoder, Instruction, Mnemonic, OpKind, Register};

use crate::block::{Address, Condition, Contents, ExitKind, Slot};
use crate::class::Kind;
use crate::emit::{Base, Mem, RCX, RDI, RDX, RSP, gpr};
use crate::generate::Generator;
use crate::layout::EnginePage;
use crate::log::{HEADER_BYTES, Header};
use crate::plan::{Plan, Step, free};
use crate::runtime::{self, Stub};
use crate::stores::{Form, Scatter, Store, Value, When};

/// A register's value as far as it is known: some unknown plus a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    unknown: u32,
    plus: i64,
}

/// What an address is made of besides a number. Addresses with the same shape lie at a known distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    segment: Option<u8>,
    base: Option<u32>,
    index: Option<u32>,
    scale: u8,
}

/// The state of logging in one block.
pub(crate) struct Observer {
    /// Holds the address of the record.
    pointer: u8,
    /// Free for use.
    work: u8,
    /// Whether `pointer` and `work` are spilled and `pointer` is loaded.
    open: bool,
    /// Bytes of the record so far, without its header.
    bytes: u32,
    registers: [Known; 16],
    next_unknown: u32,
    /// Shapes of logged addresses, the numbers added, and the slots.
    shapes: Vec<(Shape, i64, u32)>,
    /// Slots of the current instruction, not yet filled in, with where its contents and condition come from.
    pending: Vec<(u32, Store)>,
}

impl Observer {
    pub(crate) fn new(plan: &Plan) -> Self {
        // rcx is wanted by indirect branches.
        let mut scratch = (0..16).rev().filter(|&r| r != RCX && free(plan.used) >> r & 1 != 0);
        let low = (0..8).rev().find(|&r| r != RCX && free(plan.used) >> r & 1 != 0);
        // A pointer among the first eight saves a prefix byte here and there.
        let pointer = low.or_else(|| scratch.next()).unwrap_or(RSP);
        let work = scratch.find(|&r| r != pointer).unwrap_or(RSP);
        Self {
            pointer,
            work,
            open: false,
            bytes: 0,
            registers: std::array::from_fn(|i| Known { unknown: i as u32, plus: 0 }),
            next_unknown: 16,
            shapes: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// The registers it uses, one bit each.
    pub(crate) fn scratch(&self) -> u16 {
        1 << self.pointer | 1 << self.work
    }

    /// Bytes of the record, without its header.
    pub(crate) fn log_bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether the record's address is at hand, and its bytes so far.
    pub(crate) fn place(&self) -> (bool, u32) {
        (self.open, self.bytes)
    }

    /// Goes back to an earlier place.
    pub(crate) fn set_place(&mut self, (open, bytes): (bool, u32)) {
        (self.open, self.bytes) = (open, bytes);
    }

    fn take(&mut self, bytes: u32) -> u32 {
        let at = self.bytes;
        self.bytes += bytes.next_multiple_of(4);
        at
    }

    fn shape(&self, mem: Mem) -> Option<(Shape, i64)> {
        if mem.addr32 {
            return None;
        }
        let mut plus = i64::from(mem.disp);
        let base = match mem.base {
            Base::Reg(base) => {
                let known = self.registers[base as usize];
                plus = plus.wrapping_add(known.plus);
                Some(known.unknown)
            }
            Base::None => None,
            Base::Rip(_) => return None,
        };
        let index = mem.index.map(|index| {
            let known = self.registers[index as usize];
            plus = plus.wrapping_add(known.plus.wrapping_mul(i64::from(mem.scale)));
            known.unknown
        });
        Some((Shape { segment: mem.segment, base, index, scale: mem.scale }, plus))
    }

    /// Follows what an instruction does to registers.
    fn follow(&mut self, step: &Step) {
        let instr = &step.instr;
        let moved = result(instr).and_then(|(to, from, plus)| {
            let known = self.registers[from as usize];
            Some((to, Known { plus: known.plus.checked_add(plus)?, ..known }))
        });
        for register in (0..16u8).filter(|&r| step.writes >> r & 1 != 0) {
            self.registers[register as usize] = match moved {
                Some((to, known)) if to == register => known,
                _ => {
                    self.next_unknown += 1;
                    Known { unknown: self.next_unknown, plus: 0 }
                }
            };
        }
        if matches!(step.kind, Kind::WriteFsBase | Kind::WriteGsBase) {
            self.shapes.clear();
        }
    }
}

/// The register an instruction sets to another one plus a number, where it does.
fn result(instr: &Instruction) -> Option<(u8, u8, i64)> {
    let to = || match instr.op0_kind() {
        OpKind::Register if instr.op0_register().is_gpr64() => gpr(instr.op0_register()),
        _ => None,
    };
    match instr.mnemonic() {
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq | Mnemonic::Call => {
            let pops_rsp =
                instr.mnemonic() == Mnemonic::Pop && instr.op0_register().full_register() == Register::RSP;
            (!pops_rsp).then(|| (RSP, RSP, i64::from(instr.stack_pointer_increment())))
        }
        Mnemonic::Add | Mnemonic::Sub => {
            let number = match instr.op1_kind() {
                OpKind::Immediate8to64 | OpKind::Immediate32to64 => instr.immediate(1) as i64,
                _ => return None,
            };
            let plus = if instr.mnemonic() == Mnemonic::Add { number } else { number.checked_neg()? };
            to().map(|to| (to, to, plus))
        }
        Mnemonic::Inc => to().map(|to| (to, to, 1)),
        Mnemonic::Dec => to().map(|to| (to, to, -1)),
        Mnemonic::Mov if instr.op1_kind() == OpKind::Register && instr.op1_register().is_gpr64() => {
            to().zip(gpr(instr.op1_register())).map(|(to, from)| (to, from, 0))
        }
        Mnemonic::Lea => {
            let mem = Mem::of(instr).filter(|mem| mem.index.is_none() && !mem.addr32)?;
            match mem.base {
                Base::Reg(from) => to().map(|to| (to, from, i64::from(mem.disp))),
                _ => None,
            }
        }
        _ => None,
    }
}

impl Generator<'_> {
    /// Logs the addresses of the stores that `step` is about to make.
    pub(crate) fn before_stores(&mut self, step: &Step) {
        let Some(mut observer) = self.observer.take() else { return };
        self.logging = true;
        self.mark(step.pc);
        for store in &step.stores {
            let slot = self.slots.len() as u32;
            let entry = if store.is_bulk() {
                bulk_slot(&mut observer, self.retired, store)
            } else {
                let address = self.log_address(&mut observer, step, store, slot);
                let contents = match store.value {
                    Value::Fixed(value) => Contents::Fixed(value),
                    _ => Contents::Logged { at: observer.take(store.room()) },
                };
                let condition = match store.condition {
                    When::Always => Condition::Always,
                    When::ZeroFlag => Condition::Logged { at: observer.take(4) },
                    When::Signs { element, .. } | When::Opmask { element, .. } => {
                        Condition::Mask { at: observer.take(8), element }
                    }
                    When::Packed { element, .. } => Condition::Packed { at: observer.take(8), element },
                    When::Scatter(scatter) => self.log_scatter(&mut observer, &scatter, contents),
                };
                if !matches!(store.condition, When::Scatter(_)) {
                    observer.pending.push((slot, *store));
                }
                Slot { instruction: self.retired, size: store.size, address, contents, condition }
            };
            self.slots.push(entry);
        }
        self.logging = false;
        self.mark(step.pc);
        self.observer = Some(observer);
    }

    fn log_address(&mut self, observer: &mut Observer, step: &Step, store: &Store, slot: u32) -> Address {
        let mem = store.before;
        if let (Base::Rip(addr), None, None) = (mem.base, mem.segment, store.bit)
            && (store.after.is_some() || matches!(store.value, Value::Fixed(_) | Value::Register(_)))
        {
            self.open_record(observer, step.pc, store);
            return Address::Fixed(addr);
        }
        let shape = if store.bit.is_some() { None } else { observer.shape(mem) };
        // Contents that can only be had through the address need it in the record.
        let needed = store.value == Value::Memory && store.after.is_none();
        if let (Some((shape, plus)), false) = (shape, needed)
            && let Some(&(_, from, slot)) = observer.shapes.iter().find(|(known, ..)| *known == shape)
            && let Some(delta) = plus.checked_sub(from)
        {
            self.open_record(observer, step.pc, store);
            return Address::Derived { slot, delta };
        }
        let at = observer.take(8);
        self.open(observer, step.pc);
        match store.bit {
            Some(bit) => self.store_bit_address(observer, mem, bit, store.size, at),
            None => self.store_address(observer, mem, at),
        }
        if let Some((shape, plus)) = shape {
            observer.shapes.push((shape, plus, slot));
        }
        self.mark(step.pc);
        Address::Logged { at }
    }

    /// Writes the address that `mem` has now into the record.
    fn store_address(&mut self, observer: &Observer, mem: Mem, at: u32) {
        let (pointer, work) = (observer.pointer, observer.work);
        let place = in_record(observer, at);
        match mem {
            Mem { base: Base::Reg(base), index: None, disp: 0, segment: None, addr32: false, .. } => {
                self.hot.store(place, base);
                return;
            }
            Mem { base: Base::Rip(addr), .. } => self.hot.set(work, addr),
            _ => self.hot.lea(work, mem),
        }
        if let Some(segment) = mem.segment {
            let base = self.segment_base(segment);
            self.hot.load(pointer, base);
            self.hot.lea(work, Mem { index: Some(pointer), ..Mem::at(work, 0) });
            let next = self.page(offset_of!(EnginePage, log_next));
            self.hot.load(pointer, next);
        }
        self.hot.store(place, work);
    }

    /// Writes the address of the element of `size` bytes that holds bit number `bit` from `mem` on. Shifts without
    /// flags: to the left by `lea`, to the right by reading from a byte on.
    fn store_bit_address(&mut self, observer: &Observer, mem: Mem, bit: u8, size: u32, at: u32) {
        let (pointer, work) = (observer.pointer, observer.work);
        let word = self.page(offset_of!(EnginePage, scratch));
        let (high, top, shifted) = (
            self.page(offset_of!(EnginePage, scratch) + 8),
            self.page(offset_of!(EnginePage, scratch) + 7),
            self.page(offset_of!(EnginePage, scratch) + 1),
        );
        // work: the bit number, sign-extended
        let rex = 0x48 | work >> 3 << 2 | bit >> 3;
        let modrm = 0xC0 | (work & 7) << 3 | bit & 7;
        match size {
            8 => self.hot.copy(work, bit),
            4 => self.hot.raw(&[rex, 0x63, modrm]),
            _ => self.hot.raw(&[rex, 0x0F, 0xBF, modrm]),
        }
        // The element's number is that over 16, 32 or 64: times 16, 8 or 4 over 256.
        let scaled = |scale: u8| Mem { base: Base::None, index: Some(work), scale, ..Mem::at(0, 0) };
        if size == 2 {
            self.hot.lea(work, scaled(8));
        }
        self.hot.lea(work, scaled(if size == 2 { 2 } else { 32 / size as u8 }));
        self.hot.store(word, work);
        self.hot.mem(true, false, &[0x0F, 0xBE], work, top, 0); // movsx work, byte [top]
        self.hot.store(high, work);
        self.hot.load(work, shifted);
        match mem.base {
            Base::Rip(addr) => self.hot.set(pointer, addr),
            _ => self.hot.lea(pointer, mem),
        }
        self.hot.lea(work, Mem { index: Some(work), scale: size as u8, ..Mem::at(pointer, 0) });
        let next = self.page(offset_of!(EnginePage, log_next));
        self.hot.load(pointer, next);
        self.hot.store(in_record(observer, at), work);
    }

    fn segment_base(&self, segment: u8) -> Mem {
        self.page(if segment == 0x64 {
            offset_of!(EnginePage, fs_base)
        } else {
            offset_of!(EnginePage, gs_base)
        })
    }

    /// Makes the record's address available, if something of this store is to be logged.
    fn open_record(&mut self, observer: &mut Observer, pc: GuestAddr, store: &Store) {
        if must_log(store) {
            self.open(observer, pc);
        }
    }

    fn open(&mut self, observer: &mut Observer, pc: GuestAddr) {
        if !observer.open {
            self.spill(observer.pointer);
            self.spill(observer.work);
            let next = self.page(offset_of!(EnginePage, log_next));
            self.hot.load(observer.pointer, next);
            observer.open = true;
            self.mark(pc);
        }
    }

    /// Logs the contents of the stores that `step` has made.
    pub(crate) fn after_stores(&mut self, step: &Step) {
        let Some(mut observer) = self.observer.take() else { return };
        let pending = std::mem::take(&mut observer.pending);
        // None of a call, whose next instruction would be another.
        let logs = pending.iter().any(|(_, store)| must_log(store));
        if logs {
            self.logging = true;
            self.mark(step.next());
        }
        for (slot, store) in pending {
            let slot = self.slots[slot as usize];
            match slot.condition {
                Condition::Always => {}
                Condition::Logged { at } => {
                    // sete byte [record + at]
                    self.hot.mem(false, false, &[0x0F, 0x94], 0, in_record(&observer, at), 0);
                }
                Condition::Mask { at, .. } | Condition::Packed { at, .. } => {
                    self.log_mask(&observer, &store, at);
                }
                // Logged before.
                Condition::Scatter { .. } => continue,
            }
            match (slot.contents, store.value) {
                (Contents::Logged { at }, Value::Again) => self.store_again(&observer, step, at),
                (Contents::Logged { at }, _) => self.log_contents(&observer, &store, slot.address, at),
                _ => {}
            }
        }
        if logs {
            self.logging = false;
            self.mark(step.next());
        }
        observer.follow(step);
        self.observer = Some(observer);
    }

    fn log_mask(&mut self, observer: &Observer, store: &Store, at: u32) {
        let (mask, element, wide) = match store.condition {
            When::Signs { mask, element, wide } => (mask, element, wide),
            When::Opmask { mask, element } | When::Packed { mask, element } => {
                return self.log_opmask(observer, mask, store.size / u32::from(element), at);
            }
            _ => return,
        };
        // vmovmskps/vmovmskpd/vpmovmskb work, mask
        let (opcode, prefix) = match element {
            4 => (0x50, 0),
            8 => (0x50, 1),
            _ => (0xD7, 1),
        };
        let (reg, rm) = (observer.work, mask);
        if element == 1 {
            // pmovmskb, without VEX: the processor may lack it.
            let rex = 0x40 | reg >> 3 << 2 | rm >> 3;
            self.hot.raw(&[0x66, rex, 0x0F, opcode]);
        } else {
            let high = (!(reg >> 3) & 1) << 7 | 1 << 6 | (!(rm >> 3) & 1) << 5;
            self.hot.raw(&[0xC4, high | 1, 0x78 | u8::from(wide) << 2 | prefix, opcode]);
        }
        self.hot.raw(&[0xC0 | (reg & 7) << 3 | rm & 7]);
        self.hot.store(in_record(observer, at), reg);
    }

    fn log_contents(&mut self, observer: &Observer, store: &Store, address: Address, at: u32) {
        match store.value {
            Value::Register(register) => {
                self.hot.store_sized(in_record(observer, at), register, store.size.max(4));
            }
            Value::Vector { register, form } => {
                let place = in_record(observer, at);
                match form {
                    Form::Legacy => self.hot.mem(false, false, &[0x0F, 0x11], register, place, 0),
                    Form::Vex => self.vex_store(place, register, store.size == 32),
                    Form::Evex => self.evex_store(place, register, store.size),
                }
            }
            _ => self.copy_contents(observer, store, address, at),
        }
    }

    /// `kmovw work, mask` or, for more than 16 elements, `kmovq`; stores it.
    fn log_opmask(&mut self, observer: &Observer, mask: u8, elements: u32, at: u32) {
        let reg = observer.work;
        let high = (!(reg >> 3) & 1) << 7 | 0x60;
        // Sixteen bits are there wherever opmasks are; more come with masked bytes and words.
        let last = if elements > 16 { 0xFB } else { 0x78 };
        self.hot.raw(&[0xC4, high | 1, last, 0x93, 0xC0 | (reg & 7) << 3 | mask]);
        self.hot.store(in_record(observer, at), reg);
    }

    /// Logs all of a scatter but its address before it runs: it clears its mask. A later element overwrites an earlier one, as in
    /// memory.
    fn log_scatter(&mut self, observer: &mut Observer, scatter: &Scatter, contents: Contents) -> Condition {
        let &Scatter { mask, indices_size, index, scale, element, .. } = scatter;
        let (at, indices) = (observer.take(8), observer.take(indices_size));
        self.log_opmask(observer, mask, indices_size / u32::from(index), at);
        self.evex_store(in_record(observer, indices), scatter.indices, indices_size);
        if let Contents::Logged { at } = contents {
            self.evex_store(in_record(observer, at), scatter.elements, scatter.elements_size);
        }
        Condition::Scatter { at, mask, indices, index, scale, element }
    }

    /// Makes the store of `step` again, into the record.
    fn store_again(&mut self, observer: &Observer, step: &Step, at: u32) {
        let mut instr = step.instr;
        let place = in_record(observer, at);
        instr.set_segment_prefix(Register::None);
        instr.set_memory_base(Register::RAX + u32::from(observer.pointer));
        instr.set_memory_index(Register::None);
        instr.set_memory_index_scale(1);
        instr.set_memory_displ_size(8);
        instr.set_memory_displacement64(i64::from(place.disp) as u64);
        let mut encoder = Encoder::new(64);
        match encoder.encode(&instr, self.hot.here().0) {
            Ok(_) => self.hot.raw(&encoder.take_buffer()),
            Err(_) => self.hot.overflow = true,
        }
    }

    /// `vmovups [place], register` in the EVEX form, of any size and any of 32 registers.
    fn evex_store(&mut self, place: Mem, register: u8, size: u32) {
        let Base::Reg(base) = place.base else { return };
        let high =
            (!(register >> 3) & 1) << 7 | 1 << 6 | (!(base >> 3) & 1) << 5 | (!(register >> 4) & 1) << 4;
        let length = size.trailing_zeros().saturating_sub(4) as u8;
        self.hot.raw(&[
            0x62,
            high | 1,
            0x7C,
            length << 5 | 0x08,
            0x11,
            0x80 | (register & 7) << 3 | base & 7,
        ]);
        if base & 7 == RSP {
            self.hot.raw(&[0x24]);
        }
        self.hot.u32(place.disp as u32);
    }

    /// `vmovups [place], register`
    fn vex_store(&mut self, place: Mem, register: u8, wide: bool) {
        let Base::Reg(base) = place.base else { return };
        let high = (!(register >> 3) & 1) << 7 | 1 << 6 | (!(base >> 3) & 1) << 5;
        self.hot.raw(&[0xC4, high | 1, 0x78 | u8::from(wide) << 2, 0x11]);
        self.hot.modrm(register & 7, place);
    }

    /// Copies stored bytes from memory into the record, piece by piece.
    fn copy_contents(&mut self, observer: &Observer, store: &Store, address: Address, at: u32) {
        let work = observer.work;
        let mut done = 0;
        while done < store.size {
            let piece = match store.size - done {
                8.. => 8,
                4..=7 => 4,
                2..=3 => 2,
                _ => 1,
            };
            let from = match (store.after.and_then(|mem| mem.plus(done as i32)), address) {
                (Some(mem), _) => mem,
                (None, Address::Logged { at }) => {
                    self.hot.load(work, in_record(observer, at));
                    Mem::at(work, done as i32)
                }
                _ => {
                    self.hot.overflow = true;
                    return;
                }
            };
            match piece {
                8 => self.hot.load(work, from),
                4 => self.hot.load32(work, from),
                2 => self.hot.load16(work, from),
                _ => self.hot.load8(work, from),
            }
            self.hot.store_sized(in_record(observer, at + done), work, if piece == 8 { 8 } else { 4 });
            done += piece;
        }
    }

    /// Finishes the record of a block of at least one instruction: header, and where the next one goes.
    pub(crate) fn end_record(&mut self, path: u32) {
        let Some(observer) = self.observer.take() else { return };
        if self.longest != 0 {
            let pointer = observer.pointer;
            let next = self.page(offset_of!(EnginePage, log_next));
            if !observer.open {
                self.spill(pointer);
                self.hot.load(pointer, next);
            }
            let header = Header::new(self.request.id, path, observer.bytes);
            self.hot.store_imm32(Mem::at(pointer, 0), header.0);
            self.hot.lea(pointer, Mem::at(pointer, (HEADER_BYTES + observer.bytes) as i32));
            self.hot.store(next, pointer);
            self.unspill(pointer);
            if observer.open {
                self.unspill(observer.work);
            }
        }
        self.observer = Some(observer);
    }

    /// Before a string store that is to be logged.
    pub(crate) fn bulk_start(&mut self) {
        let start = self.page(offset_of!(EnginePage, bulk_start));
        self.hot.store(start, RDI);
    }

    /// After a string store: the common stub appends its record, or the supervisor does.
    pub(crate) fn bulk(&mut self, next: GuestAddr) {
        let Some(observer) = self.observer.take() else { return };
        let work = observer.work;
        let full = self.exit(ExitKind::LogBulk, next);
        let element = self.slots.last().map_or(1, |slot| slot.size);
        let parameters: [Mem; 4] =
            std::array::from_fn(|i| self.page(offset_of!(EnginePage, scratch) + 8 * i));
        let header = Header::long(self.request.id, 0);
        self.hot.store_imm32(parameters[runtime::BULK_HEADER], header.0);
        self.hot.store_imm32(parameters[runtime::BULK_ELEMENT], element);
        self.spill(work);
        self.hot.lea(work, Mem::rip(full.0));
        self.hot.store(parameters[runtime::BULK_FULL], work);
        let place = self.hot.bytes.len() + 3;
        let here = self.hot.here().0;
        self.hot.lea(work, Mem::rip(here));
        let after = self.hot.bytes.len();
        self.hot.store(parameters[runtime::BULK_RETURN], work);
        self.unspill(work);
        runtime::jump(&mut self.hot, self.request.layout, Stub::Bulk);
        let distance = (self.hot.bytes.len() - after) as u32;
        self.hot.bytes[place..place + 4].copy_from_slice(&distance.to_le_bytes());
        self.observer = Some(observer);
    }

    /// Before a state image is stored at `mem`: notes its address for the supervisor.
    pub(crate) fn state_start(&mut self, mem: Option<Mem>) {
        let Some(mem) = mem else {
            self.hot.overflow = true;
            return;
        };
        let start = self.page(offset_of!(EnginePage, bulk_start));
        self.spill(RCX);
        self.hot.lea(RCX, mem);
        if let Some(segment) = mem.segment {
            let base = self.segment_base(segment);
            self.spill(RDX);
            self.hot.load(RDX, base);
            self.hot.lea(RCX, Mem { index: Some(RDX), ..Mem::at(RCX, 0) });
            self.unspill(RDX);
        }
        self.hot.store(start, RCX);
        self.unspill(RCX);
    }
}

/// Whether something of a store goes into the record after it.
fn must_log(store: &Store) -> bool {
    !matches!((store.value, store.condition), (Value::Fixed(_), When::Always))
}

/// An operand in the record, `at` bytes after its header.
fn in_record(observer: &Observer, at: u32) -> Mem {
    Mem::at(observer.pointer, (HEADER_BYTES + at) as i32)
}

fn bulk_slot(observer: &mut Observer, instruction: u32, store: &Store) -> Slot {
    let address = Address::Logged { at: observer.take(20) };
    let contents = match store.value {
        Value::State(image) => Contents::State(image),
        Value::String(op) => Contents::String(op),
        _ => Contents::Fixed(0),
    };
    Slot { instruction, size: store.size, address, contents, condition: Condition::Always }
}
