//! `SYMBOL[+OFFSET]`, parts of variables and plain addresses, as people type them. Knows no symbol.

use std::str::FromStr;

use guest::GuestAddr;

use crate::symtab::untagged;

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
    /// A part of a variable, or what a pointer points to.
    Part(Part),
}

/// `ops.draw`, `u[7].field`, `*p`, `p->field`. Symbols can look like the first, too: the whole text is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The text but for stars and offset.
    pub whole: String,
    /// The variable's name.
    pub name: String,
    /// From it to the part.
    pub steps: Vec<Step>,
    /// How often what is there then is followed as a pointer.
    pub stars: usize,
    /// Added to its address, wrapping.
    pub offset: i64,
}

impl Part {
    /// A whole variable.
    pub(crate) fn whole(name: &str, offset: i64) -> Self {
        Self { whole: name.to_owned(), name: name.to_owned(), steps: Vec::new(), stars: 0, offset }
    }
}

/// One step from a variable to a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// `.field`
    Member(String),
    /// `->field`
    Through(String),
    /// `[7]`
    Index(u64),
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
    /// An index below 0.
    #[error(
        "`{index}` is not an index of `{name}`: what lies before it has an address (say `&{name}-BYTES`)"
    )]
    Index {
        /// What is indexed.
        name: String,
        /// With what.
        index: String,
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

    /// `0x7fff1234`, `4096`, `ops`, `ops+0x200`, `ops-8`, `&ops`, `ops.draw`, `u[7].field`, `*p`, `p->field+4`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let text = &*untagged(text.strip_prefix('&').unwrap_or(text).trim_start());
        if text.is_empty() {
            return Err(ParseExpressionError::Empty);
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let (base, offset) = split_offset(text)?;
            let addr = number(base).ok_or_else(|| ParseExpressionError::Address { text: base.to_owned() })?;
            return Ok(Self::Address(GuestAddr(addr.wrapping_add_signed(offset))));
        }
        if let Some((name, index)) = text.split_once("[-") {
            let (name, index) =
                (name.to_owned(), format!("-{}", index.split(']').next().unwrap_or_default()));
            return Err(ParseExpressionError::Index { name, index });
        }
        let (text, offset) = split_offset(text)?;
        let whole = text.trim_start_matches(['*', ' ']);
        let stars = text.matches('*').count() - whole.matches('*').count();
        if whole.is_empty() {
            return Err(ParseExpressionError::Empty);
        }
        match split_steps(whole) {
            Some((name, steps)) if stars > 0 || !steps.is_empty() => {
                let (whole, name) = (whole.to_owned(), name.to_owned());
                Ok(Self::Part(Part { whole, name, steps, stars, offset }))
            }
            _ => Ok(Self::Symbol { name: text.to_owned(), offset }),
        }
    }
}

/// Splits a variable's name from the steps after it. `None` where what follows are none: it is part of the name then.
fn split_steps(text: &str) -> Option<(&str, Vec<Step>)> {
    if text.contains("operator") {
        return None;
    }
    let scope = scope_end(text);
    let mut depth = 0;
    let ends = |(at, c): (usize, char)| {
        let arrow = text[at..].starts_with("->");
        match c {
            '<' | '(' | '{' => depth += 1,
            '>' | ')' | '}' => depth -= 1,
            _ => {}
        }
        (at > scope && depth == 0 && (c == '.' || c == '[' || arrow)).then_some(at)
    };
    let at = text.char_indices().find_map(ends).unwrap_or(text.len());
    let (name, mut rest) = (text[..at].trim_end(), text[at..].trim_start());
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let (step, after) = first_step(rest)?;
        steps.push(step);
        rest = after.trim_start();
    }
    Some((name, steps))
}

/// Where a name begins after what qualifies it: a namespace, a function or a source file (`b.c:state`, `'b.c'::state`).
fn scope_end(text: &str) -> usize {
    let mut depth = 0;
    let colons = text.char_indices().filter(|&(at, c)| {
        match c {
            '<' | '(' | '{' | '[' => depth += 1,
            '>' if text[..at].ends_with('-') => {}
            '>' | ')' | '}' | ']' => depth -= 1,
            _ => {}
        }
        c == ':' && depth == 0
    });
    colons.last().map_or(0, |(at, _)| at + 1)
}

/// The step that `text` begins with, and the rest.
fn first_step(text: &str) -> Option<(Step, &str)> {
    if let Some(inside) = text.strip_prefix('[') {
        let (index, rest) = inside.split_once(']')?;
        return Some((Step::Index(number(index.trim())?), rest));
    }
    let (through, rest) = match text.strip_prefix("->") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('.')?),
    };
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let name = (end > 0).then(|| rest[..end].to_owned())?;
    Some((if through { Step::Through(name) } else { Step::Member(name) }, &rest[end..]))
}

/// Splits at the last `+` or `-` that is followed by a number. C++ operators (`operator+`, `operator->`) are names.
fn split_offset(text: &str) -> Result<(&str, i64), ParseExpressionError> {
    let sign = |&(at, c): &(usize, char)| c == '+' || c == '-' && !text[at..].starts_with("->");
    let found = text.char_indices().rev().find(sign).map(|(at, _)| at);
    let Some(at) = found.filter(|&at| at > 0) else { return Ok((text, 0)) };
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

    fn part<'a>(
        whole: &str,
        name: &str,
        steps: &[&str],
        stars: usize,
        offset: i64,
    ) -> Result<Expression, &'a str> {
        let step = |step: &&str| match (step.strip_prefix('.'), step.strip_prefix('>')) {
            (Some(name), _) => Step::Member(name.to_owned()),
            (_, Some(name)) => Step::Through(name.to_owned()),
            _ => Step::Index(step.parse().unwrap()),
        };
        let (whole, name) = (whole.to_owned(), name.to_owned());
        Ok(Expression::Part(Part { whole, name, steps: steps.iter().map(step).collect(), stars, offset }))
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
        check("f.constprop.0", part("f.constprop.0", "f", &[".constprop", ".0"], 0, 0));
        check("ops.draw", part("ops.draw", "ops", &[".draw"], 0, 0));
        check("u[0x7].field + 2", part("u[0x7].field", "u", &["7", ".field"], 0, 2));
        check("p->next->id-4", part("p->next->id", "p", &[">next", ">id"], 0, -4));
        check("* *p", part("p", "p", &[], 2, 0));
        check("t::G<a.b>.0", part("t::G<a.b>.0", "t::G<a.b>", &[".0"], 0, 0));
        check("name[abi:cxx11]", symbol("name", 0));
        check("n::s[abi:cxx11].a", part("n::s.a", "n::s", &[".a"], 0, 0));
        check("b.c:state", symbol("b.c:state", 0));
        check("'b.c'::state[2].on", part("'b.c'::state[2].on", "'b.c'::state", &["2", ".on"], 0, 0));
        check("u[x]", symbol("u[x]", 0));
        check("*", Err("no address or symbol given"));
        check("", Err("no address or symbol given"));
        check("0xzz", Err("`0xzz` is not a 64-bit address"));
        check("0x1ffffffffffffffff", Err("`0x1ffffffffffffffff` is not a 64-bit address"));
        let below = "`-1` is not an index of `ops`: what lies before it has an address (say `&ops-BYTES`)";
        check("ops[-1].draw", Err(below));
        check("ops+x", Err("`+x` after `ops` is not an offset (say +8 or +0x10)"));
    }
}
