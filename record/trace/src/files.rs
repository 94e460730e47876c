//! Kept files: content-addressed copies of what the recorded programs mapped, shared between traces through a store. Kept pieces lie
//! beside them.
//!
//! A kept file is `files/<blake3>` in its trace: a hard link to the store's read-only `<blake3>`, where the file system
//! allows it, else a reflink or copy. The store gets its contents by reflink or copy, never by linking a file
//! that the recorded machine may still change. `by-id/` in the store remembers which identity had which contents, and what else was
//! noted of these; `machine/` what was noted of the machine.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guest::FileId;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::dir;
use crate::header::Version;
use crate::pieces::Origin;
use crate::sparse::{self, CopyError};

/// The folder in the store for what is noted of the machine.
const MACHINE: &str = "machine";
/// A file's times are believed to tell its contents only when it was last changed this long before, in nanoseconds.
const SETTLED: i128 = 2_000_000_000;

/// A kept file, in order of [`FileId`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptFile {
    /// BLAKE3 of the contents (of 1 GiB and more, since version 1.3: of its chunks of 1 MiB that are not all zero, see `sparse`), and
    /// the name under `files/`.
    pub hash: [u8; 32],
    /// Length in bytes.
    pub size: u64,
    /// The path it had in the recording.
    pub path: String,
}

impl KeptFile {
    /// The hash as 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }

    /// What there is of it now.
    pub(crate) fn state(&self, file: &File, version: Version) -> io::Result<KeptState> {
        let (hash, size) = sparse::hash(file)?;
        if size != self.size {
            return Ok(KeptState::OtherSize(size));
        }
        // Before version 1.3 long files had one hash or the other.
        let older = version < LONG_ARE_CHUNKS && sparse::is_long(size);
        let whole = hash == self.hash || older && sparse::plain_hash(file)?.0 == self.hash;
        Ok(if whole { KeptState::Whole } else { KeptState::Changed })
    }
}

/// Since this version files of 1 GiB and more have the hash of their chunks.
const LONG_ARE_CHUNKS: Version = Version { major: 1, minor: 3 };

/// What there is of a kept file.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum KeptState {
    Whole,
    OtherSize(u64),
    Changed,
}

