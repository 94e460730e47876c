//! Why an index could not be built.

use granule::{DecodeError, EncodeError, WireError};
use guest::SpaceId;
use replayer::ReplayError;
use store::{CommitError, QueryError};
use translate::log::BadLog;

/// Why an index could not be built. What was committed before stays.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The recording did not replay.
    #[error("cannot replay while indexing")]
    Replay(#[from] ReplayError),
    /// The recording could not be read.
    #[error("cannot read the recording")]
    Read(#[from] trace::ReadError),
    /// The learned counts could not be used.
    #[error("cannot use the learned counts")]
    Ticks(#[from] trace::TicksError),
    /// Something could not be committed.
    #[error("cannot write the index")]
    Commit(#[from] CommitError),
    /// What an earlier build committed cannot be opened.
    #[error("cannot go on with the index")]
    Open(#[from] store::OpenError),
    /// What an earlier build committed cannot be read.
    #[error("cannot go on with the index")]
    Resume(#[from] QueryError),
    /// A granule that an earlier build committed cannot be read.
    #[error("cannot go on with the index")]
    Decode(#[from] DecodeError),
    /// A worker thread is gone.
    #[error("a worker is gone")]
    Worker,
    /// Workers could not be started.
    #[error("cannot start workers")]
    Pool(#[from] rayon::ThreadPoolBuildError),
    /// The block dictionary could not be written.
    #[error("cannot encode the block dictionary")]
    Blocks(#[from] WireError),
}

/// What an observer can find wrong. These are mistakes of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FeedError {
    /// The log of a space is not what the translator writes.
    #[error("log of space {space}")]
    Log { space: SpaceId, source: BadLog },
    /// A granule could not be encoded.
    #[error("granule of space {space}")]
    Encode { space: SpaceId, source: EncodeError },
    /// An encoder could not be made.
    #[error("encoder")]
    Encoder(#[from] WireError),
    /// The log has other instructions than were counted.
    #[error("log of space {space} has {logged} instructions where {counted} were counted")]
    Count { space: SpaceId, logged: u64, counted: u64 },
    /// Data of the trace could not be read.
    #[error("cannot read the recording")]
    Read(#[from] trace::ReadError),
    /// The writer is gone: it has failed and says why.
    #[error("the writer is gone")]
    WriterGone,
}
