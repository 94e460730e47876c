//! A synthetic run of several spaces and tasks, indexed, and every query asked of the index and of the plain list.

#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use ::granule;

#[path = "../../granule/tests/made/mod.rs"]
#[expect(dead_code, reason = "whole granules are the codec's own test")]
mod made;
mod world;

use std::collections::BTreeMap;

use backstory_store::{
    Author, CallQuery, CallRow, ExecutionQuery, OpenError, Order, Store, WriteQuery, WriteRow,
};
use guest::{GuestAddr, GuestRange, Moment, SpaceId, TaskId};
use world::{TrueCall, World};

#[track_caller]
fn same_write(store: &Store, row: &WriteRow, truth: &made::TrueWrite) {
    assert_eq!(
        (row.moment.0, row.task.0, row.space.0, row.addr.0, row.len),
        (truth.moment, truth.task, truth.space, truth.addr, truth.bytes.len() as u64)
    );
    match row.author {
        Author::Code { pc } => assert_eq!(Some(pc.0), truth.pc),
        Author::Kernel { event } => assert_eq!(Some(event.0), truth.event),
    }
    assert_eq!(store.value(row).unwrap(), truth.bytes);
}

#[track_caller]
fn check_writes(store: &Store, world: &World, query: &WriteQuery) {
    let mut expected: Vec<_> = world
        .writes
        .iter()
        .filter(|write| {
            query.space.is_none_or(|space| space.0 == write.space)
                && query.task.is_none_or(|task| task.0 == write.task)
                && query.moments.contains(&Moment(write.moment))
                && query.addrs.is_none_or(|range| made::overlaps(write, range))
                && query.pcs.is_none_or(|pcs| write.pc.is_some_and(|pc| pcs.contains(GuestAddr(pc))))
        })
        .collect();
    if query.order == Order::Descending {
        expected.reverse();
    }
    let rows: Vec<WriteRow> = store.writes(query).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), expected.len(), "{query:?}");
    for (row, truth) in rows.iter().zip(expected) {
        same_write(store, row, truth);
    }
}

#[test]
fn writes_agree_with_the_list() {
    for seed in 0..5 {
        let world = World::new(seed, 3000);
        let store = world.open();
        let mut random = made::Random::new(seed + 1000);
        for order in [Order::Ascending, Order::Descending] {
            check_writes(&store, &world, &WriteQuery { order, ..WriteQuery::default() });
            for _ in 0..30 {
                let write = &world.writes[random.below(world.writes.len() as u64) as usize];
                let addrs = GuestRange::new(GuestAddr(write.addr - random.below(9)), 1 + random.below(200));
                let from = Moment(random.below(world.moment));
                let moments = from..Moment(from.0 + random.below(world.moment));
                let pcs = write.pc.map(|pc| GuestRange::new(GuestAddr(pc), 1 + random.below(64)));
                let base = WriteQuery { order, ..WriteQuery::default() };
                let space = Some(SpaceId(write.space));
                let task = Some(TaskId(write.task));
                for query in [
                    WriteQuery { addrs: Some(addrs), ..base.clone() },
                    WriteQuery { addrs: Some(addrs), space, moments: moments.clone(), ..base.clone() },
                    WriteQuery { moments: moments.clone(), task, ..base.clone() },
                    WriteQuery { pcs, space, ..base.clone() },
                    WriteQuery { pcs, addrs: Some(addrs), moments, space, task, order },
                ] {
                    check_writes(&store, &world, &query);
                }
            }
        }
    }
}

