//! Replaying: runs the spaces of a recording through its events, in the recorded order, and proves at each one that what
//! runs is what was recorded.
//!
//! No syscall of the guest is executed: its recorded effects are put back. It knows nothing of gdb or of the index, which watch
//! through [`Observer`].
//!
//! - `options`: what to replay and how far; where a replay stands
//! - `error`: divergences and other ends
//! - `observer`: what others may see on the way; the printer of recorded output
//! - `compare`: registers against registers
//! - `live`: the spaces and register files alive at a moment
//! - `effects`: an event's changes, put into a space
//! - `guard`: where a stack ended
//! - `output`: the bytes a recorded program printed
//! - `units`: exec images that replay on their own
//! - `batch`: many events at a time
//! - `replay`: the run through the events; `reach`: running towards one; `happen`: its effects
//! - `snapshot`: live checkpoints
//! - `learn`: the first complete replay, which finds every event's instruction count

mod batch;
mod compare;
mod effects;
mod error;
mod find;
mod guard;
mod happen;
mod learn;
mod live;
mod observer;
mod options;
mod output;
mod reach;
mod replay;
mod snapshot;
mod units;

pub use error::{Difference, Divergence, RegisterDifference, ReplayError};
pub use learn::{LearnError, learn};
pub use live::TaskView;
pub use observer::{Look, Observer, Printer, Silent, Watched};
pub use options::{Bias, Options, Position, Stopped, Stops, Until};
pub use replay::Replay;
pub use snapshot::Snapshot;
pub use trace::Moments;
pub use units::{Unit, units};
