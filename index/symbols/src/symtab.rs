//! The symbol tables of one ELF file, by address and by name. Knows nothing of where the file is mapped.

use std::borrow::Cow;

use object::elf::{self, FileHeader64, SymbolType};
use object::read::elf::{ElfFile64, SectionHeader, Sym, SymbolTable as ElfSymbols};
use object::{Endianness, SectionIndex};

use crate::bytes::Bytes;

/// The longest name that helps somebody who sees it.
const READABLE: usize = 60;

/// What a symbol names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// Code.
    Function,
    /// A variable.
    Object,
    /// A thread-local variable: its address is an offset in the thread's block.
    ThreadLocal,
    /// A label without a type.
    Label,
}

/// One symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'a> {
    /// Link-time address.
    pub(crate) addr: u64,
    /// Size in bytes, 0 where unknown.
    pub(crate) size: u64,
    /// What it names.
    pub(crate) kind: Kind,
    /// Visible outside its file.
    global: bool,
    /// The source file that a local symbol comes from, as the compiler was told it, without its folder.
    pub(crate) file: Option<&'a str>,
    /// As in the table, without a version.
    pub(crate) raw: &'a str,
}

impl<'a> Symbol<'a> {
    /// The name as people write it.
    pub(crate) fn name(&self) -> Cow<'a, str> {
        demangle(self.raw)
    }

    /// Which of several symbols at one place is shown: typed before labels, sized before unsized, global before local,
    /// plain names before those with underscores, short before long.
    fn rank(&self) -> (Kind, bool, bool, usize, usize, &'a str) {
        let underscores = self.raw.bytes().take_while(|&b| b == b'_').count();
        (self.kind, self.size == 0, !self.global, underscores, self.raw.len(), self.raw)
    }
}

/// A symbol as the table keeps it: with its name still in the file.
#[derive(Clone, Copy, Debug)]
struct Entry {
    addr: u64,
    size: u64,
    /// Where the code or data ends: for a symbol without a size, its section.
    end: u64,
    /// Offset of its name in `SymbolTable::names[table]`.
    name: u32,
    /// The same for the name of its source file, 0 where it has none.
    file: u32,
    table: u8,
    kind: Kind,
    global: bool,
}

impl Entry {
    fn covers(&self, addr: u64) -> bool {
        self.addr == addr || (self.addr < addr && addr < self.end)
    }
}

/// Demangled C++ or Rust, or the name as it is.
pub(crate) fn demangle(raw: &str) -> Cow<'_, str> {
    if !raw.starts_with("_Z") && !raw.starts_with("_R") {
        return Cow::Borrowed(raw);
    }
    match addr2line::demangle_auto(Cow::Borrowed(raw), None) {
        Cow::Borrowed(_) => path_of(raw).map_or(Cow::Borrowed(raw), Cow::Owned),
        demangled => demangled,
    }
}

/// The qualified name in a mangled C++ name that the demangler does not know all of: without template arguments, which become
/// `<..>`, and without parameters.
fn path_of(raw: &str) -> Option<String> {
    let mut rest = raw.strip_prefix("_Z")?;
    let nested = rest.strip_prefix('N');
    rest = nested.unwrap_or(rest).trim_start_matches(['K', 'V']);
    let mut parts = Vec::new();
    if let Some(after) = rest.strip_prefix("St") {
        parts.push("std");
        rest = after;
    }
    while rest.starts_with(|c: char| c.is_ascii_digit()) {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let len: usize = rest[..digits].parse().ok()?;
        parts.push(rest.get(digits..digits.checked_add(len)?)?);
        rest = &rest[digits + len..];
    }
    let arguments = if rest.starts_with('I') { "<..>" } else { "" };
    (!parts.is_empty()).then(|| parts.join("::") + arguments)
}

/// All symbols of a file.
#[derive(Default)]
pub(crate) struct SymbolTable {
    /// By address.
    entries: Vec<Entry>,
    /// The string tables.
    names: Vec<Bytes>,
}

