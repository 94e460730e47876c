//! The questions: what is at this pc, where is this name, what does this line say.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use guest::{FileId, GuestAddr, GuestRange, Moment, SpaceId};

use crate::dwarf_types::Shape;
use crate::expression::{Expression, Part};
use crate::image::Image;
use crate::layout::{KeptFile, Layout, MappedFile, Mapping};
use crate::source::Sources;
use crate::symtab::{Kind, Symbol};
use crate::value::Value;

/// Symbols of all files that a recording mapped. Files are opened when first asked about and stay loaded. Shared freely
/// between threads.
pub struct Symbols {
    files: Vec<KeptFile>,
    images: Vec<OnceLock<Option<Image>>>,
    layout: Layout,
    sources: Sources,
    functions: Mutex<HashMap<(FileId, u64), Box<str>>>,
}

/// A function activation at a pc: the inlined ones first, the one that has machine code of its own last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// Function name, demangled; `None` where no symbol covers the pc.
    pub function: Option<String>,
    /// Distance of the pc from the start of the function's code, in bytes (of the enclosing one for an inlined function);
    /// `None` where the symbol table does not say where it starts.
    pub offset: Option<u64>,
    /// Whether the function is inlined into the next frame.
    pub inlined: bool,
    /// Source file, absolute where the debug information says so.
    pub file: Option<PathBuf>,
    /// Line in it, from 1.
    pub line: Option<u32>,
    /// Column in it, from 1.
    pub column: Option<u32>,
    /// The file the code came from; `None` for anonymous memory (generated code).
    pub module: Option<Module>,
}

/// A place in a mapped file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// The path under which the recorded program had it.
    pub path: PathBuf,
    /// Link-time address of the pc: its offset from the module's load address, as `addr2line` takes it.
    pub offset: u64,
}

/// Where a name is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolved {
    /// The address asked for, offset included.
    pub addr: GuestAddr,
    /// Size of the symbol in bytes; 0 where the symbol table has none.
    pub size: u64,
    /// The symbol's name as found, demangled.
    pub name: String,
    /// The path of the module it is in.
    pub module: PathBuf,
    /// What its bytes say, where the debug information knows.
    pub value: Option<Value>,
}

/// A name that is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResolveError {
    /// No file mapped then has it.
    #[error(
        "no symbol `{name}` in the files mapped in space {space} at {moment}{}; if it is a local variable, ask about its address: \
         `print &{name}` in gdb tells it while its function runs", hint(.similar)
    )]
    NotFound {
        /// What was asked.
        name: String,
        /// Where.
        space: SpaceId,
        /// When.
        moment: Moment,
        /// Names that end or begin alike.
        similar: Vec<String>,
    },
    /// Several have a name that ends so.
    #[error("`{name}` can be any of {}", .candidates.join(", "))]
    Ambiguous {
        /// What was asked.
        name: String,
        /// Their whole names.
        candidates: Vec<String>,
    },
    /// Nothing says which type it has.
    #[error("no debug information says what `{name}` consists of: give an address or an offset")]
    Untyped {
        /// The variable.
        name: String,
    },
    /// No such member.
    #[error("`{place}` has no member `{name}`{}", hint(.members))]
    NoMember {
        /// Of what.
        place: String,
        /// What was asked.
        name: String,
        /// The members it has.
        members: Vec<String>,
    },
    /// No pointer to something with members.
    #[error("`{place}` is no pointer to something known")]
    NoPointer {
        /// What is none.
        place: String,
    },
    /// Neither an array nor a pointer to something whose size is known.
    #[error("`{place}` is no array, and no pointer to something known")]
    NoElements {
        /// What is none.
        place: String,
    },
    /// An index past the end.
    #[error(
        "`{place}` has {count} elements: there is none with index {index} (what lies behind it has an address: say `&{place}+BYTES`)"
    )]
    Outside {
        /// The array.
        place: String,
        /// What was asked.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// An index past the end of a container.
    #[error("`{place}` has {count} elements then: there is none with index {index}")]
    Beyond {
        /// The container.
        place: String,
        /// What was asked.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// A pointer whose value is not known.
    #[error(
        "the pointer `{place}` cannot be followed: {addr}, where it would lie, is not mapped then, or its value is not known"
    )]
    Unknown {
        /// The pointer.
        place: String,
        /// Where it is.
        addr: GuestAddr,
    },
    /// A variable of one thread: it has no one address.
    #[error(
        "`{name}` is thread-local: it has an address per thread, which `print &{name}` in gdb tells in that thread"
    )]
    ThreadLocal {
        /// What was asked.
        name: String,
    },
}

