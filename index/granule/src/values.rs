//! The value pieces: the values of all stores by slot, cut into pieces that are compressed and decoded alone.
//!
//! Where each value lies follows from the layout; a chunk (the values of one slot in one piece) begins with a byte that
//! says how it is coded.

use crate::dictionary::{Layout, SlotValue};
use crate::wire::WireError;

/// Bytes of a piece, uncompressed.
pub(crate) const PIECE: usize = 128 << 10;

/// The values `first..first + count` of `slot` in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub(crate) slot: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) piece: u32,
    /// Where in the piece its coding byte lies.
    pub(crate) at: u32,
}

/// Where the values of all slots lie.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) pieces: u32,
}

impl Plan {
    pub(crate) fn new(layout: &Layout) -> Self {
        let mut plan = Self::default();
        let mut at = 0;
        let mut piece = 0;
        for (slot, facts) in layout.slots.iter().enumerate() {
            if !matches!(facts.value, SlotValue::Stream(_)) {
                continue;
            }
            let size = usize::from(facts.size);
            let count = layout.locals[facts.local as usize].count;
            let mut first = 0;
            while first < count {
                if at + 1 + size > PIECE {
                    (piece, at) = (piece + 1, 0);
                }
                let fits = ((PIECE - at - 1) / size) as u32;
                let taken = fits.min(count - first);
                plan.chunks.push(Chunk { slot: slot as u32, first, count: taken, piece, at: at as u32 });
                first += taken;
                at += 1 + taken as usize * size;
            }
        }
        plan.pieces = if plan.chunks.is_empty() { 0 } else { piece + 1 };
        plan
    }

    /// The chunk that holds the `k`-th value of `slot`.
    pub(crate) fn find(&self, slot: u32, k: u32) -> Option<&Chunk> {
        let after = self.chunks.partition_point(|chunk| (chunk.slot, chunk.first) <= (slot, k));
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        (chunk.slot == slot && k - chunk.first < chunk.count).then_some(chunk)
    }
}

/// How a chunk's values are coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Coding {
    /// One after the other.
    Raw = 0,
    /// All first bytes, then all second bytes, and so on.
    Planes = 1,
    /// The same of the differences of successive values (as numbers of up to 8 bytes).
    DeltaPlanes = 2,
}

/// How many pairs of values are looked at to choose a coding.
const SAMPLE: usize = 64;

/// How many values a chunk must have for anything but `Raw`.
const FEW: usize = 16;

fn choose(bytes: &[u8], size: usize) -> Coding {
    let count = bytes.len() / size;
    if size == 1 || size > 8 || count < FEW {
        return Coding::Raw;
    }
    match size {
        2 => choose_by(count, size, |index| {
            bytes[index * 2..][..2].try_into().map_or(0, u16::from_le_bytes).into()
        }),
        4 => choose_by(count, size, |index| {
            bytes[index * 4..][..4].try_into().map_or(0, u32::from_le_bytes).into()
        }),
        8 => choose_by(count, size, |index| bytes[index * 8..][..8].try_into().map_or(0, u64::from_le_bytes)),
        size => choose_by(count, size, |index| number(&bytes[index * size..(index + 1) * size])),
    }
}

#[inline]
fn choose_by(count: usize, size: usize, value: impl Fn(usize) -> u64) -> Coding {
    let step = ((count - 2) / SAMPLE).max(1);
    let (mut same, mut planes, mut deltas) = (0u32, 0u32, 0u32);
    let (mut index, mut looked) = (2, 0u32);
    while index < count {
        let (here, last, before) = (value(index), value(index - 1), value(index - 2));
        let delta = here.wrapping_sub(last);
        same += u32::from(here == last) + u32::from(here == before);
        planes += changed_bytes(here ^ last);
        deltas += changed_bytes(delta ^ last.wrapping_sub(before));
        looked += 1;
        index += step;
    }
    if same * 2 >= looked && deltas > 0 {
        Coding::Raw
    } else if deltas < planes {
        Coding::DeltaPlanes
    } else if planes * 2 <= looked * size as u32 {
        Coding::Planes
    } else {
        Coding::Raw
    }
}

/// How many bytes of it are not 0.
#[inline]
const fn changed_bytes(difference: u64) -> u32 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let high_bits = (((difference & LOW) + LOW) | difference) & !LOW;
    ((high_bits >> 7).wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32
}

fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Appends a chunk that holds `values`, `size` bytes each.
pub(crate) fn write_chunk(values: &[u8], size: usize, out: &mut Vec<u8>) {
    let coding = choose(values, size);
    out.push(coding as u8);
    if coding == Coding::Raw {
        return out.extend_from_slice(values);
    }
    let start = out.len();
    out.resize(start + values.len(), 0);
    let (planes, deltas) = (&mut out[start..], coding == Coding::DeltaPlanes);
    match size {
        2 => spread::<2>(values, deltas, planes),
        4 => spread::<4>(values, deltas, planes),
        8 => spread::<8>(values, deltas, planes),
        size => spread_any(values, size, deltas, planes),
    }
}

