//! The answer as text, compact, with what to type next.

use std::fmt;

use crate::answer::Answer;

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target.addr)
    }
}
