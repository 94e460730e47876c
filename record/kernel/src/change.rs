//! Files whose contents calls change: memory that maps such a file changes with it, with no store and no result of the call.

use guest::{GuestAddr, GuestMemory};

use crate::call::Call;
use crate::row::{Kind, Opens};
use crate::table;

const ACCESS_MODE: u64 = 3;
const TRUNCATE: u64 = 0o1000;

/// How a call names a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileName {
    /// By a descriptor.
    Descriptor(i32),
    /// By a path in guest memory, relative to the working directory.
    Path(GuestAddr),
}

/// The file whose contents or length a successful call changed.
pub fn changes_file(call: &Call, mem: &dyn GuestMemory) -> Option<FileName> {
    let row = table::row(call.nr)?;
    if row.opens.is_some() {
        let truncated = opened_how(call, mem)? & TRUNCATE != 0;
        return truncated.then_some(FileName::Descriptor(call.result as i32));
    }
    let request = row.requests.and_then(|requests| requests.find(&call.args));
    let position = usize::from(request.map_or(row.changes_file, |request| request.changes_file)?);
    let value = call.args[position];
    Some(match row.args.get(position).map(|arg| arg.kind) {
        Some(Kind::Path) => FileName::Path(GuestAddr(value)),
        _ => FileName::Descriptor(value as i32),
    })
}

/// The descriptor that a successful call made, where the file behind it may be changed through it.
pub fn opens_to_write(call: &Call, mem: &dyn GuestMemory) -> Option<i32> {
    const READ_ONLY: u64 = 0;
    let how = opened_how(call, mem)?;
    (how & ACCESS_MODE != READ_ONLY).then_some(call.result as i32)
}

/// The `O_*` flags with which a call opened a file.
fn opened_how(call: &Call, mem: &dyn GuestMemory) -> Option<u64> {
    match table::row(call.nr)?.opens? {
        Opens::Flags(at) => Some(call.args[usize::from(at)]),
        Opens::How(at) => mem.read_u64(GuestAddr(call.args[usize::from(at)])).ok(),
        Opens::Always(flags) => Some(flags),
    }
}

#[cfg(test)]
mod tests {
    use guest::Unmapped;

    use super::*;
    use crate::table::number;

    struct Word(u64);

    impl GuestMemory for Word {
        fn read(&self, _: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
            into.copy_from_slice(&self.0.to_le_bytes()[..into.len()]);
            Ok(())
        }
    }

    #[track_caller]
    fn check(name: &str, args: &[u64], changed: Option<FileName>, to_write: Option<i32>) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let call = Call::finished(number(name), all, 7);
        let memory = Word(0o1001);
        assert_eq!(changes_file(&call, &memory), changed, "{name}{args:x?}");
        assert_eq!(opens_to_write(&call, &memory), to_write, "{name}{args:x?}");
    }

    #[test]
    fn changes_and_openings_name_their_file() {
        let descriptor = |fd| Some(FileName::Descriptor(fd));
        check("write", &[3], descriptor(3), None);
        check("splice", &[1, 0, 4], descriptor(4), None);
        check("read", &[3], None, None);
        check("ioctl", &[3, 0x4004_9409, 4], descriptor(3), None);
        check("ioctl", &[3, 0x5401, 4], None, None);
        check("truncate", &[0x1000, 4], Some(FileName::Path(GuestAddr(0x1000))), None);
        check("openat", &[0, 0x1000, 0], None, None);
        check("openat", &[0, 0x1000, 2], None, Some(7));
        check("open", &[0x1000, 0o1000], descriptor(7), None);
        check("openat2", &[0, 0x1000, 0x2000, 24], descriptor(7), Some(7));
        check("creat", &[0x1000], descriptor(7), Some(7));
        check("memfd_create", &[0x1000], None, Some(7));
    }
}
