//! Varints, bounded reading and zstd frames. Knows nothing of what they carry.

/// Bytes that no encoder wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes end in the middle of something.
    #[error("granule data ends early")]
    Short,
    /// A field has a value it never has.
    #[error("granule data has an invalid {what}")]
    Invalid {
        /// The field.
        what: &'static str,
    },
    /// A zstd frame is damaged.
    #[error("granule data does not decompress: {reason}")]
    Zstd {
        /// What zstd says.
        reason: String,
    },
}

/// Appends `value`, seven bits a byte, low bits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Folds the sign into the lowest bit so that small magnitudes stay small.
pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(crate) const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Most bits of a number that is written at once.
const SHORT: u32 = 56;

/// Appends a signed number.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, zigzag(value));
}

/// Appends signed numbers to `out`. To decide byte by byte whether another one follows would cost more than to write them.
pub(crate) fn put_all_signed(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>) {
    let mut at = out.len();
    out.resize(at + values.len() * LONGEST + size_of::<u64>(), 0);
    for value in values {
        let value = zigzag(value as i64);
        if value >> SHORT != 0 {
            at += put_long(value, &mut out[at..]);
            continue;
        }
        let (bytes, len) = spread(value);
        if let Some(place) = out[at..].first_chunk_mut() {
            *place = bytes.to_le_bytes();
        }
        at += len;
    }
    out.truncate(at);
}

/// Bytes of the longest number.
const LONGEST: usize = 10;

/// A number of at most [`SHORT`] bits as [`put_varint`] writes it, and how many bytes that is.
#[inline]
const fn spread(value: u64) -> (u64, usize) {
    let halves = (value & 0x0fff_ffff) | (value & 0x00ff_ffff_f000_0000) << 4;
    let pairs = (halves & 0x0000_3fff_0000_3fff) | (halves & 0x0fff_c000_0fff_c000) << 2;
    let sevens = (pairs & 0x007f_007f_007f_007f) | (pairs & 0x3f80_3f80_3f80_3f80) << 1;
    let len = (70 - (value | 1).leading_zeros()) / 7;
    // All bytes but the last say that another one follows.
    let more = 0x8080_8080_8080_8080 & ((1 << (8 * (len - 1))) - 1);
    (sevens | more, len as usize)
}

/// Writes a number to the front of `out`; how many bytes it has.
#[cold]
fn put_long(value: u64, out: &mut [u8]) -> usize {
    let mut bytes = Vec::with_capacity(LONGEST);
    put_varint(&mut bytes, value);
    out[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
}

/// A position in bytes that are being read.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        let byte = *self.bytes.get(self.at).ok_or(WireError::Short)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(WireError::Invalid { what: "varint" });
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
            if shift > 63 {
                return Err(WireError::Invalid { what: "varint" });
            }
        }
    }

    pub(crate) fn signed(&mut self) -> Result<i64, WireError> {
        self.varint().map(unzigzag)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        let bytes = self.take(8)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// A number of elements that take at least `least` bytes each: never more than the bytes left can hold.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, WireError> {
        let count = self.varint()?;
        if count > (self.left() / least.max(1)) as u64 {
            return Err(WireError::Short);
        }
        Ok(count as usize)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let rest = self.bytes.get(self.at..).ok_or(WireError::Short)?;
        let taken = rest.get(..len).ok_or(WireError::Short)?;
        self.at += len;
        Ok(taken)
    }

    pub(crate) const fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Everything must have been read.
    pub(crate) fn finish(&self) -> Result<(), WireError> {
        if self.left() == 0 { Ok(()) } else { Err(WireError::Invalid { what: "trailing bytes" }) }
    }
}

/// The compression level of columns: more effort makes most of them little smaller, and takes a tenth of the time that indexing takes.
const LEVEL: i32 = 1;

/// That of the sequence of blocks, which is worth it.
pub(crate) const EFFORT: i32 = 2;

/// The most a column may decompress to: a bound for damaged data.
const MAX_COLUMN: usize = 1 << 30;

/// A reusable compressor.
pub(crate) struct Packer {
    inner: zstd::bulk::Compressor<'static>,
    /// Room for a frame. What is packed is kept for long: it gets no more memory than it needs.
    room: Vec<u8>,
}

impl Packer {
    pub(crate) fn new() -> Result<Self, WireError> {
        let mut inner = zstd::bulk::Compressor::new(LEVEL).map_err(zstd_error)?;
        inner.include_checksum(true).map_err(zstd_error)?;
        Ok(Self { inner, room: Vec::new() })
    }

    /// The same as [`Packer::pack`], with another level.
    pub(crate) fn pack_at(&mut self, level: i32, bytes: &[u8]) -> Result<Vec<u8>, WireError> {
        self.inner.set_compression_level(level).map_err(zstd_error)?;
        let packed = self.pack(bytes);
        self.inner.set_compression_level(LEVEL).map_err(zstd_error)?;
        packed
    }

    /// One self-contained frame with its length in front.
    pub(crate) fn pack(&mut self, bytes: &[u8]) -> Result<Vec<u8>, WireError> {
        let most = zstd::zstd_safe::compress_bound(bytes.len());
        if self.room.len() < most {
            self.room.resize(most, 0);
        }
        let len = self.inner.compress_to_buffer(bytes, &mut self.room[..most]).map_err(zstd_error)?;
        let mut out = Vec::with_capacity(len + 10);
        put_varint(&mut out, bytes.len() as u64);
        out.extend_from_slice(&self.room[..len]);
        Ok(out)
    }
}

/// What [`Packer::pack`] packed.
pub(crate) fn unpack(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut reader = Reader::new(bytes);
    let len = reader.varint()?;
    if len > MAX_COLUMN as u64 {
        return Err(WireError::Invalid { what: "column length" });
    }
    let out = zstd::bulk::decompress(reader.take(reader.left())?, len as usize).map_err(zstd_error)?;
    if out.len() as u64 != len {
        return Err(WireError::Short);
    }
    Ok(out)
}

fn zstd_error(error: std::io::Error) -> WireError {
    WireError::Zstd { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for value in [0, 1, 127, 128, 300, u64::MAX, u64::MAX / 2, 1 << 63] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_signed(&mut out, value as i64);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint().unwrap(), value);
            assert_eq!(reader.signed().unwrap(), value as i64);
            reader.finish().unwrap();
        }
        assert!(Reader::new(&[0xff; 12]).varint().is_err());
        assert_eq!(Reader::new(&[0x80]).varint(), Err(WireError::Short));
    }

    #[test]
    fn numbers_are_written_alike_at_once() {
        let values: Vec<u64> = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, u64::MAX << bit]).collect();
        let (mut one_by_one, mut at_once) = (vec![7], vec![7]);
        values.iter().for_each(|&value| put_signed(&mut one_by_one, value as i64));
        put_all_signed(&mut at_once, values.iter().copied());
        assert_eq!(one_by_one, at_once);
    }

    #[test]
    fn frames_come_back_and_damage_is_an_error() {
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n * n) as u8).collect();
        let packed = Packer::new().unwrap().pack(&bytes).unwrap();
        assert_eq!(unpack(&packed).unwrap(), bytes);
        assert!(unpack(&packed[..packed.len() / 2]).is_err());
        assert!(unpack(&[]).is_err());
    }
}