/// Why a file could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// It could not be read.
    #[error("cannot read {path} to keep it")]
    Read {
        /// The path in the recording.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The copy could not be written.
    #[error("cannot keep a file as {path}")]
    Write {
        /// The copy.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What tells one state of a file from another without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Identity {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: i128,
    ctime: i128,
}

impl Identity {
    fn of(meta: &fs::Metadata) -> Self {
        let nanos = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime: nanos(meta.mtime(), meta.mtime_nsec()),
            ctime: nanos(meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Whether a change after now would show in the times.
    fn settled(&self) -> bool {
        let now = clock::real().as_nanos() as i128;
        now - self.ctime.max(self.mtime) > SETTLED
    }

    fn name(&self) -> String {
        // What was noted before the hash of long files became another one is of no use.
        let kind = if sparse::is_long(self.size) { "-chunks" } else { "" };
        format!("{:x}-{:x}-{:x}-{:x}-{:x}{kind}", self.dev, self.ino, self.size, self.mtime, self.ctime)
    }
}

/// Where one trace keeps what is named by its hash: its own folder, and the store that traces share.
#[derive(Clone)]
pub(crate) struct Shelf {
    files: PathBuf,
    store: Option<PathBuf>,
    /// Whether files of others share their blocks with what lies here, as far as is known.
    shares_blocks: Arc<AtomicBool>,
}

/// Keeps files for one trace.
pub(crate) struct Keeper {
    shelf: Shelf,
    met: HashMap<(Identity, String), FileId>,
    kept: HashMap<([u8; 32], String), FileId>,
    count: u32,
}

impl Shelf {
    /// The folder `files`, and `store` if there is one and it can be used.
    pub(crate) fn new(files: PathBuf, store: Option<PathBuf>) -> Self {
        let store = store.filter(|store| dir::make(&store.join("by-id")).is_ok());
        Self { files, store, shares_blocks: Arc::new(AtomicBool::new(true)) }
    }

    /// Whether it is worth a try to give [`Shelf::put`] an origin; changes once it was tried in vain.
    pub(crate) fn shares_blocks(&self) -> &Arc<AtomicBool> {
        &self.shares_blocks
    }

    /// The trace's own folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.files
    }

    /// Keeps bytes under their hash; in blocks of the file that they come from, where they still lie there and the file system allows that. Fails
    /// with the file that could not be written.
    pub(crate) fn put(&self, bytes: &[u8], origin: Option<Origin>) -> Result<[u8; 32], (PathBuf, io::Error)> {
        let hash = blake3::hash(bytes);
        let name = hash.to_hex();
        let (to, hash) = (self.files.join(name.as_str()), *hash.as_bytes());
        if to.exists() {
            return Ok(hash);
        }
        let stored = self.store.as_ref().map(|store| store.join(name.as_str()));
        let known =
            |stored: &&PathBuf| fs::metadata(stored).is_ok_and(|meta| meta.len() == bytes.len() as u64);
        if let Some(stored) = stored.as_ref().filter(known)
            && fs::hard_link(stored, &to).is_ok()
        {
            return Ok(hash);
        }
        let written = File::options().read(true).write(true).create_new(true).mode(0o444).open(&to);
        let written = written.and_then(|file| match origin {
            Some(origin) if self.shares(&file, &origin, bytes)? => Ok(()),
            _ => file.write_all_at(bytes, 0),
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&to);
            return Err((to, error));
        }
        if let Some(stored) = stored {
            // Other traces do without.
            let _ = fs::hard_link(&to, stored);
        }
        Ok(hash)
    }

    /// Fills a new file with blocks of another. False, and the file empty, if that cannot be or these are not the bytes.
    fn shares(&self, to: &File, origin: &Origin, bytes: &[u8]) -> io::Result<bool> {
        if let Err(error) = clone_range(origin, bytes.len() as u64, to) {
            // A range that does not end with a block or the file: another may do.
            if error.raw_os_error() != Some(nix::libc::EINVAL) {
                self.shares_blocks.store(false, Ordering::Relaxed);
            }
            return Ok(false);
        }
        let mut shared = vec![0; bytes.len()];
        if to.metadata()?.len() == bytes.len() as u64
            && to.read_exact_at(&mut shared, 0).is_ok()
            && shared == bytes
        {
            return Ok(true);
        }
        to.set_len(0)?;
        Ok(false)
    }

    /// Puts the store's file of that hash into the trace.
    fn place(&self, hash: &[u8; 32]) -> Result<(), KeepError> {
        let name = blake3::Hash::from_bytes(*hash).to_hex();
        let to = self.files.join(name.as_str());
        let Some(store) = &self.store else { return Ok(()) };
        let from = store.join(name.as_str());
        match fs::hard_link(&from, &to) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(_) => {}
        }
        let write = |source| KeepError::Write { path: to.clone(), source };
        let (source, copy) = (File::open(&from).map_err(write)?, File::create_new(&to).map_err(write)?);
        copy_contents(&source, &copy).map_err(|(CopyError::Read(source) | CopyError::Write(source))| {
            let _ = fs::remove_file(&to);
            write(source)
        })
    }
}

impl Keeper {
    /// Keeps there.
    pub(crate) fn new(shelf: Shelf) -> Self {
        Self { shelf, met: HashMap::new(), kept: HashMap::new(), count: 0 }
    }

    /// Number of kept files.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Keeps the contents of `file`; the record is returned when it is a new one.
    pub(crate) fn keep(&mut self, file: &File, path: &str) -> Result<(FileId, Option<KeptFile>), KeepError> {
        let read = |source| KeepError::Read { path: path.to_owned(), source };
        let identity = Identity::of(&file.metadata().map_err(read)?);
        let key = (identity, path.to_owned());
        let settled = identity.settled();
        if settled && let Some(&id) = self.met.get(&key) {
            return Ok((id, None));
        }
        let (hash, size) = match self.known(&identity).filter(|_| settled) {
            Some(hash) => (hash, identity.size),
            None => self.store_contents(file, path, settled.then_some(&identity))?,
        };
        self.shelf.place(&hash)?;
        if let Some(&id) = self.kept.get(&(hash, path.to_owned())) {
            return Ok((id, None));
        }
        let id = self.next_id();
        self.kept.insert((hash, path.to_owned()), id);
        if settled {
            self.met.insert(key, id);
        }
        Ok((id, Some(KeptFile { hash, size, path: path.to_owned() })))
    }

    /// Keeps the contents of `file` under an id of its own, whatever was kept before: the times of a file that is stored
    /// to through a mapping tell nothing, and files that are equal now may differ later.
    pub(crate) fn keep_anew(&mut self, file: &File, path: &str) -> Result<(FileId, KeptFile), KeepError> {
        let (hash, size) = self.store_contents(file, path, None)?;
        self.shelf.place(&hash)?;
        Ok((self.next_id(), KeptFile { hash, size, path: path.to_owned() }))
    }

    /// What was noted of a file in the state that it is in, in this recording or an earlier one.
    pub(crate) fn noted(&self, file: &File, what: &str) -> Option<String> {
        let identity = Identity::of(&file.metadata().ok()?);
        let store = self.shelf.store.as_ref().filter(|_| identity.settled())?;
        short_text(&store.join("by-id").join(identity.name() + what))
    }

    /// Notes something of a file in the state that it is in, if a change would show. Only a memory: it may be lost.
    pub(crate) fn note(&self, file: &File, what: &str, text: &str) {
        let Ok(meta) = file.metadata() else { return };
        let identity = Identity::of(&meta);
        if let Some(store) = self.shelf.store.as_ref().filter(|_| identity.settled()) {
            let _ = remember(store, &(identity.name() + what), text);
        }
    }

    fn next_id(&mut self) -> FileId {
        self.count += 1;
        FileId(self.count - 1)
    }

    /// The hash that a file of this identity had, where the store still holds its contents.
    fn known(&self, identity: &Identity) -> Option<[u8; 32]> {
        let store = self.shelf.store.as_ref()?;
        let text = short_text(&store.join("by-id").join(identity.name()))?;
        let hash = blake3::Hash::from_hex(text.trim()).ok()?;
        let size = fs::metadata(store.join(hash.to_hex().as_str())).ok()?.len();
        (size == identity.size).then_some(*hash.as_bytes())
    }

    /// Copies a file's contents into the store (or the trace, where there is no store), named by their hash.
    fn store_contents(
        &self,
        file: &File,
        path: &str,
        identity: Option<&Identity>,
    ) -> Result<([u8; 32], u64), KeepError> {
        let folder = self.shelf.store.as_ref().unwrap_or(&self.shelf.files);
        let temporary = folder.join(format!(".new-{}", std::process::id()));
        let copied = copy_named(file, path, folder, &temporary);
        if copied.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        let (hash, size) = copied?;
        if let (Some(identity), Some(store)) = (identity, &self.shelf.store) {
            // Only a memory: without it the file is read again next time.
            let _ = remember(store, &identity.name(), &blake3::Hash::from_bytes(hash).to_hex());
        }
        Ok((hash, size))
    }
}

/// Copies a file to `temporary`, and names the copy by its hash.
fn copy_named(
    file: &File,
    path: &str,
    folder: &Path,
    temporary: &Path,
) -> Result<([u8; 32], u64), KeepError> {
    let write = |source| KeepError::Write { path: temporary.to_owned(), source };
    let _ = fs::remove_file(temporary);
    let copy = File::options().read(true).write(true).create_new(true).open(temporary).map_err(write)?;
    copy_contents(file, &copy).map_err(|failed| match failed {
        CopyError::Read(source) => KeepError::Read { path: path.to_owned(), source },
        CopyError::Write(source) => write(source),
    })?;
    let (hash, size) = sparse::hash(&copy).map_err(write)?;
    copy.set_permissions(Permissions::from_mode(0o444)).map_err(write)?;
    let place = folder.join(blake3::Hash::from_bytes(hash).to_hex().as_str());
    fs::rename(temporary, &place).map_err(write)?;
    Ok((hash, size))
}

/// The bytes of a short file, in few calls.
fn short_file(path: &Path) -> io::Result<Vec<u8>> {
    const USUAL: usize = 256;
    let mut file = File::open(path)?;
    let mut bytes = vec![0; USUAL];
    let read = file.read(&mut bytes)?;
    bytes.truncate(read);
    if read == USUAL {
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

fn short_text(path: &Path) -> Option<String> {
    String::from_utf8(short_file(path).ok()?).ok()
}

/// Has the hash look at the processor now, as it does when it is first used: for those that have `cpuid` trapped afterwards.
pub fn look_at_the_processor() {
    let _ = blake3::hash(&[0; 4096]);
}

/// What was noted of this machine under a name in the store of shared files, by this recording or an earlier one.
pub fn noted_of_machine(what: &str) -> Option<Vec<u8>> {
    short_file(&dir::store_dir()?.join(MACHINE).join(what)).ok()
}

/// Notes it there. Only a memory: it may be lost.
pub fn note_of_machine(what: &str, bytes: &[u8]) {
    if let Some(folder) = dir::store_dir().map(|store| store.join(MACHINE)) {
        let _ = fs::create_dir_all(&folder).and_then(|()| replace(&folder, what, bytes));
    }
}

fn remember(store: &Path, name: &str, text: &str) -> io::Result<()> {
    replace(&store.join("by-id"), name, text.as_bytes())
}

/// Writes a file anew, so that who reads it meanwhile has one or the other.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = folder.join(format!(".new-{}", std::process::id()));
    fs::write(&temporary, bytes)?;
    fs::rename(temporary, folder.join(name))
}

/// Makes the empty file `to` share the blocks of a part of another.
fn clone_range(from: &Origin, len: u64, to: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let range = nix::libc::file_clone_range {
        src_fd: from.file.as_raw_fd().into(),
        src_offset: from.offset,
        src_length: len,
        dest_offset: 0,
    };
    #[expect(unsafe_code, reason = "FICLONERANGE has no safe wrapper")]
    // SAFETY: FICLONERANGE reads a `file_clone_range`, which outlives the call, and touches no other memory; both files are open for the call.
    let cloned = unsafe { nix::libc::ioctl(to.as_raw_fd(), nix::libc::FICLONERANGE, &raw const range) };
    if cloned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `to` hold what `from` holds: by reflink, else by copying.
fn copy_contents(from: &File, to: &File) -> Result<(), CopyError> {
    use std::os::fd::AsRawFd;
    #[expect(unsafe_code, reason = "FICLONE has no safe wrapper")]
    // SAFETY: FICLONE takes a descriptor by value and touches no memory of ours; both are open for the call.
    let cloned = unsafe { nix::libc::ioctl(to.as_raw_fd(), nix::libc::FICLONE, from.as_raw_fd()) };
    if cloned == 0 {
        return Ok(());
    }
    sparse::copy(from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_whatever_the_file_they_come_from_holds_by_now() {
        let scratch = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(scratch.path().join("files"), None);
        fs::create_dir(shelf.folder()).unwrap();
        let block = |seed: u8| (0..8192).map(|i| (i % 251) as u8 ^ seed).collect::<Vec<u8>>();
        let path = scratch.path().join("origin");
        let blocks: Vec<u8> = (0..4).flat_map(block).chain([9; 100]).collect();
        fs::write(&path, &blocks).unwrap();
        let check = |offset, bytes: &[u8]| {
            let origin = Origin { file: File::open(&path).unwrap(), offset };
            let hash = shelf.put(bytes, Some(origin)).unwrap();
            assert_eq!(hash, *blake3::hash(bytes).as_bytes());
            let kept = fs::read(shelf.folder().join(blake3::hash(bytes).to_hex().as_str())).unwrap();
            assert!(kept == bytes, "{offset}: other bytes were kept");
        };
        // As they lie there; to the end; not along blocks; other bytes; more than there is.
        check(8192, &block(1));
        check(24576, &blocks[24576..]);
        check(5, &blocks[5..9000]);
        check(8192, &block(2));
        check(0, &block(7));
        check(24576, &[&blocks[24576..], &block(8)].concat());
    }

    #[test]
    fn equal_contents_are_kept_once_and_changes_are_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let files = scratch.path().join("files");
        fs::create_dir(&files).unwrap();
        let mut keeper = Keeper::new(Shelf::new(files.clone(), Some(scratch.path().join("store"))));
        let path = scratch.path().join("a");
        fs::write(&path, "one").unwrap();
        let (a, fresh) = keeper.keep(&File::open(&path).unwrap(), "/a").unwrap();
        assert_eq!(fresh.as_ref().unwrap().size, 3);
        assert_eq!(fs::read(files.join(fresh.unwrap().hex())).unwrap(), b"one");
        assert_eq!(keeper.keep(&File::open(&path).unwrap(), "/a").unwrap(), (a, None));
        // Same size, within the granularity of times: the contents decide.
        fs::write(&path, "two").unwrap();
        let (b, fresh) = keeper.keep(&File::open(&path).unwrap(), "/a").unwrap();
        assert_ne!(a, b);
        assert_eq!(fs::read(files.join(fresh.unwrap().hex())).unwrap(), b"two");
    }

    #[test]
    fn long_files_of_older_recordings_have_one_hash_or_the_other() {
        const LEN: u64 = 1 << 30;
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        let mut plain = blake3::Hasher::new();
        let zeroes = vec![0; 1 << 20];
        (0..LEN >> 20).for_each(|_| {
            plain.update(&zeroes);
        });
        let (plain, chunks) = (*plain.finalize().as_bytes(), sparse::hash(&file).unwrap().0);
        let version = |minor| Version { major: 1, minor };
        for (hash, minor, expected) in [
            (plain, 0, KeptState::Whole),
            (plain, 3, KeptState::Changed),
            (chunks, 2, KeptState::Whole),
            (chunks, 3, KeptState::Whole),
        ] {
            let kept = KeptFile { hash, size: LEN, path: String::new() };
            assert_eq!(kept.state(&file, version(minor)).unwrap(), expected, "version 1.{minor}");
        }
    }

    #[test]
    fn settled_files_are_known_to_the_next_recording() {
        let scratch = tempfile::tempdir().unwrap();
        let store = Some(scratch.path().join("store"));
        let exe = File::open("/proc/self/exe").unwrap();
        let mut ids = Vec::new();
        for name in ["1", "2"] {
            let files = scratch.path().join(name);
            fs::create_dir(&files).unwrap();
            let mut keeper = Keeper::new(Shelf::new(files, store.clone()));
            ids.push(keeper.keep(&exe, "/exe").unwrap().1.unwrap());
        }
        assert_eq!(ids[0], ids[1]);
    }
}
