//! Holds an index against the replayed memory at some moments: `verify TRACE [MOMENTS]`.
//!
//! All writes before the moment are put into a copy of memory, in order; every byte that was written since it was mapped
//! must be what the replay has there.

use std::collections::BTreeMap;
use std::path::Path;

use guest::{GuestAddr, GuestMemory, GuestRange, Moment, SpaceId};
use replayer::{Bias, Replay, Silent, Until};
use store::{Store, WriteQuery};
use trace::Trace;

const PAGE: u64 = guest::PAGE_SIZE;

/// A page as the index has it: bytes, and when each was written, counted from 1.
struct Page {
    bytes: [u8; PAGE as usize],
    written: [u64; PAGE as usize],
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let trace = Trace::open(Path::new(args.get(1).ok_or("usage: verify TRACE [MOMENTS]")?))?;
    let moments: u64 = args.get(2).map_or(Ok(5), |text| text.parse())?;
    let store = Store::open(trace.dir(), &trace.uuid())?;
    let end = store.end()?.0;
    let mut replay = Replay::open(&trace, &replayer::Options::default())?;
    let mut spaces: BTreeMap<SpaceId, BTreeMap<u64, Page>> = BTreeMap::new();
    let mut from = Moment(0);
    let mut wrong = 0;
    for step in 1..=moments {
        let to = Moment(if step == moments { end } else { end / moments * step });
        replay.run(Until::Moment(to, Bias::Earliest), &mut Silent)?;
        for row in store.writes(&WriteQuery { moments: from..to, ..WriteQuery::default() })? {
            let row = row?;
            let value = store.value(&row)?;
            let pages = spaces.entry(row.space).or_default();
            for (addr, &byte) in (row.addr.0..).zip(&value) {
                let page = pages
                    .entry(addr / PAGE)
                    .or_insert_with(|| Page { bytes: [0; PAGE as usize], written: [0; PAGE as usize] });
                page.bytes[(addr % PAGE) as usize] = byte;
                page.written[(addr % PAGE) as usize] = row.moment.0 + 1;
            }
        }
        let (mut checked, mut bad) = (0u64, 0u64);
        for (id, space) in replay.spaces() {
            let Some(pages) = spaces.get(&id) else { continue };
            for mapping in store.mappings_at(id, to)? {
                let range = (mapping.range.start.0 / PAGE)..(mapping.range.end.0 / PAGE);
                for (&number, page) in pages.range(range) {
                    let Ok(memory) = space.read_vec(GuestAddr(number * PAGE), PAGE as usize) else {
                        continue;
                    };
                    for (at, &byte) in memory.iter().enumerate() {
                        if page.written[at] == 0 || page.written[at] <= mapping.from.0 && mapping.from.0 > 0 {
                            continue;
                        }
                        checked += 1;
                        if page.bytes[at] != byte {
                            bad += 1;
                            if bad <= 5 {
                                let addr = GuestAddr(number * PAGE + at as u64);
                                let last = store.last_write(id, GuestRange::new(addr, 1), to)?;
                                println!("{addr}: index {:#x}, memory {:#x}; {last:?}", page.bytes[at], byte);
                            }
                        }
                    }
                }
            }
        }
        println!("{to}: {checked} bytes checked, {bad} differ");
        wrong += bad;
        from = to;
    }
    if wrong > 0 { Err("the index is wrong".into()) } else { Ok(()) }
}
