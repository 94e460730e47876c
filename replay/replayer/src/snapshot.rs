//! Live checkpoints: a fork of every space, with the place in the event stream.

use crate::error::ReplayError;
use crate::live::Live;
use crate::options::Position;
use crate::replay::{Cursor, Replay};

/// A replay as it stood. Holds processes: costs memory for pages written since.
#[derive(Debug)]
pub struct Snapshot {
    live: Live,
    cursor: Cursor,
    position: Position,
}

impl Snapshot {
    /// Where it stands.
    pub fn position(&self) -> Position {
        self.position
    }
}

impl Replay {
    /// Keeps the present state. Spaces that share memory go on sharing a copy of it.
    pub fn snapshot(&mut self) -> Result<Snapshot, ReplayError> {
        Ok(Snapshot { position: self.position(), live: self.live.fork()?, cursor: self.cursor.clone() })
    }

    /// Goes to a kept state, which can be gone to again.
    pub fn restore(&mut self, to: &mut Snapshot) -> Result<(), ReplayError> {
        self.live = to.live.fork()?;
        self.cursor = to.cursor.clone();
        let stops = self.stops.clone();
        self.set_stops(&stops)
    }
}
