//! The code of a stub, its descriptor and literals.
//!
//! A stub is: the descriptor; moved instructions that precede the call; `mov r11d, descriptor; jmp common`, or where r11 is not to change
//! `mov qword ptr [noted], descriptor; jmp common`; moved instructions that follow it, and a jump back; a jump for each moved branch; the literals these jumps go through. None of
//! it touches the stack, a register but r11 or a flag, beyond what the moved instructions do.

use abi::SiteDescriptor;

use crate::addr::{CodeAddr, LowAddr};
use crate::map::{PcMap, Place, Registers};
use crate::refusal::Obstacle;
use crate::relocate::{Class, Moved};

/// No stub is longer.
pub const MAX_STUB: usize = 128;

/// What is to lie at a stub's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stub {
    /// Where: the address of the descriptor.
    pub at: LowAddr,
    /// Where its code begins: what the slot has to hold.
    pub entry: LowAddr,
    /// All of it, the descriptor first.
    pub bytes: Vec<u8>,
    /// What the first bytes say.
    pub descriptor: SiteDescriptor,
}

/// A stub in the making.
pub(crate) struct Builder {
    at: LowAddr,
    bytes: Vec<u8>,
    places: Vec<(u64, Place)>,
    redirects: Vec<(CodeAddr, u64)>,
    /// Offsets of displacements, and the constants they are to lead to.
    literals: Vec<(usize, u64)>,
    arms: Vec<Arm>,
}

/// A moved conditional branch that is still to be led somewhere.
struct Arm {
    /// The offset of its displacement, which ends the instruction.
    field: usize,
    len: usize,
    target: CodeAddr,
    /// The branch.
    from: Obstacle,
}

impl Builder {
    pub(crate) fn new(at: LowAddr) -> Self {
        Self {
            at,
            bytes: vec![0; size_of::<SiteDescriptor>()],
            places: Vec::new(),
            redirects: Vec::new(),
            literals: Vec::new(),
            arms: Vec::new(),
        }
    }

    /// The address of what comes next.
    pub(crate) fn here(&self) -> u64 {
        self.at.get() + self.bytes.len() as u64
    }

    fn place(&mut self, pc: CodeAddr, registers: Registers) {
        self.places.push((self.here(), Place { pc, registers }));
    }

    /// Another place that stands for `pc`.
    pub(crate) fn place_at(&mut self, at: CodeAddr, pc: CodeAddr) {
        self.places.push((at.0, Place { pc, registers: Registers::All }));
    }

    /// The call, made by the `syscall` at `site`.
    pub(crate) fn call(&mut self, site: CodeAddr, common: LowAddr) {
        self.redirects.push((site, self.here()));
        self.place(site, Registers::All);
        self.bytes.extend([0x41, 0xBB]);
        self.bytes.extend(self.at.displacement());
        self.place(site, Registers::AllButR11);
        self.leap(common);
    }

    /// The instruction at `site`, which reads the time stamp counter.
    pub(crate) fn reading(&mut self, site: CodeAddr, common: LowAddr, noted: LowAddr) {
        self.redirects.push((site, self.here()));
        self.place(site, Registers::All);
        self.bytes.extend([0x48, 0xC7, 0x04, 0x25]);
        self.bytes.extend(noted.displacement());
        self.bytes.extend(self.at.displacement());
        self.place(site, Registers::All);
        self.leap(common);
    }

    fn leap(&mut self, common: LowAddr) {
        let distance = common.get().wrapping_sub(self.here() + 5) as u32;
        self.bytes.push(0xE9);
        self.bytes.extend(distance.to_le_bytes());
    }

    /// An instruction, moved here. Says whether what follows it is reached.
    pub(crate) fn moved(&mut self, moved: Moved<'_>) -> Result<bool, Obstacle> {
        let step = moved.step;
        let class = moved.class()?;
        let target = CodeAddr(step.near_branch_target());
        let from = Obstacle::Immovable { at: CodeAddr(step.ip()), mnemonic: step.mnemonic() };
        self.redirects.push((CodeAddr(step.ip()), self.here()));
        self.place(CodeAddr(step.ip()), Registers::All);
        match class {
            Class::Copy | Class::Leave => {
                let bytes = moved.bytes_at(self.here())?;
                self.bytes.extend(bytes);
            }
            Class::Jump => self.jump(target),
            Class::Conditional => {
                let condition = step.condition_code() as u8 - 1;
                self.bytes.extend([0x0F, 0x80 | condition]);
                self.arm(4, target, from);
            }
            Class::Loop => {
                // With its prefixes, as one of them says which register counts.
                self.bytes.extend(&moved.bytes[..moved.bytes.len() - 1]);
                self.arm(1, target, from);
            }
            Class::Call => {
                self.bytes.extend([0xFF, 0x35]);
                self.literal(step.next_ip());
                self.place(target, Registers::All);
                self.jump(target);
            }
            Class::Refuse => return Err(from),
        }
        Ok(!matches!(class, Class::Leave | Class::Jump | Class::Call))
    }

    /// Back to the code that was not moved.
    pub(crate) fn go_on(&mut self, at: CodeAddr) {
        self.place(at, Registers::All);
        self.jump(at);
    }

    fn jump(&mut self, target: CodeAddr) {
        self.bytes.extend([0xFF, 0x25]);
        self.literal(target.0);
    }

    /// A displacement that leads to a constant.
    fn literal(&mut self, value: u64) {
        self.literals.push((self.bytes.len(), value));
        self.bytes.extend([0; 4]);
    }

    fn arm(&mut self, len: usize, target: CodeAddr, from: Obstacle) {
        self.arms.push(Arm { field: self.bytes.len(), len, target, from });
        self.bytes.resize(self.bytes.len() + len, 0);
    }

    /// The stub, with `descriptor` in it.
    pub(crate) fn finish(mut self, descriptor: SiteDescriptor) -> Result<(Stub, PcMap), Obstacle> {
        for arm in std::mem::take(&mut self.arms) {
            let distance = self.bytes.len() - (arm.field + arm.len);
            if arm.len == 1 && i8::try_from(distance).is_err() {
                return Err(arm.from);
            }
            self.bytes[arm.field..arm.field + arm.len].copy_from_slice(&distance.to_le_bytes()[..arm.len]);
            self.go_on(arm.target);
        }
        while !self.here().is_multiple_of(8) {
            self.bytes.push(0xCC);
        }
        for (field, value) in std::mem::take(&mut self.literals) {
            let distance = (self.bytes.len() - (field + 4)) as u32;
            self.bytes[field..field + 4].copy_from_slice(&distance.to_le_bytes());
            self.bytes.extend(value.to_le_bytes());
        }
        let head = descriptor.to_bytes();
        self.bytes[..head.len()].copy_from_slice(&head);
        assert!(self.bytes.len() <= MAX_STUB, "a stub of {} bytes", self.bytes.len());
        let entry = LowAddr::new(self.at.get() + head.len() as u64).expect("a stub lies in the low region");
        let stub = Stub { at: self.at, entry, bytes: self.bytes, descriptor };
        Ok((stub, PcMap::new(self.places, self.redirects)))
    }
}
