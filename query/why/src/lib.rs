//! `why`: who last wrote this memory before that moment, and everything about it that a person asks next.
//!
//! Holds no SQL text: it asks the index and the symbols.
//!
//! - `question`: what is asked, the errors, and how an answer is put together
//! - `history`: the last write of some bytes and what they held before, across moves and forks
//! - `stack`: the call stack, with inlined functions and tail callers
//! - `code`: places in code and instructions
//! - `kernel`: the kernel as a writer
//! - `answer`: what is answered, as data
//! - `text`: the answer as text

mod answer;
mod code;
#[cfg(test)]
mod golden;
mod history;
mod kernel;
mod question;
mod stack;
mod text;

pub use answer::{Answer, Bytes, Coverage, Hop, Origin, Place, Source, StackFrame, Target, Verdict, Writer};
pub use question::{MAX_SIZE, Question, WhyError, why};
