//! The pages of an index under a checksum: a layer between SQLite and the system's files. Every page of the database file
//! ends with the CRC-32 of its number and its contents, set when it is written and checked when it is read, so that damage is
//! an error wherever SQLite meets it and never a wrong answer. Knows nothing of tables.
//!
//! Only the database file itself is looked at: journals and write-ahead logs have checksums of SQLite's own.
#![expect(unsafe_code, reason = "SQLite's file layer is a table of C functions")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::OnceLock;

use rusqlite::Connection;
use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

/// The name under which connections ask for it.
pub(crate) const NAME: &CStr = c"backstory-checked";

/// Bytes in a page.
pub(crate) const PAGE: usize = 8192;

/// Bytes at the end of a page that SQLite leaves alone: the checksum.
pub(crate) const RESERVED: c_int = 4;

const CONTENTS: usize = PAGE - RESERVED as usize;

/// Whether SQLite failed because the file does not hold what was written to it.
pub fn is_damage(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(error, _) = error else { return false };
    error.extended_code == ffi::SQLITE_IOERR_DATA
        || matches!(error.code, rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase)
}

/// Makes the layer known to SQLite; afterwards connections can ask for [`NAME`].
pub(crate) fn register() -> rusqlite::Result<()> {
    static DONE: OnceLock<c_int> = OnceLock::new();
    // SAFETY: SQLite's default layer is never unregistered here, and lives until the process ends. A copy of it is a layer in
    // its own right: its functions look at fields that the copy has alike, and `open` hands over the original. The copy
    // is leaked, as `sqlite3_vfs_register` demands that it stays.
    let code = *DONE.get_or_init(|| unsafe {
        let system = ffi::sqlite3_vfs_find(std::ptr::null());
        let Some(vfs) = system.as_ref() else { return ffi::SQLITE_ERROR };
        let vfs = Box::new(sqlite3_vfs {
            szOsFile: size_of::<Checked>() as c_int + vfs.szOsFile,
            pNext: std::ptr::null_mut(),
            zName: NAME.as_ptr(),
            pAppData: vfs.pAppData,
            xOpen: Some(open),
            ..*vfs
        });
        ffi::sqlite3_vfs_register(Box::leak(vfs), 0)
    });
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// Has SQLite leave room for the checksums in a database that is about to be created.
pub(crate) fn reserve(db: &Connection) -> rusqlite::Result<()> {
    let mut bytes = RESERVED;
    // SAFETY: the handle is open for as long as `db` is borrowed; this control reads and writes the one integer given.
    let code = unsafe {
        let bytes = (&raw mut bytes).cast();
        ffi::sqlite3_file_control(db.handle(), c"main".as_ptr(), ffi::SQLITE_FCNTL_RESERVE_BYTES, bytes)
    };
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// The checksum of the page that begins at `offset` of the file.
fn checksum(page: &[u8; PAGE], offset: sqlite3_int64) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(&page[..CONTENTS]);
    hasher.finalize().to_le_bytes()
}

fn is_whole(page: &[u8; PAGE], offset: sqlite3_int64) -> bool {
    page[CONTENTS..] == checksum(page, offset)
}

/// An open database file. SQLite allocates it together with the room behind it, where the system's file lies.
#[repr(C, align(8))]
struct Checked {
    /// SQLite's part; must come first.
    base: sqlite3_file,
}

const _: () = assert!(offset_of!(Checked, base) == 0);

/// The system's file behind one of ours.
///
/// # Safety
///
/// `file` must be one that [`open`] made.
unsafe fn system(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` makes SQLite allocate the system's file behind `Checked`.
    unsafe { file.cast::<Checked>().add(1).cast() }
}

/// `xOpen`: the database file becomes ours, every other file stays the system's.
unsafe extern "C" fn open(
    _vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite hands over room for `szOsFile` bytes, enough for the system's file in either place; the system's
    // `xOpen` gets the layer it belongs to and sets `pMethods` of the file, to null where nothing is to be closed.
    unsafe {
        let layer = ffi::sqlite3_vfs_find(std::ptr::null());
        let Some(system_open) = layer.as_ref().and_then(|layer| layer.xOpen) else {
            return ffi::SQLITE_CANTOPEN;
        };
        if flags & ffi::SQLITE_OPEN_MAIN_DB == 0 {
            return system_open(layer, name, file, flags, out_flags);
        }
        let inner = system(file);
        (*inner).pMethods = std::ptr::null();
        let code = system_open(layer, name, inner, flags, out_flags);
        (*file).pMethods = if (*inner).pMethods.is_null() { std::ptr::null() } else { &METHODS };
        code
    }
}

/// `xRead`: reads whole pages and checks them.
unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    into: *mut c_void,
    amount: c_int,
    offset: sqlite3_int64,
) -> c_int {
    let (page, length) = (PAGE as sqlite3_int64, sqlite3_int64::from(amount));
    // SAFETY: SQLite hands over room for `amount` bytes.
    unsafe {
        if offset % page == 0 && length == page {
            let into = &mut *into.cast::<[u8; PAGE]>();
            return read_page(file, into, offset);
        }
        let mut buffer = [0; PAGE];
        let mut at = offset - offset % page;
        while at < offset + length {
            match read_page(file, &mut buffer, at) {
                ffi::SQLITE_OK => at += page,
                ffi::SQLITE_IOERR_SHORT_READ => break,
                code => return code,
            }
        }
        system_read(file, into, amount, offset)
    }
}

/// Reads and checks the page at `offset`. One that lies past the end of the file is a short read, as SQLite knows it.
///
/// # Safety
///
/// `file` must be one that [`open`] made.
unsafe fn read_page(file: *mut sqlite3_file, into: &mut [u8; PAGE], offset: sqlite3_int64) -> c_int {
    // SAFETY: as the caller promises; the buffer has as many bytes as are read.
    let code = unsafe { system_read(file, into.as_mut_ptr().cast(), PAGE as c_int, offset) };
    match code {
        // What there is not is read as zeroes.
        ffi::SQLITE_IOERR_SHORT_READ if into.iter().all(|&byte| byte == 0) => code,
        ffi::SQLITE_OK | ffi::SQLITE_IOERR_SHORT_READ if is_whole(into, offset) => code,
        ffi::SQLITE_OK | ffi::SQLITE_IOERR_SHORT_READ => ffi::SQLITE_IOERR_DATA,
        code => code,
    }
}

unsafe fn system_read(
    file: *mut sqlite3_file,
    into: *mut c_void,
    amount: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: the system's file was opened before ours got its methods.
    unsafe {
        let file = system(file);
        match (*file).pMethods.as_ref().and_then(|methods| methods.xRead) {
            Some(read) => read(file, into, amount, offset),
            None => ffi::SQLITE_IOERR_READ,
        }
    }
}

/// `xWrite`: a page gets its checksum on the way.
unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    from: *const c_void,
    amount: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite hands over `amount` bytes; the system's file was opened before ours got its methods.
    unsafe {
        let inner = system(file);
        let Some(write) = (*inner).pMethods.as_ref().and_then(|methods| methods.xWrite) else {
            return ffi::SQLITE_IOERR_WRITE;
        };
        if amount as usize != PAGE || offset % PAGE as sqlite3_int64 != 0 {
            return write(inner, from, amount, offset);
        }
        let mut page = *from.cast::<[u8; PAGE]>();
        let sum = checksum(&page, offset);
        page[CONTENTS..].copy_from_slice(&sum);
        write(inner, page.as_ptr().cast(), amount, offset)
    }
}

/// `xDeviceCharacteristics`: no parts of pages are to be read.
unsafe extern "C" fn characteristics(file: *mut sqlite3_file) -> c_int {
    // SAFETY: as for `sector_size`.
    unsafe { system_characteristics(file) & !ffi::SQLITE_IOCAP_SUBPAGE_READ }
}

/// `xShmBarrier`
unsafe extern "C" fn barrier(file: *mut sqlite3_file) {
    // SAFETY: the system's file was opened before ours got its methods.
    unsafe {
        let file = system(file);
        if let Some(barrier) = (*file).pMethods.as_ref().and_then(|methods| methods.xShmBarrier) {
            barrier(file);
        }
    }
}

/// Functions that do what the system's file does.
macro_rules! forwarded {
    ($($name:ident = $method:ident($($arg:ident: $type:ty),*);)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $type),*) -> c_int {
            // SAFETY: SQLite calls methods of files that `open` made, and the system's file was opened before ours got
            // its methods. The arguments are those that the system's method takes.
            unsafe {
                let file = system(file);
                match (*file).pMethods.as_ref().and_then(|methods| methods.$method) {
                    Some(method) => method(file, $($arg),*),
                    None => ffi::SQLITE_IOERR,
                }
            }
        }
    )*};
}

forwarded! {
    close = xClose();
    truncate = xTruncate(size: sqlite3_int64);
    sync = xSync(flags: c_int);
    size = xFileSize(size: *mut sqlite3_int64);
    lock = xLock(level: c_int);
    unlock = xUnlock(level: c_int);
    check_lock = xCheckReservedLock(held: *mut c_int);
    control = xFileControl(operation: c_int, argument: *mut c_void);
    sector_size = xSectorSize();
    system_characteristics = xDeviceCharacteristics();
    map = xShmMap(region: c_int, size: c_int, extend: c_int, at: *mut *mut c_void);
    lock_map = xShmLock(offset: c_int, count: c_int, flags: c_int);
    unmap = xShmUnmap(delete: c_int);
}

/// Version 2: without `xFetch`, memory-mapped pages, which nothing would check.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(map),
    xShmLock: Some(lock_map),
    xShmBarrier: Some(barrier),
    xShmUnmap: Some(unmap),
    xFetch: None,
    xUnfetch: None,
};

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use rusqlite::OpenFlags;

    use super::*;

    fn open(path: &Path) -> rusqlite::Result<Connection> {
        register()?;
        Connection::open_with_flags_and_vfs(path, OpenFlags::default(), NAME)
    }

    fn rows(path: &Path) -> rusqlite::Result<Vec<(i64, String)>> {
        let db = open(path)?;
        let mut statement = db.prepare("SELECT a, b FROM t ORDER BY a")?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    #[test]
    fn every_byte_of_every_page_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.db");
        let db = open(&path).unwrap();
        reserve(&db).unwrap();
        db.execute_batch(&format!(
            "PRAGMA page_size = {PAGE}; PRAGMA journal_mode = WAL; CREATE TABLE t(a, b);"
        ))
        .unwrap();
        db.execute("INSERT INTO t VALUES(1, 'one'), (2, hex(zeroblob(5000)))", []).unwrap();
        db.execute_batch("PRAGMA journal_mode = DELETE; INSERT INTO t VALUES(3, 'three')").unwrap();
        drop(db);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 3 * PAGE);
        let right = rows(&path).unwrap();
        assert_eq!(right.len(), 3);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        for at in 0..bytes.len() {
            file.write_all_at(&[bytes[at] ^ 1 << (at % 8)], at as u64).unwrap();
            assert!(is_damage(&rows(&path).unwrap_err()), "byte {at}");
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
        // A page that lies where another belongs.
        file.write_all_at(&bytes[PAGE..2 * PAGE], 2 * PAGE as u64).unwrap();
        assert!(is_damage(&rows(&path).unwrap_err()));
        file.write_all_at(&bytes[2 * PAGE..], 2 * PAGE as u64).unwrap();
        assert_eq!(rows(&path).unwrap(), right);
    }
}
