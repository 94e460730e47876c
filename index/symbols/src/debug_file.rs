//! Where separate debug information lies on this machine: by build id, then by `.gnu_debuglink`, as gdb looks for it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use object::Object;

/// The system's folder of debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// The debug file that belongs to `file`, which the recorded program had at `original`. Checked: the build id must be
/// the same, or the checksum of the link.
pub(crate) fn find(file: &object::File<'_>, original: &Path) -> Option<PathBuf> {
    by_build_id(file).or_else(|| by_link(file, original))
}

fn by_build_id(file: &object::File<'_>) -> Option<PathBuf> {
    let id = file.build_id().ok()??;
    let (first, rest) = id.split_first()?;
    let mut name = format!("{DEBUG_ROOT}/.build-id/{first:02x}/");
    for byte in rest {
        write!(name, "{byte:02x}").ok()?;
    }
    name.push_str(".debug");
    let path = PathBuf::from(name);
    path.exists().then_some(path)
}

fn by_link(file: &object::File<'_>, original: &Path) -> Option<PathBuf> {
    let (name, crc) = file.gnu_debuglink().ok()??;
    let name = std::str::from_utf8(name).ok()?;
    let folder = original.parent()?;
    let places = [
        folder.join(name),
        folder.join(".debug").join(name),
        Path::new(DEBUG_ROOT).join(folder.strip_prefix("/").unwrap_or(folder)).join(name),
    ];
    places
        .into_iter()
        .find(|path| path != original && std::fs::read(path).is_ok_and(|bytes| debuglink_crc(&bytes) == crc))
}

/// The CRC-32 of `.gnu_debuglink` (polynomial 0xedb88320, as in zlib).
fn debuglink_crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_zlibs() {
        assert_eq!(debuglink_crc(b"123456789"), 0xcbf4_3926);
    }
}
