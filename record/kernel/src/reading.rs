//! Which part of a file a call put into memory.

use crate::call::Call;
use crate::row::Reads;
use crate::table;

/// The place in a file of what a call read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePlace {
    /// The descriptor.
    pub fd: i32,
    /// File offset of the first byte; `None` where the descriptor's own offset is that of the first byte after the last.
    pub offset: Option<u64>,
}

/// Where the bytes stood in a file that a successful call put into memory, one buffer after the other. Whether the descriptor
/// leads to a file that has offsets is not known here.
pub fn reads_file(call: &Call) -> Option<FilePlace> {
    let offset = match table::row(call.nr)?.reads? {
        Reads::AtOwn => None,
        Reads::At(position) => Some(call.args[usize::from(position)]).filter(|&offset| offset != u64::MAX),
    };
    Some(FilePlace { fd: call.args[0] as i32, offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::number;

    #[track_caller]
    fn check(name: &str, args: &[u64], expected: Option<FilePlace>) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        assert_eq!(reads_file(&Call::finished(number(name), all, 7)), expected, "{name}{args:x?}");
    }

    #[test]
    fn calls_that_read_say_where() {
        let at = |offset| Some(FilePlace { fd: 3, offset });
        check("read", &[3, 0x1000, 9, 4096], at(None));
        check("readv", &[3, 0x1000, 2, 4096], at(None));
        check("pread64", &[3, 0x1000, 9, 4096], at(Some(4096)));
        check("preadv", &[3, 0x1000, 2, 4096, 0], at(Some(4096)));
        check("preadv2", &[3, 0x1000, 2, 4096, 0], at(Some(4096)));
        check("preadv2", &[3, 0x1000, 2, u64::MAX, u64::MAX], at(None));
        check("write", &[3, 0x1000, 9], None);
        check("recvfrom", &[3, 0x1000, 9], None);
    }
}
