//! The questions: what is at this pc, where is this name, what does this line say.

use std::path::{Path, PathBuf};

use guest::{GuestAddr, Moment, SpaceId};

use crate::expression::Expression;
use crate::layout::{KeptFile, Layout};
use crate::source::Sources;

/// Symbols of all files that a recording mapped. Files are opened when first asked about and stay loaded. Shared freely
/// between threads.
pub struct Symbols {
    files: Vec<KeptFile>,
    layout: Layout,
    sources: Sources,
}

/// A function activation at a pc: the inlined ones first, the one that has machine code of its own last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Function name, demangled; `None` where no symbol covers the pc.
    pub function: Option<String>,
    /// Distance of the pc from the start of the function's code, in bytes (of the enclosing one for an inlined function).
    pub offset: u64,
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The address asked for, offset included.
    pub addr: GuestAddr,
    /// Size of the symbol in bytes; 0 where the symbol table has none.
    pub size: u64,
    /// The symbol's name as found, demangled.
    pub name: String,
    /// The path of the module it is in.
    pub module: PathBuf,
}

/// A name that is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResolveError {
    /// No file mapped then has it.
    #[error("no symbol `{name}` in the files mapped in space {space} at {moment}{}", hint(.similar))]
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
    /// A variable of one thread: it has no one address.
    #[error("`{name}` is thread-local: it has an address per thread, give the address")]
    ThreadLocal {
        /// What was asked.
        name: String,
    },
}

fn hint(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!(" (there are {})", similar.join(", ")) }
}

impl Symbols {
    /// Over `files`, indexed by `FileId`, and `mappings`.
    pub fn new(files: Vec<KeptFile>, layout: Layout) -> Self {
        Self { files, layout, sources: Sources::default() }
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
    pub fn frames(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Vec<Frame> {
        let _ = (space, moment, pc);
        Vec::new()
    }

    /// `function+0x12`, `libc.so.6+0x9d1f0` without symbols, `0x7f..` outside files.
    pub fn name(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> String {
        let _ = (space, moment);
        pc.to_string()
    }

    /// `file:line` of the innermost frame at `pc`.
    pub fn line(&self, space: SpaceId, moment: Moment, pc: GuestAddr) -> Option<String> {
        let _ = (space, moment, pc);
        None
    }

    /// The address that `expression` names in `space` at `moment`.
    pub fn resolve(
        &self,
        space: SpaceId,
        moment: Moment,
        expression: &Expression,
    ) -> Result<Resolved, ResolveError> {
        match expression {
            Expression::Address(addr) => {
                Ok(Resolved { addr: *addr, size: 0, name: String::new(), module: PathBuf::new() })
            }
            Expression::Symbol { name, .. } => {
                Err(ResolveError::NotFound { name: name.clone(), space, moment, similar: Vec::new() })
            }
        }
    }

    /// Text of a source line, where the file is on this machine.
    pub fn source_line(&self, file: &Path, line: u32) -> Option<String> {
        self.sources.line(file, line)
    }
}