#[test]
fn the_last_write_is_the_last_one_across_forks() {
    let mut inherited = 0;
    for seed in 0..5 {
        let world = World::new(seed, 3000);
        let store = world.open();
        let mut random = made::Random::new(seed + 2000);
        for _ in 0..300 {
            let write = &world.writes[random.below(world.writes.len() as u64) as usize];
            let range = GuestRange::new(GuestAddr(write.addr + random.below(16)), 1 + random.below(16));
            let space = SpaceId(random.below(3) as u32);
            let before = Moment(random.below(world.moment + 10));
            let found = store.last_write(space, range, before).unwrap();
            let truth = world.last_write(space.0, range, before.0);
            assert_eq!(found.is_some(), truth.is_some(), "{space} {range:?} {before}");
            if let (Some(row), Some(truth)) = (&found, truth) {
                same_write(&store, row, truth);
                inherited += u32::from(row.space != space);
            }
        }
    }
    assert!(inherited > 10, "only {inherited} answers came from a parent");
}

#[test]
fn a_narrow_question_decodes_few_granules() {
    let world = World::new(5, 6000);
    let store = world.open();
    assert!(world.granules > 30);
    let write = world.writes.iter().rev().find(|write| write.addr < 0x60_3000).unwrap();
    let range = GuestRange::new(GuestAddr(write.addr), write.bytes.len() as u64);
    let row = store.last_write(SpaceId(write.space), range, Moment(write.moment + 1)).unwrap().unwrap();
    same_write(&store, &row, write);
    assert!(store.granules_decoded() <= 2, "{} granules", store.granules_decoded());
    assert!(store.pieces_decoded() <= 1);
    // A walk that is left early decodes no more than it gave.
    let store = world.open();
    let mut writes = store.writes(&WriteQuery::default()).unwrap();
    writes.next().unwrap().unwrap();
    assert!(writes.granules_decoded() <= 2);
    assert_eq!(writes.pieces_decoded(), 0);
}

#[test]
fn executions_agree_with_the_list() {
    for seed in 0..3 {
        let world = World::new(seed, 3000);
        let store = world.open();
        let mut random = made::Random::new(seed + 3000);
        for _ in 0..40 {
            let (_, _, _, pc) = world.executions[random.below(world.executions.len() as u64) as usize];
            let from = Moment(random.below(world.moment));
            let pcs = GuestRange::new(GuestAddr(pc), 1 + random.below(80));
            for order in [Order::Ascending, Order::Descending] {
                let mut query = ExecutionQuery { pcs: Some(pcs), order, ..ExecutionQuery::default() };
                for moments in
                    [Moment(0)..Moment(u64::MAX), from..Moment(from.0 + random.below(world.moment))]
                {
                    query.moments = moments;
                    let mut expected: Vec<_> = world
                        .executions
                        .iter()
                        .filter(|row| {
                            pcs.contains(GuestAddr(row.3)) && query.moments.contains(&Moment(row.0))
                        })
                        .copied()
                        .collect();
                    if order == Order::Descending {
                        expected.reverse();
                    }
                    let rows: Vec<_> = store
                        .executions(&query)
                        .unwrap()
                        .map(|row| row.map(|row| (row.moment.0, row.task.0, row.space.0, row.pc.0)).unwrap())
                        .collect();
                    assert_eq!(rows, expected, "{query:?}");
                }
            }
        }
        counts_agree(&store, &world);
        for &(moment, task, space, pc) in world.executions.iter().step_by(61) {
            let row = store.at(Moment(moment)).unwrap().unwrap();
            assert_eq!((row.task.0, row.space.0, row.pc.0), (task, space, pc), "@{moment}");
        }
        assert_eq!(store.at(Moment(world.moment)).unwrap(), None);
    }
}

