//! Memory shared between the supervisor and all spaces that descend from one: engine pages, logs, the image of an empty
//! lookup table; and the objects that shared mappings of guests show.
#![expect(unsafe_code, reason = "mmap(2) of memory that another process writes")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use guest::GuestAddr;
use translate::{EnginePage, LOOKUP_TABLE_BYTES, PreparedCall, PreparedPiece};

use crate::HostError;
use crate::calls::CALLS_BYTES;

/// Where a slot's prepared calls begin, and its log.
const CALLS: usize = guest::PAGE_SIZE as usize;
const LOG: usize = CALLS + CALLS_BYTES as usize;

/// One file shared by a space and all its copies. Each has a slot: a page, prepared calls and a log after it.
#[derive(Debug)]
pub(crate) struct Family {
    file: File,
    slot_bytes: u64,
    slots: Cell<u64>,
    free: RefCell<Vec<u64>>,
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> HostError {
    move |source| HostError::Call { call, source }
}

fn memory_file(name: &std::ffi::CStr) -> Result<File, HostError> {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let fd = nix::sys::memfd::memfd_create(name, flags).map_err(io::Error::from);
    Ok(File::from(fd.map_err(failed("memfd_create"))?))
}

impl Family {
    /// A family whose lookup tables are filled with `miss` at first.
    pub(crate) fn new(miss: u64, log_bytes: usize) -> Result<Rc<Self>, HostError> {
        let file = memory_file(c"backstory-shared")?;
        let table: Vec<u8> =
            std::iter::repeat_n(miss.to_le_bytes(), LOOKUP_TABLE_BYTES / 8).flatten().collect();
        file.write_all_at(&table, 0).map_err(failed("write"))?;
        let slot_bytes = LOG as u64 + log_bytes as u64;
        Ok(Rc::new(Self { file, slot_bytes, slots: Cell::new(0), free: RefCell::default() }))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A member's page, prepared calls and log, mapped here. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    family: Rc<Family>,
    number: u64,
    at: NonNull<u8>,
}

impl Slot {
    /// A slot of zeroes.
    pub(crate) fn new(family: &Rc<Family>) -> Result<Self, HostError> {
        let number = family.free.borrow_mut().pop();
        let number = match number {
            Some(number) => number,
            None => {
                let number = family.slots.get();
                let end = LOOKUP_TABLE_BYTES as u64 + (number + 1) * family.slot_bytes;
                family.file.set_len(end).map_err(failed("ftruncate"))?;
                family.slots.set(number + 1);
                number
            }
        };
        let offset = LOOKUP_TABLE_BYTES as u64 + number * family.slot_bytes;
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that has these bytes.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                family.slot_bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                family.file.as_raw_fd(),
                offset as i64,
            )
        };
        let here = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
        let at = here.ok_or_else(|| failed("mmap")(io::Error::last_os_error()))?;
        Ok(Self { family: Rc::clone(family), number, at })
    }

    /// Where in the family's file the slot begins.
    pub(crate) fn offset(&self) -> u64 {
        LOOKUP_TABLE_BYTES as u64 + self.number * self.family.slot_bytes
    }

    /// The family.
    pub(crate) fn family(&self) -> &Rc<Family> {
        &self.family
    }

    /// The engine page. Its process is stopped whenever this is called.
    pub(crate) fn page(&self) -> EnginePage {
        // SAFETY: the mapping is at least a page, page aligned and lives as long as `self`; the struct is plain
        // data of which every bit pattern is valid. The only other writer is stopped.
        unsafe { self.at.cast::<EnginePage>().as_ptr().read_volatile() }
    }

    /// Changes the engine page. Its process is stopped whenever this is called.
    pub(crate) fn page_mut(&mut self) -> &mut EnginePage {
        // SAFETY: as for `page`; `&mut self` excludes other references on this side while the reference lives, and the
        // process cannot be resumed meanwhile, since the caller borrows the space that owns both.
        unsafe { self.at.cast::<EnginePage>().as_mut() }
    }

    fn call_at(&self, offset: usize) -> NonNull<PreparedCall> {
        assert!(offset.is_multiple_of(8) && offset + size_of::<PreparedCall>() <= LOG - CALLS);
        // SAFETY: in bounds of the mapping, asserted above.
        unsafe { self.at.add(CALLS + offset).cast() }
    }

    /// The prepared call at an offset. Its process is stopped whenever this is called.
    pub(crate) fn call(&self, offset: usize) -> PreparedCall {
        // SAFETY: mapped and aligned, see `call_at`; plain data; the only other writer is stopped.
        unsafe { self.call_at(offset).read_volatile() }
    }

    /// Puts a prepared call and what it wrote at an offset; the caller knows that they fit.
    pub(crate) fn put_call(&mut self, offset: usize, call: &PreparedCall, wrote: &[(GuestAddr, &[u8])]) {
        let at = self.call_at(offset);
        // SAFETY: mapped and aligned, see `call_at`; nobody else refers to it while `self` is borrowed exclusively.
        unsafe { at.write(*call) }
        let mut behind = CALLS + offset + size_of::<PreparedCall>();
        for (to, bytes) in wrote {
            behind = self.put_piece(behind, PreparedPiece { to: to.0, len: bytes.len() as u64 }, bytes);
        }
        self.put_piece(behind, PreparedPiece::default(), &[]);
    }

