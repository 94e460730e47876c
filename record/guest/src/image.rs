//! Compacted register images, as `xsavec` leaves them in memory (Intel SDM, volume 1, 13.4): where what lies. Only layout.

use std::ops::Range;

/// Where the header lies, behind the legacy area. Its first word lists the components in use, its second those that there is room for.
pub const IMAGE_HEADER: usize = 512;
/// Where what the header tells of ends, and the first component behind it begins.
const EXTENDED: usize = 576;
/// Set in the header's second word of a compacted image.
pub const COMPACTED: u64 = 1 << 63;
/// The XMM registers, component 1. Before them, and at the area's beginning, lies component 0.
const XMM: Range<usize> = 160..416;
/// Bytes of the components from number 2 on.
const SIZES: [usize; 8] = [256, 64, 64, 64, 512, 1024, 128, 8];

/// The components that an image of this layout (its header's second word) has room for, by number, and where in it they lie. None is known
/// past number 9.
pub fn image_parts(layout: u64) -> impl Iterator<Item = (u32, Range<usize>)> {
    let has = move |number: u32| layout >> number & 1 == 1;
    let legacy = [(0, 0..XMM.start), (1, XMM)];
    let mut at = EXTENDED;
    let extended =
        SIZES.into_iter().zip(2..).filter(move |(_, number)| has(*number)).map(move |(size, number)| {
            let part = at..at + size;
            at = part.end;
            (number, part)
        });
    legacy.into_iter().filter(move |(number, _)| has(*number)).chain(extended)
}

/// How many bytes an image of this layout takes.
pub fn image_len(layout: u64) -> usize {
    image_parts(layout).last().map_or(EXTENDED, |(_, part)| part.end.max(EXTENDED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_lie_one_behind_the_other() {
        let parts: Vec<_> = image_parts(COMPACTED | 0xe6).collect();
        assert_eq!(parts, [(1, 160..416), (2, 576..832), (5, 832..896), (6, 896..1408), (7, 1408..2432)]);
        assert_eq!(image_parts(COMPACTED | 0x201).collect::<Vec<_>>(), [(0, 0..160), (9, 576..584)]);
        assert_eq!(image_len(COMPACTED | 0xe6), 2432);
        assert_eq!((image_len(COMPACTED | 3), image_len(COMPACTED)), (576, 576));
    }
}
