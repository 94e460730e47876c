//! The address streams, one per store of a block whose addresses are logged. Each is coded by the cheapest of three
//! differences, as varints.

use crate::dictionary::{Layout, SlotAddress};
use crate::wire::{WireError, put_all_signed, unzigzag, zigzag};

/// An address that is being coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Address {
    pub(crate) here: u64,
    /// The address of the store just before, whichever slot made it (fixed and variable ones do not count).
    pub(crate) before: u64,
}

/// What an address is coded as a difference to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Coding {
    /// The last address of the slot.
    Last = 0,
    /// The address of the store just before, whichever slot made it (fixed and variable ones do not count).
    Before = 1,
    /// The last address of the slot plus the last difference.
    Stride = 2,
}

impl Coding {
    pub(crate) fn from_byte(byte: u8) -> Result<Self, WireError> {
        match byte {
            0 => Ok(Self::Last),
            1 => Ok(Self::Before),
            2 => Ok(Self::Stride),
            _ => Err(WireError::Invalid { what: "address coding" }),
        }
    }
}

/// How many addresses of a slot are looked at to choose its coding.
const SAMPLE: usize = 96;

/// A guess at what coding `addresses` will cost.
fn choose(addresses: &[Address]) -> Coding {
    let step = (addresses.len() / SAMPLE).max(1);
    let mut cost = [0u32; 3];
    let mut last = [0u64; 3];
    let mut at = 2;
    while at < addresses.len() {
        let Address { here, before } = addresses[at];
        let delta = here.wrapping_sub(addresses[at - 1].here);
        let stride = addresses[at - 1].here.wrapping_sub(addresses[at - 2].here);
        let codes = [delta, here.wrapping_sub(before), delta.wrapping_sub(stride)];
        for (kind, code) in codes.into_iter().enumerate() {
            let bytes = (70 - zigzag(code as i64).leading_zeros()) / 7;
            cost[kind] += if code == last[kind] { 1 } else { 4 + 8 * bytes };
            last[kind] = code;
        }
        at += step;
    }
    let [delta, before, stride] = cost;
    if before < delta && before <= stride {
        Coding::Before
    } else if stride < delta {
        Coding::Stride
    } else {
        Coding::Last
    }
}

/// Codes all streams, one after the other, into `out`, and their codings into `codings`.
pub(crate) fn write(layout: &Layout, addresses: &[Address], codings: &mut Vec<u8>, out: &mut Vec<u8>) {
    for slot in &layout.slots {
        let SlotAddress::Stream { base, owns: true, .. } = slot.address else { continue };
        let range = base as usize..(base + layout.locals[slot.local as usize].count) as usize;
        let addresses = &addresses[range];
        let coding = choose(addresses);
        codings.push(coding as u8);
        match coding {
            Coding::Last => {
                let mut last = 0u64;
                let code = |&Address { here, .. }| here.wrapping_sub(std::mem::replace(&mut last, here));
                put_all_signed(out, addresses.iter().map(code));
            }
            Coding::Before => {
                let code = |&Address { here, before }| here.wrapping_sub(before);
                put_all_signed(out, addresses.iter().map(code));
            }
            Coding::Stride => {
                let (mut last, mut stride) = (0u64, 0u64);
                let code = |&Address { here, .. }| {
                    let delta = here.wrapping_sub(std::mem::replace(&mut last, here));
                    delta.wrapping_sub(std::mem::replace(&mut stride, delta))
                };
                put_all_signed(out, addresses.iter().map(code));
            }
        }
    }
}

/// A stream that is being decoded.
#[derive(Clone, Copy)]
struct Stream {
    coding: Coding,
    at: usize,
    next: u32,
    last: u64,
    stride: u64,
}

/// The streams of a column and which slot uses which.
fn open_streams(layout: &Layout, codings: &[u8], bytes: &[u8]) -> Result<(Vec<Stream>, Vec<u32>), WireError> {
    let mut streams = Vec::new();
    let mut of_slot = vec![u32::MAX; layout.slots.len()];
    let mut owner = std::collections::HashMap::new();
    let mut at = 0;
    for (index, slot) in layout.slots.iter().enumerate() {
        match slot.address {
            SlotAddress::Stream { base, owns: true, .. } => {
                let coding = Coding::from_byte(*codings.get(streams.len()).ok_or(WireError::Short)?)?;
                of_slot[index] = streams.len() as u32;
                owner.insert(base, of_slot[index]);
                streams.push(Stream { coding, at, next: base, last: 0, stride: 0 });
                at = skip(bytes, at, layout.locals[slot.local as usize].count)?;
            }
            SlotAddress::Stream { base, .. } => {
                of_slot[index] = *owner.get(&base).ok_or(WireError::Invalid { what: "derived address" })?;
            }
            SlotAddress::Fixed(_) | SlotAddress::Variable => {}
        }
    }
    if at != bytes.len() || codings.len() != streams.len() {
        return Err(WireError::Invalid { what: "address column" });
    }
    Ok((streams, of_slot))
}

/// The addresses that [`write`] coded, given the sequence of blocks.
pub(crate) fn read(
    layout: &Layout,
    sequence: &[u32],
    codings: &[u8],
    bytes: &[u8],
) -> Result<Vec<u64>, WireError> {
    let (mut streams, of_slot) = open_streams(layout, codings, bytes)?;
    let mut addresses = vec![0u64; layout.addresses as usize];
    let mut before = 0u64;
    for &local in sequence {
        let local = &layout.locals[local as usize];
        if !local.moving {
            continue;
        }
        let first = local.first_slot as usize;
        let slots = first..first + usize::from(local.slots);
        for (slot, &stream) in layout.slots[slots.clone()].iter().zip(&of_slot[slots]) {
            let SlotAddress::Stream { delta, owns, .. } = slot.address else { continue };
            let stream = &mut streams[stream as usize];
            if owns {
                before = stream.step(bytes, before);
                *addresses.get_mut(stream.next as usize).ok_or(WireError::Short)? = before;
                stream.next += 1;
            } else {
                before = stream.last.wrapping_add(delta as u64);
            }
        }
    }
    Ok(addresses)
}

impl Stream {
    #[inline]
    fn step(&mut self, bytes: &[u8], before: u64) -> u64 {
        let mut value = 0u64;
        let mut shift = 0;
        while let Some(&byte) = bytes.get(self.at) {
            self.at += 1;
            value |= u64::from(byte & 0x7f) << (shift & 63);
            if byte < 0x80 {
                break;
            }
            shift += 7;
        }
        let code = unzigzag(value) as u64;
        let addr = match self.coding {
            Coding::Last => self.last.wrapping_add(code),
            Coding::Before => before.wrapping_add(code),
            Coding::Stride => {
                let delta = self.stride.wrapping_add(code);
                self.stride = delta;
                self.last.wrapping_add(delta)
            }
        };
        self.last = addr;
        addr
    }
}

/// The position behind the next `count` varints.
fn skip(bytes: &[u8], from: usize, count: u32) -> Result<usize, WireError> {
    let mut left = count;
    let mut at = from;
    while left > 0 {
        let byte = *bytes.get(at).ok_or(WireError::Short)?;
        at += 1;
        left -= u32::from(byte < 0x80);
    }
    Ok(at)
}
