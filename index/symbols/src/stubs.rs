//! Linkage stubs (`.plt`, `.plt.sec`, `.plt.got`): which function each one jumps to. x86-64 only.

use std::collections::HashMap;

use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget};

/// `jmp [rip+disp32]`.
const JUMP_THROUGH: [u8; 2] = [0xff, 0x25];

/// `push imm32`: the number of a slot that is not filled yet.
const PUSH: u8 = 0x68;

/// The stubs of one ELF file, by link-time address.
#[derive(Default, Debug)]
pub(crate) struct Stubs {
    sections: Vec<Section>,
    /// Names by the address of the slot.
    slots: HashMap<u64, Box<str>>,
    /// Names by number, for slots that are filled on the first call.
    lazy: Vec<Box<str>>,
}

#[derive(Debug)]
struct Section {
    base: u64,
    code: Vec<u8>,
    /// Size of a stub in bytes.
    step: u64,
}

impl Stubs {
    /// From the file's stub sections and the relocations of the slots they jump through.
    pub(crate) fn load(file: &object::File<'_>) -> Self {
        let mut stubs = Self::default();
        if let (Some(relocations), Some(symbols)) = (file.dynamic_relocations(), file.dynamic_symbol_table())
        {
            for (slot, relocation) in relocations {
                let RelocationTarget::Symbol(index) = relocation.target() else { continue };
                let name = symbols.symbol_by_index(index).and_then(|symbol| symbol.name());
                let name: Box<str> = name.unwrap_or_default().split('@').next().unwrap_or_default().into();
                if let RelocationFlags::Elf { r_type } = relocation.flags()
                    && r_type == object::elf::R_X86_64_JUMP_SLOT
                {
                    stubs.lazy.push(name.clone());
                }
                stubs.slots.insert(slot, name);
            }
        }
        let sections = [(".plt.sec", 16), (".plt", 16), (".plt.got", 8)].into_iter();
        let found = sections.filter_map(|(name, step)| {
            let section = file.section_by_name(name)?;
            Some(Section { base: section.address(), code: section.data().ok()?.to_vec(), step })
        });
        stubs.sections = found.collect();
        stubs
    }

    /// The function that the stub at `addr` jumps to.
    pub(crate) fn target(&self, addr: u64) -> Option<&str> {
        let holds =
            |section: &&Section| section.base <= addr && addr - section.base < section.code.len() as u64;
        let section = self.sections.iter().find(holds)?;
        let start = ((addr - section.base) & !(section.step - 1)) as usize;
        let end = section.code.len().min(start + 16);
        let code = &section.code[start..end];
        let number = |at: usize| code.get(at..at + 4)?.first_chunk().map(|bytes| i32::from_le_bytes(*bytes));
        if let Some(at) = code.windows(2).position(|bytes| bytes == JUMP_THROUGH) {
            let next = section.base.wrapping_add((start + at + 6) as u64);
            let slot = next.wrapping_add_signed(i64::from(number(at + 2)?));
            return self.slots.get(&slot).map(|name| &**name);
        }
        // With branch tracking the slots lead here: `endbr64; push NUMBER; jmp .plt`.
        let at = code.iter().take(8).position(|&byte| byte == PUSH)?;
        self.lazy.get(usize::try_from(number(at + 1)?).ok()?).map(|name| &**name)
    }

    /// Address and size of the stubs that jump to the function `name`.
    pub(crate) fn to<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (u64, u64)> + 'a {
        let all = self.sections.iter().flat_map(|section| {
            let end = section.base + section.code.len() as u64;
            (section.base..end).step_by(section.step as usize).map(|start| (start, section.step))
        });
        all.filter(move |&(start, _)| self.target(start) == Some(name))
    }
}
