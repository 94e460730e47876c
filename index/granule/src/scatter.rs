//! Sorts what log records hold by slot: addresses and values, each to its place in the layout. Knows nothing of what they mean.

use crate::addresses::Address;
use crate::dictionary::{Slot, SlotAddress, SlotValue};
use crate::digest::Digest;
use crate::raw::HEADER;
use crate::shape::{StoreAddress, StoreContents, StoreShape};
use crate::wire::WireError;

/// Room behind the values of each slot: eight bytes are copied where fewer are meant.
const SLACK: u64 = 8;

/// No place in a record.
const NOWHERE: u16 = u16::MAX;

/// Of the number of values: the block ends in a call.
const CALLS: u16 = 1 << 15;

/// For each block, what to take from its records and where it goes next. All of a block's lies together, in words:
///
/// ```text
/// block   := record bytes: u16, addresses: u16, values: u15, calls: u1, last: u16; if there are addresses: `last plus`, address...;
///            value...
/// address := at: u16, base: u16, next: u32; `base plus`
/// value   := at: u16, size: u16, next: u32
/// ```
///
/// `at`, `base` and `last` are places in a record. What comes before an address is what lies at `base`, plus something, or the last
/// address of the records before if `base` is nowhere; a record's own last address is what lies at `last`, plus something.
#[derive(Debug, Default)]
pub(crate) struct Recipes {
    words: Vec<u64>,
    /// By local number: where its words begin.
    starts: Vec<u32>,
    /// Where the values of each slot that has some begin, in the order of slots.
    values: Vec<u32>,
    value_bytes: u64,
}

impl Recipes {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
        self.values.clear();
        self.value_bytes = 0;
    }

    /// Adds a block that runs `count` times: the next local number.
    pub(crate) fn add(
        &mut self,
        slots: &[Slot],
        stores: &[StoreShape],
        digest: &Digest,
        count: u32,
    ) -> Result<(), WireError> {
        let head = self.words.len();
        self.starts.push(u32::try_from(head).map_err(|_| TOO_LARGE)?);
        self.words.push(0);
        let (mut addresses, mut last) = (0, None);
        for (slot, store) in slots.iter().zip(stores) {
            let SlotAddress::Stream { base, delta, owns } = slot.address else { continue };
            let at = match store.address {
                StoreAddress::Logged { at } => at,
                StoreAddress::Derived { store, .. } => logged_at(stores, store)?,
                StoreAddress::Fixed(_) => continue,
            };
            if owns {
                if addresses == 0 {
                    self.words.push(0);
                }
                let (before, plus) = last.unwrap_or((NOWHERE, 0));
                self.words.extend([pack([at, before], base), plus as u64]);
                addresses += 1;
            }
            last = Some((at, delta));
        }
        let (last, plus) = last.unwrap_or((NOWHERE, 0));
        if addresses > 0 {
            self.words[head + 1] = plus as u64;
        }
        let mut values = if digest.turn.calls() { CALLS } else { 0 };
        for (slot, store) in slots.iter().zip(stores) {
            if let (SlotValue::Stream(_), StoreContents::Logged { at }) = (slot.value, store.contents) {
                let next = u32::try_from(self.value_bytes).map_err(|_| TOO_LARGE)?;
                self.words.push(pack([at, u16::from(slot.size)], next));
                self.values.push(next);
                self.value_bytes += u64::from(slot.size) * u64::from(count) + SLACK;
                values += 1;
            }
        }
        u32::try_from(self.value_bytes).map_err(|_| TOO_LARGE)?;
        let values = u64::from(values) << 32 | u64::from(last) << 48;
        self.words[head] = u64::from(digest.record) | addresses << 16 | values;
        Ok(())
    }

    /// Where the values of each slot that has some begin, in the order of slots.
    pub(crate) fn value_starts(&self) -> &[u32] {
        &self.values
    }

    /// Sorts the records in `log` of the blocks in `sequence`, which were added with as many executions. `pushed` becomes
    /// where the last moving store of each block that calls went.
    pub(crate) fn scatter(
        &mut self,
        sequence: &[u32],
        log: &[u8],
        addresses: &mut [Address],
        values: &mut Vec<u8>,
        pushed: &mut Vec<u64>,
    ) {
        pushed.resize(sequence.len() + 1, 0);
        let mut calls = 0;
        values.resize(self.value_bytes as usize, 0);
        let values = values.as_mut_slice();
        let words = self.words.as_mut_slice();
        let (mut rest, mut before) = (log, 0u64);
        for &local in sequence {
            let mut at = self.starts[local as usize] as usize;
            let [bytes, count, value_count, last] = unpack(words[at]);
            let record = &rest[HEADER..];
            rest = &record[usize::from(bytes)..];
            at += 1;
            if count > 0 {
                let after = word(record, last).wrapping_add(words[at]);
                at += 1;
                for op in words[at..at + 2 * usize::from(count)].chunks_exact_mut(2) {
                    let [place, base, ..] = unpack(op[0]);
                    let (next, here) = ((op[0] >> 32) as usize, word(record, place));
                    if base != NOWHERE {
                        before = word(record, base).wrapping_add(op[1]);
                    }
                    addresses[next] = Address { here, before };
                    op[0] += 1 << 32;
                }
                at += 2 * usize::from(count);
                before = after;
            }
            pushed[calls] = before;
            calls += usize::from(value_count & CALLS != 0);
            for op in &mut words[at..at + usize::from(value_count & !CALLS)] {
                let [place, size, ..] = unpack(*op);
                copy(record, place, size, &mut values[(*op >> 32) as usize..]);
                *op += u64::from(size) << 32;
            }
        }
        pushed.truncate(calls);
    }
}

const TOO_LARGE: WireError = WireError::Invalid { what: "size" };

fn logged_at(stores: &[StoreShape], store: u16) -> Result<u16, WireError> {
    match stores.get(usize::from(store)).map(|store| store.address) {
        Some(StoreAddress::Logged { at }) => Ok(at),
        _ => Err(WireError::Invalid { what: "derived address" }),
    }
}

fn pack([low, high]: [u16; 2], next: u32) -> u64 {
    u64::from(low) | u64::from(high) << 16 | u64::from(next) << 32
}

#[inline]
const fn unpack(word: u64) -> [u16; 4] {
    [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16]
}

#[inline]
fn word(bytes: &[u8], at: u16) -> u64 {
    let bytes = bytes.get(usize::from(at)..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Copies a value to the front of `to`, and perhaps some bytes of no meaning behind it.
#[inline]
fn copy(record: &[u8], at: u16, size: u16, to: &mut [u8]) {
    let from = &record[usize::from(at)..];
    if size <= 8
        && let (Some(from), Some(to)) = (from.first_chunk::<8>(), to.first_chunk_mut::<8>())
    {
        *to = *from;
        return;
    }
    copy_long(from, usize::from(size), to);
}

fn copy_long(from: &[u8], size: usize, to: &mut [u8]) {
    match (from.first_chunk::<16>(), from.first_chunk::<32>()) {
        (Some(from), _) if size == 16 => to[..16].copy_from_slice(from),
        (_, Some(from)) if size == 32 => to[..32].copy_from_slice(from),
        _ => to[..size].copy_from_slice(&from[..size]),
    }
}