    /// Puts a piece of what a call wrote; where the next one goes.
    fn put_piece(&mut self, at: usize, piece: PreparedPiece, bytes: &[u8]) -> usize {
        let behind = at + size_of::<PreparedPiece>();
        assert!(at.is_multiple_of(8) && behind + bytes.len() <= LOG);
        // SAFETY: aligned and in bounds of the mapping, asserted above; nobody else refers to it while `self` is borrowed exclusively.
        unsafe {
            self.at.add(at).cast::<PreparedPiece>().write(piece);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(behind), bytes.len());
        }
        (behind + bytes.len()).next_multiple_of(8)
    }

    /// Makes the prepared call at an offset lead to one at an address.
    pub(crate) fn link_call(&mut self, offset: usize, next: u64) {
        let call = PreparedCall { next, ..self.call(offset) };
        // SAFETY: as in `put_call`.
        unsafe { self.call_at(offset).write(call) }
    }

    /// Bytes of the log.
    pub(crate) fn log_len(&self) -> usize {
        self.family.slot_bytes as usize - LOG
    }

    /// The log. Its process is stopped whenever this is called.
    pub(crate) fn log(&self) -> &[u8] {
        // SAFETY: the slot has `log_len` bytes from there on, all mapped; its process does not run while the
        // reference lives, since running needs `&mut` of the space that owns both.
        unsafe {
            let start = self.at.as_ptr().add(LOG);
            std::slice::from_raw_parts(start, self.log_len())
        }
    }

    /// Puts bytes into the log; the caller knows that they fit.
    pub(crate) fn log_write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.log_len());
        // SAFETY: in bounds, asserted above; nobody else refers to the log while `self` is borrowed exclusively.
        unsafe {
            let to = self.at.as_ptr().add(LOG + offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let size = self.family.slot_bytes;
        // SAFETY: the mapping was made by `new` with this size and nothing refers to it any more.
        unsafe {
            libc::munmap(self.at.as_ptr().cast(), size as usize);
        }
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no pointers. A failure only means that the slot is not zeroes when it is used again.
        let done =
            unsafe { libc::fallocate(self.family.file.as_raw_fd(), hole, self.offset() as i64, size as i64) };
        if done == 0 {
            self.family.free.borrow_mut().push(self.number);
        }
    }
}

/// What a shared mapping shows: memory with a number.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) file: File,
    /// The number that the caller gave it, if any.
    pub(crate) number: Option<u64>,
}

impl Object {
    /// An object of `len` zeroes.
    pub(crate) fn zero(len: u64) -> Result<Rc<Self>, HostError> {
        let file = memory_file(c"backstory-object")?;
        file.set_len(len).map_err(failed("ftruncate"))?;
        Ok(Rc::new(Self { file, number: None }))
    }

    /// An object with a file's contents.
    fn of_file(path: &Path, number: Option<u64>) -> Result<Self, HostError> {
        let from = File::open(path).map_err(failed("open"))?;
        let file = memory_file(c"backstory-object")?;
        copy_data(&from, &file).map_err(failed("copy"))?;
        Ok(Self { file, number })
    }

    /// A path by which the replaying process opens it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// An object with the same contents and number.
    pub(crate) fn copy(&self) -> Result<Rc<Self>, HostError> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Self::of_file(Path::new(&path), self.number).map(Rc::new)
    }
}

/// Makes an empty file hold what another does, its holes left out.
fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        match nix::unistd::lseek(from, at as i64, nix::unistd::Whence::SeekData) {
            Ok(data) => at = data as u64,
            Err(nix::errno::Errno::ENXIO) => break,
            // A file system that does not know of holes.
            Err(_) => {}
        }
        let want = buffer.len().min((len - at) as usize);
        let read = from.read_at(&mut buffer[..want], at)?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

/// Objects by number, as long as a mapping shows them.
#[derive(Default, Debug)]
pub(crate) struct Objects {
    by_number: RefCell<HashMap<u64, Weak<Object>>>,
}

impl Objects {
    /// The object of this number; made from the file if there is none.
    pub(crate) fn get(&self, number: u64, path: &Path) -> Result<Rc<Object>, HostError> {
        if let Some(known) = self.by_number.borrow().get(&number).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let object = Rc::new(Object::of_file(path, Some(number))?);
        self.insert(&object);
        Ok(object)
    }

    pub(crate) fn insert(&self, object: &Rc<Object>) {
        if let Some(number) = object.number {
            self.by_number.borrow_mut().insert(number, Rc::downgrade(object));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_zeroes_and_reused() {
        let family = Family::new(7, 8192).unwrap();
        let mut first = Slot::new(&family).unwrap();
        first.page_mut().counter = 5;
        first.log_write(8190, &[1, 2]);
        assert_eq!((first.page().counter, first.log()[8191]), (5, 2));
        let offset = first.offset();
        drop(first);
        let again = Slot::new(&family).unwrap();
        assert_eq!((again.offset(), again.page().counter, again.log()[8191]), (offset, 0, 0));
        assert_ne!(Slot::new(&family).unwrap().offset(), offset);
    }
}
