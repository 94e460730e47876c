//! The decoder of one granule.

use crate::wire::WireError;

/// Why a granule could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// A column is damaged.
    #[error("column {column}")]
    Column {
        /// Its number.
        column: u32,
        /// What is wrong.
        source: WireError,
    },
    /// A column is not there or could not be fetched.
    #[error("column {column} is missing: {reason}")]
    Missing {
        /// Its number.
        column: u32,
        /// Why.
        reason: String,
    },
}
