//! `why`: who last wrote this memory before that moment, and everything about it that a person asks next.
//!
//! Holds no SQL text: it asks the index and the symbols.
//!
//! - `question`: what is asked, and the errors
//! - `answer`: what is answered, as data
//! - `text`: the answer as text

mod answer;
mod question;
mod text;

pub use answer::{Answer, Bytes, Coverage, Hop, Origin, Place, StackFrame, Target, Verdict, Writer};
pub use question::{Question, WhyError, why};
