//! Random granules beside the plain list of what they hold, and every question asked of both.

#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use backstory_granule as granule;

mod made;

use std::sync::Arc;

use granule::{BlockTable, Counters, Encoder, Frames, Granule, Origin, Write, WriteFilter};
use guest::{GuestAddr, GuestRange};
use made::{Source, Truth, generate, overlaps};

fn open(columns: &[(u32, Vec<u8>)], table: &BlockTable) -> Arc<Granule> {
    let source = Box::new(Source(columns.to_vec()));
    Arc::new(Granule::open(source, Arc::new(table.clone()), Arc::new(Counters::default())).unwrap())
}

fn same(granule: &Granule, write: &Write, truth: &made::TrueWrite) {
    assert_eq!((write.tick, write.addr.0, write.len), (truth.tick, truth.addr, truth.bytes.len() as u32));
    let pc = match write.origin {
        Origin::Store { pc, .. } => Some(pc.0),
        Origin::System { event, moment, task } => {
            assert_eq!((Some(event.0), moment.0, task.0), (truth.event, truth.moment, truth.task));
            None
        }
    };
    assert_eq!(pc, truth.pc);
    assert_eq!(granule.value(write).unwrap(), truth.bytes);
}

#[track_caller]
fn check(granule: &Arc<Granule>, truth: &Truth, filter: &WriteFilter) {
    let mut expected: Vec<_> = truth
        .writes
        .iter()
        .filter(|write| {
            filter.ticks.contains(&write.tick)
                && filter.addrs.is_none_or(|range| overlaps(write, range))
                && filter.pcs.is_none_or(|range| write.pc.is_some_and(|pc| range.contains(GuestAddr(pc))))
        })
        .collect();
    if filter.backwards {
        expected.reverse();
    }
    let found: Vec<Write> = granule.writes(filter.clone()).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), expected.len(), "{filter:?}");
    for (write, truth) in found.iter().zip(expected) {
        same(granule, write, truth);
    }
}

#[test]
fn every_write_comes_back_and_every_filter_agrees_with_the_list() {
    for seed in 0..40 {
        let mut encoder = Encoder::new().unwrap();
        let mut random = made::Random::new(seed);
        let (raw, table, truth) = generate(&mut random, 300 + seed as usize * 20);
        let encoded = encoder.encode(&raw, &table, &mut Frames::default()).unwrap();
        assert_eq!(encoded.writes, truth.writes.len() as u64);
        let granule = open(&encoded.columns, &table);
        let end = granule.end_tick();
        for backwards in [false, true] {
            check(&granule, &truth, &WriteFilter { backwards, ..WriteFilter::default() });
            for _ in 0..40 {
                let write = &truth.writes[random.below(truth.writes.len() as u64) as usize];
                let start = write.addr.wrapping_add(random.below(20)).saturating_sub(10);
                let addrs = GuestRange::new(GuestAddr(start), 1 + random.below(40));
                let from = random.below(end + 1);
                let ticks = from..from + random.below(end);
                let pcs = write.pc.map(|pc| GuestRange::new(GuestAddr(pc), 1 + random.below(64)));
                let any = 0..u64::MAX;
                for (addrs, ticks, pcs) in [
                    (Some(addrs), any.clone(), None),
                    (Some(addrs), ticks.clone(), None),
                    (None, ticks.clone(), pcs),
                    (Some(addrs), ticks, pcs),
                ] {
                    check(&granule, &truth, &WriteFilter { addrs, ticks, pcs, backwards });
                }
            }
        }
    }
}

#[test]
fn page_masks_cover_exactly_the_bytes_written() {
    let mut encoder = Encoder::new().unwrap();
    let mut random = made::Random::new(7);
    let (raw, table, truth) = generate(&mut random, 2000);
    let encoded = encoder.encode(&raw, &table, &mut Frames::default()).unwrap();
    let mut bytes: Vec<u64> =
        truth.writes.iter().flat_map(|write| write.addr..write.addr + write.bytes.len() as u64).collect();
    bytes.sort_unstable();
    bytes.dedup();
    let mut masked = Vec::new();
    for (page, mask) in &encoded.pages {
        let mask = granule::PageMask::from_bytes(&mask.to_bytes()).unwrap();
        for byte in page << 12..(page + 1) << 12 {
            if mask.touches(GuestAddr(page << 12), GuestRange::new(GuestAddr(byte), 1)) {
                masked.push(byte);
            }
        }
    }
    assert_eq!(masked, bytes);
}

#[test]
fn executions_come_back() {
    let mut encoder = Encoder::new().unwrap();
    let mut random = made::Random::new(11);
    let (raw, table, truth) = generate(&mut random, 2000);
    let encoded = encoder.encode(&raw, &table, &mut Frames::default()).unwrap();
    let granule = open(&encoded.columns, &table);
    for backwards in [false, true] {
        let mut runs: Vec<_> = granule
            .executed(None, 0..u64::MAX, backwards)
            .unwrap()
            .map(|run| run.map(|run| (run.tick, run.block)).unwrap())
            .collect();
        if backwards {
            runs.reverse();
        }
        assert_eq!(runs, truth.runs);
    }
    for &(tick, block) in truth.runs.iter().step_by(97) {
        assert_eq!(granule.pc(tick).unwrap(), Some(table.get(block).unwrap().pc));
        let shape = table.get(block).unwrap();
        let code = GuestRange { start: shape.pc, end: shape.end_pc() };
        let expected = truth.runs.iter().filter(|(_, id)| table.get(*id).unwrap().begins_in(code)).count();
        assert_eq!(granule.executed(Some(code), 0..u64::MAX, false).unwrap().count(), expected);
        let lines: u64 = encoded
            .code
            .iter()
            .filter(|(page, _)| *page == code.start.0 >> 12)
            .map(|(_, code)| code.lines)
            .sum();
        assert_ne!(lines >> (code.start.page_offset() >> 6) & 1, 0);
    }
    assert_eq!(granule.pc(granule.end_tick()).unwrap(), None);
}

#[test]
fn damaged_columns_are_errors_or_right_never_a_panic() {
    let mut encoder = Encoder::new().unwrap();
    let mut random = made::Random::new(3);
    let (raw, table, truth) = generate(&mut random, 60);
    let encoded = encoder.encode(&raw, &table, &mut Frames::default()).unwrap();
    for at in 0..encoded.columns.len() {
        for byte in 0..encoded.columns[at].1.len() {
            let mut columns = encoded.columns.clone();
            columns[at].1[byte] ^= 1 << random.below(8);
            let source = Box::new(Source(columns));
            let opened = Granule::open(source, Arc::new(table.clone()), Arc::new(Counters::default()));
            let Ok(granule) = opened.map(Arc::new) else { continue };
            let Ok(writes) = granule.writes(WriteFilter::default()) else { continue };
            for write in writes.take(truth.writes.len() * 2) {
                let Ok(write) = write else { break };
                let _ = granule.value(&write);
            }
            let _ = granule.follow(&mut Frames::default(), u64::MAX, |_| {});
        }
    }
}
