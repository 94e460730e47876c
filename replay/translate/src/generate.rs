//! From a plan to code.

use crate::block::Translated;
use crate::refusal::Refusal;
use crate::request::Request;

/// Translates the block at `request.pc`.
///
/// # Errors
///
/// See [`Refusal`].
pub fn translate(request: &Request<'_>) -> Result<Translated, Refusal> {
    Err(Refusal::Unsupported { pc: request.pc, name: "everything".into() })
}
