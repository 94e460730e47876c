//! Time in a recording: retired guest instructions. Knows no seconds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A point in a recording: the number of guest instructions retired since its start, over all tasks, in event
/// order. What a task ran since its previous event comes just before its next one. `Moment(n)` is the state
/// after `n` instructions: the next one to run is the `n`-th counted from 0. Written `@n`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `by` instructions later.
    pub const fn after(self, by: TickDelta) -> Self {
        Self(self.0.saturating_add(by.0))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Moment {
    type Err = std::num::ParseIntError;

    /// Accepts `@123` and `123`, with `_` or `,` between digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: String =
            text.strip_prefix('@').unwrap_or(text).chars().filter(|c| !matches!(c, '_' | ',')).collect();
        digits.parse().map(Self)
    }
}

/// A point on one task's own clock: the instructions it has retired since it began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Ticks(pub u64);

/// A number of retired instructions: the distance between two points.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct TickDelta(pub u64);

impl Ticks {
    /// The point `by` instructions later.
    pub const fn after(self, by: TickDelta) -> Self {
        Self(self.0.saturating_add(by.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_parse_as_people_type_them() {
        for text in ["@1234567", "1234567", "@1_234_567", "1,234,567"] {
            assert_eq!(text.parse::<Moment>().unwrap(), Moment(1_234_567), "{text}");
        }
        assert!("@".parse::<Moment>().is_err());
        assert!("@-1".parse::<Moment>().is_err());
        assert_eq!(Moment(12).to_string(), "@12");
    }
}
