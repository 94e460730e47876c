//! The bytes a recorded program printed, read from its replayed memory.

use engine::Space;
use guest::{GuestAddr, GuestMemory, Unmapped};
use trace::SyscallInfo;

const WRITE: u32 = 1;
const PWRITE64: u32 = 18;
const WRITEV: u32 = 20;
const SENDTO: u32 = 44;
const PWRITEV: u32 = 296;
const PWRITEV2: u32 = 328;

/// What a syscall with an `output` printed: `result` bytes of the buffers at `args[1]`.
/// `None` for calls whose bytes never were in the program's memory (sendfile, splice).
pub(crate) fn bytes(space: &Space, info: &SyscallInfo) -> Result<Option<Vec<u8>>, Unmapped> {
    let len = info.result.and_then(|result| usize::try_from(result).ok()).unwrap_or(0);
    match info.nr {
        WRITE | PWRITE64 | SENDTO => space.read_vec(GuestAddr(info.args[1]), len).map(Some),
        WRITEV | PWRITEV | PWRITEV2 => gather(space, GuestAddr(info.args[1]), info.args[2], len).map(Some),
        _ => Ok(None),
    }
}

/// The first `len` bytes of `count` buffers described by an iovec array.
fn gather(space: &Space, iov: GuestAddr, count: u64, len: usize) -> Result<Vec<u8>, Unmapped> {
    let mut out = Vec::with_capacity(len);
    for i in 0..count.min(1024) {
        if out.len() == len {
            break;
        }
        let at = iov.wrapping_add(16 * i);
        let (base, size) = (space.read_u64(at)?, space.read_u64(at.wrapping_add(8))?);
        let take = (len - out.len()).min(usize::try_from(size).unwrap_or(usize::MAX));
        out.extend(space.read_vec(GuestAddr(base), take)?);
    }
    Ok(out)
}
