//! One ELF file: its segments, symbols and DWARF. Addresses here are link-time addresses. Knows nothing of where the file
//! is mapped.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use guest::{PAGE_SIZE, Prot};
use object::{Object, ObjectSegment, SegmentFlags};

use crate::bytes::Bytes;
use crate::debug_file;
use crate::dwarf::{Dwarf, DwarfFrame};
use crate::dwarf_types::Types;
use crate::stubs::Stubs;
use crate::symtab::SymbolTable;

/// An ELF file of a recording. What costs time is loaded when first asked for.
pub(crate) struct Image {
    bytes: Bytes,
    segments: Vec<Segment>,
    debug: Option<Bytes>,
    original: PathBuf,
    symbols: OnceLock<SymbolTable>,
    stubs: OnceLock<Stubs>,
    dwarf: OnceLock<Option<Dwarf>>,
}

/// A loadable segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    vaddr: u64,
    memory_size: u64,
    offset: u64,
    file_size: u64,
    prot: Prot,
}

impl Image {
    /// Opens `stored`, which the program had at `original`. `None` for anything but a 64-bit little-endian ELF.
    pub(crate) fn open(stored: &Path, original: &Path) -> Option<Self> {
        let bytes = Bytes::map(stored).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        if !file.is_64() || !file.is_little_endian() || file.format() != object::BinaryFormat::Elf {
            return None;
        }
        let segments = file.segments().map(|s| Segment::new(&s)).collect();
        let debug = if file.section_by_name(".debug_info").is_some() {
            None
        } else {
            debug_file::find(&file, original).and_then(|path| Bytes::map(&path).ok())
        };
        let (symbols, stubs, dwarf) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let original = original.to_owned();
        Some(Self { bytes, segments, debug, original, symbols, stubs, dwarf })
    }

    /// The contents of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The link-time address of what lies at `offset` in the file, in the segment that a mapping with `prot` of the page at
    /// `mapped` shows.
    pub(crate) fn address_of(&self, offset: u64, mapped: u64, prot: Prot) -> Option<u64> {
        let candidates = self.segments.iter().filter(|s| s.pages_hold(offset));
        let best = candidates.min_by_key(|s| {
            let first_page = s.offset & !(PAGE_SIZE - 1) == mapped;
            (s.prot.exec != prot.exec, !s.holds(offset), !first_page)
        })?;
        Some(best.vaddr.wrapping_add(offset.wrapping_sub(best.offset)))
    }

    /// The file's lowest and highest link-time addresses, what is not in the file (`.bss`) included.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        let start = self.segments.iter().map(|s| s.vaddr).min()?;
        let end = self.segments.iter().map(|s| s.vaddr.saturating_add(s.memory_size)).max()?;
        Some((start & !(PAGE_SIZE - 1), end))
    }

    /// Its symbols and those of its debug file.
    pub(crate) fn symbols(&self) -> &SymbolTable {
        self.symbols.get_or_init(|| SymbolTable::load(std::iter::once(&self.bytes).chain(&self.debug)))
    }

    /// The names of its linkage stubs.
    pub(crate) fn stubs(&self) -> &Stubs {
        self.stubs.get_or_init(|| {
            object::File::parse(&*self.bytes).map(|file| Stubs::load(&file)).unwrap_or_default()
        })
    }

    /// The function activations at a link-time address, innermost first; empty without debug information about it. With
    /// `quick`, large debug information is used only where it is loaded already.
    pub(crate) fn frames(&self, addr: u64, quick: bool) -> Vec<DwarfFrame> {
        let source = self.debug.as_ref().unwrap_or(&self.bytes);
        if quick && self.dwarf.get().is_none() && !Dwarf::loads_quickly(source) {
            return Vec::new();
        }
        self.dwarf().map_or_else(Vec::new, |dwarf| dwarf.frames(addr))
    }

    /// The types in its debug information.
    pub(crate) fn types(&self) -> Option<&Types> {
        self.dwarf().map(Dwarf::types)
    }

    /// The same, unless large debug information would have to be opened first.
    pub(crate) fn quick_types(&self) -> Option<&Types> {
        let quick =
            self.dwarf.get().is_some() || Dwarf::loads_quickly(self.debug.as_ref().unwrap_or(&self.bytes));
        if quick && self.dwarf().is_some_and(Dwarf::types_load_quickly) { self.types() } else { None }
    }

    fn dwarf(&self) -> Option<&Dwarf> {
        let load = || Dwarf::load(self.debug.as_ref().unwrap_or(&self.bytes), &self.original);
        self.dwarf.get_or_init(load).as_ref()
    }
}

impl Segment {
    fn new<'a>(segment: &impl ObjectSegment<'a>) -> Self {
        let (offset, file_size) = segment.file_range();
        let flags = match segment.flags() {
            SegmentFlags::Elf { p_flags, .. } => p_flags.0,
            _ => 0,
        };
        let prot = Prot { read: flags & 4 != 0, write: flags & 2 != 0, exec: flags & 1 != 0 };
        Self { vaddr: segment.address(), memory_size: segment.size(), offset, file_size, prot }
    }

    fn holds(&self, offset: u64) -> bool {
        self.offset <= offset && offset - self.offset < self.file_size
    }

    /// Whether a page that the loader maps for this segment shows `offset`.
    fn pages_hold(&self, offset: u64) -> bool {
        let start = self.offset & !(PAGE_SIZE - 1);
        let end = self.offset.saturating_add(self.file_size).saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
        start <= offset && offset < end
    }
}
