//! What encoding needs of each block, close together: shapes lie all over memory, and a granule runs thousands of them.

use crate::frames::Turn;
use crate::shape::{BlockId, BlockShape, BlockTable, StoreShape};

/// What encoding needs of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digest {
    pub(crate) turn: Turn,
    /// The lines of its page in which its instructions begin; 0 if they are not all in one page.
    pub(crate) lines: u64,
    first_store: u32,
    stores: u16,
    /// Bytes of a log record behind its header.
    pub(crate) record: u16,
}

/// The digests of a table's blocks, by number.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    digests: Vec<Digest>,
    stores: Vec<StoreShape>,
}

impl Digests {
    /// Learns of the blocks that are new in `table`. A block that is not loaded is an error.
    pub(crate) fn learn(&mut self, table: &BlockTable) -> Result<(), BlockId> {
        for number in self.digests.len()..table.len() {
            let id = BlockId(number as u32);
            let shape = table.get(id).ok_or(id)?;
            self.digests.push(Digest {
                turn: Turn::new(shape),
                lines: lines(shape),
                first_store: self.stores.len() as u32,
                stores: shape.stores.len() as u16,
                record: shape.record,
            });
            self.stores.extend_from_slice(&shape.stores);
        }
        Ok(())
    }

    pub(crate) fn get(&self, id: BlockId) -> Option<&Digest> {
        self.digests.get(id.index())
    }

    pub(crate) fn stores(&self, digest: &Digest) -> &[StoreShape] {
        &self.stores[digest.first_store as usize..][..usize::from(digest.stores)]
    }
}

fn lines(shape: &BlockShape) -> u64 {
    let last = shape.pc_of(shape.instructions().saturating_sub(1));
    if !shape.seams.is_empty() || last.0 >> 12 != shape.pc.0 >> 12 {
        return 0;
    }
    // No instruction is longer than a line: one begins in each line between.
    let (from, to) = (shape.pc.page_offset() >> 6, last.page_offset() >> 6);
    (u64::MAX >> (63 - to)) & (u64::MAX << from)
}
