//! What the bytes of a variable say, by its type. Knows nothing of where types are described.

use guest::GuestAddr;

/// What bytes stand for, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    pub(crate) kind: ValueKind,
    /// In bytes; of a bit-field all that it touches.
    pub(crate) size: u64,
    /// Which bits, where not all.
    pub(crate) bits: Option<Bits>,
}

/// The bits of a bit-field, counted from the lowest one of its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bits {
    /// The lowest one.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// What bytes stand for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValueKind {
    Signed,
    Unsigned,
    Float,
    Boolean,
    /// One byte of text.
    Character,
    Pointer,
    /// Many of them, ended by a zero if there is one.
    Text,
}

impl Value {
    /// The bits, of a bit-field.
    pub fn bits(&self) -> Option<Bits> {
        self.bits
    }

    /// What `bytes` say, as people write it; `None` for what is not the whole.
    pub fn shown(&self, bytes: &[u8]) -> Option<String> {
        if self.kind == ValueKind::Text {
            let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
            return Some(format!("\"{}\"", text.escape_ascii()));
        }
        if bytes.len() as u64 != self.size {
            return None;
        }
        let number = self.field(bytes)?;
        Some(match self.kind {
            ValueKind::Signed => self.signed(number).to_string(),
            ValueKind::Float => match self.size {
                4 => format!("{:?}", f32::from_bits(number as u32)),
                8 => format!("{:?}", f64::from_bits(number as u64)),
                _ => return None,
            },
            ValueKind::Boolean if number < 2 => (number == 1).to_string(),
            ValueKind::Character => {
                let byte = number as u8;
                let letter = if byte.is_ascii_graphic() || byte == b' ' {
                    format!(" '{}'", byte as char)
                } else {
                    String::new()
                };
                format!("{}{letter}", self.signed(number))
            }
            ValueKind::Pointer => GuestAddr(number as u64).to_string(),
            ValueKind::Unsigned | ValueKind::Boolean | ValueKind::Text => number.to_string(),
        })
    }

    /// The bits of `bytes` that count, as a number without a sign.
    pub fn field(&self, bytes: &[u8]) -> Option<u128> {
        let mut word = [0; 16];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let all = u128::from_le_bytes(word);
        let Some(Bits { first, count }) = self.bits else { return Some(all) };
        Some((all >> first.min(127)) & u128::MAX.checked_shr(128 - count.clamp(1, 128) as u32)?)
    }

    fn signed(&self, number: u128) -> i128 {
        let width = self.bits.map_or(self.size.saturating_mul(8), |bits| bits.count).clamp(1, 128);
        let above = 128 - width as u32;
        ((number << above) as i128) >> above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: ValueKind, bytes: &[u8], expected: &str) {
        let value = Value { kind, size: bytes.len() as u64, bits: None };
        assert_eq!(value.shown(bytes).as_deref(), Some(expected), "{kind:?}");
    }

    #[test]
    fn bytes_are_shown_by_what_they_stand_for() {
        check(ValueKind::Signed, &(-7_i16).to_le_bytes(), "-7");
        check(ValueKind::Unsigned, &(-7_i16).to_le_bytes(), "65529");
        check(ValueKind::Signed, &i128::MIN.to_le_bytes(), &i128::MIN.to_string());
        check(ValueKind::Float, &0.5_f32.to_le_bytes(), "0.5");
        check(ValueKind::Float, &(-2.5e300_f64).to_le_bytes(), "-2.5e300");
        check(ValueKind::Boolean, &[1], "true");
        check(ValueKind::Character, b"A", "65 'A'");
        check(ValueKind::Character, &[0xff], "-1");
        check(ValueKind::Pointer, &0x4040_u64.to_le_bytes(), "0x4040");
        check(ValueKind::Text, b"a\"\n\0zz", r#""a\"\n""#);
        let part = Value { kind: ValueKind::Signed, size: 4, bits: None };
        assert_eq!(part.shown(&[1, 2]), None);
    }

    #[test]
    fn bit_fields_are_shown_without_their_neighbours() {
        let value = |kind, first, count| Value { kind, size: 1, bits: Some(Bits { first, count }) };
        assert_eq!(value(ValueKind::Unsigned, 4, 4).shown(&[0xc3]).as_deref(), Some("12"));
        assert_eq!(value(ValueKind::Signed, 0, 6).shown(&[61]).as_deref(), Some("-3"));
        assert_eq!(value(ValueKind::Signed, 7, 1).shown(&[0x80]).as_deref(), Some("-1"));
    }
}
