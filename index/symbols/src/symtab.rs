//! The symbol tables of one ELF file, by address and by name. Knows nothing of where the file is mapped.

use std::borrow::Cow;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind, SymbolSection};

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
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    /// Link-time address.
    pub(crate) addr: u64,
    /// Size in bytes, 0 where unknown.
    pub(crate) size: u64,
    /// Where the section it is in ends, for one without a size.
    limit: u64,
    /// What it names.
    pub(crate) kind: Kind,
    /// Visible outside its file.
    global: bool,
    /// As in the table, without a version.
    pub(crate) raw: Box<str>,
}

impl Symbol {
    /// The name as people write it.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        demangle(&self.raw)
    }

    fn covers(&self, addr: u64) -> bool {
        let end = if self.size == 0 { self.limit } else { self.addr.saturating_add(self.size) };
        self.addr == addr || (self.addr < addr && addr < end)
    }

    /// Which of several symbols at one place is shown: typed before labels, sized before unsized, global before local,
    /// plain names before those with underscores, short before long.
    fn rank(&self) -> (Kind, bool, bool, usize, usize) {
        let underscores = self.raw.bytes().take_while(|&b| b == b'_').count();
        (self.kind, self.size == 0, !self.global, underscores, self.raw.len())
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
#[derive(Default, Debug)]
pub(crate) struct SymbolTable {
    /// By address.
    symbols: Vec<Symbol>,
}

impl SymbolTable {
    /// From the full and the dynamic tables of some files that describe the same code (a binary and its debug file).
    pub(crate) fn load<'a>(files: impl IntoIterator<Item = &'a object::File<'a>>) -> Self {
        let mut symbols = Vec::new();
        for file in files {
            symbols.extend(file.symbols().filter_map(|s| convert(file, &s)));
            symbols.extend(file.dynamic_symbols().filter_map(|s| convert(file, &s)));
        }
        symbols.sort_by(|a: &Symbol, b| (a.addr, a.rank(), &a.raw).cmp(&(b.addr, b.rank(), &b.raw)));
        symbols.dedup_by(|a, b| a.addr == b.addr && a.raw == b.raw);
        Self { symbols }
    }

    /// The function or label whose code covers link-time address `addr`.
    pub(crate) fn function_at(&self, addr: u64) -> Option<&Symbol> {
        self.covering(addr, |kind| matches!(kind, Kind::Function | Kind::Label))
    }

    /// The variable that covers link-time address `addr`.
    pub(crate) fn object_at(&self, addr: u64) -> Option<&Symbol> {
        self.covering(addr, |kind| kind == Kind::Object).filter(|s| s.size > 0)
    }

    fn covering(&self, addr: u64, wanted: impl Fn(Kind) -> bool) -> Option<&Symbol> {
        let end = self.symbols.partition_point(|s| s.addr <= addr);
        // Aliases and nested symbols are few: a symbol further away than this many others does not cover the address.
        let near = self.symbols[..end].iter().rev().filter(|s| wanted(s.kind)).take(64);
        let mut best: Option<&Symbol> = None;
        let mut nearest = None;
        for symbol in near {
            // One without a size reaches to the next symbol.
            if *nearest.get_or_insert(symbol.addr) != symbol.addr && symbol.size == 0 {
                continue;
            }
            if best.is_some_and(|b| b.addr != symbol.addr) {
                break;
            }
            if symbol.covers(addr) && best.is_none_or(|b| symbol.rank() <= b.rank()) {
                best = Some(symbol);
            }
        }
        best
    }

    /// The symbol called `name`: as in the table, else demangled (with or without its argument list).
    pub(crate) fn named(&self, name: &str) -> Option<&Symbol> {
        let exact = self.symbols.iter().filter(|s| &*s.raw == name);
        exact.min_by_key(|s| s.rank()).or_else(|| self.numbered(name)).or_else(|| {
            let last = name.rsplit("::").next().unwrap_or(name);
            let mangled = self.symbols.iter().filter(|s| s.raw.starts_with('_') && s.raw.contains(last));
            mangled.filter(|s| matches(&s.name(), name)).min_by_key(|s| s.rank())
        })
    }

    /// The code of every function that is shown as `name`.
    pub(crate) fn functions_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (u64, u64)> + 'a {
        let last = name.split('(').next().unwrap_or(name).rsplit("::").next().unwrap_or(name);
        let code = self.symbols.iter().filter(|s| matches!(s.kind, Kind::Function | Kind::Label));
        let named = code.filter(move |s| &*s.raw == name || (s.raw.contains(last) && s.name() == name));
        named.map(|s| (s.addr, s.size))
    }

    /// A static variable of a function, which the compiler calls `name.123`.
    fn numbered(&self, name: &str) -> Option<&Symbol> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let named =
            |s: &&Symbol| s.raw.strip_prefix(name).and_then(|r| r.strip_prefix('.')).is_some_and(is_number);
        self.symbols.iter().filter(|s| s.kind == Kind::Object).find(named)
    }

    /// Up to `limit` names that hold `part`, for a hint.
    pub(crate) fn similar(&self, part: &str, limit: usize) -> Vec<String> {
        let part = part.to_lowercase();
        let alike =
            self.symbols.iter().filter(|s| s.kind != Kind::Label && s.raw.to_lowercase().contains(&part));
        alike.take(limit).map(|s| s.name().into_owned()).collect()
    }
}

/// Whether demangled `full` is what a user calls `name`.
fn matches(full: &str, name: &str) -> bool {
    full == name || full.strip_prefix(name).is_some_and(|rest| rest.starts_with('('))
}

fn convert<'a>(file: &object::File<'a>, symbol: &impl ObjectSymbol<'a>) -> Option<Symbol> {
    let SymbolSection::Section(section) = symbol.section() else { return None };
    let kind = match symbol.kind() {
        SymbolKind::Text => Kind::Function,
        SymbolKind::Data => Kind::Object,
        SymbolKind::Tls => Kind::ThreadLocal,
        SymbolKind::Unknown | SymbolKind::Label => Kind::Label,
        _ => return None,
    };
    let name = symbol.name().ok()?;
    let raw = name.split('@').next().filter(|raw| !raw.is_empty())?;
    let (addr, size) = (symbol.address(), symbol.size());
    let end = || file.section_by_index(section).ok().map(|s| s.address().saturating_add(s.size()));
    let limit = if size == 0 { end()? } else { 0 };
    Some(Symbol { addr, size, limit, kind, global: symbol.is_global(), raw: raw.into() })
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