fn hint(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!(" (there are {})", similar.join(", ")) }
}

/// A symbol, in a file that is mapped.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) image: &'a Image,
    pub(crate) symbol: Symbol<'a>,
    pub(crate) file: FileId,
    pub(crate) bias: u64,
}

impl Found<'_> {
    /// Whether it is a C++ reference, as far as types are known without much ado.
    fn is_reference(&self) -> bool {
        let types = self.image.quick_types().filter(|_| self.symbol.kind == Kind::Object);
        types.is_some_and(|types| {
            let ty = types.of_variable(self.symbol.addr);
            ty.is_some_and(|ty| matches!(types.shape(ty), Shape::Reference(_)))
        })
    }
}

/// A pc in a file.
struct Spot<'a> {
    image: &'a Image,
    file: FileId,
    /// Link-time address.
    link: u64,
}

impl Symbols {
    /// Over `files`, indexed by `FileId`, and the mappings of a recording.
    pub fn new(files: Vec<KeptFile>, layout: Layout) -> Self {
        let images = files.iter().map(|_| OnceLock::new()).collect();
        Self { files, images, layout, sources: Sources::default(), functions: Mutex::default() }
    }

    /// The mappings.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The kept files, indexed by `FileId`.
    pub fn files(&self) -> &[KeptFile] {
        &self.files
    }

