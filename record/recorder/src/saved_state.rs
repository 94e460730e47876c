//! Images of registers that `xsavec` left in memory. Whether a component whose registers hold their initial values counts as in use,
//! and is written, is up to the processor (Intel SDM, volume 1, 13.6): on AMD's of family 25 it was seen to change when the kernel
//! switches tasks. No replay can know it, so where a program was stopped anywhere, what such images hold is in the recording.

use guest::{COMPACTED, GuestAddr, GuestRange, IMAGE_HEADER, PAGE_SIZE, XState, image_len};

/// Images are aligned.
const ALIGN: usize = 64;
/// Where the kernel notes in an image which components the system has (`struct _fpx_sw_bytes`).
const FEATURES: std::ops::Range<usize> = 464..472;

/// The components that the system has, as the kernel notes them in a task's extended state.
pub(crate) fn features(state: &XState) -> u64 {
    state.0.get(FEATURES).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Where the bytes of a page look like the header of an image, with the whole image.
pub(crate) fn images(page: GuestAddr, bytes: &[u8], features: u64) -> Vec<GuestRange> {
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
    let mut found = Vec::new();
    for at in (0..bytes.len()).step_by(ALIGN) {
        let (Some(used), Some(layout)) = (word(at), word(at + 8)) else { break };
        let components = layout & !COMPACTED;
        let fits = layout & COMPACTED != 0 && components & !features == 0 && used & !components == 0;
        let start = (page.0 + at as u64).wrapping_sub(IMAGE_HEADER as u64);
        if fits && components != 0 && start >= PAGE_SIZE {
            found.push(GuestRange::new(GuestAddr(start), image_len(layout) as u64));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_header() {
        let mut bytes = vec![0; 4096];
        bytes[640..648].copy_from_slice(&0xa0_u64.to_le_bytes());
        bytes[648..656].copy_from_slice(&(COMPACTED | 0xe6).to_le_bytes());
        let at = GuestAddr(0x7fff_0000);
        let len = 512 + 64 + 256 + 64 + 512 + 1024;
        assert_eq!(images(at, &bytes, 0xe7), [GuestRange::new(GuestAddr(at.0 + 128), len)]);
        assert_eq!(images(at, &bytes, 0x67), [], "a component that there is not");
        bytes[640] = 0xa1;
        assert_eq!(images(at, &bytes, 0xe7), [], "used, but not in it");
        bytes[640] = 0xa0;
        bytes[655] = 0;
        assert_eq!(images(at, &bytes, 0xe7), [], "not compacted");
    }
}
