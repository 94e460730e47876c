//! Building an index: replays a recording in indexed mode, encodes what ran, commits it.
//!
//! Replay units are spread over workers, each of which replays and encodes on a CPU of its own; one writer commits. A killed
//! build is gone on with. No SQL text here.
//!
//! - `options`: what to build and what is told meanwhile
//! - `error`: why it failed
//! - `shapes`: from the translator's blocks to the index's
//! - `feed`: from a space's log to granules
//! - `watch`: the observer that feeds them while a replay runs
//! - `work`: units over workers, segments to the writer
//! - `facts`: the small tables, from the event stream; `files` (descriptors), `mappings` and `switches` (who runs) are its models

mod error;
mod facts;
mod feed;
mod files;
mod mappings;
mod options;
mod shapes;
mod switches;
mod watch;
mod work;

pub use error::BuildError;
pub use options::{BuildReport, Options, Progress};
pub use work::{build, build_in_steps};
