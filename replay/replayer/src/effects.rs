//! An event's changes of an address space, put into an engine space.

use engine::{MapError, MapRequest, MapSource, Space};
use guest::{EventId, SpaceId};
use trace::{Backing, MapOp, MemWrite, Trace};

use crate::error::ReplayError;

/// Performs mapping changes in order.
pub(crate) fn apply_maps(
    trace: &Trace,
    (id, space): (SpaceId, &mut Space),
    event: EventId,
    maps: &[MapOp],
) -> Result<(), ReplayError> {
    for op in maps {
        let done = match op {
            MapOp::Map { .. } => space.map(&request(trace, op)?),
            MapOp::Rewrite { addr, shown, own } => {
                let failed = |source| ReplayError::Write { space: id, event, source };
                space.rewrite(*addr, shown, own).map_err(failed)?;
                continue;
            }
            other => apply(space, other),
        };
        done.map_err(|source| ReplayError::Map { space: id, event, source })?;
    }
    Ok(())
}

fn apply(space: &mut Space, op: &MapOp) -> Result<(), MapError> {
    match *op {
        MapOp::UnmapAll => space.unmap_all(),
        MapOp::Unmap { range } => space.unmap(range),
        MapOp::Protect { range, prot } => space.protect(range, prot),
        MapOp::Remap { from, to, keep } => space.remap(from, to, keep),
        MapOp::Discard { range } => space.discard(range),
        MapOp::Map { .. } | MapOp::Rewrite { .. } => Ok(()),
    }
}

fn request(trace: &Trace, op: &MapOp) -> Result<MapRequest, ReplayError> {
    let MapOp::Map { range, prot, shared, grows_down, no_reserve, backing, .. } = *op else {
        unreachable!("called for Map only");
    };
    let source = match backing {
        Backing::Zero => MapSource::Zero,
        Backing::File { file, offset } => {
            MapSource::File { path: trace.verified_file_path(file)?, offset, object: u64::from(file.0) }
        }
    };
    Ok(MapRequest { range, prot, shared, grows_down, no_reserve, source })
}

/// Puts what the kernel wrote into memory, in order.
pub(crate) fn apply_writes(
    trace: &Trace,
    (id, space): (SpaceId, &mut Space),
    event: EventId,
    writes: &[MemWrite],
) -> Result<(), ReplayError> {
    for write in writes {
        let bytes = trace.data(&write.data)?;
        space.write(write.addr, &bytes).map_err(|source| ReplayError::Write { space: id, event, source })?;
    }
    Ok(())
}
