//! Split debug information: the `.dwo` files that the units of a file name, or the `.dwp` beside it that holds them all. They are read
//! where they lie, with each question anew; what is not there, or belongs to another build, is left out.
#![expect(unsafe_code, reason = "keeps parsed units beside the bytes that they borrow")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gimli::{DwoId, EndianSlice, LittleEndian, SectionId};

use crate::bytes::Bytes;
use crate::dwarf::section;

type Slice = EndianSlice<'static, LittleEndian>;
type Dwarf = gimli::Dwarf<Slice>;
type Unit = gimli::Unit<Slice>;

/// Finds them for the units of one file.
pub(crate) struct Finder<'a> {
    main: &'a Dwarf,
    /// Where the recorded program had the file.
    original: &'a Path,
    package: Option<gimli::DwarfPackage<Slice>>,
    kept: Kept,
}

/// The bytes that what was found borrows: to be dropped after it.
#[derive(Default)]
pub(crate) struct Kept(Vec<Bytes>);

impl Kept {
    /// A section, empty where there is none.
    ///
    /// # Safety
    ///
    /// The slice must be dropped before this is.
    unsafe fn section(&mut self, file: &object::File<'_>, bytes: &Bytes, id: SectionId) -> Slice {
        let found = id.dwo_name().and_then(|name| section(file, bytes, name));
        let found = found.unwrap_or_else(|| Bytes::heap(Vec::new()));
        // SAFETY: the bytes stay where they are while `self` has them, which is as long as the slice is used.
        let slice = unsafe { std::slice::from_raw_parts(found.as_ptr(), found.len()) };
        self.0.push(found);
        EndianSlice::new(slice, LittleEndian)
    }
}

impl<'a> Finder<'a> {
    /// For the units of `main`, of the file that the program had at `original`.
    pub(crate) fn new(main: &'a Dwarf, original: &'a Path) -> Self {
        Self { main, original, package: None, kept: Kept::default() }
    }

    /// Opens the package, where there is one.
    pub(crate) fn open_package(&mut self) {
        let mut path = self.original.as_os_str().to_owned();
        path.push(".dwp");
        let Ok(bytes) = Bytes::map(Path::new(&path)) else { return };
        let Ok(file) = object::File::parse(&*bytes) else { return };
        // SAFETY: whoever takes what is found takes `kept`, too, and drops that last.
        let load = |id| Ok::<_, gimli::Error>(unsafe { self.kept.section(&file, &bytes, id) });
        self.package = gimli::DwarfPackage::load(load, EndianSlice::new(&[], LittleEndian)).ok();
    }

    /// What a unit leaves to a file of its own.
    pub(crate) fn find(&mut self, skeleton: &Unit) -> Option<Arc<Dwarf>> {
        let id = skeleton.dwo_id?;
        if let Some(found) = self.package.as_ref().and_then(|package| package.find_cu(id, self.main).ok()?) {
            return Some(Arc::new(found));
        }
        let name = self.main.attr_string(skeleton, skeleton.dwo_name().ok()??).ok()?;
        let name = Path::new(OsStr::from_bytes(name.slice()));
        let built_in =
            skeleton.comp_dir.map_or_else(PathBuf::new, |dir| PathBuf::from(OsStr::from_bytes(dir.slice())));
        let beside = self.original.parent().zip(name.file_name()).map(|(folder, name)| folder.join(name));
        let mut places = [Some(built_in.join(name)), beside].into_iter().flatten();
        places.find_map(|place| self.open(&place, id)).map(Arc::new)
    }

    fn open(&mut self, path: &Path, id: DwoId) -> Option<Dwarf> {
        let bytes = Bytes::map(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        // SAFETY: as above.
        let load = |id| Ok::<_, gimli::Error>(unsafe { self.kept.section(&file, &bytes, id) });
        let mut dwarf = gimli::Dwarf::load(load).ok()?;
        dwarf.make_dwo(self.main);
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            if dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(id)) {
                return Some(dwarf);
            }
        }
        None
    }

    /// The bytes of all that was found.
    pub(crate) fn kept(self) -> Kept {
        self.kept
    }
}
