//! A recording as a place to move about in: `seek`, steps and continues both ways.
//!
//! Going back is going forward from an earlier live checkpoint. Knows nothing of gdb or of the index.
//!
//! - `timeline`: `Timeline`, the public face
//! - `checkpoints`: which live checkpoints to keep
//! - `reverse`: continuing backwards
//! - `error`: what can go wrong

mod checkpoints;
mod error;
mod reverse;
mod timeline;

pub use engine::{Mapping, Watch, WatchKind};
pub use error::TimelineError;
pub use replayer::{Bias, Position, Stops, TaskView};
pub use timeline::{StopReason, Timeline};
