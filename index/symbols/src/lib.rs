//! Symbols: function, file and line of a pc in a recorded space at a moment; address of a name; text of a source line.
//!
//! Works on the files the trace kept, so that it answers on any machine; separate debug files and sources are looked for
//! on the machine that asks. Knows nothing of SQLite, of granules or of processes: who has the mappings hands them in.
//!
//! - `layout`: which file lies where, in which space, when
//! - `bytes`: file contents, mapped
//! - `image`: one ELF file, its parts loaded when first asked for
//! - `dwarf`: functions, inlining and lines
//! - `symtab`: symbols by address and by name
//! - `stubs`: what a linkage stub jumps to
//! - `debug_file`: where separate debug information lies; `split`: that of single units
//! - `lookup`: `Symbols`, the questions; `naming`: which symbol a name means
//! - `expression`: `SYMBOL[+OFFSET]` and parts of variables as people type them
//! - `dwarf_types`: types in the debug information; `place`: parts of variables by them, `containers` among them
//! - `value`: what bytes say by their type
//! - `source`: text of source lines

mod bytes;
mod containers;
mod debug_file;
mod dwarf;
mod dwarf_types;
mod expression;
mod image;
mod layout;
mod lookup;
mod naming;
mod place;
mod source;
mod split;
mod stubs;
mod symtab;
mod value;

pub use expression::{Expression, ParseExpressionError, Part, Step};
pub use layout::{KeptFile, Layout, MappedFile, Mapping};
pub use lookup::{Frame, Module, ResolveError, Resolved, Symbols};
pub use value::{Bits, Value};
