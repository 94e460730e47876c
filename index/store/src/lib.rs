//! The index on disk: the SQLite schema, the page and code indexes, what a build commits and what queries read.
//!
//! The only place with SQL text of the schema. Knows nothing of replaying.
//!
//! - `schema`: tables and their columns, version and identity
//! - `rows`: one row of each small table
//! - `commit`: the one writer; a segment is a transaction
//! - `open`: opening for reading; refusals by name
//! - `pages`: the checksum of every page
//! - `facts`: reading the small tables
//! - `frontier`: where an unfinished index ends
//! - `granules`: fetching and keeping decoded granules
//! - `lookup`: which granules can hold an answer
//! - `merge`: rows of many granules in one order
//! - `writes`, `executions`, `calls`: the lazy queries over granules
//! - `shared`: the writes to memory that several mappings show
//! - `stack`: the instruction and the call stack at a moment

mod calls;
mod commit;
mod executions;
mod facts;
mod frontier;
mod granules;
mod lookup;
mod merge;
mod open;
mod pages;
mod rows;
mod schema;
mod shared;
mod stack;
mod writes;

pub use calls::{CallQuery, CallRow, Calls};
pub use commit::{CommitError, Facts, NewBlocks, Resume, ResumeUnit, Segment, Writer};
pub use executions::{ExecutionQuery, ExecutionRow, Executions};
pub use granule::CallKind;
pub use open::{INDEX_FILE, OpenError, Store};
pub use pages::is_damage;
pub use rows::{
    EventRow, ImageRow, MappingRow, MappingSource, OutputRow, SignalRow, SpaceRow, SwitchRow, SyscallRow,
    TaskRow,
};
pub use schema::{FORMAT, Format};
pub use shared::SharedWrite;
pub use writes::{Author, Order, WriteQuery, WriteRow, Writes};

/// Why a query over an open index failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// SQLite failed.
    #[error("index database")]
    Sqlite(#[source] rusqlite::Error),
    /// The file does not hold what was written to it.
    #[error("a page of the index is damaged")]
    Page,
    /// A granule is damaged.
    #[error("granule {granule} of the index")]
    Granule {
        /// Its number.
        granule: u64,
        /// What is wrong with it.
        source: granule::DecodeError,
    },
    /// The block dictionary is damaged.
    #[error("blocks from number {first} on")]
    Blocks {
        /// The first of them.
        first: u64,
        /// What is wrong.
        source: granule::WireError,
    },
    /// An entry of the page index is damaged.
    #[error("page index of page {page:#x} in granule {granule}")]
    PageIndex {
        /// The page, as address / 4096.
        page: u64,
        /// The granule.
        granule: u64,
        /// What is wrong.
        source: granule::WireError,
    },
    /// Something that the index names is not in it.
    #[error("the index names {what} {id} but does not hold it")]
    Missing {
        /// The kind of thing.
        what: &'static str,
        /// Its number.
        id: u64,
    },
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        if pages::is_damage(&error) { Self::Page } else { Self::Sqlite(error) }
    }
}