impl SymbolTable {
    /// From the full and the dynamic tables of some files that describe the same code (a binary and its debug file).
    pub(crate) fn load<'a>(files: impl IntoIterator<Item = &'a Bytes>) -> Self {
        let mut table = Self::default();
        for bytes in files {
            let Ok(object::File::Elf64(file)) = object::File::parse(&**bytes) else { continue };
            table.add(bytes, &file, file.elf_symbol_table());
            table.add(bytes, &file, file.elf_dynamic_symbol_table());
        }
        table.entries.sort_unstable_by_key(|entry| (entry.addr, entry.table, entry.name));
        table
    }

    fn add(
        &mut self,
        bytes: &Bytes,
        file: &ElfFile64<'_>,
        symbols: &ElfSymbols<'_, FileHeader64<Endianness>>,
    ) {
        let endian = file.endian();
        let sections = file.elf_section_table();
        let section = |index: SectionIndex| sections.section(index).ok();
        let strings = section(symbols.string_section()).and_then(|header| header.file_range(endian));
        let Some(names) = strings.and_then(|(offset, len)| bytes.part(offset, len)) else { return };
        let number = self.names.len() as u8;
        self.names.push(names);
        // A table's local symbols come after the symbol of the source file they are from.
        let mut source = 0;
        for (index, symbol) in symbols.enumerate() {
            let name = symbol.st_name(endian);
            if symbol.st_type() == elf::STT_FILE {
                source = name;
            }
            let Some(kind) = kind_of(symbol.st_type()).filter(|_| name != 0) else { continue };
            let Ok(Some(lies_in)) = symbols.symbol_section(endian, symbol, index) else { continue };
            let (addr, size) = (symbol.st_value(endian), symbol.st_size(endian));
            let end = match size {
                0 => section(lies_in).map(|s| s.sh_addr(endian).saturating_add(s.sh_size(endian))),
                size => Some(addr.saturating_add(size)),
            };
            let Some(end) = end else { continue };
            let global = !symbol.is_local();
            let file = if global { 0 } else { source };
            self.entries.push(Entry { addr, size, end, name, file, table: number, kind, global });
        }
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        let raw = self.text(entry.table, entry.name).split('@').next().unwrap_or_default();
        let file = (entry.file != 0).then(|| self.text(entry.table, entry.file));
        let Entry { addr, size, kind, global, .. } = *entry;
        Symbol { addr, size, kind, global, file, raw }
    }

    /// The text at an offset of a string table.
    fn text(&self, table: u8, at: u32) -> &str {
        let names = self.names.get(usize::from(table)).map_or(&[][..], |names| &**names);
        let rest = names.get(at as usize..).unwrap_or_default();
        let end = rest.iter().position(|&byte| byte == 0).unwrap_or(0);
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }

    /// All symbols that have a name, by address.
    fn all(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| self.symbol(entry)).filter(|symbol| !symbol.raw.is_empty())
    }

    /// The function or label whose code covers link-time address `addr`.
    pub(crate) fn function_at(&self, addr: u64) -> Option<Symbol<'_>> {
        self.covering(addr, |kind| matches!(kind, Kind::Function | Kind::Label))
    }

    /// The variable that covers link-time address `addr`.
    pub(crate) fn object_at(&self, addr: u64) -> Option<Symbol<'_>> {
        self.covering(addr, |kind| kind == Kind::Object).filter(|s| s.size > 0)
    }

    fn covering(&self, addr: u64, wanted: impl Fn(Kind) -> bool) -> Option<Symbol<'_>> {
        let end = self.entries.partition_point(|s| s.addr <= addr);
        // Aliases and nested symbols are few: a symbol further away than this many others does not cover the address.
        let near = self.entries[..end].iter().rev().filter(|s| wanted(s.kind)).take(128);
        let mut best: Option<Symbol<'_>> = None;
        let mut nearest = None;
        for entry in near {
            // One without a size reaches to the next symbol.
            if *nearest.get_or_insert(entry.addr) != entry.addr && entry.size == 0 {
                continue;
            }
            if best.is_some_and(|b| b.addr != entry.addr) {
                break;
            }
            if entry.covers(addr) {
                let symbol = self.symbol(entry);
                if !symbol.raw.is_empty() && best.is_none_or(|b| symbol.rank() <= b.rank()) {
                    best = Some(symbol);
                }
            }
        }
        best
    }

    /// The symbols called `name`, one for each place: as in the table, else static variables of functions, else demangled (with or
    /// without argument lists). Variables before functions, of which versions and copies are taken for one.
    pub(crate) fn named(&self, name: &str) -> Vec<Symbol<'_>> {
        let mut found: Vec<Symbol<'_>> = self.all().filter(|s| s.raw == name).collect();
        if found.is_empty() {
            found = self.all().filter(|s| s.kind == Kind::Object && is_numbered(s.raw, name)).collect();
        }
        if found.is_empty() {
            found = self.mangled(name).filter(|s| matches(&s.name(), name)).collect();
        }
        let is_variable = |s: &Symbol<'_>| matches!(s.kind, Kind::Object | Kind::ThreadLocal);
        if found.iter().any(is_variable) {
            found.retain(is_variable);
            found.dedup_by_key(|symbol| symbol.addr);
            return found;
        }
        found.into_iter().min_by_key(Symbol::rank).into_iter().collect()
    }

    /// The symbols of a kind whose qualified names end in `name` (`G` for `t::G`, `total` for `main.total`), one for each place.
    pub(crate) fn ending<'a>(&'a self, name: &str, wanted: impl Fn(Kind) -> bool) -> Vec<Symbol<'a>> {
        let of_package = |s: &Symbol<'_>| {
            s.raw.strip_suffix(name).is_some_and(|rest| rest.ends_with('.') && !s.raw.starts_with('_'))
        };
        let mut found: Vec<Symbol<'_>> = self.mangled(name).filter(|s| ends_in(&s.name(), name)).collect();
        if found.iter().all(|s| !wanted(s.kind)) {
            found = self.all().filter(of_package).collect();
        }
        found.retain(|symbol| wanted(symbol.kind));
        found.dedup_by_key(|symbol| symbol.addr);
        found
    }

    /// The variables called `name`, static ones of functions included, whatever they are qualified with.
    pub(crate) fn variables(&self, name: &str) -> Vec<Symbol<'_>> {
        let wanted = |s: &Symbol<'_>| {
            s.raw == name
                || is_numbered(s.raw, name)
                || s.raw.starts_with('_') && s.raw.contains(name) && last_part(&s.name()) == name
        };
        let mut found: Vec<_> = self.all().filter(|s| s.kind == Kind::Object && wanted(s)).collect();
        found.dedup_by_key(|symbol| symbol.addr);
        found
    }

    /// The symbols with mangled names that can be what people call `name`.
    fn mangled<'a>(&'a self, name: &str) -> impl Iterator<Item = Symbol<'a>> + 'a {
        let last = name.rsplit("::").next().unwrap_or(name).to_owned();
        self.all().filter(move |s| s.raw.starts_with('_') && s.raw.contains(&last))
    }

    /// The code of every function that is shown as `name`.
    pub(crate) fn functions_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (u64, u64)> + 'a {
        let last = name.split('(').next().unwrap_or(name).rsplit("::").next().unwrap_or(name);
        let code = self.all().filter(|s| matches!(s.kind, Kind::Function | Kind::Label));
        let named = code.filter(move |s| s.raw == name || (s.raw.contains(last) && s.name() == name));
        named.map(|s| (s.addr, s.size))
    }

    /// Up to `limit` names of variables that hold `part`, for a hint; none where that is too short to tell anything.
    pub(crate) fn similar(&self, part: &str, limit: usize) -> Vec<String> {
        if part.len() < 3 {
            return Vec::new();
        }
        let part = part.to_lowercase();
        let is_variable = |s: &Symbol<'_>| matches!(s.kind, Kind::Object | Kind::ThreadLocal);
        let alike = self.all().filter(|s| is_variable(s) && s.raw.to_lowercase().contains(&part));
        let mut names: Vec<String> = Vec::new();
        for symbol in alike {
            let name = symbol.name().into_owned();
            if names.len() < limit && name.len() <= READABLE && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// Whether `raw` is a static variable `name` of a function, which the compiler calls `name.123`.
fn is_numbered(raw: &str, name: &str) -> bool {
    let number = raw.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
    number.is_some_and(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether demangled `full` is what a user calls `name`.
fn matches(full: &str, name: &str) -> bool {
    let full = untagged(full);
    full == name || full.strip_prefix(name).is_some_and(|rest| rest.starts_with('(')) || bare(&full) == name
}

/// Whether the last parts of demangled `full`, arguments aside, are `name`.
fn ends_in(full: &str, name: &str) -> bool {
    bare(&untagged(full)).strip_suffix(name).is_some_and(|before| before.ends_with("::"))
}

/// What a variable was called where it was declared: `calls` for `f(int)::calls` and for `calls.123`.
pub(crate) fn last_part(full: &str) -> String {
    let name = bare(&untagged(full));
    let last = name.rsplit("::").next().unwrap_or_default();
    match last.rsplit_once('.') {
        Some((before, _)) if is_numbered(last, before) => before.to_owned(),
        _ => last.to_owned(),
    }
}

/// A C++ name without its ABI tags: `g` for `g[abi:cxx11]`.
pub(crate) fn untagged(name: &str) -> Cow<'_, str> {
    let mut rest = name;
    let mut out = String::new();
    while let Some((before, tag)) = rest.split_once("[abi:") {
        out.push_str(before);
        rest = tag.split_once(']').map_or("", |(_, after)| after);
    }
    if out.is_empty() { Cow::Borrowed(rest) } else { Cow::Owned(out + rest) }
}

/// A name without what stands in parentheses: `f::calls` for `f(int)::calls`.
fn bare(name: &str) -> String {
    let mut depth = 0_usize;
    let outside = |c: &char| {
        let was = depth;
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        was == 0 && *c != '('
    };
    name.chars().filter(outside).collect()
}

/// What a symbol of this ELF type names; `None` for sections and files.
fn kind_of(elf: SymbolType) -> Option<Kind> {
    Some(match elf {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => Kind::Function,
        elf::STT_OBJECT | elf::STT_COMMON => Kind::Object,
        elf::STT_TLS => Kind::ThreadLocal,
        elf::STT_SECTION | elf::STT_FILE => return None,
        _ => Kind::Label,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_as_far_as_they_can_be() {
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("_ZN4shop4Shop3putEl"), "shop::Shop::put(long)");
        let relocate = "_ZSt14__relocate_a_1I4ItemS0_ENSt9enable_ifIXsrSt24__is_bitwise_relocatableIT_vE5valueEPS3_E4type\
                        ES5_S5_S5_RSaIT0_E";
        assert_eq!(demangle(relocate), "std::__relocate_a_1<..>");
        assert_eq!(demangle("_Znonsense"), "_Znonsense");
        assert_eq!(demangle("_Z9x"), "_Z9x");
    }
}