/// Values of `N` bytes into planes.
fn spread<const N: usize>(values: &[u8], deltas: bool, planes: &mut [u8]) {
    let count = values.len() / N;
    let mut last = 0u64;
    for (index, bytes) in values.chunks_exact(N).enumerate() {
        let mut word = [0; 8];
        word[..N].copy_from_slice(bytes);
        let mut value = u64::from_le_bytes(word);
        if deltas {
            (value, last) = (value.wrapping_sub(last), value);
        }
        for plane in 0..N {
            planes[plane * count + index] = value as u8;
            value >>= 8;
        }
    }
}

fn spread_any(values: &[u8], size: usize, deltas: bool, planes: &mut [u8]) {
    let count = values.len() / size;
    let mut last = 0u64;
    for (index, bytes) in values.chunks_exact(size).enumerate() {
        let mut value = number(bytes);
        if deltas {
            (value, last) = (value.wrapping_sub(last), value);
        }
        for plane in 0..size {
            planes[plane * count + index] = value as u8;
            value >>= 8;
        }
    }
}

/// Undoes the coding of a chunk of `count` values of `size` bytes at the start of `chunk`, in place: afterwards the values
/// follow one another behind the coding byte.
pub(crate) fn decode_chunk(
    chunk: &mut [u8],
    size: usize,
    count: usize,
    scratch: &mut Vec<u8>,
) -> Result<(), WireError> {
    let (coding, data) = chunk.split_first_mut().ok_or(WireError::Short)?;
    let data = data.get_mut(..size * count).ok_or(WireError::Short)?;
    let deltas = match *coding {
        0 => return Ok(()),
        1 => false,
        2 if size <= 8 => true,
        _ => return Err(WireError::Invalid { what: "value coding" }),
    };
    *coding = Coding::Raw as u8;
    scratch.clear();
    scratch.extend_from_slice(data);
    let mut last = 0u64;
    for (index, bytes) in data.chunks_exact_mut(size).enumerate() {
        for (plane, byte) in bytes.iter_mut().enumerate() {
            *byte = scratch[plane * count + index];
        }
        if deltas {
            last = last.wrapping_add(number(bytes));
            bytes.copy_from_slice(&last.to_le_bytes()[..size]);
        }
    }
    Ok(())
}

impl Plan {
    /// The chunks of a piece.
    fn of_piece(&self, piece: u32) -> &[Chunk] {
        let from = self.chunks.partition_point(|chunk| chunk.piece < piece);
        let to = self.chunks.partition_point(|chunk| chunk.piece <= piece);
        &self.chunks[from..to]
    }

    /// Undoes the coding of all chunks of a piece.
    pub(crate) fn decode_piece(
        &self,
        piece: u32,
        bytes: &mut [u8],
        layout: &Layout,
    ) -> Result<(), WireError> {
        let mut scratch = Vec::new();
        for chunk in self.of_piece(piece) {
            let size = usize::from(layout.slots[chunk.slot as usize].size);
            let bytes = bytes.get_mut(chunk.at as usize..).ok_or(WireError::Short)?;
            decode_chunk(bytes, size, chunk.count as usize, &mut scratch)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Series = fn(u64) -> u64;

    #[test]
    fn changed_bytes_are_those_that_are_not_zero() {
        for shift in 0..64 {
            let value = 0x8001_00ff_7f80_0100_u64.rotate_left(shift);
            let count = value.to_le_bytes().iter().filter(|byte| **byte != 0).count();
            assert_eq!(changed_bytes(value) as usize, count, "{value:#x}");
        }
    }

    #[test]
    fn every_coding_gives_values_back() {
        let series: [(usize, Series); 6] = [
            (8, |n| 0x7fff_1234_5600 + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56)),
            (8, |n| n * 24 + 0x7fff_0000_0000),
            (4, |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32),
            (2, |n| n / 7),
            (8, |n| n % 3 * 0x1_0000_0001),
            (1, |n| n * n),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for (size, value) in series {
            for count in [1u64, 15, 200] {
                let values: Vec<u8> =
                    (0..count).flat_map(|n| value(n).to_le_bytes()[..size].to_vec()).collect();
                let mut chunk = Vec::new();
                write_chunk(&values, size, &mut chunk);
                seen.insert(chunk[0]);
                decode_chunk(&mut chunk, size, count as usize, &mut Vec::new()).unwrap();
                assert_eq!(chunk[1..], values, "size {size} count {count}");
            }
        }
        assert_eq!(seen.len(), 3, "all codings were tried: {seen:?}");
    }
}