/// The counts of whole granules are those of the rows.
fn counts_agree(store: &Store, world: &World) {
    let mut expected: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    for &(_, _, space, pc) in &world.executions {
        *expected.entry((space, pc)).or_default() += 1;
    }
    let count = |space: Option<u32>, code: Option<&[GuestRange]>| {
        let counts = store.executed_code(space.map(SpaceId), code).unwrap();
        counts.into_iter().map(|(space, pc, count)| ((space.0, pc.0), count)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(count(None, None), expected);
    let (&(space, pc), _) = expected.iter().nth(expected.len() / 2).unwrap();
    let pieces = [GuestRange::new(GuestAddr(pc), 8), GuestRange::new(GuestAddr(pc + 16), 1)];
    let within = |key: &(u32, u64)| key.0 == space && pieces.iter().any(|p| p.contains(GuestAddr(key.1)));
    let some: BTreeMap<_, _> =
        expected.iter().filter(|(key, _)| within(key)).map(|(key, count)| (*key, *count)).collect();
    assert_eq!(count(Some(space), Some(&pieces)), some);
    let written: u64 = store.written(None).unwrap().iter().map(|(_, count)| count).sum();
    assert_eq!(written, store.writes(&WriteQuery::default()).unwrap().count() as u64);
}

fn key(row: &CallRow) -> TrueCall {
    TrueCall {
        entry: row.entry.0,
        exit: row.exit.map(|exit| exit.0),
        task: row.task.0,
        space: row.space.0,
        callee: row.callee.0,
        site: row.site.0,
        depth: row.depth,
    }
}

#[test]
fn calls_and_stacks_agree_with_the_list() {
    for seed in 0..5 {
        let world = World::new(seed, 4000);
        let store = world.open();
        let rows: Vec<_> =
            store.calls(&CallQuery::default()).unwrap().map(|row| key(&row.unwrap())).collect();
        let expected: Vec<_> = world.calls.clone();
        assert_eq!(rows.len(), expected.len());
        for (row, truth) in rows.iter().zip(&expected) {
            assert_eq!(row, truth, "seed {seed}");
        }
        let mut random = made::Random::new(seed + 4000);
        for _ in 0..20 {
            let call = expected[random.below(expected.len() as u64) as usize];
            let one = |addr| Some(GuestRange::new(GuestAddr(addr), 1));
            for query in [
                CallQuery { callees: one(call.callee), ..CallQuery::default() },
                CallQuery { sites: one(call.site), order: Order::Descending, ..CallQuery::default() },
            ] {
                let mut expected: Vec<_> = expected
                    .iter()
                    .filter(|truth| {
                        query.callees.is_none_or(|range| range.start.0 == truth.callee)
                            && query.sites.is_none_or(|range| range.start.0 == truth.site)
                    })
                    .copied()
                    .collect();
                if query.order == Order::Descending {
                    expected.reverse();
                }
                let rows: Vec<_> = store.calls(&query).unwrap().map(|row| key(&row.unwrap())).collect();
                assert_eq!(rows, expected);
            }
            let moment = random.below(world.moment);
            let stack: Vec<_> = store
                .stack_at(Moment(moment))
                .unwrap()
                .iter()
                .map(|row| (row.entry.0, row.callee.0))
                .collect();
            assert_eq!(stack, world.stack_at(moment), "seed {seed} @{moment}");
        }
    }
}

#[test]
fn strangers_are_refused_by_name() {
    let world = World::new(1, 200);
    let folder = world.folder.path();
    assert!(matches!(Store::open(folder, &[9; 16]), Err(OpenError::OtherTrace { .. })));
    std::fs::remove_file(folder.join("index.db")).unwrap();
    let foreign = rusqlite::Connection::open(folder.join("index.db")).unwrap();
    foreign.execute_batch("CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID").unwrap();
    assert!(matches!(Store::open(folder, &world::UUID), Err(OpenError::NotAnIndex { .. })));
    // Before format 3, pages had no checksums.
    foreign.execute_batch("INSERT INTO meta VALUES('format_major', 1), ('format_minor', 0)").unwrap();
    assert!(matches!(Store::open(folder, &world::UUID), Err(OpenError::Version { .. })));
    drop(foreign);
    std::fs::write(folder.join("index.db"), b"not a database, really not").unwrap();
    assert!(matches!(Store::open(folder, &world::UUID), Err(OpenError::NotAnIndex { .. })));
    std::fs::remove_file(folder.join("index.db")).unwrap();
    assert!(matches!(Store::open(folder, &world::UUID), Err(OpenError::Absent { .. })));
}
