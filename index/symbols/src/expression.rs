//! `SYMBOL[+OFFSET]` and plain addresses, as people type them. Knows no symbol.

use std::str::FromStr;

use guest::GuestAddr;

/// What a user names in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expression {
    /// An address.
    Address(GuestAddr),
    /// A symbol and a distance from it in bytes.
    Symbol {
        /// As in the source (`ops`, `Shop::cached`) or as in the symbol table.
        name: String,
        /// Added to its address, wrapping.
        offset: i64,
    },
}

/// Text that is neither an address nor a symbol.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseExpressionError {
    /// Nothing there.
    #[error("no address or symbol given")]
    Empty,
    /// Digits that are no 64-bit number.
    #[error("`{text}` is not a 64-bit address")]
    Address {
        /// The digits.
        text: String,
    },
    /// An offset that is no number.
    #[error("`{text}` after `{name}` is not an offset (say +8 or +0x10)")]
    Offset {
        /// The symbol before it.
        name: String,
        /// What stands where the offset should.
        text: String,
    },
}

impl FromStr for Expression {
    type Err = ParseExpressionError;

    /// `0x7fff1234`, `4096`, `ops`, `ops+0x200`, `ops-8`, `&ops`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let text = text.strip_prefix('&').unwrap_or(text).trim_start();
        if text.is_empty() {
            return Err(ParseExpressionError::Empty);
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let (base, offset) = split_offset(text)?;
            let addr = number(base).ok_or_else(|| ParseExpressionError::Address { text: base.to_owned() })?;
            return Ok(Self::Address(GuestAddr(addr.wrapping_add_signed(offset))));
        }
        let (name, offset) = split_offset(text)?;
        Ok(Self::Symbol { name: name.to_owned(), offset })
    }
}

/// Splits at the last `+` or `-` that is followed by a number. C++ operators (`operator+`, `operator->`) are names.
fn split_offset(text: &str) -> Result<(&str, i64), ParseExpressionError> {
    let Some(at) = text.rfind(['+', '-']).filter(|&at| at > 0) else { return Ok((text, 0)) };
    let (name, rest) = (text[..at].trim_end(), text[at + 1..].trim_start());
    let sign = if text.as_bytes()[at] == b'-' { -1 } else { 1 };
    if let Some(value) = number(rest) {
        return Ok((name, (value as i64).wrapping_mul(sign)));
    }
    if text.contains("operator") || text.contains('<') {
        return Ok((text, 0));
    }
    Err(ParseExpressionError::Offset { name: name.to_owned(), text: text[at..].to_owned() })
}

/// A decimal or `0x` number, `_` between digits allowed.
fn number(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None if digits.starts_with('+') => None,
        None => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<Expression, &str>) {
        let actual = text.parse::<Expression>().map_err(|e| e.to_string());
        assert_eq!(actual, expected.map_err(str::to_owned), "{text}");
    }

    fn symbol(name: &str, offset: i64) -> Result<Expression, &str> {
        Ok(Expression::Symbol { name: name.to_owned(), offset })
    }

    #[test]
    fn expressions_parse_as_people_type_them() {
        check("0x7fff_0010", Ok(Expression::Address(GuestAddr(0x7fff_0010))));
        check("4096", Ok(Expression::Address(GuestAddr(4096))));
        check("0x1000+8", Ok(Expression::Address(GuestAddr(0x1008))));
        check("ops", symbol("ops", 0));
        check(" &ops + 0x200 ", symbol("ops", 0x200));
        check("ops-8", symbol("ops", -8));
        check("Vec<i32>::operator+", symbol("Vec<i32>::operator+", 0));
        check("a::b+4", symbol("a::b", 4));
        check("", Err("no address or symbol given"));
        check("0xzz", Err("`0xzz` is not a 64-bit address"));
        check("0x1ffffffffffffffff", Err("`0x1ffffffffffffffff` is not a 64-bit address"));
        check("ops+x", Err("`+x` after `ops` is not an offset (say +8 or +0x10)"));
    }
}
