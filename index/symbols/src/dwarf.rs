//! The DWARF of one file: function activations and source positions at a link-time address.
#![expect(unsafe_code, reason = "keeps a parsed context beside the bytes that it borrows")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use addr2line::Context;
use gimli::{EndianSlice, LittleEndian, SectionId};
use object::{Object, ObjectSection};

use crate::bytes::Bytes;
use crate::dwarf_types::Types;
use crate::symtab::demangle;

type Slice = EndianSlice<'static, LittleEndian>;

/// The sections that lines, functions and inlining need; the large rest (locations, macros) stays unread.
const NEEDED: [SectionId; 11] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTypes,
];

/// Debug information larger than this, in bytes, takes longer to open than a quick question may take.
const QUICK_PLAIN: u64 = 64 << 20;

/// The same for compressed debug information, by its uncompressed size.
const QUICK_COMPRESSED: u64 = 1 << 20;

/// More files of split debug information take longer to open than a quick question may take.
const QUICK_FILES: usize = 100;

/// Parsed debug information.
pub(crate) struct Dwarf {
    // These borrow from `sections`: declared first, so dropped first.
    context: Mutex<Context<Slice>>,
    types: OnceLock<Types>,
    dwarf: Arc<gimli::Dwarf<Slice>>,
    original: PathBuf,
    _sections: Vec<Bytes>,
}

/// A function activation and a source position, as DWARF has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DwarfFrame {
    pub(crate) function: Option<String>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
}

impl Dwarf {
    /// From the sections of an ELF file, which the program (or what it was stripped of) had at `original`; `None` where it has no debug information or a damaged one.
    pub(crate) fn load(bytes: &Bytes, original: &Path) -> Option<Self> {
        let file = object::File::parse(&**bytes).ok()?;
        file.section_by_name(".debug_info")?;
        let mut sections = Vec::new();
        let load = |id: SectionId| -> Result<Slice, gimli::Error> {
            let wanted = NEEDED.contains(&id).then(|| section(&file, bytes, id.name())).flatten();
            let section = wanted.unwrap_or_else(|| Bytes::heap(Vec::new()));
            // SAFETY: the slice is made to outlive its bytes, which it must not: `sections` keeps a handle to the same bytes
            // in the struct that holds the context and the types, which are dropped before them, and both hand out copies only.
            let slice = unsafe { std::slice::from_raw_parts(section.as_ptr(), section.len()) };
            sections.push(section);
            Ok(EndianSlice::new(slice, LittleEndian))
        };
        let mut dwarf = gimli::Dwarf::load(load).ok()?;
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let dwarf = Arc::new(dwarf);
        let context = Mutex::new(Context::from_arc_dwarf(dwarf.clone()).ok()?);
        let original = original.to_owned();
        Some(Self { context, types: OnceLock::new(), dwarf, original, _sections: sections })
    }

    /// The types it describes.
    pub(crate) fn types(&self) -> &Types {
        self.types.get_or_init(|| Types::new(self.dwarf.clone(), &self.original))
    }

    /// Whether [`Dwarf::types`] need not open many files.
    pub(crate) fn types_load_quickly(&self) -> bool {
        let mut headers = self.dwarf.units();
        let mut others = 0;
        while let (Ok(Some(header)), true) = (headers.next(), others <= QUICK_FILES) {
            others += usize::from(self.dwarf.unit(header).is_ok_and(|unit| unit.dwo_id.is_some()));
        }
        self.types.get().is_some() || others <= QUICK_FILES
    }

    /// Whether [`Dwarf::load`] takes but a few milliseconds for this file.
    pub(crate) fn loads_quickly(bytes: &Bytes) -> bool {
        let Ok(file) = object::File::parse(&**bytes) else { return true };
        let Some(section) = file.section_by_name(".debug_info") else { return true };
        section.compressed_file_range().is_ok_and(|range| match range.format {
            object::CompressionFormat::None => range.uncompressed_size <= QUICK_PLAIN,
            _ => range.uncompressed_size <= QUICK_COMPRESSED,
        })
    }

    /// The function activations at a link-time address, innermost first; empty without debug information about it.
    pub(crate) fn frames(&self, addr: u64) -> Vec<DwarfFrame> {
        let mut out = Vec::new();
        let Ok(context) = self.context.lock() else { return out };
        let Ok(mut frames) = context.find_frames(addr).skip_all_loads() else { return out };
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.and_then(|name| {
                let raw = name.raw_name().ok()?.into_owned();
                Some(demangle(&raw).into_owned())
            });
            let location = frame.location;
            out.push(DwarfFrame {
                function,
                file: location.as_ref().and_then(|l| l.file).map(PathBuf::from),
                line: location.as_ref().and_then(|l| l.line).filter(|&line| line > 0),
                column: location.as_ref().and_then(|l| l.column).filter(|&column| column > 0),
            });
        }
        out
    }
}

/// A section's contents, in place where they are not compressed.
pub(crate) fn section(file: &object::File<'_>, bytes: &Bytes, name: &str) -> Option<Bytes> {
    let section = file.section_by_name(name)?;
    let range = section.compressed_file_range().ok()?;
    if range.format == object::CompressionFormat::None {
        return bytes.part(range.offset, range.uncompressed_size);
    }
    section.uncompressed_data().ok().map(|data| Bytes::heap(data.into_owned()))
}
