//! Linkage stubs (`.plt`, `.plt.sec`, `.plt.got`): which function each one jumps to. x86-64 only.

use std::collections::HashMap;
use std::ops::Range;

use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget};

/// The stubs of one ELF file, by link-time address.
#[derive(Default, Debug)]
pub(crate) struct Stubs {
    sections: Vec<(u64, Vec<u8>)>,
    slots: HashMap<u64, Box<str>>,
}

impl Stubs {
    /// From the file's stub sections and the relocations of the slots they jump through.
    pub(crate) fn load(file: &object::File<'_>) -> Self {
        let mut slots = HashMap::new();
        if let (Some(relocations), Some(symbols)) = (file.dynamic_relocations(), file.dynamic_symbol_table())
        {
            for (slot, relocation) in relocations {
                let RelocationTarget::Symbol(index) = relocation.target() else { continue };
                let Ok(symbol) = symbols.symbol_by_index(index) else { continue };
                if let Ok(name) = symbol.name() {
                    slots.insert(slot, name.split('@').next().unwrap_or(name).into());
                }
            }
        }
        let sections = [".plt.sec", ".plt", ".plt.got"].into_iter().filter_map(|name| {
            let section = file.section_by_name(name)?;
            Some((section.address(), section.data().ok()?.to_vec()))
        });
        Self { sections: sections.collect(), slots }
    }

    /// The function that the stub at `addr` jumps to.
    pub(crate) fn target(&self, addr: u64) -> Option<&str> {
        let (base, code) = self.section(addr)?;
        // A stub is 16 bytes (8 in .plt.got): look for `jmp [rip+disp32]` (ff 25) from its first byte on.
        let start = (addr - base) as usize & !7;
        let end = code.len().min(start + 16);
        let at = (start..end).find(|&at| code.get(at..at + 2) == Some(&[0xff, 0x25]))?;
        let disp = code.get(at + 2..at + 6)?;
        let disp = i32::from_le_bytes([disp[0], disp[1], disp[2], disp[3]]);
        let slot = base.wrapping_add(at as u64 + 6).wrapping_add_signed(i64::from(disp));
        self.slots.get(&slot).map(|name| &**name)
    }

    fn section(&self, addr: u64) -> Option<(u64, &[u8])> {
        let holds = |range: Range<u64>| range.contains(&addr);
        let found = self.sections.iter().find(|(base, code)| holds(*base..base + code.len() as u64));
        found.map(|(base, code)| (*base, &code[..]))
    }
}
