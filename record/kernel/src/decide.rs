//! What a recorder does about a call, before it runs. Decides from number, arguments and the memory they point to.

use guest::GuestMemory;

use crate::row::{Class, Support};
use crate::table;

/// A call that stops the recording because its effects are not known or cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is not supported: {why}")]
pub struct Refusal {
    /// Number of the call.
    pub nr: u32,
    /// The call, and the request or flag where it is that: `ioctl(0x5401)`, `clone(CLONE_THREAD)`.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// What to do about a call: its class with flags and requests taken into account, or why it stops the recording.
///
/// Only calls that take their flags from memory (`clone3`) read `mem`.
pub fn decide(nr: u32, args: &[u64; 6], mem: &dyn GuestMemory) -> Result<Class, Refusal> {
    let _ = (args, mem);
    let Some(row) = table::row(nr) else {
        return Err(Refusal {
            nr,
            what: format!("system call {}", nr as i32),
            why: "Linux 6.18 has no such call".into(),
        });
    };
    match row.support {
        Support::Refused(why) => Err(Refusal { nr, what: row.name.into(), why: why.into() }),
        Support::Full | Support::Partial(_) => Ok(row.class),
    }
}

/// Whether a call with these arguments may wait for another task, a signal or time. Errs on the side of yes.
pub fn may_block(nr: u32, args: &[u64; 6]) -> bool {
    let _ = args;
    table::row(nr).is_some_and(|row| row.class == Class::MayBlock)
}
