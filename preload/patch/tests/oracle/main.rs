//! The patcher's oracles: each rule on hand-made code; hand-made windows and those of real binaries run natively, plain
//! and patched, through equal states; and how many sites of the binaries on this machine can be patched.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

extern crate backstory_patch as patch;

mod binaries;
mod cases;
mod equal;
mod native;
mod program;
mod random;
mod real;
mod rules;
mod scene;
mod survey;
