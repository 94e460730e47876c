//! Files with holes: copied and hashed by what lies between the holes, so that a file of a terabyte that holds a page costs a page.
//! Knows nothing of traces.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Files of this length and longer are hashed by their chunks that are not all zero.
const LONG: u64 = 1 << 30;

/// Length of a chunk.
const CHUNK: u64 = 1 << 20;

/// What keys the hash of a long file.
const LONG_CONTEXT: &str =
    "Backstory kept file: chunks that are not all zero, each after its number, and the length";

/// Which side of a copy failed.
pub(crate) enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies what is not a hole; both files are then of one length.
pub(crate) fn copy(from: &File, to: &File) -> Result<(), CopyError> {
    let len = for_each_chunk(from, |at, bytes| to.write_all_at(bytes, at).map_err(CopyError::Write))?;
    to.set_len(len).map_err(CopyError::Write)
}

/// Whether a file of so many bytes is hashed by its chunks.
pub(crate) fn is_long(len: u64) -> bool {
    len >= LONG
}

/// BLAKE3 and length of a file. Of a long one it is that of its chunks that are not all zero: where its holes are does not matter.
pub(crate) fn hash(file: &File) -> io::Result<([u8; 32], u64)> {
    hash_as(file, is_long(file.metadata()?.len()))
}

/// BLAKE3 and length of a file, of however many bytes, as recordings before version 1.2 have it, and some of those before 1.3.
pub(crate) fn plain_hash(file: &File) -> io::Result<([u8; 32], u64)> {
    hash_as(file, false)
}

fn hash_as(file: &File, long: bool) -> io::Result<([u8; 32], u64)> {
    let mut hasher = if long { blake3::Hasher::new_derive_key(LONG_CONTEXT) } else { blake3::Hasher::new() };
    let zeroes = vec![0; CHUNK as usize];
    let mut hashed = 0;
    let len = for_each_chunk(file, |at, bytes| {
        if !long {
            add_zeroes(&mut hasher, &zeroes, at - hashed);
            hasher.update(bytes);
            hashed = at + bytes.len() as u64;
        } else if bytes != &zeroes[..bytes.len()] {
            hasher.update(&(at / CHUNK).to_le_bytes());
            hasher.update(bytes);
        }
        Ok(())
    })
    .map_err(|(CopyError::Read(error) | CopyError::Write(error))| error)?;
    if long {
        hasher.update(&len.to_le_bytes());
    } else {
        add_zeroes(&mut hasher, &zeroes, len - hashed);
    }
    Ok((*hasher.finalize().as_bytes(), len))
}

fn add_zeroes(hasher: &mut blake3::Hasher, zeroes: &[u8], mut len: u64) {
    while len > 0 {
        let part = len.min(zeroes.len() as u64);
        hasher.update(&zeroes[..part as usize]);
        len -= part;
    }
}

/// Calls `each` with offset and bytes of every chunk that is not a hole; the file's length.
fn for_each_chunk(
    file: &File,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), CopyError>,
) -> Result<u64, CopyError> {
    // An open file of its own: the offset of this one may be shared with the recorded program.
    let seeking = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
    let mut buffer = vec![0; CHUNK as usize];
    let mut at = 0;
    while let Some(data) = next_data(seeking.as_ref(), at).map_err(CopyError::Read)? {
        at = data / CHUNK * CHUNK;
        let read = read_full(file, &mut buffer, at).map_err(CopyError::Read)?;
        if read > 0 {
            each(at, &buffer[..read])?;
            at += read as u64;
        }
        if (read as u64) < CHUNK {
            return Ok(at);
        }
    }
    file.metadata().map(|meta| meta.len()).map_err(CopyError::Read)
}

/// The next offset at which there is no hole; the one asked for where that cannot be told.
fn next_data(file: Option<&File>, at: u64) -> io::Result<Option<u64>> {
    let Some(file) = file else { return Ok(Some(at)) };
    match lseek(file, at as i64, Whence::SeekData) {
        Ok(data) => Ok(Some(data as u64)),
        Err(Errno::ENXIO) => Ok(None),
        Err(Errno::EINVAL | Errno::ESPIPE) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `len` bytes with these at their offsets, holes between.
    fn file(len: u64, pieces: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        for (at, bytes) in pieces {
            file.write_all_at(bytes, *at).unwrap();
        }
        file
    }

    #[test]
    fn short_files_have_the_plain_hash() {
        for (len, pieces) in [
            (0, &[] as &[(u64, &[u8])]),
            (5, &[(0, b"hello")]),
            (3 * CHUNK + 7, &[(CHUNK + 3, b"x"), (3 * CHUNK, b"yz")]),
            (2 * CHUNK, &[]),
        ] {
            let file = file(len, pieces);
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(hash(&file).unwrap(), (*blake3::hash(&bytes).as_bytes(), len));
        }
    }

    #[test]
    fn long_files_cost_what_they_hold() {
        const TERABYTE: u64 = 1 << 40;
        let there: &[(u64, &[u8])] = &[(12345, b"one"), (TERABYTE - 3, b"end")];
        let (from, to) = (file(TERABYTE, there), file(0, &[]));
        assert!(copy(&from, &to).is_ok());
        let (known, len) = hash(&from).unwrap();
        assert_eq!((known, len), hash(&to).unwrap());
        assert_eq!(len, TERABYTE);
        let mut end = [0; 3];
        to.read_exact_at(&mut end, TERABYTE - 3).unwrap();
        assert_eq!(&end, b"end");
        // Zeroes are as good as a hole; all else counts, and so does its place.
        from.write_all_at(&[0; 4096], LONG).unwrap();
        assert_eq!(hash(&from).unwrap().0, known);
        from.write_all_at(b"x", LONG).unwrap();
        assert_ne!(hash(&from).unwrap().0, known);
        assert_ne!(hash(&file(TERABYTE + 1, there)).unwrap().0, known);
        assert_ne!(
            hash(&file(TERABYTE, &[(12345 + CHUNK, b"one"), (TERABYTE - 3, b"end")])).unwrap().0,
            known
        );
    }
}