    /// The function activations at `pc`, innermost inlined one first; never empty: the last frame is the function with
    /// machine code of its own.
    ///
    /// Opening the debug information of a large library can take a fifth of a second: see [`Symbols::quick_frames`].
    pub fn frames(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Vec<Frame> {
        self.frames_at(space, moment, pc, false)
    }

    /// As [`Symbols::frames`], but without lines and inlined functions where large debug information would have to be opened
    /// first.
    pub fn quick_frames(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Vec<Frame> {
        self.frames_at(space, moment, pc, true)
    }

    fn frames_at(&self, space: SpaceId, moment: Moment, pc: GuestAddr, quick: bool) -> Vec<Frame> {
        match self.spot(space, moment, pc) {
            Some(spot) => self.frames_of(&spot, quick),
            None => vec![Frame::default()],
        }
    }

    fn frames_of(&self, spot: &Spot<'_>, quick: bool) -> Vec<Frame> {
        let module = Some(Module { path: self.files[spot.file.index()].original.clone(), offset: spot.link });
        let symbol = spot.image.symbols().function_at(spot.link);
        let offset = symbol.map(|s| spot.link - s.addr);
        let mut frames: Vec<Frame> = spot
            .image
            .frames(spot.link, quick)
            .into_iter()
            .map(|f| Frame {
                function: f.function,
                offset,
                inlined: true,
                file: f.file,
                line: f.line,
                column: f.column,
                module: module.clone(),
            })
            .collect();
        if frames.is_empty() {
            frames.push(Frame { module, offset, ..Frame::default() });
        }
        if let Some(last) = frames.last_mut() {
            last.inlined = false;
            if last.function.is_none() {
                last.function = symbol.map(|s| s.name().into_owned());
            }
            if last.function.is_none() {
                last.function = spot.image.stubs().target(spot.link).map(|name| format!("{name}@plt"));
            }
        }
        frames
    }

    /// `function+0x12`, `libc.so.6+0x9d1f0` without symbols, `0x7f..` outside files. The function is the one with machine
    /// code of its own, not one inlined into it.
    pub fn name(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> String {
        match self.spot(space, moment, pc) {
            Some(spot) => match spot.image.symbols().function_at(spot.link) {
                Some(symbol) if symbol.addr == spot.link => symbol.name().into_owned(),
                Some(symbol) => format!("{}+{:#x}", symbol.name(), spot.link - symbol.addr),
                None => self.unlisted(&spot, pc),
            },
            None => pc.to_string(),
        }
    }

    /// As [`Symbols::name`] without the offset. Quick for pcs that were asked about before.
    pub fn function(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> String {
        let Some(spot) = self.spot(space, moment, pc) else { return pc.to_string() };
        let key = (spot.file, spot.link);
        let known = self.functions.lock().ok().and_then(|known| known.get(&key).map(|name| name.to_string()));
        known.unwrap_or_else(|| {
            let symbol = spot.image.symbols().function_at(spot.link);
            let name = symbol.map_or_else(|| self.unlisted(&spot, pc), |symbol| symbol.name().into_owned());
            if let Ok(mut known) = self.functions.lock() {
                known.insert(key, name.as_str().into());
            }
            name
        })
    }

    /// The name of code that no symbol table lists: by debug information, or by its place.
    fn unlisted(&self, spot: &Spot<'_>, pc: GuestAddr) -> String {
        let frames = self.frames_of(spot, true);
        frames.last().map_or_else(|| pc.to_string(), |frame| frame.label(pc))
    }

    /// `file:line` of the innermost frame at `pc`.
    pub fn line(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Option<String> {
        let frames = self.frames(space, moment, pc);
        let frame = frames.first()?;
        Some(format!("{}:{}", frame.file.as_ref()?.display(), frame.line?))
    }

    /// The code of the function at `pc`, where the symbol table says where it starts and ends.
    pub fn function_range(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Option<GuestRange> {
        let spot = self.spot(space, moment, pc)?;
        let symbol = spot.image.symbols().function_at(spot.link).filter(|s| s.size > 0)?;
        Some(GuestRange::new(pc.wrapping_sub(spot.link - symbol.addr), symbol.size))
    }

    /// The code of every function that [`Symbols::function`] calls `name`, over all spaces and moments, by address, without
    /// overlaps; with `stubs`, the linkage stubs to it, too. Empty where no symbol table knows one: other code may
    /// still have that name.
    pub fn code_named(&self, name: &str, stubs: bool) -> Vec<GuestRange> {
        let mut out: Vec<GuestRange> = Vec::new();
        let mut known: HashMap<FileId, Vec<(u64, u64)>> = HashMap::new();
        for mapping in self.layout.all() {
            let Some((image, at)) = mapping.file.and_then(|at| Some((self.image(at.file)?, at))) else {
                continue;
            };
            let Some(link) = image.address_of(at.offset, at.offset, mapping.prot) else { continue };
            let found = known.entry(at.file).or_insert_with(|| {
                let mut found: Vec<_> = image.symbols().functions_named(name).collect();
                if stubs {
                    found.extend(image.stubs().to(name));
                }
                found
            });
            for &(addr, size) in found.iter() {
                let start = mapping.range.start.wrapping_add(addr.wrapping_sub(link));
                // A symbol without a size covers code up to the next one: to the end of its mapping at most.
                let end = if size == 0 { mapping.range.end } else { start.wrapping_add(size) };
                if mapping.range.contains(start) {
                    out.push(GuestRange { start, end });
                }
            }
        }
        disjoint(out)
    }

    /// The function that the linkage stub at `pc` jumps to, where there is one.
    pub fn stub_target(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Option<String> {
        let spot = self.spot(space, moment, pc)?;
        spot.image.stubs().target(spot.link).map(str::to_owned)
    }

    /// The variable at `addr`: `ops+0x200`. Only variables that the symbol tables know, with static storage.
    pub fn variable(&self, space: SpaceId, moment: Moment, addr: GuestAddr) -> Option<String> {
        self.modules(space, moment).into_iter().find_map(|(image, _, bias)| {
            let (start, end) = image.extent()?;
            let link = addr.0.wrapping_sub(bias);
            let symbol = (start <= link && link < end).then(|| image.symbols().object_at(link)).flatten()?;
            let offset = link - symbol.addr;
            Some(if offset == 0 {
                symbol.name().into_owned()
            } else {
                format!("{}+{offset:#x}", symbol.name())
            })
        })
    }

    /// What the file mapped at `addr` holds there: the contents before anything was written. `None` for memory without a file
    /// and past the file's end.
    pub fn file_bytes(&self, space: SpaceId, moment: Moment, addr: GuestAddr, len: usize) -> Option<Vec<u8>> {
        let mapping = self.layout.at(space, moment, addr)?;
        let at = file_offset(mapping, addr)?;
        let start = usize::try_from(at.offset).ok()?;
        let end = start.checked_add(len)?;
        match self.image(at.file) {
            Some(image) => image.bytes().get(start..end).map(<[u8]>::to_vec),
            None => read_at(&self.files.get(at.file.index())?.stored, at.offset, len),
        }
    }

    /// The address that `expression` names in `space` at `moment`. Where several files have the name, the program's own
    /// comes first, then libraries in the order they were mapped. `pointer` is asked what a pointer at an address holds.
    pub fn resolve(
        &self,
        space: SpaceId,
        moment: Moment,
        expression: &Expression,
        pointer: &mut dyn FnMut(GuestAddr) -> Option<GuestAddr>,
    ) -> Result<Resolved, ResolveError> {
        match expression {
            Expression::Address(addr) => Ok(Resolved { addr: *addr, ..Resolved::default() }),
            Expression::Symbol { name, offset } => {
                let found = self.find_symbol(space, moment, name)?;
                match found.is_reference() {
                    true => self.resolve_part(space, moment, &Part::whole(name, *offset), pointer),
                    false => Ok(self.resolved(&found, *offset)),
                }
            }
            // Some symbols' names look like parts of variables.
            Expression::Part(part) => match self.find_symbol(space, moment, &part.whole) {
                Ok(found) if part.stars == 0 => Ok(self.resolved(&found, part.offset)),
                _ => self.resolve_part(space, moment, part, pointer),
            },
        }
    }

    /// Text of a source line, where the file is on this machine.
    pub fn source_line(&self, file: &Path, line: u32) -> Option<String> {
        self.sources.line(file, line)
    }

    /// When a source file on this machine was last changed, in seconds since 1970.
    pub fn source_changed(&self, file: &Path) -> Option<u64> {
        Sources::changed(file)
    }

    /// Where a symbol is, `offset` bytes after its start.
    pub(crate) fn resolved(&self, found: &Found<'_>, offset: i64) -> Resolved {
        let Found { symbol, file, bias, image } = found;
        let types = image.quick_types().filter(|_| offset == 0 && symbol.kind == Kind::Object);
        Resolved {
            value: types.and_then(|types| types.value(types.of_variable(symbol.addr)?)),
            addr: GuestAddr(symbol.addr.wrapping_add(*bias).wrapping_add_signed(offset)),
            size: symbol.size,
            name: symbol.name().into_owned(),
            module: self.files[file.index()].original.clone(),
        }
    }

    fn spot(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Option<Spot<'_>> {
        let mapping = self.layout.at(space, moment, pc)?;
        let at = file_offset(mapping, pc)?;
        let image = self.image(at.file)?;
        let link = image.address_of(at.offset, mapping.file?.offset, mapping.prot)?;
        Some(Spot { image, file: at.file, link })
    }

    /// The ELF files mapped in `space` at `moment`, in the order they came, each with its load bias.
    pub(crate) fn modules(&self, space: SpaceId, moment: Moment) -> Vec<(&Image, FileId, u64)> {
        let mut mappings: Vec<&Mapping> =
            self.layout.in_space(space, moment).filter(|m| m.file.is_some()).collect();
        mappings.sort_by_key(|m| (m.from, m.range.start));
        let mut out: Vec<(&Image, FileId, u64)> = Vec::new();
        for mapping in mappings {
            let Some(at) = mapping.file else { continue };
            if out.iter().any(|&(_, file, _)| file == at.file) {
                continue;
            }
            let Some(image) = self.image(at.file) else { continue };
            let Some(link) = image.address_of(at.offset, at.offset, mapping.prot) else { continue };
            out.push((image, at.file, mapping.range.start.0.wrapping_sub(link)));
        }
        out
    }

    fn image(&self, file: FileId) -> Option<&Image> {
        let kept = self.files.get(file.index())?;
        let image = self.images[file.index()].get_or_init(|| Image::open(&kept.stored, &kept.original));
        image.as_ref()
    }
}

impl Frame {
    /// `function+0x12`, `libc.so.6+0x9d1f0` without a function's name, `pc` itself outside files.
    pub fn label(&self, pc: GuestAddr) -> String {
        match (&self.function, self.offset, &self.module) {
            (Some(name), Some(offset), _) if offset > 0 => format!("{name}+{offset:#x}"),
            (Some(name), _, _) => name.clone(),
            (None, _, Some(module)) => {
                let file =
                    module.path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
                format!("{file}+{:#x}", module.offset)
            }
            (None, _, None) => pc.to_string(),
        }
    }
}

/// Ranges by address, those that meet made one.
fn disjoint(mut ranges: Vec<GuestRange>) -> Vec<GuestRange> {
    ranges.sort();
    let mut out: Vec<GuestRange> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

fn file_offset(mapping: &Mapping, addr: GuestAddr) -> Option<MappedFile> {
    let file = mapping.file?;
    let offset = file.offset.checked_add(addr.0 - mapping.range.start.0)?;
    Some(MappedFile { file: file.file, offset })
}

fn read_at(path: &Path, offset: u64, len: usize) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; len];
    std::fs::File::open(path).ok()?.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}
