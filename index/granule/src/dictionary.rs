//! Which blocks a granule runs and where the columns of their stores lie. Encoder and decoder compute the same layout
//! from the same counts, so that none of it is stored.

use crate::shape::{BlockId, BlockTable, StoreAddress, StoreContents, StoreShape, StoreSize};
use crate::wire::WireError;

/// A block of the granule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) id: BlockId,
    /// How often it runs.
    pub(crate) count: u32,
    pub(crate) instructions: u32,
    /// Its slots: `first_slot..first_slot + slots`, as many as the shape has stores.
    pub(crate) first_slot: u32,
    pub(crate) slots: u16,
    /// Whether one of them is variable.
    pub(crate) variable: bool,
    /// Whether one of them is neither variable nor fixed.
    pub(crate) moving: bool,
}

/// Where a slot's addresses come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotAddress {
    Fixed(u64),
    /// `base..base + count` of the granule's addresses, plus `delta`. The slot `owns` them where they are its own.
    Stream {
        base: u32,
        delta: i64,
        owns: bool,
    },
    Variable,
}

/// Where a slot's values come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotValue {
    Fixed(u64),
    /// From this byte on in the granule's values, `size` bytes each.
    Stream(u64),
    Variable,
}

/// One store of a block of the granule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) local: u32,
    pub(crate) store: u16,
    /// 0 for variable ones.
    pub(crate) size: u8,
    pub(crate) address: SlotAddress,
    pub(crate) value: SlotValue,
}

/// Everything that follows from which blocks run and how often.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) locals: Vec<Local>,
    pub(crate) slots: Vec<Slot>,
    /// Number of addresses that are stored.
    pub(crate) addresses: u32,
    /// Number of value bytes that are stored, variable ones aside.
    pub(crate) value_bytes: u64,
    /// Number of writes, variable ones aside.
    pub(crate) writes: u64,
}

impl Layout {
    /// The layout of a granule that runs each block so often. `blocks` is in the order of local numbers.
    pub(crate) fn new(blocks: &[(BlockId, u32)], table: &BlockTable) -> Result<Self, WireError> {
        let mut layout = Self::default();
        for &(id, count) in blocks {
            let shape = table.get(id).ok_or(WireError::Invalid { what: "block number" })?;
            layout.add(id, count, shape.instructions(), &shape.stores)?;
        }
        Ok(layout)
    }

    /// Adds a block: the next local number.
    pub(crate) fn add(
        &mut self,
        id: BlockId,
        count: u32,
        instructions: u32,
        stores: &[StoreShape],
    ) -> Result<(), WireError> {
        let first_slot = self.slots.len();
        let local = self.locals.len() as u32;
        let (mut variable, mut moving) = (false, false);
        for (index, store) in stores.iter().enumerate() {
            let (size, address) = match store.size {
                StoreSize::Variable => (0, SlotAddress::Variable),
                StoreSize::Fixed(size) => (size, self.address(store.address, first_slot, count)?),
            };
            variable |= size == 0;
            moving |= matches!(address, SlotAddress::Stream { .. });
            let value = match (size, store.contents) {
                (0, _) => SlotValue::Variable,
                (_, StoreContents::Fixed(value)) => SlotValue::Fixed(value),
                (_, StoreContents::Logged { .. }) => {
                    let at = self.value_bytes;
                    self.value_bytes += u64::from(count) * u64::from(size);
                    SlotValue::Stream(at)
                }
            };
            self.writes += if size == 0 { 0 } else { u64::from(count) };
            self.slots.push(Slot { local, store: index as u16, size, address, value });
        }
        self.locals.push(Local {
            id,
            count,
            instructions,
            first_slot: first_slot as u32,
            slots: stores.len() as u16,
            variable,
            moving,
        });
        Ok(())
    }

    fn address(
        &mut self,
        address: StoreAddress,
        first_slot: usize,
        count: u32,
    ) -> Result<SlotAddress, WireError> {
        const INVALID: WireError = WireError::Invalid { what: "derived address" };
        Ok(match address {
            StoreAddress::Fixed(addr) => SlotAddress::Fixed(addr),
            StoreAddress::Logged { .. } => {
                let base = self.addresses;
                self.addresses = base.checked_add(count).ok_or(INVALID)?;
                SlotAddress::Stream { base, delta: 0, owns: true }
            }
            StoreAddress::Derived { store, delta } => {
                match self.slots.get(first_slot + usize::from(store)).map(|slot| slot.address) {
                    Some(SlotAddress::Fixed(addr)) => SlotAddress::Fixed(addr.wrapping_add(delta as u64)),
                    Some(SlotAddress::Stream { base, delta: first, .. }) => {
                        SlotAddress::Stream { base, delta: first.wrapping_add(delta), owns: false }
                    }
                    _ => return Err(INVALID),
                }
            }
        })
    }

    /// That of no blocks.
    pub(crate) fn clear(&mut self) {
        self.locals.clear();
        self.slots.clear();
        (self.addresses, self.value_bytes, self.writes) = (0, 0, 0);
    }

    /// The slots of a block.
    #[inline]
    pub(crate) fn slots_of(&self, local: &Local) -> &[Slot] {
        let first = local.first_slot as usize;
        &self.slots[first..first + usize::from(local.slots)]
    }
}

impl Slot {
    /// The address of the `k`-th execution; 0 for variable slots.
    #[inline]
    pub(crate) fn address(&self, addresses: &[u64], k: u32) -> u64 {
        self.address.of(addresses, k)
    }
}

impl SlotAddress {
    /// The address of the `k`-th execution; 0 for variable slots.
    #[inline]
    pub(crate) fn of(self, addresses: &[u64], k: u32) -> u64 {
        match self {
            Self::Fixed(addr) => addr,
            Self::Stream { base, delta, .. } => addresses[(base + k) as usize].wrapping_add(delta as u64),
            Self::Variable => 0,
        }
    }
}
