//! Arenas: stretches of the code cache, and which block lies at a cache address. Plain arithmetic.

use guest::GuestAddr;
use translate::{BlockId, CacheAddr};

use crate::place::in_reach;

/// Sizes of an arena in bytes, the best first; only what is used costs memory.
pub(crate) const ARENA_BYTES: [u64; 3] = [128 << 20, 32 << 20, 4 << 20];

/// Most bytes that a block's hot or cold code can have.
pub(crate) const BLOCK_ROOM: u64 = 64 << 10;

/// A stretch of the code cache: hot code from its start, cold code from its middle, and at the end of each half a place for
/// a block that is run once.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    start: u64,
    size: u64,
    hot: u64,
    cold: u64,
    /// Offsets of hot code and the blocks there, ascending.
    blocks: Vec<(u32, BlockId)>,
    /// The block run once, while it is there.
    once: Option<BlockId>,
    /// Bytes of hot code of blocks that are not gone.
    in_use: u64,
}

impl Arena {
    pub(crate) fn new(start: u64, size: u64) -> Self {
        Self { start, size, hot: start, cold: start + size / 2, blocks: Vec::new(), once: None, in_use: 0 }
    }

    /// Where the next block goes: hot and cold code. `None` when full.
    pub(crate) fn next(&self) -> Option<(CacheAddr, CacheAddr)> {
        let room = self.hot + 2 * BLOCK_ROOM <= self.start + self.size / 2
            && self.cold + 2 * BLOCK_ROOM <= self.start + self.size;
        room.then_some((CacheAddr(self.hot), CacheAddr(self.cold)))
    }

    /// Where a block that is run once goes.
    pub(crate) fn once(&self) -> (CacheAddr, CacheAddr) {
        let end = self.start + self.size;
        (CacheAddr(end - self.size / 2 - BLOCK_ROOM), CacheAddr(end - BLOCK_ROOM))
    }

    /// Takes the place that `next` gave for a block of these lengths.
    pub(crate) fn take(&mut self, id: BlockId, hot: usize, cold: usize) {
        self.blocks.push(((self.hot - self.start) as u32, id));
        self.in_use += hot as u64;
        self.hot = (self.hot + hot.max(1) as u64).next_multiple_of(16);
        self.cold = (self.cold + cold as u64).next_multiple_of(16);
    }

    /// So many bytes of hot code will not be run again.
    pub(crate) fn give_up(&mut self, hot: u64) {
        self.in_use = self.in_use.saturating_sub(hot);
    }

    /// Whether there is room for some dozens of usual blocks.
    pub(crate) fn is_roomy(&self) -> bool {
        let most = self.size / 2 - 8 * BLOCK_ROOM;
        self.hot - self.start <= most && self.cold - self.start - self.size / 2 <= most
    }

    /// Whether most of its code will not be run again.
    pub(crate) fn is_mostly_dead(&self) -> bool {
        self.in_use < (self.hot - self.start) / 2
    }

    /// Begins anew; the blocks that were there.
    pub(crate) fn take_blocks(&mut self) -> Vec<BlockId> {
        (self.hot, self.cold) = (self.start, self.start + self.size / 2);
        self.once = None;
        self.in_use = 0;
        std::mem::take(&mut self.blocks).into_iter().map(|(_, id)| id).collect()
    }

    /// Takes a place of its own for a stub, among the cold code.
    pub(crate) fn take_stub(&mut self, bytes: u64) -> Option<CacheAddr> {
        let at = self.cold;
        let end = (at + bytes).next_multiple_of(16);
        if end + BLOCK_ROOM > self.start + self.size {
            return None;
        }
        self.cold = end;
        Some(CacheAddr(at))
    }

    /// Whether an address lies in the arena.
    pub(crate) fn holds(&self, at: CacheAddr) -> bool {
        (self.start..self.start + self.size).contains(&at.0)
    }

    /// Notes which block lies in the place for one that is run once.
    pub(crate) fn set_once(&mut self, id: BlockId) {
        self.once = Some(id);
    }

    /// The first address from the arena's start on that has these low bits (those in `mask`).
    pub(crate) fn with_low_bits(&self, bits: u64, mask: u64) -> CacheAddr {
        let at = (self.start & !mask) | (bits & mask);
        CacheAddr(if at < self.start { at.wrapping_add(mask.wrapping_add(1)) } else { at })
    }

    pub(crate) fn reaches(&self, pc: GuestAddr) -> bool {
        in_reach(pc, self.start, self.size)
    }

    /// The block whose hot code may hold `at`.
    pub(crate) fn block_at(&self, at: CacheAddr) -> Option<BlockId> {
        let offset = at.0.checked_sub(self.start).filter(|&offset| offset < self.size / 2)?;
        if offset >= self.size / 2 - BLOCK_ROOM {
            return self.once;
        }
        let next = self.blocks.partition_point(|&(start, _)| u64::from(start) <= offset);
        self.blocks.get(next.checked_sub(1)?).map(|&(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_address() {
        let mut arena = Arena::new(0x1000_0000, 128 << 20);
        for id in 0..3 {
            let (hot, cold) = arena.next().unwrap();
            assert_eq!((hot.0 % 16, cold.0 % 16), (0, 0));
            arena.take(BlockId(id), 20, 5);
        }
        assert_eq!(arena.block_at(CacheAddr(0x1000_001f)), Some(BlockId(0)));
        assert_eq!(arena.block_at(CacheAddr(0x1000_0020)), Some(BlockId(1)));
        assert_eq!(arena.block_at(CacheAddr(0xfff_ffff)), None);
        let (hot, _) = arena.once();
        assert_eq!(arena.block_at(hot), None);
        arena.set_once(BlockId(9));
        assert_eq!(arena.block_at(hot), Some(BlockId(9)));
    }
}
