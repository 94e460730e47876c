//! The bytes a recorded program printed, read from its replayed memory. Which those are is the kernel crate's to say.

use engine::Space;
use guest::GuestMemory;
use kernel::{Call, EffectError};
use trace::SyscallInfo;

/// What a finished syscall took out of memory to print. `None` for calls that print nothing.
pub(crate) fn bytes(space: &Space, info: &SyscallInfo) -> Result<Option<Vec<u8>>, EffectError> {
    let call = Call::finished(info.nr, info.args, info.result.unwrap_or(0));
    let Some(output) = kernel::output(&call, space)? else { return Ok(None) };
    let mut bytes = Vec::new();
    for range in output.ranges {
        let read = space.read_vec(range.start, range.len() as usize);
        bytes.extend(read.map_err(|source| EffectError::Memory { name: "write", source })?);
    }
    Ok(Some(bytes))
}
